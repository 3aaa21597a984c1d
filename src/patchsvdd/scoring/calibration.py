"""Scores of good images → thresholds for a false-alarm rate, and what they promise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from patchsvdd.scoring.conformal import Guarantee, guarantee_for, p_values, rank_for

Basis = Literal["learned", "tuned", "held-out", "separate"]
"""What the good images were to the detector. "learned": it was trained on them. "tuned": they were held out of
training, but also set the units of its scores. "held-out": in its memory, but not trained on, and each scored in units
that the others set. "separate": no part of it, as the images it will inspect."""
GUARANTEED: tuple[Basis, ...] = ("held-out", "separate")
"""Of such images a threshold says how often new ones exceed it."""
OUTLINE = 0.75
"""Of the threshold: a region is what lies above it around what lies above the threshold."""
BASES: dict[Basis, str] = {
    "learned": "images the detector was trained on, each scored without its own patches: new ones score higher",
    "tuned": "images held out of training, each scored without its own patches, in units that they set themselves",
    "held-out": "images held out of training, each scored without its own patches",
    "separate": "images that the detector has not seen",
}
NO_GUARANTEE: dict[Basis, str] = {
    "learned": "the detector was trained on the images that set the threshold, and new good images score higher",
    "tuned": "the images that set the threshold also set the units of the score; in tests 1.3 times as many new good "
    "images as expected exceeded such thresholds, and up to 2.2 times with position statistics",
}
"""Why a threshold from such images guarantees nothing."""
SCHEMA = 2
"""Of ``to_json``. Before 2, "held-out" images set the units of the score too."""


@dataclass(frozen=True)
class Calibration:
    """The threshold, and the scores it was set from."""

    threshold: float
    false_alarm_rate: float
    """What was asked for."""
    scores: tuple[float, ...]
    """Score of each good image; of one in the memory, against the memory of all the others."""
    basis: Basis = "learned"
    pixel_threshold: float | None = None
    """Where it is known: the share of a good image's pixels above it is at most ``pixel_rate``, on average."""
    pixel_rate: float | None = None
    traits: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What these images are like as a whole (``traits``), each in the order of the scores."""
    digests: tuple[str, ...] = ()
    """Which images these are (``images.digest_of_pixels``), in the order of the scores; empty where it is not known."""
    removed_since: int = 0
    """Images that were taken out of the memory after these scores were measured, which may be higher now."""

    @property
    def outline(self) -> float | None:
        """Down to where regions reach: somewhat below the threshold, where good pixels do not; None if not known."""
        return None if self.pixel_threshold is None else max(self.pixel_threshold, OUTLINE * self.threshold)

    @property
    def conformal_guarantee(self) -> Guarantee:
        """What the threshold promises of good images like these."""
        return guarantee_for(len(self.scores), self.false_alarm_rate)

    @property
    def is_guaranteed(self) -> bool:
        """Whether new good images like these exceed the threshold as rarely as ``promise`` says."""
        return self.basis in GUARANTEED and not self.removed_since

    @property
    def guarantee(self) -> str:
        """What is guaranteed of new good images; where nothing is, why not, and what is known instead."""
        if self.is_guaranteed:
            return self.conformal_guarantee.in_words()
        reason = NO_GUARANTEE.get(self.basis, "images were removed from the memory after the threshold was set")
        above = sum(score > self.threshold for score in self.scores)
        return (
            f"no false-alarm rate is guaranteed: {reason}. {above} of the {len(self.scores)} images are above "
            f"the threshold. For a guarantee, calibrate with good images that the detector has not seen"
        )

    @property
    def smallest_rate(self) -> float:
        """The smallest false-alarm rate this many good images can speak for."""
        return self.conformal_guarantee.smallest_rate

    def p_value(self, score: float) -> float:
        """How probable a score as high is for a good image like these."""
        return float(p_values([score], self.scores)[0])

    @property
    def caveat(self) -> str | None:
        """What to know before trusting the threshold; None when the images suffice for the rate."""
        if self.threshold == 0:
            return (
                "the threshold is 0, because the good images are all alike: every other image will be called "
                "anomalous. Give good images that differ as good parts do"
            )
        if self.removed_since:
            return (
                f"{self.removed_since} images were removed from the memory after the threshold was set: good images "
                f"may score higher now. Calibrate again: patchsvdd calibrate"
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
            "schema": SCHEMA,
            "threshold": self.threshold,
            "false_alarm_rate": self.false_alarm_rate,
            "scores": list(self.scores),
            "basis": self.basis,
            "pixel_threshold": self.pixel_threshold,
            "pixel_rate": self.pixel_rate,
            "traits": {name: list(values) for name, values in self.traits.items()},
            "digests": list(self.digests),
            "removed_since": self.removed_since,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Calibration:
        """The calibration that ``to_json`` wrote, in this version or an earlier one."""
        known = {key: value for key, value in data.items() if key != "schema"}
        if "schema" not in data and data.get("basis") == "held-out":
            known["basis"] = "tuned"
        return cls(**{**known, "scores": tuple(data["scores"]), "digests": tuple(data.get("digests", ()))})


def calibrate(scores: Sequence[float], false_alarm_rate: float, basis: Basis = "learned") -> Calibration:
    """The smallest threshold that a good image like these exceeds with at most the given probability.

    The k-th smallest of n scores with k = ⌈(n + 1)(1 − rate)⌉: a new good image, exchangeable with these, lies
    above it with probability at most ``rate``. With too few images for that the threshold is the largest score.
    """
    threshold = sorted(scores)[rank_for(len(scores), false_alarm_rate) - 1]
    return Calibration(threshold, false_alarm_rate, tuple(scores), basis)


def pixel_threshold(maps: Sequence[NDArray[np.float32]], rate: float) -> float:
    """The lowest value above which a new good image has at most the share ``rate`` of its pixels, on average.

    ``maps``: all pixels of good images, or an even choice of them. Conformal risk control: the image to come may lie
    above as a whole, so it counts as one more that does. Where that alone exceeds the rate, it is the highest value.
    """
    allowed = rate * (len(maps) + 1) - 1
    values = np.concatenate([image_map.ravel() for image_map in maps])
    shares = np.concatenate([np.full(image_map.size, 1 / image_map.size) for image_map in maps])
    order = np.argsort(-values, kind="stable")
    values, above = values[order], np.cumsum(shares[order])
    # Equal values lie above together: what lies above one is what came before the first of its kind.
    first = np.concatenate(([True], values[1:] != values[:-1]))
    before = np.concatenate(([0.0], above[:-1]))[first]
    kept = values[first][before <= allowed + 1e-9]
    return float(kept[-1] if len(kept) else values[0])
