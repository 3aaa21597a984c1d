"""Drift detection: a sequential test, after every image, of whether images have changed since calibration.

Good images before and after are exchangeable as long as nothing changes. Then every order of an image statistic's
values, over calibration images and new ones, is equally likely, whatever their distribution. The evidence is the
likelihood ratio of the observed order: its probability if something has changed over that if nothing has. This ratio is
a test martingale: while nothing changes it exceeds 1 / rate with probability at most ``rate``, however long the test
runs (Ville's inequality).

A change may come before the first image or later, so the evidence is the mean of two ratios. The first compares all new
images with the calibration images only: a lasting change never becomes normal. The second compares each image with all
before it: it detects a change that comes after many unchanged images.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.core.errors import ImageError, ModelError
from patchsvdd.core.roi import RoiCrop
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.image_statistics import TRAITS, image_statistics
from patchsvdd.images.image_set import ImageBatch
from patchsvdd.scoring.inspection import Inspection

Array = NDArray[np.float64]

POWERS = np.array([2.0, 4.0, 16.0])
"""Alternatives tested for: a new image is like the lowest, or the highest, of this many good images."""
JUMP = 0.005
"""Share of the evidence that moves to other alternatives before each image: a change may come at any time."""
RATE = 0.01
"""Default probability of a false alarm; NOTICED was measured with it."""
NOTICED: dict[int, dict[float, int | None]] = {
    12: {0.5: None, 1.0: None, 1.5: None, 2.0: 38, 3.0: 11},
    24: {0.5: None, 1.0: None, 1.5: 39, 2.0: 16, 3.0: 7},
    60: {0.5: None, 1.0: 68, 1.5: 21, 2.0: 11, 3.0: 5},
    200: {0.5: 380, 1.0: 42, 1.5: 17, 2.0: 10, 3.0: 5},
}
"""Calibration images → size of a lasting shift of one statistic, in standard deviations → number of images within which
at least 90 % of streams detect it; None if fewer do within 500 (``benchmarks/results/drift-power.json``)."""


class FixedReference:
    """Likelihood ratios of the order of new and calibration images: new ones lower, against no difference.

    Under power p each new image is like the lowest of p good ones, so its hazard is p times that of good ones. From the
    lowest value up, the next value is then new with probability p · new / (p · new + old), counted over the remaining
    values: Cox's partial likelihood. It depends only on the number of new values in each gap between calibration
    values.
    """

    def __init__(self, traits: int, count: int) -> None:
        self.logs: Array = np.zeros((traits, len(POWERS)))
        """Logarithms of the ratios, by statistic and power."""
        self._gaps = np.arange(count + 1)
        self._old = count - self._gaps.astype(np.float64)
        """Calibration values above each gap."""
        self._new: Array = np.zeros((traits, count + 1))
        """By statistic: new values in each gap or above."""

    def add(self, gaps: NDArray[np.intp]) -> None:
        """Add one new value per statistic; ``gaps``: the number of calibration values below it."""
        new, power = self._new[:, None], POWERS[:, None]
        left = self._old + power * (new + 1)
        passed = (self._old[:-1] + power * new[..., 1:]) / left[..., :-1]
        passed = np.where(self._gaps[:-1] < gaps[:, None, None], passed, 1.0).prod(-1)
        here = np.take_along_axis(left, gaps[:, None, None], -1)[..., 0]
        self.logs += np.log(POWERS * (len(self._old) + new[..., 0]) / here * passed)
        self._new += self._gaps <= gaps[:, None]


class GrowingReference:
    """Likelihood ratios of each image's rank among all before it, by statistic, against uniform ranks."""

    HIGHER = slice(0, 4)
    LOWER = slice(4, 8)

    def __init__(self, traits: int) -> None:
        self.logs: Array = np.zeros(traits)
        self.shares: Array = np.full((traits, 9), 1 / 9)
        """Shares of the evidence by alternative: higher ranks, lower ranks, no difference. They sum to 1."""

    @staticmethod
    def densities(ranks: Array) -> Array:
        """Return the density of a rank in 0 … 1, by statistic and alternative."""
        up = ranks[:, None]
        higher, lower = ([side + 0.5, POWERS * side ** (POWERS - 1)] for side in (up, 1 - up))
        return np.concatenate([*higher, *lower, np.ones_like(up)], axis=1)

    def add(self, ranks: Array) -> None:
        """Add one rank per statistic."""
        kept = (1 - JUMP) * self.shares + JUMP / self.shares.shape[1]
        joint = kept * self.densities(ranks)
        total = joint.sum(1)
        self.shares = joint / total[:, None]
        self.logs = self.logs + np.log(total)


