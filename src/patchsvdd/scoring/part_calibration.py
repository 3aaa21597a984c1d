"""One verdict for a part with several views, with one false-alarm rate over all of them.

From parts (``calibrate_parts``): the score of a part is the highest score of its views, each in units of its own model,
and the threshold is a rank among such scores of good parts. That holds however the views depend on each other.

From views (``bonferroni_parts``): each view gets an equal share of the rate. Rates add up at most, so this holds too,
but the more the views agree, the fewer false alarms there are, and the more defects are missed for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError, DatasetError, ModelError
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.conformal import CONFIDENCE, Guarantee, guarantee_for, p_values, rank_for

PartBasis = Literal["parts", "views"]
"""What the limits come from. "parts": good parts with all their views. "views": the models' own good images."""
PartVerdict = Literal["good", "anomalous", "incomplete"]
Incomplete = Literal["incomplete", "anomalous"]
"""The verdict on a part of which a view is missing, and no other view is above its limit."""
MOST = 1e9
"""The highest relative score: JSON and field buses have no infinity."""
SCHEMA = 1
"""Version of ``PartCalibration.to_json``."""


@dataclass(frozen=True)
class ScoreUnit:
    """Typical score and spread of the good images that a model was calibrated with."""

    typical: float
    spread: float

    @classmethod
    def of(cls, view: str, calibration: Calibration) -> ScoreUnit:
        """Mean and standard deviation of a model's good scores; raise DatasetError if they are all equal."""
        typical, spread = float(np.mean(calibration.scores)), float(np.std(calibration.scores))
        if not spread > 0:
            raise DatasetError(
                f"the good images of the view '{view}' all have the same score; calibrate its model with images that "
                f"vary as good parts do: patchsvdd calibrate"
            )
        return cls(typical, spread)

    def __call__(self, score: float) -> float:
        """A score in these units."""
        return (score - self.typical) / self.spread


@dataclass(frozen=True)
class ViewCalibration:
    """One view: its model, its limit and the good scores behind it."""

    view: str
    identity: str
    """Of the model."""
    limit: float
    """A part is anomalous if the view's score is above."""
    scores: tuple[float, ...]
    """Of the calibration's parts, in their order; with the basis "views", of the model's own good images."""
    unit: ScoreUnit

    def relative(self, score: float) -> float:
        """The score in multiples of the limit: above 1 exactly if the score is above the limit, at most MOST."""
        above = not score <= self.limit  # a score that is no number is above
        if self.limit <= 0 or math.isnan(score):
            return MOST if above else 0.0
        ratio = score / self.limit
        return min(MOST, ratio if ratio > 1 or not above else math.nextafter(1.0, 2.0))


@dataclass(frozen=True)
class PartJudgement:
    """The verdict on one part."""

    verdict: PartVerdict
    score: float | None
    """The highest of ``relative``: above 1 is anomalous. None if no view arrived."""
    p_value: float | None
    """Probability that a good part like these scores at least this high; None if no view arrived."""
    relative: Mapping[str, float]
    """View → its score in multiples of its limit, for the views that arrived."""
    missing: tuple[str, ...]
    """Views that did not arrive."""


