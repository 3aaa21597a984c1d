"""Scores of good images → threshold for a false-alarm rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Calibration:
    """The threshold, and the scores it was set from."""

    threshold: float
    false_alarm_rate: float
    """What was asked for."""
    scores: tuple[float, ...]
    """Score of each good image against the memory of all the others."""

    @property
    def smallest_rate(self) -> float:
        """The smallest false-alarm rate this many good images can speak for."""
        return 1 / (len(self.scores) + 1)

    @property
    def caveat(self) -> str | None:
        """What to know before trusting the threshold; None when the images suffice for the rate."""
        if self.threshold == 0:
            return (
                "the threshold is 0, because the good images are all alike: every other image will be called "
                "anomalous. Give good images that differ as good parts do"
            )
        if self.false_alarm_rate >= self.smallest_rate:
            return None
        needed = math.ceil(1 / self.false_alarm_rate) - 1
        return (
            f"{len(self.scores)} good images cannot speak for a false-alarm rate of {self.false_alarm_rate:.2%}: "
            f"the smallest they can is {self.smallest_rate:.1%} (it takes {needed} images). "
            f"The threshold is the highest score seen on a good image"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "threshold": self.threshold,
            "false_alarm_rate": self.false_alarm_rate,
            "scores": list(self.scores),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Calibration:
        """The calibration that ``to_json`` wrote."""
        return cls(data["threshold"], data["false_alarm_rate"], tuple(data["scores"]))


def calibrate(scores: Sequence[float], false_alarm_rate: float) -> Calibration:
    """The smallest threshold that a good image like these exceeds with at most the given probability.

    The k-th smallest of n scores with k = ⌈(n + 1)(1 − rate)⌉: a new good image, exchangeable with these, lies
    above it with probability at most ``rate``. With too few images for that the threshold is the largest score.
    """
    ordered = sorted(scores)
    k = math.ceil((len(ordered) + 1) * (1 - false_alarm_rate) - 1e-9)
    threshold = ordered[min(max(k, 1), len(ordered)) - 1]
    return Calibration(threshold, false_alarm_rate, tuple(scores))
