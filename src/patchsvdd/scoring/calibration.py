"""Thresholds for a false-alarm rate from scores of good images, and their guarantees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.aims import Aim, Purpose
from patchsvdd.core.errors import ConfigError
from patchsvdd.scoring.conformal import Guarantee, guarantee_at, guarantee_for, p_values, rank_for
from patchsvdd.scoring.trade_off import Evidence, check_aim, false_alarms, threshold_for

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
WIDE = 0.2
"""Distance between an estimated false-alarm rate and its upper bound that deserves a warning; about 30 images."""
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
    aim: Purpose = "few-alarms"
    """What the threshold was chosen for; "chosen" if someone set its value."""
    evidence: Evidence | None = None
    """Scores of synthetic defects; None if none were drawn."""
    region_level: float | None = None
    """Value of the map at which outlines of synthetic defects fit best; None if not known."""
    region_share: float = 0.0
    """Share of a region's peak below which its pixels are left out, where outlines of synthetic defects fit best."""

    @property
    def outline(self) -> float | None:
        """Value of the map that bounds regions; None for the threshold.

        Chosen with synthetic defects, below or above the threshold; otherwise not above the threshold, and above nearly
        all good pixels.
        """
        if self.region_level is not None:
            return self.region_level
        if self.pixel_threshold is None:
            return None
        return min(self.threshold, max(self.pixel_threshold, OUTLINE * self.threshold))

    @property
    def conformal_guarantee(self) -> Guarantee:
        """The guarantee of the threshold for good images like these."""
        if self.aim == "few-alarms":
            return guarantee_for(len(self.scores), self.false_alarm_rate)
        known = guarantee_at(self.scores, self.threshold)
        expected = false_alarms(self.threshold, self.scores, self.evidence)
        return replace(known, rate=min(expected, known.rate_at_confidence))

    @property
    def miss_rate(self) -> float | None:
        """Share of visible synthetic defects that the threshold misses; None if none were drawn."""
        return self.evidence.miss_rate(self.threshold) if self.evidence is not None else None

    @property
    def sentence(self) -> str:
        """What to expect of the threshold: false alarms, and misses if they were estimated."""
        words = self.guarantee
        if self.evidence is None or not self.evidence.defects:
            return words
        faint = [one for one in self.evidence.classes(self.threshold) if one.contrast == "faint"]
        count, missed = sum(one.count for one in faint), sum(one.missed for one in faint)
        visible = int(self.evidence.visible.sum())
        of_faint = (
            f", and {missed / count:.0%} of {count} faint ones"
            if count and visible + count == len(self.evidence.defects)
            else ""
        )
        return (
            f"{words}. Of {visible} visible synthetic defects {self.miss_rate:.0%} are missed{of_faint}; real "
            f"defects may differ"
        )

    def renewed(self, scores: Sequence[float], basis: Basis) -> Calibration:
        """The calibration with other scores of good images, for the same rate, aim and synthetic defects.

        A threshold that someone chose stays as it is.
        """
        aim = "few-alarms" if self.aim == "chosen" else self.aim
        new = calibrate(scores, self.false_alarm_rate, basis, aim, self.evidence)
        if self.aim == "chosen":
            new = new.with_threshold(self.threshold)
        return replace(
            new,
            pixel_threshold=self.pixel_threshold,
            pixel_rate=self.pixel_rate,
            region_level=self.region_level,
            region_share=self.region_share,
        )

    def with_aim(self, aim: Aim, false_alarm_rate: float | None = None) -> Calibration:
        """The calibration with a threshold for another aim, from the same scores.

        Raise ConfigError if the aim requires synthetic defects and there are none, or good images that vary.
        """
        rate = self.false_alarm_rate if false_alarm_rate is None else false_alarm_rate
        if aim != "few-alarms" and self.evidence is None:
            raise ConfigError(
                f"the aim '{aim}' requires scores of synthetic defects, and this model has none: it was trained with "
                f"`aim=few-alarms` or by an earlier version. Train it again with `aim={aim}`"
            )
        new = calibrate(self.scores, rate, self.basis, aim, self.evidence)
        if new.aim != aim:
            placed = self.evidence is not None and self.evidence.defects
            reason = "its good images are too few or too much alike" if placed else "it has none: they found no place"
            raise ConfigError(
                f"the aim '{aim}' weighs scores of good images and of synthetic defects, and this model cannot: "
                f"{reason}. Keep `aim=few-alarms`, or calibrate it with other good images"
            )
        return replace(self, threshold=new.threshold, false_alarm_rate=rate, aim=new.aim)

    def with_threshold(self, threshold: float) -> Calibration:
        """The calibration with a threshold that someone chose."""
        if not 0 < threshold < math.inf:
            raise ConfigError(f"a threshold must be above 0 and finite; got {threshold}")
        return replace(self, threshold=threshold, aim="chosen")

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
        if self.evidence is not None and not self.evidence.defects:
            return (
                "misses cannot be estimated, because no synthetic defect could be placed in the good images: they are "
                "too small, or too little of them is inside the region of interest. The threshold is for few false "
                "alarms"
            )
        if self.evidence is not None and min(self.scores) <= 0:
            copies = sum(score <= 0 for score in self.scores)
            return (
                f"{copies} of the {len(self.scores)} good images score 0, as copies of others do: false "
                f"alarms cannot be estimated or weighed against misses. Leave copies out"
            )
        if self.removed_since:
            return (
                f"{self.removed_since} images were removed from the memory after the threshold was set: good images "
                f"may score higher now. Calibrate again: patchsvdd calibrate"
            )
        if self.aim != "few-alarms":
            return self._uncertainty
        if self.false_alarm_rate >= self.smallest_rate:
            return None
        needed, count = math.ceil(1 / self.false_alarm_rate) - 1, len(self.scores)
        few = "1 good image is too few" if count == 1 else f"{count} good images are too few"
        return (
            f"{few} for a false-alarm rate of {self.false_alarm_rate:.2%}: "
            f"they allow {self.smallest_rate:.1%} at best (that rate requires {needed} images). "
            f"The threshold is the highest score of a good image"
        )

    @property
    def _uncertainty(self) -> str | None:
        """Warning that few images leave the false-alarm rate open; None if they do not."""
        estimate = self.conformal_guarantee
        if estimate.rate_at_confidence - estimate.rate <= WIDE:
            return None
        return (
            f"{len(self.scores)} good images leave the false-alarm rate uncertain: about {estimate.rate:.0%}, but "
            f"{estimate.rate_at_confidence:.0%} is possible. Calibrate with 60 or more good images that the detector "
            f"has not seen: patchsvdd calibrate"
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
            "aim": self.aim,
            "evidence": self.evidence.to_json() if self.evidence is not None else None,
            "region_level": self.region_level,
            "region_share": self.region_share,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Calibration:
        """Restore a calibration written by ``to_json``, in this version or an earlier one."""
        fields = {key: value for key, value in data.items() if key != "schema"}
        if "schema" not in data and data.get("basis") == "held-out":
            fields["basis"] = "tuned"
        evidence = data.get("evidence")
        fields["evidence"] = Evidence.from_json(evidence) if evidence else None
        return cls(**{**fields, "scores": tuple(data["scores"]), "digests": tuple(data.get("digests", ()))})


def calibrate(
    scores: Sequence[float],
    false_alarm_rate: float,
    basis: Basis = "learned",
    aim: Aim = "few-alarms",
    evidence: Evidence | None = None,
) -> Calibration:
    """The threshold for an aim.

    "few-alarms": the k-th smallest of n scores with k = ⌈(n + 1)(1 − rate)⌉: a new good image, exchangeable with these,
    exceeds it with probability at most ``rate``. With too few images the threshold is the largest score. The other aims
    weigh false alarms and missed synthetic defects; if the good images cannot tell how their scores vary, the threshold
    is that of "few-alarms".
    """
    check_aim(aim)
    threshold = None
    if aim != "few-alarms" and evidence is not None:
        threshold = threshold_for(aim, scores, evidence)
    if threshold is None:
        threshold, aim = sorted(scores)[rank_for(len(scores), false_alarm_rate) - 1], "few-alarms"
    return Calibration(threshold, false_alarm_rate, tuple(scores), basis, aim=aim, evidence=evidence)


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
