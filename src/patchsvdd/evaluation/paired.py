"""Two models on the same images: the difference of two rates with its interval, and McNemar's test.

The two rates are of the same images, so they are not independent; only the images on which the models differ say
anything about the difference. The interval is Tango's score interval (Statistics in Medicine 17, 1998): the differences
that a score test would not reject. The test is the exact one of McNemar: the images on which the models differ are
compared with fair coin tosses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from patchsvdd.scoring.conformal import CONFIDENCE, at_least, share_interval

METHOD = "Tango"
STEPS = 60
"""Bisections for a bound of the interval: more than a float can tell apart."""


@dataclass(frozen=True)
class Paired:
    """Numbers of images by what each of two models did, such as raise an alarm."""

    both: int = 0
    only_first: int = 0
    only_second: int = 0
    neither: int = 0

    @classmethod
    def of(cls, pairs: Iterable[tuple[bool, bool]]) -> Paired:
        """Count pairs (first, second)."""
        counts = {(first, second): 0 for first in (True, False) for second in (True, False)}
        for first, second in pairs:
            counts[bool(first), bool(second)] += 1
        return cls(counts[True, True], counts[True, False], counts[False, True], counts[False, False])

    @property
    def images(self) -> int:
        """Number of images."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def first(self) -> int:
        """Images that count for the first model."""
        return self.both + self.only_first

    @property
    def second(self) -> int:
        """Images that count for the second model."""
        return self.both + self.only_second

    @property
    def difference(self) -> float:
        """The second model's rate minus the first one's."""
        return (self.only_second - self.only_first) / self.images

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Tango's interval of the difference."""
        quantile = NormalDist().inv_cdf((1 + confidence) / 2)
        low = _bound(self.only_second, self.only_first, self.images, quantile)
        high = -_bound(self.only_first, self.only_second, self.images, quantile)
        return low, high

    def p_value(self) -> float:
        """McNemar's exact test, two-sided; 1 if the models never differ."""
        differ = self.only_first + self.only_second
        return min(1.0, 2 * at_least(max(self.only_first, self.only_second), differ, 0.5)) if differ else 1.0

    def to_json(self) -> dict[str, Any]:
        """Counts, rates, difference and test; None where there is no image."""
        counts = {
            "images": self.images,
            "both": self.both,
            "only_first": self.only_first,
            "only_second": self.only_second,
            "neither": self.neither,
        }
        return {
            **counts,
            "first": self._rate(self.first),
            "second": self._rate(self.second),
            "difference": self.difference if self.images else None,
            "interval": list(self.interval()) if self.images else None,
            "confidence": CONFIDENCE,
            "method": METHOD,
            "p_value": self.p_value(),
        }

    def _rate(self, count: int) -> dict[str, Any]:
        interval = list(share_interval(count, self.images)) if self.images else None
        return {"count": count, "rate": count / self.images if self.images else None, "interval": interval}


def score_statistic(more: int, less: int, images: int, difference: float) -> float:
    """Tango's statistic for the hypothesis that the rates differ by ``difference``, strictly between −1 and 1.

    ``more`` and ``less`` are the images on which only one of the two counts. Standard normal if the hypothesis holds.
    """
    wanted = more - less - images * difference
    if wanted == 0:
        return 0.0
    linear = (2 * images - more + less) * difference - more - less
    constant = -less * difference * (1 - difference)
    likely = (math.sqrt(max(0.0, linear**2 - 8 * images * constant)) - linear) / (4 * images)
    variance = images * (2 * likely + difference * (1 - difference))
    return wanted / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, wanted)


def _bound(more: int, less: int, images: int, quantile: float) -> float:
    """The smallest difference that the test does not reject."""
    low, high = -1.0, (more - less) / images
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle <= -1 or score_statistic(more, less, images, middle) > quantile:
            low = middle
        else:
            high = middle
    return high
