"""The detector's results for all test images, collected before any label is read."""

from __future__ import annotations

import copy
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ImageError
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.base import Detector
from patchsvdd.images.mvtec_layout import TestImage, find_test_images, find_unlabelled_images
from patchsvdd.scoring.inspection import Inspection

PRODUCT = 0
"""Key of the final anomaly map among the maps of the scales."""
Key: TypeAlias = int | str
"""PRODUCT, the patch size of a scale, or the name of a fused part."""


class MapStore:
    """Maps (H, W) float32 by index, in memory up to ``memory_budget`` bytes, else in a temporary file."""

    def __init__(self, memory_budget: int = 256 * 2**20) -> None:
        # Open as long as the store exists, deleted with it.
        self._file = tempfile.SpooledTemporaryFile(max_size=max(1, memory_budget))  # noqa: SIM115
        self._entries: list[tuple[int, tuple[int, ...]]] = []
        self._end = 0

    def append(self, one: NDArray[np.float32]) -> int:
        """Store a map; returns its index."""
        self._file.seek(self._end)
        self._file.write(np.ascontiguousarray(one, dtype=np.float32).tobytes())
        self._entries.append((self._end, one.shape))
        self._end = self._file.tell()
        return len(self._entries) - 1

    def __getitem__(self, number: int) -> NDArray[np.float32]:
        start, shape = self._entries[number]
        self._file.seek(start)
        content = self._file.read(4 * int(np.prod(shape)))
        return np.frombuffer(content, dtype=np.float32).reshape(shape)


class TestResults:
    """Scores, verdicts and maps of the inspected test images. Labels are not read here."""

    __test__ = False  # not a pytest class

    def __init__(self, category: Path, *, in_folders: bool = True) -> None:
        """Find the images; unless ``in_folders`` is set, folders do not say what they show."""
        self.category = category
        self.test = find_test_images(category, with_masks=False) if in_folders else find_unlabelled_images(category)
        self.images: list[TestImage] = []
        self.scores: dict[Key, list[float]] = defaultdict(list)
        self.anomalous: list[bool] = []
        self.outlines: list[tuple[float | None, int, float]] = []
        """Value of the map that regions extend to, smallest region, and share of the peak, of each image."""
        self.unreadable: list[ImageError] = []
        self._maps = MapStore()
        self._numbers: dict[Key, list[int]] = defaultdict(list)
        self._by_name = {str(image.file): image for image in self.test.images}
        self._start = time.perf_counter()

    @property
    def files(self) -> list[Path]:
        """The images to inspect."""
        return [image.file for image in self.test.images]

    @property
    def keys(self) -> list[Key]:
        """PRODUCT, the patch size of each scale, and the name of each part if maps are fused."""
        return list(self._numbers)

    def add(self, inspection: Inspection) -> None:
        """Add the inspection of one of the files."""
        self.images.append(self._by_name[inspection.name])
        self.anomalous.append(inspection.is_anomalous)
        self.outlines.append((inspection.outline, inspection.map_area, inspection.outline_share))
        maps: list[tuple[Key, NDArray[np.float32]]] = [
            (PRODUCT, inspection.anomaly_map),
            *inspection.scale_maps.items(),
            *inspection.part_maps.items(),
        ]
        for key, one in maps:
            self.scores[key].append(inspection.score if key == PRODUCT else float(one.max()))
            self._numbers[key].append(self._maps.append(one))
        self.seconds = time.perf_counter() - self._start

    def kept(self, images: Mapping[int, TestImage]) -> TestResults:
        """Return the results of some images by index, with what these images show."""
        kept = copy.copy(self)
        kept.images = list(images.values())
        kept.scores = defaultdict(list, {key: [one[i] for i in images] for key, one in self.scores.items()})
        kept.anomalous = [self.anomalous[i] for i in images]
        kept.outlines = [self.outlines[i] for i in images]
        kept._numbers = defaultdict(list, {key: [one[i] for i in images] for key, one in self._numbers.items()})
        return kept

    def map_of(self, index: int, key: Key = PRODUCT) -> NDArray[np.float32]:
        """The map (H, W) of the image at ``index``: the final map, or that of a scale or a part."""
        return self._maps[self._numbers[key][index]]


def inspect_test_images(
    detector: Detector, category: Path, on_progress: OnProgress | None = None, *, in_folders: bool = True
) -> TestResults:
    """Inspect the test images of ``category`` without reading labels or masks."""
    results = TestResults(category, in_folders=in_folders)
    for inspection in detector.inspect_many(results.files, on_error=results.unreadable.append):
        results.add(inspection)
        if on_progress is not None:
            on_progress(len(results.images) + len(results.unreadable), len(results.files))
    return results