@dataclass(frozen=True)
class PartCalibration:
    """The limits of all views of a part, and the scores they were computed from."""

    basis: PartBasis
    false_alarm_rate: float
    """The requested rate, of whole parts."""
    views: tuple[ViewCalibration, ...]
    parts: tuple[str, ...] = ()
    """The good parts behind the limits; empty with the basis "views"."""
    incomplete: Incomplete = field(default="incomplete", kw_only=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The views, in order."""
        return tuple(view.view for view in self.views)

    @property
    def identities(self) -> dict[str, str]:
        """View → identity of its model."""
        return {view.view: view.identity for view in self.views}

    @property
    def rate(self) -> float:
        """Upper bound of the probability that the next good part is called anomalous."""
        if self.basis == "parts":
            return self._guarantee.rate
        return min(1.0, sum(guarantee.rate for guarantee in self._of_views()))

    @property
    def rate_at_confidence(self) -> float:
        """With 95 % confidence over the choice of good images, at most this share of all good parts is anomalous."""
        if self.basis == "parts":
            return self._guarantee.rate_at_confidence
        return min(1.0, sum(guarantee.rate_at_confidence for guarantee in self._of_views()))

    @property
    def smallest_rate(self) -> float:
        """The smallest rate that this many good parts, or good images of each view, can guarantee."""
        if self.basis == "parts":
            return self._guarantee.smallest_rate
        return min(1.0, sum(guarantee.smallest_rate for guarantee in self._of_views()))

    @property
    def guarantee(self) -> str:
        """What the limits guarantee, in words."""
        if self.basis == "parts":
            return self._guarantee.in_words("part")
        counts = sorted(len(view.scores) for view in self.views)
        images = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        return (
            f"at most {self.rate:.1%} of good parts like these will be called anomalous, with {CONFIDENCE:.0%} "
            f"confidence at most {self.rate_at_confidence:.1%}, given {images} images of each view (the rates of "
            f"{len(self.views)} views added up; if views agree, there are fewer false alarms and more misses than "
            f"with limits from whole parts)"
        )

    @property
    def caveat(self) -> str | None:
        """Warning about the limits; None if there are enough parts, or images of each view, for the rate."""
        if self.rate <= self.false_alarm_rate + 1e-12:
            return None
        if self.basis == "parts":
            few, needed = f"{len(self.parts)} good parts are", math.ceil(1 / self.false_alarm_rate) - 1
        else:
            fewest = min(self.views, key=lambda view: len(view.scores))
            few = f"{len(fewest.scores)} good images of the view '{fewest.view}' are"
            needed = images_needed(len(self.views), self.false_alarm_rate)
        return (
            f"{few} too few for a false-alarm rate of {self.false_alarm_rate:.2%}: at most {self.rate:.1%} of good "
            f"parts will be called anomalous (that rate requires {needed}{'' if self.parts else ' of each view'})"
        )

    def judge(self, scores: Mapping[str, float]) -> PartJudgement:
        """The verdict on a part, from the scores (``Inspection.score``) of the views that arrived.

        A part without one of its views is never good.
        """
        unknown = sorted(scores.keys() - set(self.names))
        if unknown:
            raise ConfigError(f"this part has no view '{unknown[0]}'; its views are {', '.join(self.names)}")
        arrived = [view for view in self.views if view.view in scores]
        missing = tuple(name for name in self.names if name not in scores)
        relative = {view.view: view.relative(scores[view.view]) for view in arrived}
        alarm = any(ratio > 1 for ratio in relative.values())
        verdict: PartVerdict = "anomalous" if alarm else self.incomplete if missing else "good"
        return PartJudgement(verdict, max(relative.values(), default=None), self._p_value(scores), relative, missing)

    def _p_value(self, scores: Mapping[str, float]) -> float | None:
        arrived = [view for view in self.views if view.view in scores]
        if not arrived:
            return None
        if self.basis == "views":
            smallest = min(float(p_values([scores[view.view]], view.scores)[0]) for view in arrived)
            return min(1.0, len(self.views) * smallest)
        return float(p_values([max(view.unit(scores[view.view]) for view in arrived)], self._good)[0])

    @cached_property
    def _good(self) -> NDArray[np.float64]:
        """For each part of the calibration the highest score of its views, in their units."""
        return _highest(self.views)

    @property
    def _guarantee(self) -> Guarantee:
        return guarantee_for(len(self.parts), self.false_alarm_rate)

    def _of_views(self) -> list[Guarantee]:
        share = self.false_alarm_rate / len(self.views)
        confidence = 1 - (1 - CONFIDENCE) / len(self.views)
        return [guarantee_for(len(view.scores), share, confidence) for view in self.views]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartCalibration:
        """Restore a calibration written by ``to_json``; raise ModelError if it is not one."""
        try:
            if data["schema"] != SCHEMA:
                raise ModelError(
                    f"the calibration has schema {data['schema']}; this software reads {SCHEMA}: update it"
                )
            views = tuple(
                ViewCalibration(**{**one, "scores": tuple(one["scores"]), "unit": ScoreUnit(**one["unit"])})
                for one in data["views"]
            )
            fields = {key: value for key, value in data.items() if key != "schema"}
            return cls(**{**fields, "views": views, "parts": tuple(data["parts"])})
        except (KeyError, TypeError) as error:
            raise ModelError(f"the calibration of the part is incomplete ({error}); calibrate again") from None


def calibrate_parts(
    scores: Mapping[str, Mapping[str, float]],
    false_alarm_rate: float,
    identities: Mapping[str, str],
    calibrations: Mapping[str, Calibration],
    incomplete: Incomplete = "incomplete",
) -> PartCalibration:
    """Limits for all views at once, from good parts with all their views.

    ``scores``: part → view → ``Inspection.score``. ``identities`` (view → identity of its model) has the views in
    order. ``calibrations`` are those of the models; they only set the units. A new good part, exchangeable with these,
    is above a limit with probability at most ``false_alarm_rate``, or 1 / (parts + 1) if that is more.

    The models' images must be others: units that these parts had set would make the limits too low. Raise DatasetError
    if there is no part, or a part lacks a view.
    """
    _check(false_alarm_rate, identities)
    if not scores:
        raise DatasetError("there is no good part to calibrate with; give good parts with all their views")
    for part, of_views in scores.items():
        lacking = [view for view in identities if view not in of_views]
        if lacking:
            raise DatasetError(
                f"the part '{part}' has no view '{lacking[0]}', and a calibration needs all of them; leave the part "
                f"out, or check how its files are named"
            )
    units = {view: ScoreUnit.of(view, calibrations[view]) for view in identities}
    of_parts = {view: tuple(of_views[view] for of_views in scores.values()) for view in identities}
    views = [ViewCalibration(view, identities[view], math.inf, of_parts[view], units[view]) for view in identities]
    highest = _highest(views)
    level = float(np.sort(highest)[rank_for(len(highest), false_alarm_rate) - 1])
    limited = tuple(replace(view, limit=_limit(view, level)) for view in views)
    return PartCalibration("parts", false_alarm_rate, limited, tuple(scores), incomplete=incomplete)


def bonferroni_parts(
    calibrations: Mapping[str, Calibration],
    false_alarm_rate: float,
    identities: Mapping[str, str],
    incomplete: Incomplete = "incomplete",
) -> PartCalibration:
    """Limits from each model's own calibration, without parts: every view gets an equal share of the rate.

    Raise ConfigError if a model's calibration guarantees nothing.
    """
    _check(false_alarm_rate, identities)
    for view in identities:
        if not calibrations[view].is_guaranteed:
            raise ConfigError(
                f"the model of the view '{view}' guarantees no false-alarm rate; calibrate it with good images that it "
                f"has not seen (patchsvdd calibrate), or give good parts with all their views"
            )
    views = []
    for view, identity in identities.items():
        scores = calibrations[view].scores
        limit = sorted(scores)[rank_for(len(scores), false_alarm_rate / len(identities)) - 1]
        views.append(ViewCalibration(view, identity, limit, scores, ScoreUnit.of(view, calibrations[view])))
    return PartCalibration("views", false_alarm_rate, tuple(views), incomplete=incomplete)


def images_needed(views: int, false_alarm_rate: float) -> int:
    """Good images of each view that limits without parts require for a false-alarm rate of parts."""
    return math.ceil(views / false_alarm_rate - 1e-9) - 1


def _highest(views: Sequence[ViewCalibration]) -> NDArray[np.float64]:
    return np.asarray(np.array([[view.unit(score) for score in view.scores] for view in views]).max(axis=0))


def _limit(view: ViewCalibration, level: float) -> float:
    """The score that is ``level`` in the view's units, and not below a good score that is at most that by rounding."""
    below = (score for score in view.scores if view.unit(score) <= level)
    return max([view.unit.typical + level * view.unit.spread, *below])


def _check(false_alarm_rate: float, identities: Mapping[str, str]) -> None:
    if not 0 < false_alarm_rate < 1:
        raise ConfigError(f"`false_alarm_rate` is a share between 0 and 1; got {false_alarm_rate:g}")
    if not identities:
        raise ConfigError("a part has at least one view; name a model for each view")
