"""Connected regions of an anomaly map above a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS_AT_ONCE = 256
"""Rows of a map that are looked at together."""


@dataclass(frozen=True)
class Region:
    """One connected part of the map above the threshold, in pixels of the original image."""

    box: tuple[int, int, int, int]
    """(left, top, right, bottom); right and bottom are exclusive."""
    area: int
    """Pixels of the original image in it."""
    peak: float
    """Largest value of the anomaly map inside."""
    peak_at: tuple[int, int]
    """(x, y) of that value."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"box": list(self.box), "area": self.area, "peak": self.peak, "peak_at": list(self.peak_at)}


def find_regions(
    anomaly_map: NDArray[np.float32],
    threshold: float,
    image_size: tuple[int, int] | None = None,
    outline: float | None = None,
) -> tuple[Region, ...]:
    """Regions of ``anomaly_map`` (H, W) above ``threshold``, highest peak first.

    ``image_size`` is the (height, width) of the original image; boxes are scaled to it. With an ``outline`` below the
    threshold a region is all that lies above the outline around what lies above the threshold.
    """
    height, width = anomaly_map.shape
    image_height, image_width = image_size or (height, width)
    scale_y, scale_x = image_height / height, image_width / width

    level = threshold if outline is None else min(outline, threshold)
    runs = _runs_above(anomaly_map, level)
    if len(runs.rows) == 0 or runs.peaks.max() <= threshold:
        return ()
    component, count = _components(runs, width)
    peak = np.full(count, -np.inf, dtype=np.float32)
    np.maximum.at(peak, component, runs.peaks)
    area = np.bincount(component, weights=runs.stops - runs.starts, minlength=count)
    left, top = np.full(count, width), np.full(count, height)
    right, bottom = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.minimum.at(left, component, runs.starts)
    np.minimum.at(top, component, runs.rows)
    np.maximum.at(right, component, runs.stops)
    np.maximum.at(bottom, component, runs.rows + 1)
    highest = np.flatnonzero(runs.peaks == peak[component])
    _, first = np.unique(component[highest], return_index=True)  # in reading order

    regions = []
    for i in np.flatnonzero(peak > threshold):
        run = highest[first[i]]
        y, start = int(runs.rows[run]), int(runs.starts[run])
        x = start + int(anomaly_map[y, start : runs.stops[run]].argmax())
        region = Region(
            box=(
                int(left[i] * image_width // width),
                int(top[i] * image_height // height),
                int(-(-right[i] * image_width // width)),  # rounded up, in integers: floats overshoot
                int(-(-bottom[i] * image_height // height)),
            ),
            area=max(1, round(float(area[i]) * scale_x * scale_y)),
            peak=float(peak[i]),
            peak_at=(int((x + 0.5) * scale_x), int((y + 0.5) * scale_y)),
        )
        regions.append(region)
    return tuple(sorted(regions, key=lambda region: -region.peak))


def in_regions(anomaly_map: NDArray[np.float32], threshold: float, outline: float | None) -> NDArray[np.bool_]:
    """(H, W) pixels of regions: above the threshold, or above the outline and joined to such."""
    above: NDArray[np.bool_] = anomaly_map > threshold
    if outline is None or outline >= threshold or not above.any():
        return above
    labels, count = label_components(anomaly_map > outline)
    wanted = np.zeros(count + 1, dtype=np.bool_)
    wanted[labels[above]] = True
    return wanted[labels]


def label_components(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], int]:
    """8-connected components of a mask (H, W): labels 1 … count (0 outside) in reading order, and count."""
    runs = _runs_above(mask, 0)
    labels = np.zeros(mask.shape, dtype=np.int64)
    if len(runs.rows) == 0:
        return labels, 0
    component, count = _components(runs, mask.shape[1])
    labels[mask] = np.repeat(component + 1, runs.stops - runs.starts)  # runs and set pixels share the reading order
    return labels, count


@dataclass(frozen=True)
class _Runs:
    """Maximal stretches of pixels above a level, each in one row, in reading order."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    peaks: NDArray[np.float32]
    """Highest value of each."""


def _runs_above(values: NDArray[np.float32] | NDArray[np.bool_], level: float) -> _Runs:
    """The runs of ``values`` (H, W) above ``level``, found in a few rows at a time: a map may be large."""
    width = values.shape[1]
    found: list[_Runs] = []
    for top in range(0, len(values), ROWS_AT_ONCE):
        part = values[top : top + ROWS_AT_ONCE]
        padded = np.zeros((len(part), width + 2), dtype=np.int8)
        padded[:, 1:-1] = part > level
        change = np.diff(padded, axis=1)
        rows, starts = np.nonzero(change == 1)
        _, stops = np.nonzero(change == -1)
        # Stretches in and between runs take turns; a stop at the very end has no stretch after it.
        edges = np.stack((rows * width + starts, rows * width + stops), axis=1).ravel()
        flat = part.ravel()
        peaks = np.maximum.reduceat(np.append(flat, flat[-1:]), edges)[::2] if len(rows) else flat[:0]
        found.append(_Runs(rows + top, starts, stops, peaks.astype(np.float32)))
    return _Runs(
        np.concatenate([runs.rows for runs in found]),
        np.concatenate([runs.starts for runs in found]),
        np.concatenate([runs.stops for runs in found]),
        np.concatenate([runs.peaks for runs in found]),
    )


def _components(runs: _Runs, width: int) -> tuple[NDArray[np.int64], int]:
    """Which 8-connected component (0 … count − 1, in reading order) each run is part of, and count."""
    rows, starts, stops = runs.rows, runs.starts, runs.stops
    count = len(rows)
    # Run a touches runs b of the next row with start_b <= stop_a and stop_b >= start_a (diagonals count).
    # One key per (row, column) makes both bounds a binary search over all runs at once.
    stride = width + 2
    first = np.searchsorted(rows * stride + stops, (rows + 1) * stride + starts, side="left")
    last = np.searchsorted(rows * stride + starts, (rows + 1) * stride + stops, side="right")
    touching = np.maximum(last - first, 0)
    a = np.repeat(np.arange(count), touching)
    b = np.arange(len(a)) - np.repeat(np.cumsum(touching) - touching, touching) + np.repeat(first, touching)

    root = _join(count, a, b)
    _, component = np.unique(root, return_inverse=True)
    return component, int(component.max()) + 1


def _join(count: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of ``count`` nodes the smallest node it is connected to through the edges (a, b)."""
    root = np.arange(count)
    while True:
        lowest = np.minimum(root[a], root[b])
        joined = root.copy()
        np.minimum.at(joined, root[a], lowest)
        np.minimum.at(joined, root[b], lowest)
        while not np.array_equal(joined, joined[joined]):
            joined = joined[joined]
        if np.array_equal(joined, root):
            return root
        root = joined
