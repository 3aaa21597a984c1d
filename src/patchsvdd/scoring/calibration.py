"""Thresholds for a false-alarm rate from scores of good images, and their guarantees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from patchsvdd.scoring.conformal import Guarantee, guarantee_for, p_values, rank_for

Basis = Literal["learned", "tuned", "held-out", "separate"]
"""Relation of the good images to the detector. "learned": it was trained on them. "tuned": held out of training, but
also used to set the units of its scores. "held-out": in its memory, but not trained on, and each scored in units set by
the others. "separate": not part of it, like the images it will inspect."""
GUARANTEED: tuple[Basis, ...] = ("held-out", "separate")
"""A threshold from such images guarantees how often new good images exceed it."""
OUTLINE = 0.75
"""Fraction of the threshold down to which a region extends around the pixels above the threshold."""
BASES: dict[Basis, str] = {
    "learned": "images the detector was trained on, each scored without its own patches; new images score higher",
    "tuned": "images held out of training, each scored without its own patches, in units set by these images",
    "held-out": "images held out of training, each scored without its own patches",
    "separate": "images that the detector has not seen",
}
NO_GUARANTEE: dict[Basis, str] = {
    "learned": "the detector was trained on the images that set the threshold, and new good images score higher",
    "tuned": "the images that set the threshold also set the units of the score; in tests 1.3 times as many new good "
    "images as expected exceeded such thresholds, and up to 2.2 times with position statistics",
}
"""Why a threshold from such images has no guarantee."""
SCHEMA = 2
"""Version of ``to_json``. Before 2, "held-out" images also set the units of the score."""


@dataclass(frozen=True)
class Calibration:
    """The threshold, and the scores it was computed from."""

    threshold: float
    false_alarm_rate: float
    """The requested rate."""
    scores: tuple[float, ...]
    """Score of each good image; images in the memory are scored against the memory of all others."""
    basis: Basis = "learned"
    pixel_threshold: float | None = None
    """On average at most ``pixel_rate`` of a good image's pixels exceed it; None if not known."""
    pixel_rate: float | None = None
    traits: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Image statistics (brightness, focus, …) of these images, in the order of the scores."""
    digests: tuple[str, ...] = ()
    """Hashes of these images (``image_set.digest_of_pixels``), in the order of the scores; empty if not known."""
    removed_since: int = 0
    """Number of images removed from the memory since then; scores may be higher now."""

    @property
    def outline(self) -> float | None:
        """Level down to which regions extend: below the threshold, above nearly all good pixels; None if unknown."""
        return None if self.pixel_threshold is None else max(self.pixel_threshold, OUTLINE * self.threshold)

    @property
    def conformal_guarantee(self) -> Guarantee:
        """The guarantee of the threshold for good images like these."""
        return guarantee_for(len(self.scores), self.false_alarm_rate)

    @property
    def is_guaranteed(self) -> bool:
        """Whether ``conformal_guarantee`` applies to new good images."""
        return self.basis in GUARANTEED and not self.removed_since

    @property
    def guarantee(self) -> str:
        """The guarantee for new good images in words; if there is none, the reason and what is known instead."""
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
        """The smallest false-alarm rate that this many good images can guarantee."""
        return self.conformal_guarantee.smallest_rate

    def p_value(self, score: float) -> float:
        """Probability that a good image like these has a score at least this high."""
        return float(p_values([score], self.scores)[0])

    @property
    def caveat(self) -> str | None:
        """Warning about the threshold; None if there are enough images for the rate."""
        if self.threshold == 0:
            return (
                "the threshold is 0, because the good images are all alike: every other image will be called "
                "anomalous. Use good images that vary as good parts do"
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
            f"{len(self.scores)} good images are too few for a false-alarm rate of {self.false_alarm_rate:.2%}: "
            f"they allow {self.smallest_rate:.1%} at best (that rate requires {needed} images). "
            f"The threshold is the highest score of a good image"
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
        """Restore a calibration written by ``to_json``, in this version or an earlier one."""
        fields = {key: value for key, value in data.items() if key != "schema"}
        if "schema" not in data and data.get("basis") == "held-out":
            fields["basis"] = "tuned"
        return cls(**{**fields, "scores": tuple(data["scores"]), "digests": tuple(data.get("digests", ()))})


def calibrate(scores: Sequence[float], false_alarm_rate: float, basis: Basis = "learned") -> Calibration:
    """The lowest threshold that a good image like these exceeds with at most the given probability.

    It is the k-th smallest of n scores with k = ⌈(n + 1)(1 − rate)⌉: a new good image, exchangeable with these, exceeds
    it with probability at most ``rate``. With too few images the threshold is the largest score.
    """
    threshold = sorted(scores)[rank_for(len(scores), false_alarm_rate) - 1]
    return Calibration(threshold, false_alarm_rate, tuple(scores), basis)


def pixel_threshold(maps: Sequence[NDArray[np.float32]], rate: float) -> float:
    """The lowest value that on average at most a share ``rate`` of a new good image's pixels exceeds.

    ``maps``: all pixels of good images, or an even sample of them. Conformal risk control: the new image is counted as
    one more map that is above entirely. If that alone exceeds the rate, the result is the highest value.
    """
    allowed = rate * (len(maps) + 1) - 1
    values = np.concatenate([image_map.ravel() for image_map in maps])
    shares = np.concatenate([np.full(image_map.size, 1 / image_map.size) for image_map in maps])
    order = np.argsort(-values, kind="stable")
    values, above = values[order], np.cumsum(shares[order])
    # Equal values exceed a threshold together: the share above a value is the one before its first occurrence.
    first = np.concatenate(([True], values[1:] != values[:-1]))
    before = np.concatenate(([0.0], above[:-1]))[first]
    kept = values[first][before <= allowed + 1e-9]
    return float(kept[-1] if len(kept) else values[0])
