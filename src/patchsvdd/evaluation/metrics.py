"""Metrics of a detector's accuracy; arrays in, numbers out.

Exact, for arrays that fit in memory; ``streaming_metrics`` computes the same for any number of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.scoring.components import label_components
from patchsvdd.scoring.ranking import Curve, check_shapes, rank

PRO_LIMIT = 0.3
"""False positive rate up to which the area under the PRO curve is computed; 0.3 is the common choice."""


@dataclass(frozen=True)
class Confusion:
    """Counts of correct and wrong verdicts; "positive" means classified as anomalous."""

    true_positive: int
    false_positive: int
    true_negative: int
    false_negative: int

    @property
    def false_alarm_rate(self) -> float | None:
        """Fraction of the good images classified as anomalous; None if there are no good images."""
        return _fraction(self.false_positive, self.true_negative)

    @property
    def miss_rate(self) -> float | None:
        """Fraction of the defective images classified as good; None if there are no defective images."""
        return _fraction(self.false_negative, self.true_positive)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary: the counts and the two rates."""
        return {**asdict(self), "false_alarm_rate": self.false_alarm_rate, "miss_rate": self.miss_rate}


def auroc(labels: NDArray[np.bool_], scores: NDArray[np.floating[Any]]) -> float:
    """Area under the ROC curve (Eq. 1): probability that a defect scores above a good one, ties counting half.

    Exact. ``labels`` and ``scores`` have the same shape; this and the metrics below require both classes.
    """
    return rank(labels, scores).area()


def average_precision(labels: NDArray[np.bool_], scores: NDArray[np.floating[Any]]) -> float:
    """Mean over the defects, in (0, 1], of the precision at their score; equal scores are counted together."""
    return rank(labels, scores).average_precision()


def best_f1(labels: NDArray[np.bool_], scores: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """Largest F1 of "score >= threshold" in (0, 1], and the (highest) threshold that gives it."""
    return rank(labels, scores).best_f1()


def roc_curve(labels: NDArray[np.bool_], scores: NDArray[np.floating[Any]], points: int = 200) -> Curve:
    """The ROC curve from (0, 0) to (1, 1): x false, y true positive rate; at most ``points`` points, for plots."""
    return rank(labels, scores).curve(points)


def confusion(labels: NDArray[np.bool_], called_anomalous: NDArray[np.bool_]) -> Confusion:
    """Counts of correct and wrong verdicts; both arrays (N,), True for defective and for classified as anomalous."""
    check_shapes(labels=labels, called_anomalous=called_anomalous)
    return Confusion(
        true_positive=int(np.sum(labels & called_anomalous)),
        false_positive=int(np.sum(~labels & called_anomalous)),
        true_negative=int(np.sum(~labels & ~called_anomalous)),
        false_negative=int(np.sum(labels & ~called_anomalous)),
    )


def aupro(
    maps: Sequence[NDArray[np.floating[Any]]], masks: Sequence[NDArray[np.bool_]], limit: float = PRO_LIMIT
) -> float:
    """Area in [0, 1] under the PRO curve up to ``limit``, divided by ``limit``.

    PRO: the fraction of pixels at or above a threshold in each 8-connected region of the masks, averaged over the
    regions; plotted over the fraction of good pixels at or above it. ``maps`` and ``masks`` are (H, W) each; masks of
    good images are empty. Equal to a ROC curve in which a defect pixel has the weight 1 / size of its region.
    """
    if len(maps) != len(masks) or len(maps) == 0:
        raise ValueError(f"AUPRO requires maps and one mask for each, got {len(maps)} maps and {len(masks)} masks")
    for one, mask in zip(maps, masks, strict=True):
        check_shapes(map=one, mask=mask)
    labels, scores = np.concatenate([np.ravel(mask) for mask in masks]), np.concatenate([np.ravel(one) for one in maps])
    return rank(labels, scores, np.concatenate([region_weights(mask)[0] for mask in masks])).area(limit)


def region_weights(mask: NDArray[np.bool_]) -> tuple[NDArray[np.float64], int]:
    """1 / size of the region of each set pixel of a mask (H, W), float64 (N,) row by row; and the number of regions."""
    labels, regions = label_components(mask)
    owner = labels[mask] - 1
    return 1 / np.bincount(owner)[owner], regions


def _fraction(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None
