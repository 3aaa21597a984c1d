"""Choose the size at which the detector sees images, from the good images."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from patchsvdd.core.config import LARGE_PIXELS, Config
from patchsvdd.core.errors import ImageError
from patchsvdd.core.image_size import AUTO_CANVAS
from patchsvdd.core.placement import Size
from patchsvdd.images.decoding import DECODING_ERRORS, open_image, upright_size
from patchsvdd.images.image_set import ImageLike, decoded

SHORT_SIDE = 256
"""Pixels that the shorter side gets, if the canvas stays within MOST_PIXELS."""
MOST_PIXELS = 5 * SHORT_SIDE**2 // 2
"""Pixels of a canvas, unless small defects require more: 256x640 is the narrowest canvas with the full short side."""
VISIBLE_PIXELS = 5.0
"""Diameter on the canvas of the smallest visible defect: about that of the smallest one the critic is trained on."""
ALIKE = 1.05
"""Largest ratio of two aspect ratios that count as the same."""
COVERED = 0.95
"""Share of the images, at least, that fit the canvas at the common factor; the others are reduced more."""
DEARER = 1.2
"""Cost from which it is mentioned."""
TEXTURES = 48
"""Images whose texture is measured, at most."""
FEWEST_TEXTURES = 8
"""Images whose texture is measured, at least; of fewer, all are resized by the same factor."""
FOLLOWS = 0.85
"""Correlation of texture and image size from which images show the same thing at several resolutions. MVTec categories
at random resolutions have 0.93 or more, random parts of their images 0.76 or less."""
SPREAD = 1.3
"""Ratio of the longest and the shortest image from which that correlation can be measured."""


@dataclass(frozen=True)
class SizeChoice:
    """The canvas for images of the given sizes, and why."""

    image_size: Size
    pixel_scale: float | None
    """The same factor for every image; None if each fills the canvas as far as its aspect ratio allows."""
    scale: float
    """Factor of a typical image."""
    smallest: Size
    """Of the originals, by area."""
    largest: Size
    limited: bool
    """Whether ``smallest_defect`` would have required more pixels than allowed, or than the images have."""

    @property
    def visible_defect(self) -> float:
        """Diameter of the smallest visible defect in pixels of the original image."""
        return VISIBLE_PIXELS / self.scale

    @property
    def cost(self) -> float:
        """Pixels of the canvas, in multiples of a 256x256 image: time and memory grow with them."""
        return math.prod(self.image_size) / SHORT_SIDE**2

    def apply(self, config: Config) -> Config:
        """Return the settings with this size."""
        return dataclasses.replace(
            config,
            image_size=self.image_size,
            fit="letterbox",
            pixel_scale=self.pixel_scale,
            auto_size=False,
            smallest_defect=None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "image_size": list(self.image_size),
            "pixel_scale": self.pixel_scale,
            "scale": round(self.scale, 4),
            "smallest_image": list(self.smallest),
            "largest_image": list(self.largest),
            "visible_defect": round(self.visible_defect, 1),
            "cost": round(self.cost, 2),
            "limited": self.limited,
            "sentence": self.sentence,
        }

    @property
    def sentence(self) -> str:
        """What was chosen, and what is visible at this size."""
        height, width = self.image_size
        if self.smallest == self.largest:
            seen = f"images of {_in_words(self.smallest)} are seen at {width}x{height}"
        elif self.pixel_scale is None:
            seen = (
                f"images of {_in_words(self.smallest)} to {_in_words(self.largest)} are resized to fit {width}x{height}"
            )
        else:
            seen = (
                f"images of {_in_words(self.smallest)} to {_in_words(self.largest)} are seen at {self.scale:.2g} of "
                f"their size on {width}x{height}, mirrored where they do not fill it"
            )
        limit = "; smaller ones would need more pixels than there are or than is practical" if self.limited else ""
        cost = f"; time and memory are about {self.cost:.1f} times those of 256x256" if self.cost > DEARER else ""
        return f"{seen}; the smallest visible defect is about {self.visible_defect:.0f} px wide{limit}{cost}"


def with_chosen_size(config: Config, sources: Sequence[tuple[str, ImageLike]]) -> tuple[Config, SizeChoice | None]:
    """Return the settings with a size for these images, and the choice; unchanged settings if the size is fixed.

    Only headers are read, except for images that differ in aspect ratio.
    """
    if not config.auto_size:
        return config, None
    if config.roi is not None:  # images of another shape are skipped
        choice = choose_size([config.roi.size], common=False, smallest_defect=config.smallest_defect)
        return choice.apply(config), choice
    sizes = {index: size for index, (_, image) in enumerate(sources) if (size := _size_of(image)) is not None}
    if not sizes:
        choice = choose_size([AUTO_CANVAS], common=False)  # loading reports what is wrong with each
        return choice.apply(config), None
    common = not _alike(list(sizes.values())) and not _shows_the_same(sources, sizes)
    choice = choose_size(list(sizes.values()), common=common, smallest_defect=config.smallest_defect)
    return choice.apply(config), choice


def choose_size(sizes: Sequence[Size], *, common: bool, smallest_defect: float | None = None) -> SizeChoice:
    """Choose a canvas for images of these sizes.

    ``common``: resize all by the same factor, as for parts of different sizes at the same distance from the camera.
    Otherwise each image is resized to fit, as for the same part at different resolutions.
    """
    ordered = sorted(sizes, key=math.prod)
    if common:
        whole: tuple[float, float] = (_covering([h for h, _ in sizes]), _covering([w for _, w in sizes]))
        short = statistics.median(min(size) for size in sizes)
    else:
        ratio = statistics.median(height / width for height, width in sizes)
        area = statistics.median(math.prod(size) for size in sizes)
        whole = (math.sqrt(area * ratio), math.sqrt(area / ratio))
        short = min(whole)
    scale = min(SHORT_SIDE / short, math.sqrt(MOST_PIXELS / math.prod(whole)))
    limited = False
    if smallest_defect is not None:
        wanted = VISIBLE_PIXELS / smallest_defect
        most = min(1.0, math.sqrt(LARGE_PIXELS / math.prod(whole)))
        limited = wanted > max(scale, most)
        scale = max(scale, min(wanted, most))
    height, width = (max(SHORT_SIDE // 4, round(side * scale)) for side in whole)
    return SizeChoice((height, width), scale if common else None, scale, ordered[0], ordered[-1], limited)


def texture_size(grey: NDArray[np.float32]) -> float:
    """Return a length in pixels over which an image (H, W) varies: its contrast divided by that of its gradient."""
    down, across = np.diff(grey, axis=0)[:, :-1], np.diff(grey, axis=1)[:-1]
    gradient = math.sqrt(float(np.mean(down**2 + across**2)))
    return float(grey.std()) / gradient if gradient > 0 else math.inf


def _alike(sizes: Sequence[Size]) -> bool:
    ratios = [height / width for height, width in sizes]
    return max(ratios) <= ALIKE * min(ratios)


def _shows_the_same(sources: Sequence[tuple[str, ImageLike]], sizes: dict[int, Size]) -> bool:
    """Whether larger images show the same in more pixels, rather than more of the same.

    In the first case the texture of larger images is coarser, and nothing else determines how coarse it is.
    """
    chosen = list(sizes)[:: max(1, len(sizes) // TEXTURES)][:TEXTURES]
    areas, lengths = [], []
    for index in chosen:
        name, image = sources[index]
        with suppress(ImageError):
            grey = decoded(image, name).astype(np.float32).mean(2)
            length = texture_size(grey)
            if 0 < length < math.inf:
                areas.append(math.log(grey.size))
                lengths.append(math.log(length))
    if len(areas) < FEWEST_TEXTURES or max(areas) - min(areas) < 2 * math.log(SPREAD) or len(set(lengths)) < 2:
        return False
    return statistics.correlation(areas, lengths) >= FOLLOWS


def _size_of(image: ImageLike) -> Size | None:
    """Return (height, width) of an image; None if it cannot be read or is remote."""
    if isinstance(image, Image.Image):
        return upright_size(image)
    if isinstance(image, Tensor):
        return (int(image.shape[-2]), int(image.shape[-1])) if image.ndim in (2, 3) else None
    if isinstance(image, np.ndarray):
        return (int(image.shape[0]), int(image.shape[1])) if image.ndim in (2, 3) else None
    if not isinstance(image, str | os.PathLike):
        return None
    try:
        with open_image(Path(image)) as opened:
            return upright_size(opened)
    except (*DECODING_ERRORS, Image.DecompressionBombError):
        return None


def _covering(sides: Sequence[int]) -> int:
    """Return the smallest side that COVERED of the sides do not exceed."""
    return sorted(sides)[math.ceil(COVERED * len(sides)) - 1]


def _in_words(size: Size) -> str:
    return f"{size[1]}x{size[0]}"
