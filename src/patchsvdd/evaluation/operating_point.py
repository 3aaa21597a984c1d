"""Accuracy at the threshold that a model ships with, and what that threshold costs against the best in hindsight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.evaluation.metrics import Confusion
from patchsvdd.scoring.conformal import share_interval


@dataclass(frozen=True)
class OperatingPoint:
    """Verdicts at the shipped threshold, compared with the best threshold in hindsight (which reads the labels)."""

    confusion: Confusion
    best_balanced_accuracy: float
    best_f1: float

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the shares of good and of defective images with the right verdict."""
        false_alarms, misses = self.confusion.false_alarm_rate, self.confusion.miss_rate
        assert false_alarms is not None
        assert misses is not None
        return 1 - (false_alarms + misses) / 2

    @property
    def f1(self) -> float:
        """F1 of the verdicts; "positive" means anomalous."""
        wrong = self.confusion.false_positive + self.confusion.false_negative
        return 2 * self.confusion.true_positive / (2 * self.confusion.true_positive + wrong)

    def metrics(self) -> dict[str, float]:
        """The metrics as they are reported; ``…_lost`` is the best in hindsight minus the shipped value."""
        return {
            "balanced_accuracy": self.balanced_accuracy,
            "balanced_accuracy_max": self.best_balanced_accuracy,
            "balanced_accuracy_lost": self.best_balanced_accuracy - self.balanced_accuracy,
            "detection_f1": self.f1,
            "detection_f1_lost": self.best_f1 - self.f1,
        }


def best_balanced_accuracy(labels: NDArray[np.bool_], scores: NDArray[np.floating[Any]]) -> float:
    """Largest balanced accuracy in [0.5, 1] of "score > threshold" over all thresholds; both classes are required."""
    order = np.argsort(-scores, kind="stable")
    found, ranked = labels[order], scores[order]
    hits, alarms = np.cumsum(found), np.cumsum(~found)
    whole = np.append(ranked[1:] != ranked[:-1], True)  # equal scores get the same verdict
    balanced = (hits / hits[-1] + 1 - alarms / alarms[-1])[whole] / 2
    return float(max(0.5, balanced.max()))


def intervals(confusion: Confusion) -> dict[str, list[float] | None]:
    """Exact 95 % intervals of the two error rates; None where there are no such images."""
    good = confusion.false_positive + confusion.true_negative
    bad = confusion.false_negative + confusion.true_positive
    return {
        "false_alarm_rate_interval": list(share_interval(confusion.false_positive, good)) if good else None,
        "miss_rate_interval": list(share_interval(confusion.false_negative, bad)) if bad else None,
    }


class RegionCounts:
    """Pixels of the regions as shipped, compared with the masks, summed over images."""

    def __init__(self) -> None:
        self._right = self._wrong = self._missed = 0

    def add(self, regions: NDArray[np.bool_], mask: NDArray[np.bool_]) -> None:
        """Add one image: the pixels (H, W) of its regions and its mask (H, W), empty for a good image."""
        self._right += int(np.sum(regions & mask))
        self._wrong += int(np.sum(regions & ~mask))
        self._missed += int(np.sum(~regions & mask))

    def metrics(self, best_f1: float) -> dict[str, float]:
        """Precision, recall and F1 of the regions, and F1 lost against the best pixel threshold in hindsight."""
        shown, marked = self._right + self._wrong, self._right + self._missed
        f1 = 2 * self._right / (shown + marked)
        return {
            "region_precision": self._right / shown if shown else 0.0,
            "region_recall": self._right / marked,
            "region_f1": f1,
            "region_f1_lost": best_f1 - f1,
        }
