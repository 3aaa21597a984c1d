"""Pictures of the good images that are least like the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from patchsvdd.core.errors import DatasetError
from patchsvdd.core.files import atomic_write
from patchsvdd.detector.base import Detector
from patchsvdd.detector.unusual_images import UnusualImage, unusual_images, unusual_in_words
from patchsvdd.report.image_grid import PAPER, SOFT, fit, flow, frame, stack, write

PANEL = 200
"""Longer side of a picture on the sheet, in pixels."""
COLUMNS = 6
RING = 0.09
"""Radius of the ring around a place, as a share of the picture's shorter side."""


@dataclass(frozen=True)
class UnusualPicture:
    """A good image with a ring where it is least like the others."""

    image: UnusualImage
    picture: Image.Image

    @property
    def words(self) -> str:
        """How unusual the image is."""
        outlier = "stands out, " if self.image.stands_out else ""
        return f"{outlier}{self.image.times} × the usual"


def unusual_pictures(detector: Detector, panel: int = PANEL) -> Iterator[UnusualPicture]:
    """Yield the pictures, the least usual image first; none for a model without thumbnails or without a ranking."""
    if detector.pictures is None:
        return
    for image in unusual_images(detector.provenance):
        if image.image < len(detector.pictures):
            yield UnusualPicture(image, with_ring(detector.pictures[image.image], image.at, panel))


def with_ring(pixels: NDArray[np.uint8], at: tuple[float, float], panel: int = PANEL) -> Image.Image:
    """An image (H, W, 3) whose longer side is ``panel`` pixels, with a ring at a place."""
    shown = Image.fromarray(pixels).resize(fit(pixels.shape, panel), Image.Resampling.LANCZOS)
    radius = max(6, round(RING * min(shown.size)))
    down, across = at[0] * shown.height, at[1] * shown.width
    draw = ImageDraw.Draw(shown)
    for width, colour in ((4, (255, 255, 255)), (2, (176, 0, 80))):
        draw.ellipse((across - radius, down - radius, across + radius, down + radius), outline=colour, width=width)
    return shown


def save_unusual_sheet(detector: Detector, path: Path) -> int:
    """Write a sheet of the pictures to ``path`` and return their number; raises DatasetError if there are none."""
    pictures = list(unusual_pictures(detector))
    if not pictures:
        raise DatasetError("this model does not list unusual images; train it again with this version")
    total = detector.provenance["data"]["images"]
    heading = unusual_in_words([each.image for each in pictures], total) or "None of these images stands out"
    width = COLUMNS * (PANEL + 14)
    cells = [_cell(each) for each in pictures]
    sheet = stack([write(heading, 18, width), flow(cells, width, 12)], 12)
    whole = Image.new("RGB", (sheet.width + 32, sheet.height + 32), PAPER)
    whole.paste(sheet, (16, 16))
    with atomic_write(path) as file:
        whole.save(file, "PNG")
    return len(pictures)


def _cell(each: UnusualPicture) -> Image.Image:
    captions: Sequence[Image.Image] = (write(each.image.name, 13, PANEL), write(each.words, 12, PANEL, SOFT))
    return stack([frame(each.picture), *captions], 3)
