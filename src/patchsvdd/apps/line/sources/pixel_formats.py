"""Pixel formats of GenICam cameras as grey or RGB pixels of 8 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GREY_SHIFTS = {"Mono10": 2, "Mono12": 4, "Mono14": 6, "Mono16": 8}
"""Grey formats of two bytes, and the bits that 8 bits leave out."""
BAYER = {
    "BayerRG8": ("RG", "GB"),
    "BayerGR8": ("GR", "BG"),
    "BayerGB8": ("GB", "RG"),
    "BayerBG8": ("BG", "GR"),
}
"""Formats of one colour per pixel, and the colours of the first two pixels of the first two rows."""
FORMATS = ("Mono8", *GREY_SHIFTS, "RGB8", "BGR8", *BAYER)
"""Formats that can be converted."""
OTHER_NAMES = {"RGB8Packed": "RGB8", "BGR8Packed": "BGR8"}
"""Names that GigE Vision cameras had before the present convention."""


def present_name(name: str) -> str:
    """Return the present name of a pixel format."""
    return OTHER_NAMES.get(name, name)


def to_pixels(data: bytes, width: int, height: int, pixel_format: str, padding: int = 0) -> NDArray[np.uint8]:
    """Return (H, W) grey or (H, W, 3) RGB pixels.

    ``padding``: bytes at the end of every row. Raises ValueError if the format is unknown or data is missing. Bayer
    patterns are interpolated bilinearly.
    """
    name = present_name(pixel_format)
    if name not in FORMATS:
        raise ValueError(f"the pixel format {pixel_format} cannot be converted")
    per_pixel = 2 if name in GREY_SHIFTS else 3 if name in ("RGB8", "BGR8") else 1
    stride = width * per_pixel + padding
    if len(data) < stride * height:
        raise ValueError(f"an image has {len(data)} bytes; {stride * height} are expected")
    rows = np.frombuffer(data, np.uint8, stride * height).reshape(height, stride)[:, : width * per_pixel]
    if name in GREY_SHIFTS:
        deep = np.ascontiguousarray(rows).view("<u2")
        return np.asarray(deep >> GREY_SHIFTS[name], np.uint8)
    if name in BAYER:
        return demosaic(rows, name)
    if per_pixel == 3:
        rgb = rows.reshape(height, width, 3)
        return np.ascontiguousarray(rgb if name == "RGB8" else rgb[..., ::-1])
    return np.ascontiguousarray(rows)


def demosaic(raw: NDArray[np.uint8], pixel_format: str) -> NDArray[np.uint8]:
    """Return (H, W, 3) RGB pixels of a Bayer pattern (H, W): missing colours are the mean of the nearest pixels."""
    height, width = raw.shape
    even = np.pad(raw, ((1, 1 + height % 2), (1, 1 + width % 2)), mode="reflect").astype(np.uint16)
    tall, wide = height + height % 2, width + width % 2
    rgb = np.empty((tall, wide, 3), np.uint8)

    def shifted(row: int, column: int, down: int, right: int) -> NDArray[np.uint16]:
        """The neighbours of every pixel at (row, column) of a 2 x 2 cell."""
        return even[1 + row + down : 1 + row + down + tall : 2, 1 + column + right : 1 + column + right + wide : 2][
            : tall // 2, : wide // 2
        ]

    for row in range(2):
        for column in range(2):
            colour = BAYER[pixel_format][row][column]
            horizontal = (shifted(row, column, 0, -1), shifted(row, column, 0, 1))
            vertical = (shifted(row, column, -1, 0), shifted(row, column, 1, 0))
            cell = rgb[row::2, column::2]
            cell[..., "RGB".index(colour)] = shifted(row, column, 0, 0)
            if colour == "G":
                beside = BAYER[pixel_format][row][1 - column]
                cell[..., "RGB".index(beside)] = (horizontal[0] + horizontal[1] + 1) // 2
                cell[..., "RGB".index("B" if beside == "R" else "R")] = (vertical[0] + vertical[1] + 1) // 2
            else:
                diagonal = [shifted(row, column, down, right) for down in (-1, 1) for right in (-1, 1)]
                cell[..., 1] = (sum((*horizontal, *vertical)) + 2) // 4
                cell[..., "RGB".index("B" if colour == "R" else "R")] = (sum(diagonal) + 2) // 4
    return np.ascontiguousarray(rgb[:height, :width])
