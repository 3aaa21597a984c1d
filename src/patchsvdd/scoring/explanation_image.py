"""Draw patches next to the normal patches they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SIDE = 184
"""Side of a panel in pixels."""
GAP = 4
"""Gap between a patch and its counterpart."""
STRIP = 24
"""Height of a caption."""
INSPECTED = (255, 0, 144)
"""Outline colour of a patch of the inspected image, the same as for defects."""
NORMAL = (64, 224, 176)
"""Outline colour of a normal patch."""
_BACKGROUND, _INK, _MUTED = (23, 25, 30), (226, 229, 234), (126, 132, 142)
_FONT_SIZE = 12


@dataclass(frozen=True)
class Panel:
    """One patch in its surroundings."""

    image: NDArray[np.uint8] | None
    """(H, W, 3); None if there is no thumbnail."""
    box: tuple[int, int, int, int]
    """The patch: (left, top, right, bottom) in pixels of the image."""
    caption: str
    is_normal: bool


def compare(lines: Sequence[Sequence[Panel]]) -> Image.Image:
    """Draw the panels of each line in pairs, a patch next to its normal counterpart."""
    pairs = max(len(line) for line in lines) // 2
    width, height = pairs * (2 * SIDE + GAP) + (pairs - 1) * 3 * GAP, SIDE + STRIP
    sheet = Image.new("RGB", (width, len(lines) * height), _BACKGROUND)
    for number, line in enumerate(lines):
        for index, panel in enumerate(line):
            left = index // 2 * (2 * SIDE + 4 * GAP) + index % 2 * (SIDE + GAP)
            _draw(sheet, panel, left, number * height)
    return sheet


def _draw(sheet: Image.Image, panel: Panel, left: int, top: int) -> None:
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=_FONT_SIZE)
    text = _shortened(panel.caption, font)
    draw.text((left + 4, top + SIDE + STRIP // 2), text, _INK, font, "lm")
    if panel.image is None:
        draw.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), outline=_MUTED)
        draw.text((left + SIDE // 2, top + SIDE // 2), "no  thumbnail  in  this  model", _MUTED, font, "mm")
        return
    window = surroundings(panel.box, panel.image.shape[:2])
    scale = SIDE / max(window[2] - window[0], window[3] - window[1])
    width, height = (max(1, round(scale * length)) for length in (window[2] - window[0], window[3] - window[1]))
    cut = Image.fromarray(panel.image).crop(window).resize((width, height), Image.Resampling.BICUBIC)
    x, y = left + (SIDE - width) // 2, top + (SIDE - height) // 2
    sheet.paste(cut, (x, y))
    frame = [
        x + round(scale * (panel.box[0] - window[0])),
        y + round(scale * (panel.box[1] - window[1])),
        x + round(scale * (panel.box[2] - window[0])) - 1,
        y + round(scale * (panel.box[3] - window[1])) - 1,
    ]
    # Two lines, dark and bright, are visible on any background.
    draw.rectangle([frame[0] + 2, frame[1] + 2, frame[2] - 2, frame[3] - 2], outline=_BACKGROUND)
    draw.rectangle(frame, outline=NORMAL if panel.is_normal else INSPECTED, width=2)


def surroundings(box: tuple[int, int, int, int], shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Extend a box by half its size on each side, within an image of ``shape`` (H, W); shifted inwards, not cropped."""

    def extent(start: int, stop: int, length: int) -> tuple[int, int]:
        wide = min(2 * (stop - start), length)
        first = min(max(0, (start + stop - wide) // 2), length - wide)
        return first, first + wide

    (left, right), (top, bottom) = extent(box[0], box[2], shape[1]), extent(box[1], box[3], shape[0])
    return left, top, right, bottom


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """The text, or as much of its end as fits below a panel: file names differ at the end.

    The built-in font supports only ASCII, and its spaces are narrow.
    """
    plain = text.encode("ascii", "replace").decode().replace(" ", "  ")
    shown = plain
    while plain and font.getlength(shown) > SIDE - 8:
        plain = plain[1:]
        shown = "..." + plain
    return shown
