"""Anomaly maps of a few test images of each defect type, stored for display after the test."""

from __future__ import annotations

import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.files import atomic_write
from patchsvdd.evaluation.collected_results import TestResults

RANKS = ("highest", "median", "lowest")
"""Images of each defect type to keep, by score."""


@dataclass(frozen=True)
class KeptMaps:
    """One test image and its maps."""

    image: str
    """Relative to the category."""
    defect: str
    rank: str
    """One of RANKS."""
    score: float
    anomalous: bool
    maps: dict[int, NDArray[np.float32]]
    """Patch size (0: the product) → (H, W)."""


class SampleMaps:
    """A list of kept images, and the file of their maps, each quantised to 256 levels between its minimum and
    maximum (for display only)."""

    def __init__(
        self, path: Path | None, about: list[dict[str, Any]], arrays: dict[str, NDArray[np.uint8]] | None = None
    ) -> None:
        self._path = path
        self.about = about
        self._arrays = arrays

    @classmethod
    def choose(cls, results: TestResults) -> SampleMaps:
        """Keep the images with the highest, median and lowest score of each defect type (this reads the labels)."""
        about: list[dict[str, Any]] = []
        arrays: dict[str, NDArray[np.uint8]] = {}
        for rank, index in _select(results):
            image = results.images[index]
            ranges = {}
            for size in (key for key in results.keys if isinstance(key, int)):
                one = results.map_of(index, size)
                low, high = float(one.min()), float(one.max())
                ranges[str(size)] = [low, high]
                arrays[f"{len(about)}.{size}"] = np.rint((one - low) / (high - low or 1.0) * 255).astype(np.uint8)
            about.append(
                {
                    "image": image.file.relative_to(results.category).as_posix(),
                    "defect": image.defect,
                    "rank": rank,
                    "score": results.scores[0][index],
                    "anomalous": results.anomalous[index],
                    "ranges": ranges,
                }
            )
        return cls(None, about, arrays)

    def write(self, path: Path) -> None:
        """Write the maps."""
        with atomic_write(path) as file:
            np.savez_compressed(file, **(self._arrays or {}))  # type: ignore[arg-type]

    def read(self) -> list[KeptMaps]:
        """Every kept image with its maps; an empty list if the file is missing or damaged."""
        arrays: Any = self._arrays
        if arrays is None:
            if self._path is None or not self._path.is_file():
                return []
            try:
                with np.load(self._path) as file:
                    arrays = dict(file)
            except (OSError, ValueError, EOFError, zipfile.BadZipFile):  # missing maps must not fail a run
                return []
        return [
            KeptMaps(
                entry["image"],
                entry["defect"],
                entry["rank"],
                entry["score"],
                entry["anomalous"],
                {int(size): _dequantise(arrays[f"{n}.{size}"], *ends) for size, ends in entry["ranges"].items()},
            )
            for n, entry in enumerate(self.about)
        ]


def _dequantise(levels: NDArray[np.uint8], low: float, high: float) -> NDArray[np.float32]:
    """The map (H, W) of levels in 0 … 255."""
    values: NDArray[np.float32] = (low + levels.astype(np.float64) * ((high - low) / 255)).astype(np.float32)
    return values


def _select(results: TestResults) -> list[tuple[str, int]]:
    """(rank, index) of the images to keep; each image once if a type has fewer than three."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for index, image in enumerate(results.images):
        kinds[image.defect].append(index)
    selected = []
    for members in kinds.values():
        members.sort(key=lambda index: -results.scores[0][index])
        ranks = dict(zip((0, len(members) - 1, len(members) // 2), ("highest", "lowest", "median"), strict=True))
        selected += [(rank, members[index]) for index, rank in sorted(ranks.items())]
    return selected
