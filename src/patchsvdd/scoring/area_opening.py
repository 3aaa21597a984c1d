"""How high a map is where enough of its pixels lie together: the maximum of its area opening."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError
from patchsvdd.scoring.components import components

PIXELS_AT_ONCE = 2**20
"""Pixels of a map that are ranked together, at least."""


def area_in_map(min_area: int, working: tuple[int, int] | None, original: tuple[int, int] | None) -> int:
    """Pixels of the map that are ``min_area`` pixels of an original image, rounded up; 0 for 0.

    ``working``: the (height, width) that images are resized to, ``original``: that before; both are the same where one
    is None. ConfigError if an image has fewer pixels.
    """
    working, original = working or original, original or working
    if min_area == 0 or working is None or original is None:
        return min_area
    pixels = original[0] * original[1]
    if min_area > pixels:
        raise ConfigError(
            f"--min-area {min_area} is more than an image has: {original[1]}x{original[0]} are {pixels} pixels; "
            f"give fewer"
        )
    return -(-min_area * working[0] * working[1] // pixels)


def area_opening_max(anomaly_map: NDArray[np.float32], area: int) -> float:
    """The largest value that ``area`` pixels of the map (H, W) that lie together reach; for 1 or less its maximum.

    The maximum of the map's area opening. It exceeds a threshold exactly if an 8-connected component of what lies above
    that threshold has ``area`` pixels or more.
    """
    height, width = anomaly_map.shape
    if area > anomaly_map.size:
        raise ConfigError(
            f"a map of {width}x{height} pixels cannot have {area} of them above a threshold; give a smaller --min-area"
        )
    highest = float(anomaly_map.max())
    return highest if area <= 1 or np.isnan(highest) else sparse_opening_max(anomaly_map.ravel(), None, width, area)


def sparse_opening_max(values: NDArray[np.float32], indices: NDArray[np.int64] | None, width: int, area: int) -> float:
    """The largest of the values (P,) that ``area`` pixels that lie together reach; −∞ if there are not as many.

    ``places``: where they are, by numbers in reading order; None where they are a whole map.
    """
    low, high = -np.inf, np.inf  # there are as many at ``low``, there are not at ``high``
    count, chosen = area, np.arange(0)
    while count <= len(values):  # mostly few pixels are as high, so more and more are looked at, the highest first
        count = min(4 * count, len(values))
        level = _nth_largest(values, count)
        chosen = np.flatnonzero(values >= level)
        if count == len(values) or _in_large(chosen if indices is None else indices[chosen], width, area).any():
            break
        high = float(level)
    indices, levels = chosen if indices is None else indices[chosen], values[chosen]
    while True:
        between = levels[(levels > low) & (levels < high)]
        if len(between) == 0:
            return low
        middle = np.partition(between, len(between) // 2)[len(between) // 2]
        chosen = np.flatnonzero(levels >= middle)
        chosen = chosen[_in_large(indices[chosen], width, area)]
        if len(chosen):
            low, indices, levels = float(middle), indices[chosen], levels[chosen]  # what is too small here is so above
        else:
            high = float(middle)


def _nth_largest(values: NDArray[np.float32], count: int) -> np.float32:
    """The value that ``count`` of the values (P,) reach, found piece by piece: to sort a large map would take long."""
    kept = values[:0]
    step = max(PIXELS_AT_ONCE, 2 * count)
    for start in range(0, len(values), step):
        piece = values[start : start + step]
        if len(kept) == count:
            piece = piece[piece > kept[0]]
        kept = np.concatenate((kept, piece))
        if len(kept) >= count:
            kept = np.partition(kept, len(kept) - count)[-count:]
    smallest: np.float32 = kept[0]
    return smallest


def _in_large(indices: NDArray[np.int64], width: int, area: int) -> NDArray[np.bool_]:
    """Which of the pixels with these numbers, in reading order, are in an 8-connected component of ``area`` or more."""
    rows, columns = np.divmod(indices, width)
    first = np.flatnonzero((np.diff(indices, prepend=-2) != 1) | (columns == 0))
    lengths = np.diff(first, append=len(indices))
    component, _ = components(rows[first], columns[first], columns[first] + lengths, width)
    return np.repeat(np.bincount(component, weights=lengths)[component] >= area, lengths)
