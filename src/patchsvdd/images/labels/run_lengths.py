"""Masks as lengths of runs: COCO's counts, as a list or a string, and the packed bits of Label Studio's brush."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from patchsvdd.images.labels.shapes import Size

LENGTH_BITS = (3, 4, 8, 16)
"""Bits in which the length of a run is written, one of four widths."""
CHANNELS = 4
"""Label Studio stores red, green, blue and alpha of every pixel; alpha is the mask."""
HALF = 128
"""Alpha of a pixel that is covered at least half."""


def counts_of(mask: NDArray[np.bool_]) -> list[int]:
    """Return COCO's counts of a mask (H, W): lengths of runs by column, first of pixels that are not set."""
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    starts = [0, *edges.tolist(), flat.size]
    lengths = np.diff(starts).tolist()
    return [0, *lengths] if flat.size and flat[0] else lengths


def mask_from_counts(counts: Sequence[object], size: Size) -> NDArray[np.bool_]:
    """Return the mask (H, W) of COCO's counts; raise ValueError if they do not fit the size."""
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise ValueError("its counts are not whole numbers from 0")
    total = sum(counts)  # type: ignore[arg-type]
    if total != size[0] * size[1]:
        raise ValueError(f"its counts cover {total:,} pixels, and {size[1]} x {size[0]} are {size[0] * size[1]:,}")
    values = np.arange(len(counts)) % 2 == 1
    flat = np.repeat(values, np.array(counts, np.int64))
    return flat.reshape(size, order="F")


def counts_to_text(counts: Sequence[int]) -> str:
    """Return counts as COCO's string: five bits a character, and from the fourth on differences to the last but one."""
    letters = []
    for index, count in enumerate(counts):
        rest = count - counts[index - 2] if index > 2 else count
        more = True
        while more:
            bits = rest & 31
            rest >>= 5
            more = rest != (-1 if bits & 16 else 0)
            letters.append(chr(48 + bits + (32 if more else 0)))
    return "".join(letters)


def counts_from_text(text: str) -> list[int]:
    """Return the counts of COCO's string; raise ValueError if it is damaged."""
    counts: list[int] = []
    value = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 35:
            raise ValueError("its counts are damaged")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("its counts end in the middle of a number")
    return counts


def pack_brush(mask: NDArray[np.bool_]) -> list[int]:
    """Return a mask (H, W) as Label Studio's brush stores it: bytes of packed runs."""
    bits = [_bits(CHANNELS * mask.size, 32), _bits(7, 5), *(_bits(length - 1, 4) for length in LENGTH_BITS)]
    value, longest = False, 1 << LENGTH_BITS[-1]
    for count in counts_of(mask.T):  # by row
        left = CHANNELS * count
        while left:
            length = min(left, longest)
            width = next(index for index, size in enumerate(LENGTH_BITS) if length <= 1 << size)
            bits += ["1", _bits(width, 2), _bits(length - 1, LENGTH_BITS[width]), "11111111" if value else "00000000"]
            left -= length
        value = not value
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return list(int(text, 2).to_bytes(len(text) // 8, "big"))


def unpack_brush(packed: Sequence[object], size: Size) -> NDArray[np.bool_]:
    """Return the mask (H, W) of Label Studio's brush; raise ValueError if the bytes are damaged or do not fit."""
    try:
        data = bytes(packed)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError("its brush is not a list of bytes") from None
    flat = np.zeros(size[0] * size[1], np.bool_)
    for start, values in _runs(data, CHANNELS * flat.size):
        first = -(-(start - CHANNELS + 1) // CHANNELS)  # the first pixel whose alpha is at or after ``start``
        if isinstance(values, tuple):
            length, value = values
            flat[max(0, first) : (start + length) // CHANNELS] = value >= HALF
        else:
            alpha = values[CHANNELS * first + CHANNELS - 1 - start :: CHANNELS]
            flat[first : first + len(alpha)] = alpha >= HALF
    return flat.reshape(size)


def _bits(value: int, width: int) -> str:
    return format(value, f"0{width}b")


def _runs(data: bytes, expected: int) -> Iterator[tuple[int, tuple[int, int] | NDArray[np.uint8]]]:
    """Yield where a run starts, and its length and value, or the values of a run that differ."""
    reader = _BitReader(data)
    number, word = reader.read(32), reader.read(5) + 1
    if number != expected:
        raise ValueError(f"its brush holds {number:,} values, and the image needs {expected:,}")
    if word != 8:
        raise ValueError(f"its brush has {word} bits per value; only 8 are supported")
    widths = [reader.read(4) + 1 for _ in range(4)]
    start = 0
    while start < number:
        is_run = reader.read(1)
        length = min(reader.read(widths[reader.read(2)]) + 1, number - start)
        yield start, (length, reader.read(8)) if is_run else reader.read_bytes(length)
        start += length


class _BitReader:
    """Reads numbers of some bits from bytes; raises ValueError at their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self, width: int) -> int:
        """Return the number in the next ``width`` bits."""
        end = self._at + width
        if end > 8 * len(self._data):
            raise ValueError("its brush ends too early")
        part = int.from_bytes(self._data[self._at // 8 : -(-end // 8)], "big") >> (-end % 8)
        self._at = end
        return part & ((1 << width) - 1)

    def read_bytes(self, count: int) -> NDArray[np.uint8]:
        """Return the next ``count`` numbers of eight bits."""
        end = self._at + 8 * count
        if end > 8 * len(self._data):
            raise ValueError("its brush ends too early")
        part = np.frombuffer(self._data, np.uint8)[self._at // 8 : -(-end // 8)]
        bits = np.unpackbits(part)[self._at % 8 :][: 8 * count]
        self._at = end
        return np.packbits(bits)
