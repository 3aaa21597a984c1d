"""Whether images have changed since calibration: a test after every image that raises few false alarms in all.

Good images before and after are exchangeable as long as nothing changes. Then the rank of each new trait among all so
far is uniform and independent of earlier ranks, and no bet against that can be expected to win. The fortune of a
gambler who bets on ranks getting higher, or lower, exceeds 1 / rate with probability at most ``rate``, however long the
test goes on (Ville's inequality): when it does, something has changed.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from patchsvdd.detector import PatchSVDD
from patchsvdd.errors import ImageError, ModelError
from patchsvdd.images import ImageBatch
from patchsvdd.inspection import Inspection
from patchsvdd.roi import Frame
from patchsvdd.traits import TRAITS, traits_of

BETS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Slopes of the bets: on low ranks, on none, on high ones."""
JUMP = 0.01
"""Share of the fortune that is spread anew over the bets before each image: what to bet on may change."""


@dataclass
class Gambler:
    """Bets on whether ranks, uniform in 0 … 1 while nothing changes, keep high or low."""

    shares: list[float] = field(default_factory=lambda: [1 / len(BETS)] * len(BETS))
    """Of the fortune, on each of the bets; they sum to 1."""
    log_fortune: float = 0.0

    def bet(self, rank: float) -> float:
        """The logarithm of the fortune after a rank is known."""
        spread = [(1 - JUMP) * share + JUMP / len(BETS) for share in self.shares]
        won = [share * (1 + slope * (rank - 0.5)) for share, slope in zip(spread, BETS, strict=True)]
        total = sum(won)
        self.shares = [share / total for share in won]
        self.log_fortune += math.log(total)
        return self.log_fortune

    @property
    def leaning(self) -> float:
        """Below 0 if low ranks have paid of late, above 0 if high ones have."""
        return sum(share * slope for share, slope in zip(self.shares, BETS, strict=True))


@dataclass(frozen=True)
class Change:
    """A trait that has changed."""

    trait: str
    image: str
    """The first image at which that was certain enough."""
    number: int
    """Its number, from 1."""
    direction: str
    """ "higher" or "lower"."""
    before: float
    """Median of the trait at calibration."""
    now: float
    """Median of the last images up to then."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {**self.__dict__, "meaning": TRAITS.get(self.trait, self.trait)}


class DriftTest:
    """Follows images one by one; raises an alarm for no more than a share ``rate`` of streams that do not change."""

    RECENT = 20

    def __init__(self, reference: Mapping[str, Sequence[float]], rate: float = 0.01, seed: int = 0) -> None:
        """``reference``: trait → its values in calibration images, which are the stream's past."""
        if not reference or min(map(len, reference.values())) < 2:
            raise ValueError("a comparison takes at least 2 calibration images")
        self.rate = rate
        self.reference = {trait: list(values) for trait, values in reference.items()}
        self.changes: dict[str, Change] = {}
        self.count = 0
        self._seen = {trait: sorted(values) for trait, values in reference.items()}
        self._recent: dict[str, list[float]] = {trait: [] for trait in reference}
        self._gamblers = {trait: Gambler() for trait in reference}
        self._chance = np.random.default_rng(seed)

    @property
    def limit(self) -> float:
        """Logarithm of the fortune at which a trait's alarm is raised; all traits share the rate."""
        return math.log(len(self.reference) / self.rate)

    @property
    def limit_as_power(self) -> float:
        """The same as a power of ten."""
        return self.limit / math.log(10)

    @property
    def fortunes(self) -> dict[str, float]:
        """Trait → the gambler's fortune so far, as a power of ten."""
        return {trait: gambler.log_fortune / math.log(10) for trait, gambler in self._gamblers.items()}

    def add(self, name: str, traits: Mapping[str, float]) -> list[Change]:
        """The changes that this image makes certain."""
        self.count += 1
        found = []
        for trait, gambler in self._gamblers.items():
            value = float(traits[trait])
            recent = self._recent[trait]
            recent.append(value)
            del recent[: -self.RECENT]
            fortune = gambler.bet(self._rank(trait, value))
            if fortune >= self.limit and trait not in self.changes:
                before = float(np.median(self.reference[trait]))
                direction = "higher" if gambler.leaning > 0 else "lower"
                change = Change(trait, name, self.count, direction, before, float(np.median(recent)))
                self.changes[trait] = change
                found.append(change)
        return found

    def _rank(self, trait: str, value: float) -> float:
        """Share of all values so far, this one among them, that lie below it; of equal ones a random part does."""
        seen = self._seen[trait]
        bisect.insort(seen, value)
        below, upto = bisect.bisect_left(seen, value), bisect.bisect_right(seen, value)
        return (below + float(self._chance.random()) * (upto - below)) / len(seen)


def drift_test(detector: PatchSVDD, rate: float = 0.01) -> DriftTest:
    """A test of images to come against those that the detector was calibrated with."""
    traits = detector.calibration.traits if detector.calibration is not None else {}
    if not traits:
        raise ModelError("this model does not know what its calibration images were like: calibrate it first")
    return DriftTest(traits, rate)


def traits_seen(inspection: Inspection, frame: Frame | None) -> dict[str, float]:
    """The traits of an inspected image, of that part of it that the detector sees."""
    image, anomaly_map = inspection.image, inspection.anomaly_map
    if frame is not None:
        top, left, bottom, right = frame.box
        image, anomaly_map = frame.cut(image), anomaly_map[top:bottom, left:right]
    return traits_of(torch.from_numpy(image).permute(2, 0, 1), anomaly_map, frame)


def follow(
    test: DriftTest,
    detector: PatchSVDD,
    images: ImageBatch,
    on_error: Callable[[ImageError], None] | None = None,
    on_image: Callable[[Inspection, list[Change]], None] | None = None,
) -> None:
    """Add images to the test, in their order."""
    for inspection in detector.inspect_many(images, on_error=on_error):
        found = test.add(inspection.name, traits_seen(inspection, detector.config.frame))
        if on_image is not None:
            on_image(inspection, found)
