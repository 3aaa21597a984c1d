"""Images and lines of text arranged on a white background."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

PAPER = (255, 255, 255)
INK = (27, 31, 36)
SOFT = (90, 99, 109)
"""Colour of secondary text."""
_FRAME = (207, 211, 216)
_PLAIN = str.maketrans("×–′", "x-'")


def fit(shape: tuple[int, ...], panel: int) -> tuple[int, int]:
    """(width, height) of an image (H, W, …) whose longer side is ``panel`` pixels."""
    height, width = shape[:2]
    longer = max(height, width)
    return max(1, round(panel * width / longer)), max(1, round(panel * height / longer))


def frame(image: Image.Image) -> Image.Image:
    """The image in a thin frame."""
    return ImageOps.expand(image, 1, _FRAME)


def flow(images: Sequence[Image.Image], width: int, gap: int) -> Image.Image:
    """The images from left to right, wrapped into lines of at most ``width`` pixels."""
    corners, x, y, line = [], 0, 0, 0
    for image in images:
        if x and x + image.width > width:
            x, y, line = 0, y + line + gap, 0
        corners.append((x, y))
        x, line = x + image.width + gap, max(line, image.height)
    right = max((x + image.width for (x, _), image in zip(corners, images, strict=True)), default=0)
    sheet = Image.new("RGB", (right, y + line), PAPER)
    for image, corner in zip(images, corners, strict=True):
        sheet.paste(image, corner)
    return sheet


def stack(images: Sequence[Image.Image], gap: int = 0) -> Image.Image:
    """The images one below the other; an empty one leaves no gap."""
    return flow([image for image in images if image.height], 1, gap)


def write(words: str, size: float, width: int, colour: tuple[int, int, int] = INK) -> Image.Image:
    """One line of text, truncated to ``width`` pixels; an empty image for empty text."""
    if not words:
        return Image.new("RGB", (0, 0))
    font = ImageFont.load_default(size=size)
    plain = words.translate(_PLAIN).encode("ascii", "replace").decode().replace(" ", "  ")  # spaces are narrow
    shown = plain
    while plain and font.getlength(shown) > width:
        plain = plain[:-1]
        shown = plain + "..."
    line = Image.new("RGB", (math.ceil(font.getlength(shown)), round(1.4 * size)), PAPER)
    ImageDraw.Draw(line).text((0, line.height / 2), shown, fill=colour, font=font, anchor="lm")
    return line
