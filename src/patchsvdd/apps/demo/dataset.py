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
    """One picture of the data set: all that its content depends on, apart from its size."""

    seed: int
    category: str
    split: str
    """``train`` or ``test``."""
    defect: str
    """``good`` or one of ``DEFECTS[category]``."""
    index: int

    def rng(self) -> np.random.Generator:
        """The source of every random choice of this picture."""
        key = f"{self.seed}/{self.category}/{self.split}/{self.defect}/{self.index}"
        return np.random.default_rng(np.frombuffer(sha256(key.encode()).digest(), dtype="<u4"))

    @property
    def image_path(self) -> Path:
        """Where the picture lies below the data set's folder."""
        return Path(self.category, self.split, self.defect, f"{self.index:03d}.png")

    @property
    def mask_path(self) -> Path | None:
        """Where its mask lies; None for a good part."""
        if self.defect == GOOD:
            return None
        return Path(self.category, "ground_truth", self.defect, f"{self.index:03d}_mask.png")


@dataclass(frozen=True)
class Picture:
    """A drawn picture, what it would be without the defect, and where the defect is."""

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
    """The folder of each category, by name, with every picture of it written.

    ``size`` is the side of the pictures in pixels; ``per_defect`` counts the test pictures of each kind of
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


def draw_picture(shot: Shot, size: int = 160) -> Picture:
    """The picture of one shot; always the same for the same shot and size."""
    rng = shot.rng()
    part = draw_part(shot.category, rng)
    clean = photograph(part.surface(size), part.station)
    noise = part.station.camera.sensor_noise(clean)
    good = develop(clean, noise)
    if shot.defect == GOOD:
        return Picture(good, good, np.zeros((size, size), dtype=bool))
    defects = DEFECTS[shot.category][shot.defect](part, clean, rng, shot.index)
    for defective in islice(defects, ATTEMPTS):
        mask = visible_change(clean, defective)
        if SMALLEST_MASK <= mask.mean() <= LARGEST_MASK and is_clear(clean, defective, mask):
            return Picture(develop(confined(clean, defective, mask), noise), good, mask)
    raise DatasetError(f"no visible {shot.defect} of fitting size in {ATTEMPTS} attempts for {shot}; use another seed")


def _shots(category: str, train: int, test_good: int, per_defect: int, seed: int) -> Iterator[Shot]:
    """Every picture of one category."""
    counts = [("train", GOOD, train), ("test", GOOD, test_good)]
    counts += [("test", defect, per_defect) for defect in DEFECTS[category]]
    for split, defect, count in counts:
        yield from (Shot(seed, category, split, defect, index) for index in range(count))


def _check(categories: Sequence[str], size: int, train: int, test_good: int, per_defect: int) -> None:
    """Nothing, or an error that names the setting that cannot be used."""
    unknown = [name for name in categories if name not in PARTS]
    if unknown:
        raise ConfigError(f"no demo category {unknown[0]!r}; choose from {', '.join(CATEGORIES)}")
    if size < SMALLEST_SIZE:
        raise ConfigError(f"size is {size}; the demo pictures need at least {SMALLEST_SIZE} pixels")
    for name, count in (("train", train), ("test_good", test_good), ("per_defect", per_defect)):
        if count < 0:
            raise ConfigError(f"{name} is {count}; use 0 or more")


def _prepare(folder: Path, categories: Sequence[str], shots: Sequence[Shot]) -> None:
    """The sub-folders of the data set, none of which holds anything that this data set does not write."""
    paths = {folder / path for shot in shots for path in (shot.image_path, shot.mask_path) if path}
    for name in categories:
        for found in sorted((folder / name).rglob("*")):
            if found.is_file() and found not in paths:
                raise DatasetError(
                    f"{folder / name} already holds {found.relative_to(folder / name)}, which is not part of this"
                    " demo data set; choose an empty folder, or delete that one"
                )
    try:
        for parent in sorted({path.parent for path in paths}):
            parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error


def _write(folder: Path, shot: Shot, size: int) -> None:
    """The files of one shot on disk."""
    picture = draw_picture(shot, size)
    try:
        Image.fromarray(picture.image).save(folder / shot.image_path, compress_level=1)
        if shot.mask_path is not None:
            Image.fromarray(picture.mask.astype(np.uint8) * 255).save(folder / shot.mask_path)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
