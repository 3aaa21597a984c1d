"""Pictures and lines of text put together on white paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

PAPER = (255, 255, 255)
INK = (27, 31, 36)
SOFT = (90, 99, 109)
"""Colour of what stands back."""
_FRAME = (207, 211, 216)
_PLAIN = str.maketrans("×–′", "x-'")


def fit(shape: tuple[int, ...], panel: int) -> tuple[int, int]:
    """(width, height) of an image (H, W, …) whose longer side is ``panel`` pixels."""
    height, width = shape[:2]
    longer = max(height, width)
    return max(1, round(panel * width / longer)), max(1, round(panel * height / longer))


def frame(picture: Image.Image) -> Image.Image:
    """The picture in a thin frame."""
    return ImageOps.expand(picture, 1, _FRAME)


def flow(pictures: Sequence[Image.Image], width: int, gap: int) -> Image.Image:
    """The pictures from left to right, in as many lines as ``width`` asks for."""
    places, x, y, line = [], 0, 0, 0
    for picture in pictures:
        if x and x + picture.width > width:
            x, y, line = 0, y + line + gap, 0
        places.append((x, y))
        x, line = x + picture.width + gap, max(line, picture.height)
    right = max((x + picture.width for (x, _), picture in zip(places, pictures, strict=True)), default=0)
    sheet = Image.new("RGB", (right, y + line), PAPER)
    for picture, place in zip(pictures, places, strict=True):
        sheet.paste(picture, place)
    return sheet


def stack(pictures: Sequence[Image.Image], gap: int = 0) -> Image.Image:
    """The pictures one below the other; an empty one leaves no gap."""
    return flow([picture for picture in pictures if picture.height], 1, gap)


def write(words: str, size: float, width: int, colour: tuple[int, int, int] = INK) -> Image.Image:
    """One line of text, cut to ``width``; an empty picture without words."""
    if not words:
        return Image.new("RGB", (0, 0))
    font = ImageFont.load_default(size=size)
    plain = words.translate(_PLAIN).encode("ascii", "replace").decode().replace(" ", "  ")  # its spaces are narrow
    shown = plain
    while plain and font.getlength(shown) > width:
        plain = plain[:-1]
        shown = plain + "..."
    line = Image.new("RGB", (math.ceil(font.getlength(shown)), round(1.4 * size)), PAPER)
    ImageDraw.Draw(line).text((0, line.height / 2), shown, fill=colour, font=font, anchor="lm")
    return line
