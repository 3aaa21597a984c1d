"""Connected regions of an anomaly map above a threshold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.scoring.area_opening import sparse_opening_max
from patchsvdd.scoring.components import Runs, components, pixel_indices, runs_above


@dataclass(frozen=True)
class Region:
    """One connected region above the threshold, in pixels of the original image."""

    box: tuple[int, int, int, int]
    """(left, top, right, bottom); right and bottom are exclusive."""
    area: int
    """Number of pixels of the original image."""
    peak: float
    """Largest value of the anomaly map in the region."""
    peak_at: tuple[int, int]
    """(x, y) of that value."""
    score: float
    """The highest level that enough connected pixels reach; equal to the peak unless a minimum area is set."""
    kind: str | None = None
    """The kind of confirmed defect that its image resembles; None if it resembles none."""
    like: str | None = None
    """The same in words, such as "like scratch, 3 confirmed in May 2026"."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        where = {"box": list(self.box), "area": self.area}
        peak = {"peak": self.peak, "peak_at": list(self.peak_at), "score": self.score}
        return {**where, **peak, "kind": self.kind, "like": self.like}


def find_regions(
    anomaly_map: NDArray[np.float32],
    threshold: float,
    image_size: tuple[int, int] | None = None,
    outline: float | None = None,
    min_area: int = 0,
    share: float = 0.0,
) -> tuple[Region, ...]:
    """Regions of ``anomaly_map`` (H, W) above ``threshold``, highest score first.

    ``image_size`` is the (height, width) of the original image; boxes are scaled to it. With an ``outline`` below the
    threshold, regions extend down to the outline around pixels above the threshold. With an outline above it, regions
    that exceed the outline consist of the pixels above the outline; others of those above the threshold. Pixels not
    above a ``share`` of their region's peak are left out. Regions without ``min_area`` connected pixels of the map
    above the threshold are ignored.
    """
    height, width = anomaly_map.shape
    image_height, image_width = image_size or (height, width)
    scale_y, scale_x = image_height / height, image_width / width

    parts = _find(anomaly_map, threshold, outline, min_area, share)
    if parts is None:
        return ()
    runs, component, peak, score = parts.runs, parts.component, parts.peak, parts.score
    count = len(peak)
    area = np.bincount(component, weights=runs.stops - runs.starts, minlength=count)
    left, top = np.full(count, width), np.full(count, height)
    right, bottom = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.minimum.at(left, component, runs.starts)
    np.minimum.at(top, component, runs.rows)
    np.maximum.at(right, component, runs.stops)
    np.maximum.at(bottom, component, runs.rows + 1)
    highest = np.flatnonzero(runs.peaks == peak[component])
    _, first = np.unique(component[highest], return_index=True)  # row-major

    regions = []
    for i in np.flatnonzero(parts.is_region):
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
            score=float(score[i]),
        )
        regions.append(region)
    return tuple(sorted(regions, key=lambda region: -region.score))


def region_mask(
    anomaly_map: NDArray[np.float32],
    threshold: float,
    outline: float | None,
    min_area: int = 0,
    share: float = 0.0,
) -> NDArray[np.bool_]:
    """(H, W) bool: pixels of the regions that ``find_regions`` returns."""
    mask = np.zeros(anomaly_map.shape, dtype=np.bool_)
    parts = _find(anomaly_map, threshold, outline, min_area, share)
    if parts is not None:
        selected = np.flatnonzero(parts.is_region[parts.component])
        mask.ravel()[pixel_indices(parts.runs, selected, anomaly_map.shape[1])] = True
    return mask


@dataclass(frozen=True)
class _Parts:
    """Components above an outline, and which of them are regions."""

    runs: Runs
    component: NDArray[np.int64]
    """Component of each run."""
    peak: NDArray[np.float32]
    """Of each component, like the following fields."""
    score: NDArray[np.float32]
    is_region: NDArray[np.bool_]
    """Whether the score exceeds the threshold."""


def _find(
    anomaly_map: NDArray[np.float32], threshold: float, outline: float | None, min_area: int, share: float
) -> _Parts | None:
    """The components above the outline; None if no pixel exceeds the threshold."""
    threshold, outline = round_down(threshold), None if outline is None else round_down(outline)
    runs = runs_above(anomaly_map, threshold if outline is None else min(outline, threshold))
    if len(runs.rows) == 0 or runs.peaks.max() <= threshold:
        return None
    width = anomaly_map.shape[1]
    component, count = components(runs.rows, runs.starts, runs.stops, width)
    peak = np.full(count, -np.inf, dtype=np.float32)
    np.maximum.at(peak, component, runs.peaks)
    if min_area <= 1:
        return _cut(_Parts(runs, component, peak, peak, peak > threshold), anomaly_map, threshold, outline, share)
    score = np.full(count, -np.inf, dtype=np.float32)
    order = np.argsort(component, kind="stable")  # stable: row-major within a component
    edges = np.searchsorted(component[order], np.arange(count + 1))
    values = anomaly_map.ravel()
    for i in np.flatnonzero(peak > threshold):
        places = pixel_indices(runs, order[edges[i] : edges[i + 1]], width)
        places = places[values[places] > threshold]
        score[i] = sparse_opening_max(values[places], places, width, min_area)
    return _cut(_Parts(runs, component, peak, score, score > threshold), anomaly_map, threshold, outline, share)


def _cut(
    parts: _Parts, anomaly_map: NDArray[np.float32], threshold: float, outline: float | None, share: float
) -> _Parts:
    """Restrict components to the pixels above an outline above the threshold, and above a share of their peak."""
    level = threshold if outline is None else min(outline, threshold)
    cut = np.maximum(level, [round_down(share * float(peak)) for peak in parts.peak])
    if outline is not None and outline > threshold:
        cut = np.maximum(cut, np.where(parts.peak > outline, outline, level))
    cut = np.where(parts.is_region, cut, level)
    if (cut <= level).all():
        return parts
    runs, width = parts.runs, anomaly_map.shape[1]
    places = pixel_indices(runs, np.arange(len(runs.rows)), width)
    owner = np.repeat(parts.component, runs.stops - runs.starts)
    values = anomaly_map.ravel()[places]
    kept = values > cut[owner]
    places, owner, values = places[kept], owner[kept], values[kept]
    first = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    first = np.union1d(first, np.flatnonzero(places % width == 0)) if len(places) else first
    last = np.append(first[1:], len(places)) - 1
    rows, starts = places[first] // width, places[first] % width
    inner = Runs(rows, starts, places[last] % width + 1, np.maximum.reduceat(values, first))
    return replace(parts, runs=inner, component=owner[first])


def round_down(value: float) -> float:
    """The largest float32 not above ``value``; a float32 exceeds both or neither.

    Comparing with ``value`` directly would round it, possibly up.
    """
    rounded = np.float32(value)
    return float(rounded if float(rounded) <= value else np.nextafter(rounded, np.float32(-np.inf)))
