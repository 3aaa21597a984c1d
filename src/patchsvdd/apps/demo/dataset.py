"""draw_dataset: three categories of parts with their defects, as a folder in MVTec layout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.apps.demo.camera import develop
from patchsvdd.apps.demo.defects import DEFECTS
from patchsvdd.apps.demo.masks import confined, is_clear, visible_change
from patchsvdd.apps.demo.parts import PARTS, draw_part, photograph
from patchsvdd.core.errors import ConfigError, DatasetError, OutputError

CATEGORIES = tuple(PARTS)
GOOD = "good"
SMALLEST_SIZE = 64
SMALLEST_MASK, LARGEST_MASK = 0.003, 0.20  # of the image
ATTEMPTS = 40


@dataclass(frozen=True)
class Shot:
    """One image of the data set: everything its content depends on, except its size."""

    seed: int
    category: str
    split: str
    """``train`` or ``test``."""
    defect: str
    """``good`` or one of ``DEFECTS[category]``."""
    index: int

    def rng(self) -> np.random.Generator:
        """The random generator of this image."""
        key = f"{self.seed}/{self.category}/{self.split}/{self.defect}/{self.index}"
        return np.random.default_rng(np.frombuffer(sha256(key.encode()).digest(), dtype="<u4"))

    @property
    def image_path(self) -> Path:
        """Path of the image, relative to the data set's folder."""
        return Path(self.category, self.split, self.defect, f"{self.index:03d}.png")

    @property
    def mask_path(self) -> Path | None:
        """Path of its mask; None for a good part."""
        if self.defect == GOOD:
            return None
        return Path(self.category, "ground_truth", self.defect, f"{self.index:03d}_mask.png")


@dataclass(frozen=True)
class RenderedImage:
    """A rendered image, the same image without the defect, and the defect mask."""

    image: NDArray[np.uint8]
    """(size, size, 3)."""
    clean: NDArray[np.uint8]
    """(size, size, 3); equal to ``image`` outside ``mask``."""
    mask: NDArray[np.bool_]
    """(size, size); empty for a good part."""


def draw_dataset(
    folder: Path,
    *,
    size: int = 160,
    train: int = 40,
    test_good: int = 10,
    per_defect: int = 5,
    seed: int = 0,
    categories: Sequence[str] | None = None,
) -> dict[str, Path]:
    """Write the data set; returns the folder of each category by name.

    ``size`` is the side of the images in pixels; ``per_defect`` is the number of test images of each kind of
    defect. Two calls with the same arguments write the same bytes.
    """
    names = tuple(dict.fromkeys(CATEGORIES if categories is None else categories))
    _check(names, size, train, test_good, per_defect)
    shots = [shot for name in names for shot in _shots(name, train, test_good, per_defect, seed)]
    _prepare(folder, names, shots)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for _ in pool.map(lambda shot: _write(folder, shot, size), shots):
            pass
    return {name: folder / name for name in names}


def render_image(shot: Shot, size: int = 160) -> RenderedImage:
    """The image of one shot; deterministic for a given shot and size."""
    rng = shot.rng()
    part = draw_part(shot.category, rng)
    clean = photograph(part.surface(size), part.station)
    noise = part.station.camera.sensor_noise(clean)
    good = develop(clean, noise)
    if shot.defect == GOOD:
        return RenderedImage(good, good, np.zeros((size, size), dtype=bool))
    defects = DEFECTS[shot.category][shot.defect](part, clean, rng, shot.index)
    for defective in islice(defects, ATTEMPTS):
        mask = visible_change(clean, defective)
        if SMALLEST_MASK <= mask.mean() <= LARGEST_MASK and is_clear(clean, defective, mask):
            return RenderedImage(develop(confined(clean, defective, mask), noise), good, mask)
    raise DatasetError(f"no visible {shot.defect} of suitable size in {ATTEMPTS} attempts for {shot}; use another seed")


def _shots(category: str, train: int, test_good: int, per_defect: int, seed: int) -> Iterator[Shot]:
    """All images of one category."""
    counts = [("train", GOOD, train), ("test", GOOD, test_good)]
    counts += [("test", defect, per_defect) for defect in DEFECTS[category]]
    for split, defect, count in counts:
        yield from (Shot(seed, category, split, defect, index) for index in range(count))


def _check(categories: Sequence[str], size: int, train: int, test_good: int, per_defect: int) -> None:
    """Raise ConfigError if a setting is invalid."""
    unknown = [name for name in categories if name not in PARTS]
    if unknown:
        raise ConfigError(f"unknown demo category {unknown[0]!r}; choose from {', '.join(CATEGORIES)}")
    if size < SMALLEST_SIZE:
        raise ConfigError(f"size is {size}; the demo images need at least {SMALLEST_SIZE} pixels")
    for name, count in (("train", train), ("test_good", test_good), ("per_defect", per_defect)):
        if count < 0:
            raise ConfigError(f"{name} is {count}; use 0 or more")


def _prepare(folder: Path, categories: Sequence[str], shots: Sequence[Shot]) -> None:
    """Create the folders of the data set; raises DatasetError if they contain other files."""
    paths = {folder / path for shot in shots for path in (shot.image_path, shot.mask_path) if path}
    for name in categories:
        for file in sorted((folder / name).rglob("*")):
            if file.is_file() and file not in paths:
                raise DatasetError(
                    f"{folder / name} already contains {file.relative_to(folder / name)}, which is not part of this"
                    " demo data set; choose an empty folder, or delete that one"
                )
    try:
        for parent in sorted({path.parent for path in paths}):
            parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error


def _write(folder: Path, shot: Shot, size: int) -> None:
    """Write the image and the mask of one shot."""
    rendered = render_image(shot, size)
    try:
        Image.fromarray(rendered.image).save(folder / shot.image_path, compress_level=1)
        if shot.mask_path is not None:
            Image.fromarray(rendered.mask.astype(np.uint8) * 255).save(folder / shot.mask_path)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
