"""Score that ignores small regions: the maximum of a map's area opening."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError
from patchsvdd.scoring.components import components

PIXELS_AT_ONCE = 2**20
"""Minimum number of pixels to partition at a time."""


def area_in_map(min_area: int, working: tuple[int, int] | None, original: tuple[int, int] | None) -> int:
    """``min_area`` in pixels of the map instead of the original image, rounded up; 0 for 0.

    ``working`` is the (height, width) after resizing, ``original`` before; they are equal if one is None. Raise
    ConfigError if an image has fewer pixels than ``min_area``.
    """
    working, original = working or original, original or working
    if min_area == 0 or working is None or original is None:
        return min_area
    pixels = original[0] * original[1]
    if min_area > pixels:
        raise ConfigError(
            f"`min_area={min_area}` is larger than an image of {original[1]}x{original[0]} ({pixels} pixels); use less"
        )
    return -(-min_area * working[0] * working[1] // pixels)


def area_opening_max(anomaly_map: NDArray[np.float32], area: int) -> float:
    """Maximum of the area opening of a map (H, W): the highest level that ``area`` connected pixels reach.

    It exceeds a threshold exactly if an 8-connected component above that threshold has at least ``area`` pixels. For an
    ``area`` of 1 or less it is the map's maximum.
    """
    height, width = anomaly_map.shape
    if area > anomaly_map.size:
        raise ConfigError(
            f"a map of {width}x{height} pixels cannot have {area} of them above a threshold; use a smaller `min_area`"
        )
    highest = float(anomaly_map.max())
    return highest if area <= 1 or np.isnan(highest) else sparse_opening_max(anomaly_map.ravel(), None, width, area)


def sparse_opening_max(values: NDArray[np.float32], indices: NDArray[np.int64] | None, width: int, area: int) -> float:
    """``area_opening_max`` of values (P,) at pixel ``indices``; −∞ if no component has ``area`` pixels.

    ``indices`` are row-major and ascending; None if the values are a whole map.
    """
    low, high = -np.inf, np.inf  # enough connected pixels at ``low``, too few at ``high``
    count, chosen = area, np.arange(0)
    while count <= len(values):  # start with few, the highest; add more as needed
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
            low, indices, levels = float(middle), indices[chosen], levels[chosen]  # small ones stay small above
        else:
            high = float(middle)


def _nth_largest(values: NDArray[np.float32], count: int) -> np.float32:
    """The ``count``-th largest of the values (P,), found in pieces: sorting a large map would be slow."""
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
    """Which of the pixels with these row-major indices are in an 8-connected component of at least ``area`` pixels."""
    rows, columns = np.divmod(indices, width)
    first = np.flatnonzero((np.diff(indices, prepend=-2) != 1) | (columns == 0))
    lengths = np.diff(first, append=len(indices))
    component, _ = components(rows[first], columns[first], columns[first] + lengths, width)
    return np.repeat(np.bincount(component, weights=lengths)[component] >= area, lengths)
