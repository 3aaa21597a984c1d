"""A threshold from reviews: what people found out about inspected parts, and whether it supports a change.

People review nearly all alarms, but only a random sample of the parts called good. A reviewed part therefore stands for
as many inspected parts as its verdict had for each reviewed one. Without these weights the few defects found among good
parts would hardly count, and a threshold would look as if it missed nothing.

Intervals: the number of reviewed parts of a kind is a Poisson number. Its exact bounds are quantiles of gamma
distributions, and the bounds of a share follow from draws of both (melded intervals: Fay, Proschan and Brittain 2015;
for weighted sums: Fay and Feuer 1997). With equal weights this is the interval of Clopper and Pearson. A kind of part
that nobody has seen in a small sample may still be frequent, and the interval says so.

The scores of the model's calibration are not used: those images are from another time, and may be others than what the
line makes now. The scores of all parts called good are used, reviewed or not. They tell how many alarms more a lower
threshold raises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.aims import Aim, Purpose
from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.scoring.conformal import CONFIDENCE
from patchsvdd.scoring.trade_off import MISS_WEIGHT, STEPS, share_below

Array = NDArray[np.float64]

FEWEST_DEFECTS = 5
FEWEST_GOOD = 20
"""Fewest reviewed parts of each kind for a proposal."""
FEWEST_SAMPLED = 10
"""Fewest reviewed parts among those called good: only they tell what is missed."""
DRAWS = 10_000
BINS = 300
"""Number of histogram bins over the scores in which the smallest cost is searched."""
IS_DEFECT = {"true_defect": True, "false_alarm": False, "confirmed_good": False}
"""What a person said about a part → whether it is a defect. Other answers decide nothing."""


class InspectedPart(NamedTuple):
    """An inspected part, reviewed or not."""

    score: float
    is_defect: bool | None
    """What a person said; None if nobody has decided."""
    is_sampled: bool
    """Whether it was drawn at random for review; matters only for parts called good."""


@dataclass(frozen=True)
class ReviewedPart:
    """An inspected part, and what a person said about it."""

    score: float
    is_defect: bool


@dataclass(frozen=True)
class Reviews:
    """Reviewed parts, and the inspected parts they were taken from, all inspected with one threshold."""

    threshold: float
    parts: tuple[ReviewedPart, ...]
    """Alarms that were reviewed, and a random sample of the parts called good."""
    good: int
    """Parts called good, reviewed or not."""
    alarms: int
    """Alarms, reviewed or not."""
    good_scores: tuple[float, ...] = field(default=(), repr=False)
    """Scores of all parts called good; empty if not known."""

    def __post_init__(self) -> None:
        """Raise DatasetError if there are more reviewed parts than parts."""
        reviewed = len(self.scores(alarms=False)), len(self.scores(alarms=True))
        if reviewed[0] > self.good or reviewed[1] > self.alarms:
            raise DatasetError(
                f"{reviewed[0]} of {self.good} parts called good and {reviewed[1]} of {self.alarms} alarms cannot have "
                f"been reviewed"
            )

    @classmethod
    def of(cls, threshold: float, inspected: Iterable[InspectedPart]) -> Reviews:
        """The reviews among inspected parts; of those called good, only parts drawn at random count as reviewed."""
        parts: list[ReviewedPart] = []
        good: list[float] = []
        alarms = 0
        for score, is_defect, is_sampled in inspected:
            if score > threshold:
                alarms += 1
            else:
                good.append(score)
            if is_defect is not None and (is_sampled or score > threshold):
                parts.append(ReviewedPart(score, is_defect))
        return cls(threshold, tuple(parts), len(good), alarms, tuple(good))

    def scores(self, *, alarms: bool, is_defect: bool | None = None) -> Array:
        """Scores of reviewed parts with a verdict; of good parts or defects only, if asked."""
        chosen = [
            part.score
            for part in self.parts
            if (part.score > self.threshold) == alarms and is_defect in (None, part.is_defect)
        ]
        return np.array(chosen, dtype=np.float64)

    def weight(self, *, alarm: bool) -> float:
        """Number of inspected parts that a reviewed one stands for; 1 if there was no part with this verdict."""
        return max(self.alarms if alarm else self.good, 1) / max(len(self.scores(alarms=alarm)), 1)

    def count(self, *, is_defect: bool) -> int:
        """Number of reviewed parts that are good, or that are defects."""
        return sum(part.is_defect == is_defect for part in self.parts)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """What a proposal still requires; empty if there are enough reviews."""
        found = []
        for name, several, count, fewest in (
            ("defect", "defects", self.count(is_defect=True), FEWEST_DEFECTS),
            ("good part", "good parts", self.count(is_defect=False), FEWEST_GOOD),
            (
                *("part called good", "parts called good"),
                *(len(self.scores(alarms=False)), min(FEWEST_SAMPLED, self.good)),
            ),
            ("alarm", "alarms", len(self.scores(alarms=True)), min(1, self.alarms)),
        ):
            if count < fewest:
                more = fewest - count
                found.append(f"{more} more reviewed {several if more > 1 else name} ({count} of at least {fewest})")
        return tuple(found)


@dataclass(frozen=True)
class Rate:
    """An expected share with its interval."""

    estimate: float
    low: float
    high: float

    def in_words(self) -> str:
        """The share and its interval."""
        return f"{self.estimate:.1%} ({CONFIDENCE:.0%} interval {self.low:.1%} to {self.high:.1%})"


@dataclass(frozen=True)
class Expected:
    """What to expect of a threshold, by the reviews."""

    threshold: float
    false_alarms: Rate
    """Share of good parts that raise an alarm."""
    misses: Rate
    """Share of defects that are called good."""

    def cost(self, aim: Aim) -> float:
        """False alarms and misses, weighed for an aim."""
        return self.false_alarms.estimate + MISS_WEIGHT[aim] * self.misses.estimate


@dataclass(frozen=True)
class Proposal:
    """The threshold that reviews suggest, compared with the current one."""

    aim: Aim
    proposed: Expected
    current: Expected
    good: int
    """Reviewed parts that are good."""
    defects: int
    """Reviewed parts that are defects."""
    is_better: bool
    """Whether the reviews show, with 95 % confidence, that the proposed threshold costs less."""

    @property
    def threshold(self) -> float:
        """The proposed threshold; the current one if no other is expected to cost less."""
        return self.proposed.threshold

    @property
    def _basis(self) -> str:
        return f"{self.good} good parts and {self.defects} defects were reviewed"

    @property
    def conclusion(self) -> str:
        """Whether the reviews support a change, for people who see the expected shares beside it."""
        if self.is_better:
            way = "higher" if self.threshold > self.current.threshold else "lower"
            return f"the reviews support a {way} threshold: {self._basis}"
        if self.threshold == self.current.threshold:
            return f"the reviews do not support a change: no other threshold is expected to do better; {self._basis}"
        return f"the reviews do not support a change: another threshold may only seem better by chance; {self._basis}"

    @property
    def sentence(self) -> str:
        """What the reviews say, with all shares, for people."""
        new, now = self.proposed, self.current
        if new.threshold == now.threshold:
            return (
                f"the reviews do not support a change: no threshold is expected to cost less than {now.threshold:.4g}, "
                f"with {now.false_alarms.in_words()} false alarms and {now.misses.in_words()} of the defects missed; "
                f"{self._basis}"
            )
        change = (
            f"a threshold of {new.threshold:.4g} instead of {now.threshold:.4g} is expected to call "
            f"{new.false_alarms.in_words()} of the good parts anomalous, now {now.false_alarms.in_words()}, and to "
            f"miss {new.misses.in_words()} of the defects, now {now.misses.in_words()}"
        )
        if self.is_better:
            return f"{change}. The reviews support the change: {self._basis}"
        return f"the reviews do not support a change: {change}, but that may be chance; {self._basis}"

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "threshold": self.threshold,
            "aim": self.aim,
            "is_better": self.is_better,
            "conclusion": self.conclusion,
            "sentence": self.sentence,
            "proposed": asdict(self.proposed),
            "current": asdict(self.current),
            "good": self.good,
            "defects": self.defects,
            "confidence": CONFIDENCE,
        }


def aim_of(purpose: Purpose) -> Aim:
    """The aim of a proposal: that of the threshold, if it weighs false alarms against misses, or else balanced."""
    return purpose if purpose != "chosen" and purpose in MISS_WEIGHT else "balanced"


def propose(reviews: Reviews, aim: Aim = "balanced") -> Proposal:
    """The threshold with the smallest expected cost, and whether the reviews support it.

    Raise DatasetError if there are too few reviews (``Reviews.missing``), and ConfigError for an aim that weighs
    nothing.
    """
    if aim not in MISS_WEIGHT:
        raise ConfigError(f"reviews weigh false alarms against misses: `aim` must be one of {', '.join(MISS_WEIGHT)}")
    if not reviews.threshold > 0:
        raise ConfigError(f"reviews cannot improve a threshold of {reviews.threshold:g}; calibrate with good images")
    if reviews.missing:
        raise DatasetError(f"there are too few reviews for a proposal: {'; '.join(reviews.missing)}")
    current = expected(reviews, reviews.threshold)
    proposed = expected(reviews, _cheapest(reviews, aim))
    if proposed.cost(aim) >= current.cost(aim):
        proposed = current
    better = proposed is not current and _is_supported(reviews, proposed.threshold, MISS_WEIGHT[aim])
    counts = {kind: reviews.count(is_defect=kind == "defects") for kind in ("good", "defects")}
    return Proposal(aim, proposed, current, is_better=better, **counts)


def expected(reviews: Reviews, threshold: float) -> Expected:
    """False alarms and misses at a threshold, with 95 % intervals."""
    numbers = _Numbers(reviews)
    alarms, quiet = (numbers.of(False, threshold, above=above) for above in (True, False))
    missed, found = (numbers.of(True, threshold, above=above) for above in (False, True))
    return Expected(threshold, _rate(alarms, quiet), _rate(missed, found))


@dataclass(frozen=True)
class _Number:
    """How many inspected parts are of a kind: an estimate, and draws whose quantiles bound it."""

    estimate: float
    low: Array
    high: Array

    def __add__(self, other: _Number) -> _Number:
        return _Number(self.estimate + other.estimate, self.low + other.low, self.high + other.high)


def _share(part: _Number, rest: _Number) -> tuple[float, Array, Array]:
    """The share of ``part`` in both, and draws that bound it."""
    total = part.estimate + rest.estimate
    lowest, highest = part.low + rest.high, part.high + rest.low
    return part.estimate / total if total else 0.0, part.low / lowest, part.high / highest


def _rate(part: _Number, rest: _Number) -> Rate:
    estimate, low, high = _share(part, rest)
    tail = (1 - CONFIDENCE) / 2
    return Rate(estimate, float(np.quantile(low, tail)), float(np.quantile(high, 1 - tail)))


class _Numbers:
    """Numbers of inspected parts by kind, verdict and score, from the reviewed ones."""

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews
        self._random = np.random.default_rng(0)
        self._scores = np.sort(reviews.good_scores)

    def of(self, is_defect: bool, threshold: float, *, above: bool) -> _Number:
        """Good parts or defects above a threshold, or not above it."""
        low, high = (threshold, math.inf) if above else (-math.inf, threshold)
        return self.between(is_defect, low, high)

    def between(self, is_defect: bool, low: float, high: float) -> _Number:
        """Good parts or defects with low < score ≤ high."""
        limit, zeros = self._reviews.threshold, np.zeros(DRAWS)
        total = _Number(0.0, zeros, zeros)
        if low < limit:
            total += self._called_good(is_defect, low, min(high, limit))
        if high > limit:
            total += self._counted(is_defect, max(low, limit), high, alarms=True)
        return total

    def _counted(self, is_defect: bool, low: float, high: float, *, alarms: bool) -> _Number:
        """Parts of one verdict, each reviewed one counted for those it stands for."""
        scores, weight = self._reviews.scores(alarms=alarms, is_defect=is_defect), self._reviews.weight(alarm=alarms)
        hits = int(((scores > low) & (scores <= high)).sum())
        return _Number(weight * hits, weight * self._gamma(hits), weight * self._gamma(hits + 1))

    def _called_good(self, is_defect: bool, low: float, high: float) -> _Number:
        """Parts called good; the number of good ones between two scores is at most that of all."""
        counted = self._counted(is_defect, low, high, alarms=False)
        if is_defect or low == -math.inf or not len(self._scores):
            return counted
        every = int(np.searchsorted(self._scores, high, "right") - np.searchsorted(self._scores, low, "right"))
        scores = [self._reviews.scores(alarms=False, is_defect=kind) for kind in (False, True)]
        good, defects = (int(((values > low) & (values <= high)).sum()) for values in scores)
        share = good / (good + defects) if good + defects else 1.0
        return _Number(every * share, np.minimum(counted.low, every), self._gamma(every + 1))

    def _gamma(self, shape: int) -> Array:
        return self._random.standard_gamma(shape, DRAWS) if shape else np.zeros(DRAWS)


def _is_supported(reviews: Reviews, threshold: float, miss_weight: float) -> bool:
    """Whether another threshold costs less than the current one, with confidence.

    Only parts with a score between both thresholds change their verdict, so only they are compared.
    """
    numbers, now = _Numbers(reviews), reviews.threshold
    low, high = min(threshold, now), max(threshold, now)
    shares = []
    for is_defect in (False, True):
        others = numbers.between(is_defect, -math.inf, low) + numbers.between(is_defect, high, math.inf)
        shares.append(_share(numbers.between(is_defect, low, high), others))
    good, defects = shares
    gained, lost = (defects[1] * miss_weight, good[2]) if threshold < now else (good[1], defects[2] * miss_weight)
    return float(np.quantile(gained - lost, (1 - CONFIDENCE) / 2)) > 0


def _cheapest(reviews: Reviews, aim: Aim) -> float:
    """The threshold with the smallest cost, every score spread a little as in ``trade_off.threshold_for``."""
    alarms, sampled = (reviews.weight(alarm=alarm) for alarm in (True, False))
    called_good = reviews.good_scores or tuple(reviews.scores(alarms=False, is_defect=False))
    each = 1.0 if reviews.good_scores else sampled
    floor = reviews.threshold * 1e-3  # a score may be 0
    false_alarms, found = (reviews.scores(alarms=True, is_defect=kind) for kind in (False, True))
    good, good_weights = _logs(called_good, each, false_alarms, alarms, floor)
    bad, bad_weights = _logs(reviews.scores(alarms=False, is_defect=True), sampled, found, alarms, floor)
    mean = float(np.average(good, weights=good_weights))
    spread = math.sqrt(float(np.average((good - mean) ** 2, weights=good_weights)))
    width = max(1.06 * spread * len(bad) ** -0.2, 1e-6)
    order = np.argsort(good)
    middle = good[order][np.searchsorted(np.cumsum(good_weights[order]), good_weights.sum() / 2)]
    candidates = np.linspace(middle, max(good.max(), bad.max()), STEPS)
    cost = 1 - share_below(candidates, *_binned(good, good_weights), width)
    cost += MISS_WEIGHT[aim] * share_below(candidates, *_binned(bad, bad_weights), width)
    return math.exp(float(candidates[int(cost.argmin())]))


def _logs(
    first: Sequence[float] | Array, first_weight: float, second: Array, second_weight: float, floor: float
) -> tuple[Array, Array]:
    """Logarithms of scores of two verdicts, and their weights."""
    scores = np.concatenate([np.asarray(first, dtype=np.float64), second])
    weights = np.concatenate([np.full(len(first), first_weight), np.full(len(second), second_weight)])
    logs: Array = np.log(np.maximum(scores, floor))
    return logs, weights


def _binned(scores: Array, weights: Array) -> tuple[Array, Array]:
    """Middles of bins and their weights, if that is shorter."""
    if len(scores) <= BINS:
        return scores, weights
    counts, edges = np.histogram(scores, BINS, weights=weights)
    return (edges[1:] + edges[:-1]) / 2, counts
