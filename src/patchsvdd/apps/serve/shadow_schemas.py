"""Request and response bodies about candidates: the shadow's results, the switch and the roll back."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from patchsvdd.apps.serve.schemas import Answer, InspectionAnswer, ModelAnswer, Verdict


class CandidateFacts(Answer):
    """A model that inspects in the shadow of another."""

    model: str = Field(description="the name under which it is served itself", examples=["bottle-2"])
    identity: str | None = Field(description="its version; null while it is not served")
    since: str = Field(description="when it was set, UTC")
    by: str = Field(description="who set it")
    waiting: int = Field(description="images that wait for it")
    trouble: str | None = Field(description="why it does not inspect, and what to do; null if it does")


class LastSwitch(Answer):
    """What a roll back would restore."""

    identity: str = Field(description="the version that was live before the switch")
    folder: str = Field(description="name of its folder")
    at: str = Field(description="when the switch was made, UTC")
    by: str = Field(description="who made it")


class CandidateAnswer(Answer):
    """What is live under a name, its candidate, and what a roll back would restore."""

    model: str
    identity: str | None = Field(description="the live version; null if it cannot be loaded")
    folder: str | None = Field(description="name of the live model's folder")
    candidate: CandidateFacts | None
    rollback: LastSwitch | None = Field(description="null if no switch can be rolled back")


class CandidateRequest(BaseModel):
    """The served model that inspects in the shadow."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"model": "bottle-2"}})
    model: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="name of another served model")


class SwitchRequest(BaseModel):
    """The version that you looked at: the candidate's for a switch, the live one for a roll back."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"identity": None}})
    identity: str | None = Field(
        default=None, max_length=64, description="refused (409) if it is another one by now; null: any"
    )


class SwitchedAnswer(Answer):
    """The model after a switch or a roll back."""

    model: ModelAnswer
    state: CandidateAnswer


class AlarmsAnswer(Answer):
    """How many images raised an alarm."""

    count: int
    rate: float | None = Field(description="share of the images; null without any")
    interval: tuple[float, float] | None = Field(description="the rate's 95 % interval (Clopper–Pearson)")


class ShadowAnswer(Answer):
    """What the live model and its candidate said about the same images, in their present versions."""

    model: str
    identity: str
    candidate: str
    candidate_identity: str
    images: int = Field(description="images that both inspected")
    both: int = Field(description="both raised an alarm")
    only_live: int
    only_candidate: int
    neither: int
    live_alarms: AlarmsAnswer
    candidate_alarms: AlarmsAnswer
    difference: float | None = Field(description="the candidate's rate of alarms minus the live one's")
    interval: tuple[float, float] | None = Field(description="the difference's interval, for paired shares")
    confidence: float
    method: str = Field(description="of that interval", examples=["Tango"])
    p_value: float = Field(description="McNemar's exact test, two-sided: small if the difference is hardly chance")
    waiting: int = Field(description="images that wait for the candidate")
    dropped: int = Field(
        description="images that were not compared because too many waited, since the candidate was set or the service "
        "started"
    )
    failed: int = Field(description="images that the candidate could not inspect, since then")
    room: int = Field(description="images that may wait; a further one drops the oldest")
    trouble: str | None = Field(description="why the candidate does not inspect; null if it does")


class ShadowResult(Answer):
    """What the candidate said about an image."""

    candidate: str
    identity: str = Field(description="the version of the candidate that said so")
    at: str
    score: float
    threshold: float
    verdict: Verdict


class DisagreementAnswer(Answer):
    """An inspection on which the verdicts differ."""

    inspection: InspectionAnswer = Field(description="by the live model")
    shadow: ShadowResult


class DisagreementsAnswer(Answer):
    """A page of inspections on which the verdicts differ, newest first."""

    disagreements: list[DisagreementAnswer]
    next: str | None = Field(description="pass it as `before` to get the next page; null at the end")
