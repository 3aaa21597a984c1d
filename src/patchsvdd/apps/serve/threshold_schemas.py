"""Request and response bodies about thresholds: the trade-off, another threshold, proposals, and recalibration."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from patchsvdd.apps.serve.schemas import Answer
from patchsvdd.core.aims import Aim, Purpose

DAYS = 7
"""Days whose reviews a proposal or a recalibration uses by default."""


class DefectClassAnswer(Answer):
    """Synthetic defects of about one size and contrast, at the present threshold."""

    contrast: Literal["faint", "visible", "plain"]
    smallest: int = Field(description="diameter in pixels of the original image")
    largest: int | None = Field(description="exclusive; null: no limit")
    count: int
    missed: int
    miss_rate: float


class AimAnswer(Answer):
    """The threshold that an aim would give, and what it would cost."""

    aim: Aim
    threshold: float | None = Field(description="null if the aim is not possible for this model")
    false_alarms: float | None = Field(description="expected share of good images above it")
    missed: float | None = Field(
        description="share of the visible synthetic defects not above it; null if not estimated"
    )
    reason: str | None = Field(description="why the aim is not possible; null if it is")


class PointAnswer(Answer):
    """What a threshold would cost."""

    threshold: float
    above: int = Field(description="good images above it, without varied copies")
    false_alarms: float = Field(description="expected share of good images above it")
    missed: float | None = Field(
        description="share of the visible synthetic defects not above it; null if not estimated"
    )
    classes: list[int] = Field(description="missed defects of each of `classes`")


class TradeOffAnswer(Answer):
    """False alarms against missed synthetic defects, at the present threshold and at others."""

    model: str
    identity: str = Field(description="the model's version")
    changeable: bool = Field(description="whether another threshold can be set; false without a calibration")
    estimated: bool = Field(description="whether misses are estimated")
    reason: str | None = Field(description="why not, and what to do, as text; null if they are")
    aim: Purpose | None = Field(description="what the threshold was set for; `chosen`: someone set its value")
    threshold: float | None
    false_alarm_rate: float | None = Field(description="the rate for the aim `few-alarms`")
    sentence: str | None = Field(description="what to expect of the threshold: false alarms and misses")
    guarantee: str | None = Field(description="the guarantee for new good images, or why there is none")
    guaranteed: bool = Field(description="whether the false-alarm rate is guaranteed")
    miss_rate: float | None = Field(description="share of the visible synthetic defects that the threshold misses")
    good: int = Field(description="good images that the calibration is based on")
    varied: int = Field(
        description="copies of them with another light, place, focus and grain, which count as good images too"
    )
    defects: int = Field(description="synthetic defects drawn")
    visible: int = Field(description="those that people see well, which the shares of misses count")
    classes: list[DefectClassAnswer] = Field(description="missed defects by contrast and size")
    aims: list[AimAnswer]
    curve: list[PointAnswer] = Field(
        description="about 100 thresholds in order, the present one and those of the aims included"
    )


class ThresholdRequest(BaseModel):
    """Another threshold: by its aim, for a false-alarm rate (few alarms), or as a value."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"aim": "few-misses"}})
    aim: Aim | None = None
    false_alarm_rate: float | None = Field(
        default=None, gt=0, lt=1, allow_inf_nan=False, description="only with the aim `few-alarms`, which it implies"
    )
    threshold: float | None = Field(
        default=None, gt=0, le=1e30, allow_inf_nan=False, description="a value of your choice, without an aim or rate"
    )
    identity: str | None = Field(
        default=None, max_length=64, description="the version that you looked at; refused if the model has changed"
    )


class RateAnswer(Answer):
    """An expected share with its interval."""

    estimate: float
    low: float
    high: float


class ExpectedAnswer(Answer):
    """What to expect of a threshold, by the reviews."""

    threshold: float
    false_alarms: RateAnswer = Field(description="share of good parts that raise an alarm")
    misses: RateAnswer = Field(description="share of defects that are called good")


class ProposalAnswer(Answer):
    """The threshold with the smallest expected cost, compared with the present one."""

    threshold: float = Field(description="the present one if no other is expected to cost less")
    aim: Aim = Field(description="how false alarms and misses are weighed: `balanced` or `few-misses`")
    is_better: bool = Field(description="whether the reviews show, with confidence, that it costs less")
    conclusion: str = Field(description="whether the reviews support a change, as text")
    sentence: str = Field(description="the same with all shares and intervals")
    proposed: ExpectedAnswer
    current: ExpectedAnswer
    good: int = Field(description="reviewed good parts")
    defects: int = Field(description="reviewed defects")
    confidence: float = Field(description="of the intervals and of `is_better`")


class ThresholdProposalAnswer(Answer):
    """The threshold that reviews suggest, or what is missing for a proposal."""

    model: str
    identity: str
    days: int = Field(
        description="only parts of these days that this version of the model inspected with its present threshold count"
    )
    possible: bool
    reason: str | None = Field(description="what is missing for a proposal, and what to do; null if there is one")
    reviewed_good: int = Field(description="false alarms, and parts of the samples that were confirmed as good")
    reviewed_defects: int = Field(description="true alarms, and defects among the parts of the samples")
    proposal: ProposalAnswer | None


class RecalibrationAnswer(Answer):
    """Whether images have changed since calibration, and the confirmed good images for another one."""

    model: str
    identity: str
    changes: list[dict[str, Any]] = Field(description="changes of the images since calibration, as in `drift`")
    higher: bool = Field(description="whether images are farther from normal throughout: good parts score higher")
    days: int = Field(description="only inspections of these days, by this version of the model, count")
    confirmed_good: int = Field(description="Good parts confirmed in a review")
    false_alarms: int = Field(description="alarms reviewed as false")
    images: int = Field(description="images that a recalibration would use, both kinds in the line's proportion")
    needed: int = Field(description="the fewest images for a recalibration")
    possible: bool
    reason: str | None = Field(description="why a recalibration is not possible, and what to do; null if it is")


class RecalibrationRequest(BaseModel):
    """A recalibration with images that people have confirmed as good."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"days": DAYS}})
    days: int = Field(default=DAYS, ge=1, le=366, description="use inspections of the last days")
    identity: str | None = Field(
        default=None, max_length=64, description="the version that you looked at; refused if the model has changed"
    )
