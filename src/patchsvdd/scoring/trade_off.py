"""False alarms against missed defects: what a threshold is expected to cost, and the threshold for an aim.

The estimate of false alarms comes from good images, the estimate of misses from synthetic defects. A threshold moves
along the curve between them; nothing else about the model changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.aims import AIMS, Aim
from patchsvdd.core.errors import ConfigError

MISS_WEIGHT: dict[Aim, float] = {"balanced": 1.0, "few-misses": 4.0}
"""How much a missed share of defects costs, compared with the same share of false alarms."""
FEWEST_SCORES = 2
"""Fewest calibration images to estimate how their scores vary."""
FEWEST = 3
"""Fewest good images for that, with those under variation."""
FEWEST_VISIBLE = 16
"""Fewest visible synthetic defects to leave the faint ones out of the choice."""
SMALLEST_EXCESS = 1e-4
"""Good images whose scores vary less are all alike."""
SIZES = (10, 20, 40)
"""Diameters in pixels of the original image that separate small, medium, large and very large defects."""
CONTRASTS = (20, 40)
"""Contrasts in grey levels that separate faint, visible and plain defects."""
CONTRAST_NAMES = ("faint", "visible", "plain")
STEPS = 400
"""Candidate thresholds."""
MARGIN = 0.05
"""Thresholds whose expected cost, with both weights 1, is at most this much above the smallest do about as well."""


@dataclass(frozen=True)
class Evidence:
    """Scores of good images under variation and of synthetic defects, each scored as a new image."""

    good: tuple[float, ...]
    """Good images with another light, place, focus and grain; empty if the calibration images vary by themselves."""
    defects: tuple[float, ...]
    """Good images with one synthetic defect each; empty if no defect could be placed."""
    sizes: tuple[float, ...]
    """Diameter of each defect, in pixels of the original image."""
    contrasts: tuple[float, ...]
    """Contrast of each defect, in grey levels."""

    @property
    def visible(self) -> NDArray[np.bool_]:
        """Which defects people see well; all of them if those are too few. These set thresholds and estimate misses."""
        seen = np.array(self.contrasts) >= CONTRASTS[0]
        return seen if seen.sum() >= FEWEST_VISIBLE else np.ones(len(self.defects), dtype=np.bool_)

    def miss_rate(self, threshold: float) -> float | None:
        """Share of the visible synthetic defects that do not exceed the threshold; None if there are none."""
        if not self.defects:
            return None
        return float((np.array(self.defects)[self.visible] <= threshold).mean())

    def classes(self, threshold: float) -> list[DefectClass]:
        """Missed synthetic defects by size and contrast, faint and small ones first; empty classes are left out."""
        scores, sizes, contrasts = np.array(self.defects), np.array(self.sizes), np.array(self.contrasts)
        by_size, by_contrast = np.digitize(sizes, SIZES), np.digitize(contrasts, CONTRASTS)
        found = []
        for contrast, name in enumerate(CONTRAST_NAMES):
            for size in range(len(SIZES) + 1):
                chosen = scores[(by_size == size) & (by_contrast == contrast)]
                if len(chosen):
                    low, high = (0, *SIZES)[size], SIZES[size] if size < len(SIZES) else None
                    found.append(DefectClass(name, low, high, len(chosen), int((chosen <= threshold).sum())))
        return found

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Evidence:
        """Restore what ``to_json`` wrote."""
        return cls(**{field.name: tuple(data[field.name]) for field in fields(cls)})


@dataclass(frozen=True)
class DefectClass:
    """Synthetic defects of about one size and contrast."""

    contrast: str
    """"faint", "visible" or "plain"."""
    smallest: int
    """Diameter in pixels."""
    largest: int | None
    """None for no limit."""
    count: int
    missed: int

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {**asdict(self), "miss_rate": self.missed / self.count}


@dataclass(frozen=True)
class GoodTail:
    """How often good images exceed a threshold, estimated from few.

    The highest of few scores is often an outlier, and ranks say nothing beyond it. So the logarithms of the scores
    above the median are taken as exponentially distributed. The estimate averages over the uncertainty of their mean
    (the predictive distribution, a Lomax distribution): with few images it falls more slowly.
    """

    start: float
    """Logarithm of the median."""
    excess: float
    """Mean excess of the logarithms above the median."""
    count: int
    """Calibration images that the estimate rests on."""

    @classmethod
    def fit(cls, scores: Sequence[float], varied: Sequence[float] = ()) -> GoodTail | None:
        """Fit the scores of calibration images, and of the same images under variation.

        None if they are too few or all alike, or if some are 0, as those of copies are.
        """
        good = np.array([*scores, *varied], dtype=np.float64)
        if len(scores) < FEWEST_SCORES or len(good) < FEWEST or good.min() <= 0:
            return None
        median = float(np.median(good))
        excess = np.log(good[good > median] / median)
        if len(excess) == 0 or float(excess.mean()) < SMALLEST_EXCESS:
            return None
        return cls(math.log(median), float(excess.mean()), len(scores))

    def above(self, value: float) -> float:
        """Expected share of good images whose logarithm exceeds ``value``, which is not below the median's."""
        shape = self.count / 2
        return 0.5 * float((1 + (value - self.start) / (shape * self.excess)) ** -shape)

    def threshold(self, share: float) -> float:
        """The threshold that this share of good images exceeds, at most a half."""
        shape = self.count / 2
        return math.exp(self.start + shape * self.excess * (math.pow(2 * share, -1 / shape) - 1))


