"""Rank defects and good examples by score: the basis of every metric."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

VISIBLE = 1e-4
"""Deviation from a curve in the unit square that is too small to see in a plot."""
MARGIN = 0.003
"""Minimum improvement of a criterion for one setting to replace another; less is chance."""


@dataclass(frozen=True)
class Curve:
    """Points of a polyline in the unit square, from left to right."""

    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Ranking:
    """Defects and good examples by descending score: all that the metrics need.

    One entry for each distinct score of a defect, highest first. The counts are whole numbers in float64, so that their
    sums are exact; ``defect`` may hold weights instead.
    """

    values: NDArray[np.floating[Any]]
    defect: NDArray[np.float64]
    """Defects with this score."""
    tied: NDArray[np.float64]
    """Good examples with this score."""
    above: NDArray[np.float64]
    """Good examples with a higher score."""
    good: float
    """Number of good examples."""

    def __post_init__(self) -> None:
        if len(self.values) == 0 or self.good == 0:
            raise ValueError(
                f"at least one defect and one good example are needed, got {self.defect.sum():g} defects "
                f"and {self.good:g} good ones: leave this metric out"
            )

    def area(self, limit: float = 1.0) -> float:
        """Mean height in [0, 1] of the ROC curve left of ``limit``: AUROC, or AUPRO if defects are weighted."""
        x, y = self._corners_until(limit)
        doubled = np.dot(np.diff(x), y[1:] + y[:-1])
        return min(1.0, float(doubled / (2 * x[-1] * self.defect.cumsum()[-1])))

    def area_error(self, limit: float = 1.0) -> float:
        """Largest possible error of ``area`` if tied examples could have any order."""
        x, y = self._corners_until(limit)
        everywhere_x, everywhere_y = self._corners()
        cut_off = everywhere_y[np.searchsorted(everywhere_x, x[-1])] - y[-1]  # of the step that contains the limit
        off = np.dot(np.diff(x), np.diff(y)) / 2 + (x[-1] - x[-2]) * cut_off
        return float(off / (x[-1] * everywhere_y[-1]))

    def average_precision(self) -> float:
        """Mean over the defects, in (0, 1], of the precision at their score."""
        hits = self.defect.cumsum()
        return float(np.dot(self.defect, hits / (hits + self.above + self.tied)) / hits[-1])

    def average_precision_error(self) -> float:
        """Largest possible error of ``average_precision`` if tied examples could have any order."""
        hits, called = self.defect.cumsum(), self.above + self.tied
        before = hits - self.defect
        tied = self.defect * hits / (hits + called)
        best = self.defect * hits / (hits + self.above)  # all defects first
        # All good ones first: the k-th defect has precision f(k) = (before + k) / (before + k + called), which rises
        # with k. Its sum is at least the integral of f and at least the first term for all.
        integral = self.defect - called * np.log1p(self.defect / np.maximum(before + called, 1))
        worst = np.maximum(integral, self.defect * (before + 1) / (before + 1 + called))
        return float(max(np.sum(best - tied), np.sum(tied - worst)) / hits[-1])

    def best_f1(self) -> tuple[float, float]:
        """Largest F1 of "score >= threshold" in (0, 1], and the highest threshold that gives it."""
        hits = self.defect.cumsum()
        f1 = 2 * hits / (hits + self.above + self.tied + hits[-1])
        best = int(np.argmax(f1))
        return float(f1[best]), float(self.values[best])

    def curve(self, points: int) -> Curve:
        """The ROC curve from (0, 0) to (1, 1)."""
        x, y = self._corners()
        return _simplified(x / x[-1], y / y[-1], points)

    def curve_until(self, limit: float, points: int) -> Curve:
        """The ROC curve from (0, 0) to x = ``limit``."""
        x, y = self._corners_until(limit)
        return _simplified(x / x[-1] * limit, y / self.defect.cumsum()[-1], points)

    def _corners(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Good examples (n,) and defects (n,), float64, at or above a falling threshold; linear in between."""
        steps = np.stack([self.above, self.above + self.tied], axis=1).ravel()
        hits = np.append(0.0, self.defect.cumsum())
        return np.concatenate([[0.0], steps, [self.good]]), np.repeat(hits, 2)

    def _corners_until(self, limit: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The corners left of the share ``limit`` of the good examples, and the point of the curve at the limit."""
        if not 0 < limit <= 1:
            raise ValueError(f"the limit is a share of the good pixels, above 0 and at most 1, got {limit}")
        x, y = self._corners()
        end = limit * self.good
        cut = int(np.searchsorted(x, end))  # x[cut - 1] < end <= x[cut]
        share = (end - x[cut - 1]) / (x[cut] - x[cut - 1])
        return np.append(x[:cut], end), np.append(y[:cut], y[cut - 1] + share * (y[cut] - y[cut - 1]))


def rank(
    labels: NDArray[np.bool_], scores: NDArray[np.floating[Any]], weights: NDArray[np.float64] | None = None
) -> Ranking:
    """The ranking of ``scores``; ``weights`` are those of the defects, 1 each if None."""
    check_shapes(labels=labels, scores=scores)
    good = np.sort(scores[~labels])
    values: NDArray[np.floating[Any]]
    values, owner = np.unique(scores[labels], return_inverse=True)
    if np.isnan(values[-1:]).any() or np.isnan(good[-1:]).any():  # sorted to the end
        raise ValueError("a score is NaN and cannot be ranked: check the detector's output")
    below, not_above = np.searchsorted(good, values, side="left"), np.searchsorted(good, values, side="right")
    return Ranking(
        values=values[::-1],
        defect=np.bincount(owner, weights)[::-1].astype(np.float64),
        tied=(not_above - below)[::-1].astype(np.float64),
        above=(len(good) - not_above)[::-1].astype(np.float64),
        good=float(len(good)),
    )


def rank_tensors(labels: Tensor, scores: Tensor, weights: Tensor | None = None) -> Ranking:
    """``rank`` of tensors of equal shape, labels bool, computed on their device; ``weights`` (defects,) float64."""
    if labels.shape != scores.shape:
        raise ValueError(f"labels {tuple(labels.shape)} and scores {tuple(scores.shape)} differ in shape")
    labels, scores = labels.flatten(), scores.flatten()
    if bool(scores.isnan().any()):
        raise ValueError("a score is NaN and cannot be ranked: check the detector's output")
    good = scores[~labels].sort().values
    values, owner, counts = torch.unique(scores[labels], return_inverse=True, return_counts=True)
    if weights is not None:
        counts = torch.zeros(len(values), dtype=torch.float64, device=scores.device).index_add_(0, owner, weights)
    below = torch.searchsorted(good, values, right=False)
    not_above = torch.searchsorted(good, values, right=True)

    def falling(counted: Tensor) -> NDArray[np.float64]:
        return counted.flip(0).double().cpu().numpy()

    return Ranking(
        values=values.flip(0).cpu().numpy(),
        defect=falling(counts),
        tied=falling(not_above - below),
        above=falling(len(good) - not_above),
        good=float(len(good)),
    )


def check_shapes(**arrays: NDArray[Any]) -> None:
    """Raise ValueError unless the named arrays have the same shape."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = " and ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"{shapes} differ in shape: they must match one to one")


