"""Connected components of the pixels above a level, by runs of pixels in rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROWS_AT_ONCE = 256
"""Rows of a map to process at a time."""


@dataclass(frozen=True)
class Runs:
    """Maximal stretches of pixels above a level, each within one row, in row-major order."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    peaks: NDArray[np.float32]
    """Highest value of each run."""


def runs_above(values: NDArray[np.float32] | NDArray[np.bool_], level: float) -> Runs:
    """The runs of ``values`` (H, W) above ``level``; processes a few rows at a time, because maps may be large."""
    width = values.shape[1]
    parts: list[Runs] = []
    for top in range(0, len(values), ROWS_AT_ONCE):
        part = values[top : top + ROWS_AT_ONCE]
        # A pixel below the level after each row, and one before the first, so that every run starts and stops in a row.
        above = np.zeros(len(part) * (width + 1) + 1, dtype=bool)
        above[1:].reshape(len(part), width + 1)[:, :-1] = part > level
        changes = np.flatnonzero(above[1:] != above[:-1])
        rows, starts = np.divmod(changes[::2], width + 1)
        stops = changes[1::2] - rows * (width + 1)
        # Runs and gaps alternate; a run that ends with the map has no gap after it.
        edges = np.stack((rows * width + starts, rows * width + stops), axis=1).ravel()
        flat = part.ravel()
        peaks = np.maximum.reduceat(np.append(flat, flat[-1:]), edges)[::2] if len(rows) else flat[:0]
        parts.append(Runs(rows + top, starts, stops, peaks.astype(np.float32)))
    return Runs(
        np.concatenate([runs.rows for runs in parts]),
        np.concatenate([runs.starts for runs in parts]),
        np.concatenate([runs.stops for runs in parts]),
        np.concatenate([runs.peaks for runs in parts]),
    )


def label_components(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], int]:
    """8-connected components of a mask (H, W): labels 1 … count (0 outside) in row-major order, and count."""
    runs = runs_above(mask, 0)
    labels = np.zeros(mask.shape, dtype=np.int64)
    if len(runs.rows) == 0:
        return labels, 0
    component, count = components(runs.rows, runs.starts, runs.stops, mask.shape[1])
    labels[mask] = np.repeat(component + 1, runs.stops - runs.starts)  # runs and set pixels are both row-major
    return labels, count


def components(
    rows: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int64], int]:
    """The 8-connected component (0 … count − 1, in row-major order) of each run, and count."""
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


def pixel_indices(runs: Runs, selected: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Row-major indices of the pixels of the selected runs."""
    lengths = runs.stops[selected] - runs.starts[selected]
    first = runs.rows[selected] * width + runs.starts[selected]
    return np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())


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
