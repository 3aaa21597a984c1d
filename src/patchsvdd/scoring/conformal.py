"""Conformal statistics of good scores, assuming only that good images are exchangeable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Guarantee:
    """The guarantee of a threshold at one of the ranks of ``count`` good scores."""

    count: int
    rank: int
    """The threshold is the rank-th smallest score, from 1 to count."""
    rate: float
    """Upper bound of the probability that the next good image exceeds the threshold."""
    confidence: float
    rate_at_confidence: float
    """With this confidence over the choice of good images, at most this share of all good ones exceeds it."""
    is_estimate: bool = False
    """Whether ``rate`` is an estimate, because the threshold was chosen after looking at the scores."""

    @property
    def smallest_rate(self) -> float:
        """The smallest rate that this many good images can guarantee, with the highest score as threshold."""
        return 1 / (self.count + 1)

    def in_words(self, one: str = "image") -> str:
        """The guarantee, and what it is based on; ``one`` is what was counted."""
        given = f"1 {one}" if self.count == 1 else f"{self.count} {one}s"
        if self.is_estimate:
            return (
                f"about {self.rate:.1%} of good {one}s like these will be called anomalous, with "
                f"{self.confidence:.0%} confidence at most {self.rate_at_confidence:.1%}, given {given}"
            )
        return (
            f"at most {self.rate:.1%} of good {one}s like these will be called anomalous, "
            f"with {self.confidence:.0%} confidence at most {self.rate_at_confidence:.1%}, given {given} "
            f"(the smallest rate that can be guaranteed is {self.smallest_rate:.1%})"
        )


def guarantee_for(count: int, false_alarm_rate: float, confidence: float = CONFIDENCE) -> Guarantee:
    """The guarantee of the lowest threshold for a false-alarm rate, or of the highest score if there are too few."""
    rank = rank_for(count, false_alarm_rate)
    return Guarantee(count, rank, (count + 1 - rank) / (count + 1), confidence, largest_rate(count, rank, confidence))


def guarantee_at(scores: Sequence[float], threshold: float, confidence: float = CONFIDENCE) -> Guarantee:
    """The guarantee of a threshold that was chosen after looking at the scores.

    Such a threshold may have any rank, so the bound must hold at all ranks at once: the allowed error is divided by
    their number. ``rate`` is an estimate here, not a bound.
    """
    count = len(scores)
    rank = sum(score <= threshold for score in scores)
    if rank == 0:
        return Guarantee(count, 0, 1.0, confidence, 1.0, is_estimate=True)
    bound = largest_rate(count, rank, 1 - (1 - confidence) / count)
    return Guarantee(count, rank, (count + 1 - rank) / (count + 1), confidence, bound, is_estimate=True)


def rank_for(count: int, false_alarm_rate: float) -> int:
    """Rank of the score, of ``count``, that the next one exceeds with at most this probability: ⌈(n + 1)(1 − rate)⌉."""
    if count < 1:
        raise ValueError("a threshold requires at least one score")
    return min(max(1, math.ceil((count + 1) * (1 - false_alarm_rate) - 1e-9)), count)


def largest_rate(count: int, rank: int, confidence: float = CONFIDENCE) -> float:
    """Upper confidence bound of the true rate above the rank-th of ``count`` scores.

    Over the choice of good images the rate follows Beta(n + 1 − k, k), whatever the distribution of the scores.
    """
    return _solve(lambda rate: at_least(count + 1 - rank, count, rate), confidence)


def share_interval(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Clopper–Pearson interval for a share, given ``hits`` in ``trials``."""
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} of {trials}")
    if trials == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _solve(lambda share: at_least(hits, trials, share), tail)
    high = 1.0 if hits == trials else _solve(lambda share: at_least(hits + 1, trials, share), 1 - tail)
    return low, high


def p_values(
    scores: Sequence[float] | NDArray[np.floating], good: Sequence[float] | NDArray[np.floating]
) -> NDArray[np.float64]:
    """For each score the probability of one at least as high for a good image: (1 + good scores as high) / (n + 1)."""
    ordered = np.sort(np.asarray(good, dtype=np.float64))
    as_high = len(ordered) - np.searchsorted(ordered, np.asarray(scores, dtype=np.float64), side="left")
    return (1 + as_high) / (len(ordered) + 1)


def at_least(hits: int, trials: int, share: float) -> float:
    """Probability of at least ``hits`` in ``trials`` draws with success probability ``share``."""
    if hits <= 0:
        return 1.0
    if share <= 0:
        return 0.0
    if share >= 1:
        return 1.0
    # Terms further from the mean than this add less than 1e-30.
    mean, reach = trials * share, 12 * math.sqrt(trials * share * (1 - share)) + 40
    first, last = max(hits, math.floor(mean - reach)), min(trials, math.ceil(max(hits, mean) + reach))
    count = np.arange(first, last + 1, dtype=np.float64)
    binomials = math.lgamma(trials + 1) - np.array([math.lgamma(k + 1) + math.lgamma(trials - k + 1) for k in count])
    logs = binomials + count * math.log(share) + (trials - count) * math.log1p(-share)
    return float(min(1.0, np.exp(logs).sum()))


def _solve(increasing: Callable[[float], float], target: float) -> float:
    """The argument in 0 … 1 at which an increasing function reaches ``target``."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < target else (low, middle)
    return high