def false_alarms(threshold: float, scores: Sequence[float], evidence: Evidence | None = None) -> float:
    """Expected share of good images above a threshold; below the median of the scores, the share among them."""
    varied = evidence.good if evidence is not None else ()
    tail = GoodTail.fit(scores, varied)
    if tail is not None and threshold > 0 and math.log(threshold) >= tail.start:
        return tail.above(math.log(threshold))
    good = [*scores, *varied]
    return sum(score > threshold for score in good) / len(good)


def check_aim(aim: str) -> None:
    """Raise ConfigError for an aim that does not exist."""
    if aim not in AIMS:
        raise ConfigError(f"`aim` must be one of {', '.join(AIMS)}; got '{aim}'")


def threshold_for(aim: Aim, scores: Sequence[float], evidence: Evidence) -> float | None:
    """The middle of the thresholds that cost least; None if the images cannot tell how good scores vary.

    The cost is the expected share of false alarms plus that of misses. ``scores`` are those of the calibration images.
    Only visible defects count.
    """
    tail = GoodTail.fit(scores, evidence.good)
    if tail is None or not evidence.defects:
        return None
    visible = np.array(evidence.defects)[evidence.visible]
    bad = np.log(np.maximum(visible, 1e-3 * min(scores)))  # a defect that scores 0 is missed at any threshold
    candidates = np.linspace(tail.start, max(tail.start, math.log(max(max(scores), *evidence.defects))), STEPS)
    missed = share_below(candidates, bad, None, min(bandwidth(bad), tail.excess))
    cost = np.array([tail.above(value) for value in candidates]) + MISS_WEIGHT[aim] * missed
    low, high = _nearly_best(cost, MARGIN * (1 + MISS_WEIGHT[aim]) / 2)
    return math.exp(float(candidates[low] + candidates[high]) / 2)


def _nearly_best(cost: NDArray[np.float64], margin: float) -> tuple[int, int]:
    """First and last candidate around the cheapest one that cost at most ``margin`` more.

    The cost is often flat, and its minimum then moves with every image. The middle of this range moves less.
    """
    best = int(np.argmin(cost))
    worse = np.flatnonzero(cost > cost[best] + margin)
    return int(worse[worse < best].max(initial=-1)) + 1, int(worse[worse > best].min(initial=len(cost))) - 1


def bandwidth(values: NDArray[np.float64]) -> float:
    """Silverman's rule for the width of a kernel density estimate."""
    low, high = np.quantile(values, [0.25, 0.75])
    return max(1e-6, 0.9 * min(float(values.std()), float(high - low) / 1.34) * math.pow(len(values), -0.2))


def share_below(
    values: NDArray[np.float64], scores: NDArray[np.float64], weights: NDArray[np.float64] | None, width: float
) -> NDArray[np.float64]:
    """Share of the scores, each spread by a normal distribution, below each of the values."""
    scaled = (values[:, None] - scores) / (width * math.sqrt(2))
    below = np.array([math.erf(value) for value in scaled.ravel().tolist()]).reshape(scaled.shape)
    shares: NDArray[np.float64] = np.average(0.5 * (1 + below), axis=1, weights=weights)
    return shares


def curve(scores: Sequence[float], evidence: Evidence, thresholds: Iterable[float]) -> list[dict[str, float]]:
    """Expected false alarms and missed visible defects, as shares, at each threshold; empty without defects."""
    if not evidence.defects:
        return []
    return [
        {
            "threshold": threshold,
            "false_alarms": false_alarms(threshold, scores, evidence),
            "missed": evidence.miss_rate(threshold) or 0.0,
        }
        for threshold in thresholds
    ]