def _simplified(x: NDArray[np.float64], y: NDArray[np.float64], points: int) -> Curve:
    """At most ``points`` of the corners, with both ends; always adds the one farthest from the polyline so far."""
    if points < 2:
        raise ValueError(f"a curve needs at least 2 points, got points={points}")
    kept = [0, len(x) - 1]
    queue = [_farthest(x, y, *kept)]
    while len(kept) < points and -queue[0][0] > VISIBLE:
        _, first, corner, last = heapq.heappop(queue)
        kept.append(corner)
        heapq.heappush(queue, _farthest(x, y, first, corner))
        heapq.heappush(queue, _farthest(x, y, corner, last))
    return Curve(x[sorted(kept)].tolist(), y[sorted(kept)].tolist())


def _farthest(x: NDArray[np.float64], y: NDArray[np.float64], first: int, last: int) -> tuple[float, int, int, int]:
    """(minus the distance, first, corner, last): the corner farthest from the straight line from first to last."""
    width, height = x[last] - x[first], y[last] - y[first]
    part = slice(first, last + 1)
    distances = np.abs((x[part] - x[first]) * height - (y[part] - y[first]) * width) / (np.hypot(width, height) or 1.0)
    corner = int(np.argmax(distances))
    return -float(distances[corner]), first, first + corner, last
