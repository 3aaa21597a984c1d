"""Request and response bodies of the running line and of its parts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from patchsvdd.apps.line.parts import PartVerdict
from patchsvdd.apps.serve.line_view import SourceState, State
from patchsvdd.apps.serve.schemas import Answer, Verdict

TEXT = 200
"""Maximum length of a part number or a product."""


class FaultAnswer(Answer):
    """Why the line does not work."""

    code: int
    name: str = Field(examples=["SOURCE"])
    text: str
    since: str = Field(description="time, UTC")


class SourceAnswer(Answer):
    """A camera, a stream or a folder; counts begin when the line starts."""

    name: str
    view: str
    kind: str = Field(examples=["genicam"])
    state: SourceState
    since: str = Field(description="when it came into this state, UTC")
    reason: str | None = Field(description="why it failed")
    frames: int
    dropped: int = Field(description="images for which there was no room in the queue")
    lost: int = Field(description="images that the camera or the network lost")
    late: int = Field(description="images that came after their part was answered")
    reconnects: int
    frames_per_second: float


class BusAnswer(Answer):
    """A field bus."""

    kind: str = Field(examples=["opcua"])
    address: str
    clients: int
    trouble: str | None = Field(description="why it does not work; null if it does")


class PartViewAnswer(Answer):
    """One view of a part."""

    view: str
    inspection: str = Field(description="id of the inspection, which has the image and the map")
    model: str
    identity: str
    score: float
    threshold: float
    verdict: Verdict = Field(description="of this view alone")
    frame: int
    captured: str = Field(description="time, UTC")
    image_size: list[int] | None = Field(description="height, width; null if the inspection was deleted")
    has_picture: bool


class PartRegionAnswer(Answer):
    """A region of a view above the threshold, in pixels of the image."""

    view: str
    left: int
    top: int
    width: int
    height: int
    peak: float = Field(description="in multiples of the view's threshold")
    kind: str | None = Field(description="the kind of confirmed defect that it resembles")


class AcknowledgedAnswer(Answer):
    """Who has seen that a part got no verdict."""

    at: str
    by: str


class PartAnswer(Answer):
    """A part with the one verdict on all of its views."""

    id: str = Field(examples=["019a8c2f1e7b3f0c9d2a4b6c"])
    line: str
    sequence: int = Field(description="counts the parts of the line, from 1")
    part_number: str
    product: str
    trigger_id: int = Field(description="as the PLC numbered the trigger; 0 if it did not")
    by: str = Field(description="what triggered it: camera, opcua, modbus, api or folder")
    triggered: str = Field(description="time, UTC")
    answered: str = Field(description="time, UTC")
    seconds: float = Field(description="from the trigger to the stored verdict")
    verdict: PartVerdict
    score: float | None
    threshold: float
    views: list[PartViewAnswer]
    missing: list[str] = Field(description="views that did not arrive in time")
    regions: list[PartRegionAnswer]
    reason: str | None
    acknowledged: AcknowledgedAnswer | None


class PartsAnswer(Answer):
    """A page of parts, newest first."""

    parts: list[PartAnswer]
    next: str | None = Field(description="send it as `before` for the next page; null on the last page")


class LineAnswer(Answer):
    """The state of the line now."""

    name: str
    state: State
    mode: Literal["bus", "camera"] = Field(description="what triggers parts")
    fault: FaultAnswer | None
    sources: list[SourceAnswer]
    buses: list[BusAnswer]
    products: list[str]
    product: str
    views: list[str]
    last: PartAnswer | None
    sequence: int


class TriggerRequest(BaseModel):
    """A part to inspect now."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"part_number": "A-0042"}})
    part_number: str = Field(default="", max_length=TEXT)
    product: str = Field(default="", max_length=TEXT, description="empty: the line's present product")
    trigger_id: int = Field(default=0, ge=0, lt=1 << 32)


class CountsAnswer(Answer):
    """Numbers of parts by verdict."""

    good: int
    anomalous: int
    incomplete: int
    error: int


class PartBucketAnswer(Answer):
    """Parts of a piece of the period: a subgroup of the p-chart, of the good and the anomalous ones."""

    start: str
    end: str
    counts: CountsAnswer
    size: int = Field(description="good and anomalous parts")
    nonconforming: int = Field(description="anomalous parts")
    share: float | None = Field(description="nonconforming / size; null without parts")
    low: float | None = Field(description="lower control limit")
    high: float | None = Field(description="upper control limit")
    outside: bool = Field(description="whether the share lies outside the limits")


class StatisticsAnswer(Answer):
    """The figures of the line over a shift or some hours."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    line: str
    since: str
    until: str
    width: int = Field(description="seconds of a bucket")
    counts: CountsAnswer
    parts: int
    yield_: float | None = Field(alias="yield", description="good / (good + anomalous); null without such parts")
    centre: float | None = Field(description="the p-chart's centre line: anomalous / (good + anomalous)")
    buckets: list[PartBucketAnswer]
