"""Whether a PNG has all its rows. Pillow accepts compressed data that end early and leaves the missing rows at zero."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from patchsvdd.core.errors import ImageError

SIGNATURE = 8
"""Bytes before the first chunk."""
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Colour type → samples per pixel."""
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Passes of an interlaced image: first column, first row, step of columns, step of rows."""
INFLATED = 1 << 20
"""Bytes inflated at a time."""


def require_all_rows(data: bytes, picture: Image.Image, name: str) -> None:
    """Raise ImageError if rows of a decoded PNG are missing.

    The data are inflated a second time only if one of the last two rows is zero throughout, as missing ones are.
    """
    width, height = picture.size
    last = np.asarray(picture.crop((0, max(0, height - 2), width, height)))
    if last.reshape(len(last), -1).any(axis=1).all():
        return
    expected, found = _expected_bytes(data), _inflated_bytes(data)
    if found < expected:
        raise ImageError(name, f"is truncated: it has {found:,} of {expected:,} bytes of pixels; save or send it again")


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    view, place = memoryview(data), SIGNATURE
    while place + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        yield bytes(view[place + 4 : place + 8]), view[place + 8 : place + 8 + length]
        place += 12 + length


def _expected_bytes(data: bytes) -> int:
    """Bytes of all rows, each with the number of its filter."""
    width, height, depth, colour, _, _, interlace = struct.unpack_from(">IIBBBBB", data, SIGNATURE + 8)
    passes = ADAM7 if interlace else ((0, 0, 1, 1),)
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * depth * CHANNELS[colour] // 8))
    return total


def _inflated_bytes(data: bytes) -> int:
    inflate, total = zlib.decompressobj(), 0
    for kind, content in _chunks(data):
        if kind != b"IDAT":
            continue
        rest: bytes | memoryview = content
        while rest and not inflate.eof:
            total += len(inflate.decompress(rest, INFLATED))
            rest = inflate.unconsumed_tail
    while not inflate.eof and (more := inflate.decompress(inflate.unconsumed_tail, INFLATED)):
        total += len(more)
    return total
