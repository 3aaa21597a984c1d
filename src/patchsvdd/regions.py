"""Connected regions of an anomaly map above a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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

    labels, count = label_components(in_regions(anomaly_map, threshold, outline))
    if count == 0:
        return ()
    ys, xs = np.nonzero(labels)
    owner = labels[ys, xs] - 1
    values = anomaly_map[ys, xs]

    area = np.bincount(owner, minlength=count)
    left, top = np.full(count, width), np.full(count, height)
    right, bottom = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.minimum.at(left, owner, xs)
    np.minimum.at(top, owner, ys)
    np.maximum.at(right, owner, xs + 1)
    np.maximum.at(bottom, owner, ys + 1)
    order = np.lexsort((-values, owner))  # by component, its highest value first
    first = order[np.searchsorted(owner[order], np.arange(count))]

    regions = [
        Region(
            box=(
                int(left[i] * image_width // width),
                int(top[i] * image_height // height),
                int(-(-right[i] * image_width // width)),  # rounded up, in integers: floats overshoot
                int(-(-bottom[i] * image_height // height)),
            ),
            area=max(1, round(float(area[i]) * scale_x * scale_y)),
            peak=float(values[first[i]]),
            peak_at=(int((xs[first[i]] + 0.5) * scale_x), int((ys[first[i]] + 0.5) * scale_y)),
        )
        for i in range(count)
    ]
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
    height, width = mask.shape
    # A run is a maximal stretch of set pixels in one row; components are joined runs.
    padded = np.zeros((height, width + 2), dtype=np.int8)
    padded[:, 1:-1] = mask
    change = np.diff(padded, axis=1)
    rows, starts = np.nonzero(change == 1)
    _, stops = np.nonzero(change == -1)
    count = len(rows)
    if count == 0:
        return np.zeros(mask.shape, dtype=np.int64), 0

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
    labels = np.zeros(mask.shape, dtype=np.int64)
    lengths = stops - starts
    labels[mask] = np.repeat(component + 1, lengths)  # runs and set pixels share the reading order
    return labels, int(component.max()) + 1


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
