"""Response bodies of the overview, of sample review and of the shift report."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from patchsvdd.apps.serve.schemas import Answer, InspectionAnswer, JobAnswer


class ShareAnswer(Answer):
    """A share with its exact 95 % interval (Clopper–Pearson)."""

    hits: int
    of: int
    share: float | None = Field(description="hits / of; null if nothing was reviewed")
    low: float
    high: float


class MissedDefects(Answer):
    """The estimated share of all defects that were judged Good, with a 95 % interval."""

    share: float | None = Field(description="null if too little was reviewed, or there are no defects")
    low: float
    high: float
    missed: float | None = Field(description="estimated number of defects among the Good parts")
    found: float | None = Field(description="estimated number of defects among the alarms")


class EstimateAnswer(Answer):
    """What reviews say about false alarms and misses."""

    days: int = Field(description="days covered, today included")
    confidence: float
    good: int
    anomalous: int
    sampled: int = Field(description="Good parts in the samples of these days")
    unsure: int = Field(description="of the sample, marked as unsure; not counted")
    misses: ShareAnswer = Field(description="defects among the reviewed parts of the sample")
    false_alarms: ShareAnswer = Field(description="false alarms among the reviewed alarms")
    missed_defects: MissedDefects


class SampleAnswer(Answer):
    """Good parts to review, and what the reviewed ones say."""

    model: str
    per_day: int = Field(description="Good parts drawn at random per day; 0: off")
    due: int = Field(description="parts still to review")
    inspections: list[InspectionAnswer] = Field(description="of yesterday's and today's sample, still to review")
    estimate: EstimateAnswer


class SampleRequest(BaseModel):
    """How many Good parts are reviewed per day."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"per_day": 5}})
    per_day: int = Field(ge=0, le=1000, description="0 turns sample review off")


class TallyAnswer(Answer):
    """Numbers of inspections."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    inspected: int
    good: int
    anomalous: int
    yield_: float | None = Field(alias="yield", description="good / inspected; null without inspections")


class BucketAnswer(TallyAnswer):
    """Inspections of a part of the period."""

    start: str
    end: str


class StationAnswer(TallyAnswer):
    """Inspections at a station."""

    line: str | None
    station: str | None


class OverviewModel(TallyAnswer):
    """A model's part of the overview."""

    name: str
    served: bool
    trouble: str | None = Field(description="why the model in the folder is not in use; null if it is")
    caveat: str | None = Field(description="a warning about the threshold")
    calibrated: bool
    to_review: int = Field(description="alarms without a review")
    last: str | None = Field(description="time of its last inspection")
    drift: list[dict[str, Any]] = Field(description="changes of the images since calibration")
    per_day: int = Field(description="Good parts drawn for review per day; 0: off")
    due: int = Field(description="of those of yesterday and today, still to review")
    estimate: EstimateAnswer | None


class NotInspected(Answer):
    """Images that were refused or failed."""

    count: int
    since: str = Field(description="when the service started")


class DiskAnswer(Answer):
    """Disk space of the data folder, in bytes."""

    used: int = Field(description="by images and maps")
    free: int | None
    total: int | None
    per_day: float | None = Field(description="written per day, averaged over a week; null if not known yet")
    days_left: float | None = Field(description="until the disk is full; null if unknown or retention prevents it")
    keep_days: float | None = Field(description="inspections are deleted after this many days; null: never")
    keep_bytes: int | None = Field(description="space for images and maps; null: no limit")


class OverviewAnswer(TallyAnswer):
    """Key figures of the last hours."""

    since: str
    until: str
    hours: float
    inspected_per_hour: float
    alarms_per_hour: float
    not_inspected: NotInspected
    width: int = Field(description="seconds of a bucket")
    buckets: list[BucketAnswer]
    models: list[OverviewModel]
    stations: list[StationAnswer] = Field(description="by line and station, if clients send them")
    false_alarms: ShareAnswer = Field(description="false alarms among the alarms of the period that were reviewed")
    to_review: int = Field(description="alarms of the period without a review")
    estimate: EstimateAnswer = Field(description="all models together, over the last 30 days")
    jobs: list[JobAnswer] = Field(description="running and waiting")
    disk: DiskAnswer
    alarms: list[InspectionAnswer] = Field(description="the latest of the period, newest first")
    empty: bool = Field(description="whether nothing was ever inspected")


class ReviewsBy(Answer):
    """Reviews by one person."""

    by: str
    verdict: str
    count: int


class ChangeAnswer(Answer):
    """A change of a model."""

    at: str
    model: str
    change: str
    by: str | None


class ShiftModel(TallyAnswer):
    """A model's part of a shift."""

    name: str
    false_alarms: ShareAnswer
    to_review: int
    drift: list[dict[str, Any]]
    estimate: EstimateAnswer | None


class ShiftAnswer(TallyAnswer):
    """The report of a shift."""

    start: str
    end: str
    hours: float
    inspected_per_hour: float
    alarms_per_hour: float
    width: int
    buckets: list[BucketAnswer]
    models: list[ShiftModel]
    stations: list[StationAnswer]
    false_alarms: ShareAnswer
    to_review: int
    estimate: EstimateAnswer
    reviews: list[ReviewsBy]
    changes: list[ChangeAnswer]
    alarms: list[InspectionAnswer] = Field(description="newest first")
    left_out: int = Field(description="older alarms that are not listed")