@dataclass(frozen=True)
class Change:
    """An image statistic that has changed."""

    trait: str
    image: str
    """The first image at which the evidence reached the limit."""
    number: int
    """Its number, from 1."""
    direction: str
    """ "higher" or "lower"."""
    before: float
    """Median at calibration."""
    now: float
    """Median of the most recent images."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {**self.__dict__, "meaning": TRAITS.get(self.trait, self.trait)}


class DriftTest:
    """Tests images one by one; at most a share ``rate`` of unchanged streams ever raises a false alarm."""

    RECENT = 20

    def __init__(self, reference: Mapping[str, Sequence[float]], rate: float = RATE, seed: int = 0) -> None:
        """``reference``: image statistic → its values in the calibration images, equally many for each."""
        counts = {len(values) for values in reference.values()}
        if len(counts) != 1 or min(counts) < 2:
            raise ValueError("a comparison requires at least 2 calibration images, and every statistic of each")
        self.rate = rate
        self.reference = {trait: list(values) for trait, values in reference.items()}
        self.references = counts.pop()
        self.changes: dict[str, Change] = {}
        self.count = 0
        self._chance = np.random.default_rng(seed)
        # Ties are broken by a random number.
        self._old = [sorted((float(value), self._random()) for value in values) for values in reference.values()]
        self._seen = [list(values) for values in self._old]
        self._recent: dict[str, list[float]] = {trait: [] for trait in reference}
        self._lower = FixedReference(len(reference), self.references)
        self._higher = FixedReference(len(reference), self.references)
        self._growing = GrowingReference(len(reference))

    @property
    def limit(self) -> float:
        """Logarithm of the evidence that raises an alarm; all statistics share the rate."""
        return math.log(len(self.reference) / self.rate)

    @property
    def limit_as_power(self) -> float:
        """``limit`` as a power of ten."""
        return self.limit / math.log(10)

    @property
    def evidence(self) -> dict[str, float]:
        """Image statistic → its likelihood ratio so far, as a power of ten."""
        return dict(zip(self.reference, (self._logs() / math.log(10)).tolist(), strict=True))

    def add(self, name: str, traits: Mapping[str, float]) -> list[Change]:
        """Add an image and return the changes whose evidence has now reached the limit."""
        self.count += 1
        gaps, ranks = [], []
        for trait, old, seen in zip(self.reference, self._old, self._seen, strict=True):
            value = float(traits[trait])
            self._recent[trait] = [*self._recent[trait][1 - self.RECENT :], value]
            entry = (value, self._random())
            gaps.append(bisect.bisect(old, entry))
            ranks.append((bisect.bisect(seen, entry) + self._random()) / (len(seen) + 1))
            bisect.insort(seen, entry)
        self._lower.add(np.array(gaps))
        self._higher.add(self.references - np.array(gaps))
        self._growing.add(np.array(ranks))
        new_changes = []
        for index, (trait, log) in enumerate(zip(self.reference, self._logs(), strict=True)):
            if log >= self.limit and trait not in self.changes:
                before, now = float(np.median(self.reference[trait])), float(np.median(self._recent[trait]))
                self.changes[trait] = Change(trait, name, self.count, self._direction(index), before, now)
                new_changes.append(self.changes[trait])
        return new_changes

    def _random(self) -> float:
        return float(self._chance.random())

    def _logs(self) -> Array:
        """Return the logarithm of the evidence by statistic: the mean of both likelihood ratios."""
        fixed = _log_mean(np.concatenate([self._lower.logs, self._higher.logs], axis=1))
        both: Array = _log_mean(np.stack([fixed, self._growing.logs], axis=1))
        return both

    def _direction(self, index: int) -> str:
        """Return the direction of change that has more evidence."""
        growing, logs = self._growing, []
        for fixed, side in ((self._higher, growing.HIGHER), (self._lower, growing.LOWER)):
            share = float(growing.shares[index, side].sum())
            logs.append(np.logaddexp(_log_mean(fixed.logs[index]) - math.log(2), growing.logs[index] + math.log(share)))
        return "higher" if logs[0] > logs[1] else "lower"


def _log_mean(logs: Array) -> Any:
    """Return the logarithm of the mean of numbers (…, N), given their logarithms."""
    return np.logaddexp.reduce(logs, axis=-1) - math.log(logs.shape[-1])


def noticed(references: int) -> dict[str, Any]:
    """Return the measured power of the test, for the largest measured number of calibration images ≤ ``references``."""
    known = max((count for count in NOTICED if count <= references), default=None)
    within = NOTICED[known] if known is not None else {}
    return {
        "references": references,
        "measured_with": known,
        "rate": RATE,
        "share": 0.9,
        "images_by_shift": {f"{shift:g}": images for shift, images in within.items()},
    }


def noticed_in_words(references: int) -> str:
    """Return the result of ``noticed`` as a sentence."""
    facts = noticed(references)
    within = {shift: images for shift, images in facts["images_by_shift"].items() if images is not None}
    if not within:
        return f"with fewer than {min(NOTICED)} calibration images, large changes only"
    known = ", ".join(f"{shift} within {images} images" for shift, images in within.items())
    return (
        f"in 9 of 10 streams a lasting shift of this many standard deviations: {known}; "
        "a smaller one may never be noticed "
        f"(measured with {facts['measured_with']} calibration images and a rate of {RATE:.0%})"
    )


def drift_test(detector: PatchSVDD, rate: float = RATE) -> DriftTest:
    """Return a test of new images against the detector's calibration images."""
    traits = detector.calibration.traits if detector.calibration is not None else {}
    if not traits:
        raise ModelError("this model has no image statistics of its calibration images; recalibrate it first")
    return DriftTest(traits, rate)


def statistics_of_inspection(inspection: Inspection, frame: RoiCrop | None) -> dict[str, float]:
    """Return the image statistics of an inspected image, within the detector's crop."""
    image, anomaly_map = inspection.image, inspection.anomaly_map
    if frame is not None:
        top, left, bottom, right = frame.box
        image, anomaly_map = frame.cut(image), anomaly_map[top:bottom, left:right]
    return image_statistics(torch.from_numpy(image).permute(2, 0, 1), anomaly_map, frame)


def follow(
    test: DriftTest,
    detector: PatchSVDD,
    images: ImageBatch,
    on_error: Callable[[ImageError], None] | None = None,
    on_image: Callable[[Inspection, list[Change]], None] | None = None,
) -> None:
    """Inspect images and add them to the test, in order."""
    for inspection in detector.inspect_many(images, on_error=on_error):
        changes = test.add(inspection.name, statistics_of_inspection(inspection, detector.config.frame))
        if on_image is not None:
            on_image(inspection, changes)
