"""The request and response bodies of the API, as Pydantic models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from patchsvdd.images.labels.shapes import KIND, LONGEST_KIND

Verdict = Literal["good", "anomalous"]
Review = Literal["true_defect", "false_alarm", "unsure", "confirmed_good"]
JobState = Literal["waiting", "running", "done", "failed", "cancelled"]
InspectionId = Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]


class Answer(BaseModel):
    """Base class of all responses."""

    model_config = ConfigDict(extra="forbid")


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")
    type: str = Field(examples=["urn:patchsvdd:invalid-image"])
    title: str = Field(examples=["The image cannot be used"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["part.png: is not a PNG, JPEG, WebP, BMP or TIFF image"])


class RegionAnswer(Answer):
    """A connected part of the map above the threshold, in pixels of the uploaded image."""

    box: list[int] = Field(
        description="left, top, right, bottom; right and bottom are exclusive", examples=[[8, 9, 40, 33]]
    )
    area: int = Field(description="number of pixels")
    peak: float = Field(description="largest value of the map in the region")
    peak_at: list[int] = Field(description="x, y of that value")
    score: float = Field(description="score of the region; the peak, unless the model ignores small regions")
    kind: str | None = Field(default=None, description="the kind of confirmed defect that the image resembles")
    like: str | None = Field(
        default=None, description="the same in words", examples=["like scratch, 3 confirmed in May 2026"]
    )


class ReviewAnswer(Answer):
    """An operator's verdict."""

    verdict: Review
    note: str
    at: str
    by: str


class InspectionAnswer(Answer):
    """One stored inspection."""

    id: str = Field(examples=["019a8c2f1e7b3f0c9d2a4b6c"])
    at: str = Field(description="time, UTC", examples=["2026-11-15T12:00:00.000Z"])
    model: str = Field(examples=["bottle"])
    identity: str = Field(description="the model's version that was used", examples=["4f0c9d2a4b6c8e10"])
    name: str = Field(description="the image's name, as sent by the client", examples=["part-0042.png"])
    score: float = Field(examples=[5.8])
    threshold: float | None = Field(description="scores above it are anomalous; null without a calibration")
    p_value: float | None = Field(description="probability that a good image scores at least this high")
    verdict: Verdict
    is_anomalous: bool
    image_size: list[int] = Field(description="height, width", examples=[[512, 512]])
    min_area: int
    regions: list[RegionAnswer]
    timings: dict[str, float] = Field(description="seconds: decode, wait, compute, store, and images in the batch")
    review: ReviewAnswer | None
    learned_by: str | None = Field(description="the job that added the image to the model's memory")
    serial: str | None = Field(description="the part's serial number, as sent by the client")
    lot: str | None
    line: str | None
    station: str | None
    notes: list[str] = Field(default=[], description="about the file, such as pages that were not inspected")
    has_picture: bool = Field(description="false once retention has removed it")
    has_map: bool


class InspectedAnswer(InspectionAnswer):
    """The answer to an inspection."""

    map: str | None = Field(default=None, description="base64 of the map, as PNG or NPY, if requested")
    map_media_type: str | None = None
    explanation: dict[str, Any] | None = Field(default=None, description="the nearest normal patches, if requested")


class BatchItem(Answer):
    """One image of a batch: an inspection or a problem."""

    name: str
    inspection: InspectedAnswer | None = None
    problem: ProblemDetails | None = None


class BatchAnswer(Answer):
    """The images of a batch, in order."""

    images: list[BatchItem]
    inspected: int
    failed: int


class GoldenResultAnswer(Answer):
    """A golden image in a check."""

    name: str
    expected: Verdict
    recorded_score: float = Field(description="the score when the image was added")
    verdict: Verdict | None = Field(description="null if the image could not be inspected")
    score: float | None
    problem: str | None = Field(description="why it failed; null if it passed")
    passed: bool


class CheckAnswer(Answer):
    """A check of a model with its golden images, whose verdicts are known."""

    passed: bool
    problem: str | None = Field(description="why it failed; null if it passed")
    identity: str = Field(description="the model's version that was checked")
    at: str = Field(description="time, UTC")
    images: int
    results: list[GoldenResultAnswer]
    blocked: bool = Field(description="whether the model gives no verdicts because of it")


class ModelAnswer(Answer):
    """A served model."""

    name: str
    identity: str
    preset: str
    images: int = Field(description="good images in its memory")
    patches: dict[str, int] = Field(description="normal patches in the memory, by patch size")
    image_size: list[int] | None = Field(description="height, width that images are resized to; null: not resized")
    threshold: float | None
    false_alarm_rate: float | None
    promise: str | None = Field(description="the guarantee for new good images, or why there is none, as text")
    guaranteed: bool = Field(description="whether the false-alarm rate is guaranteed")
    caveat: str | None = Field(description="a warning about the threshold")
    min_area: int
    region_of_interest: str | None
    loaded_at: str
    trouble: str | None = Field(description="why the model in the folder is not the one in use; null if it is")
    device: str
    check: CheckAnswer | None = Field(description="the last check with golden images; null if the model has none")


class ChangeAnswer(Answer):
    """The last change of a model that is in effect, which an undo would revert."""

    entry: int = Field(description="number in the model's journal")
    kind: str = Field(description="in words: learning, removal, calibration", examples=["learning"])
    at: str = Field(description="time, UTC")
    images: int = Field(description="number of images added or removed")
    identity: str = Field(description="the model's version with this change")


class UnusualAnswer(Answer):
    """A good image that is less like the others than most: perhaps it shows a defect."""

    image: int = Field(description="index of its picture: `/v1/models/{name}/pictures/{image}`")
    name: str = Field(description="its name, as sent by the client", examples=["part-0042.png"])
    ratio: float = Field(
        description="how unlike the other images it is, divided by the same for a typical one", examples=[2.1]
    )
    stands_out: bool = Field(description="whether the ratio is extreme among the good images")
    at: tuple[float, float] = Field(description="the place least like the others: down, across, as shares of the image")


class ModelDetails(ModelAnswer):
    """A model with its provenance and calibration."""

    calibration: dict[str, Any] | None = Field(description="scores of good images, and their origin")
    provenance: dict[str, Any] = Field(description="data, training, versions")
    config: dict[str, Any]
    image_names: list[str]
    pictures: int = Field(description="number of good images that can be displayed")
    unusual: list[UnusualAnswer] = Field(
        description="the good images least like the others, the least usual first; empty for models without the list"
    )
    journal: list[dict[str, Any]] = Field(description="changes since it was trained")
    last_change: ChangeAnswer | None = Field(description="the change that an undo would revert; null if there is none")
    taught: dict[str, int] = Field(description="kinds of confirmed defects that it was taught → images of each")
    not_teachable: str | None = Field(description="why it cannot be taught defects; null: it can")


class UnavailableModel(Answer):
    """A model that is not served."""

    name: str
    reason: str = Field(description="what is wrong with it, and what to do")


class ModelsAnswer(Answer):
    """All models."""

    models: list[ModelAnswer]
    unavailable: list[UnavailableModel] = Field(description="models that cannot be loaded; tried again by themselves")


class ReloadAnswer(Answer):
    """A model after a reload."""

    model: ModelAnswer
    replaced: bool


class HistoryAnswer(Answer):
    """A page of inspections, newest first."""

    inspections: list[InspectionAnswer]
    next: str | None = Field(description="pass it as `before` to get the next page; null at the end")


class ScoresAnswer(Answer):
    """The latest inspections in compact form, oldest first."""

    id: list[str]
    at: list[float] = Field(description="seconds since 1970")
    score: list[float]
    threshold: list[float | None]
    verdict: list[Verdict]
    review: list[Review | None]
    identity: list[str]


class CountsAnswer(Answer):
    """Numbers of inspections."""

    total: int
    verdict: dict[str, int]
    review: dict[str, int]


class ReviewRequest(BaseModel):
    """An operator's verdict on an inspection."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"verdict": "false_alarm", "note": "dust"}})
    verdict: Review | None = Field(description="null withdraws the previous verdict")
    note: str = Field(default="", max_length=2000)


class LearnRequest(BaseModel):
    """The inspections whose images are added to the memory."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"inspections": None, "preview": False}})
    inspections: list[InspectionId] | None = Field(
        default=None, max_length=1000, description="null: all reviewed false alarms that are not learned yet"
    )
    preview: bool = Field(default=False, description="only report what would change")
    keep_threshold: bool = Field(
        default=True,
        description="false alarms are the highest scores of many, so a threshold recalibrated with them would be too "
        "high; adding images to a memory raises no score, so recalibration is not needed. false recalibrates anyway",
    )


class TeachRequest(BaseModel):
    """The inspections whose defects the model is taught."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"inspections": None, "kind": "scratch", "preview": True}}
    )
    inspections: list[InspectionId] | None = Field(
        default=None, max_length=1000, description="null: all reviewed defects that were not taught yet"
    )
    kind: str = Field(
        default=KIND,
        min_length=1,
        max_length=LONGEST_KIND,
        description="name of the kind for images on which nothing is drawn; a drawing has names of its own",
    )
    preview: bool = Field(default=False, description="only report what would change")


class UndoRequest(BaseModel):
    """The change to undo, as `last_change` of the model names it; refused if another change came after it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"entry": 3, "identity": None}})
    entry: int = Field(ge=1, le=1_000_000_000, description="number of the change in the model's journal")
    identity: str | None = Field(default=None, max_length=64, description="the model's version with this change")


class WaitingFor(Answer):
    """The job that runs before a waiting one."""

    kind: str
    model: str


class JobAnswer(Answer):
    """A background job."""

    id: str
    kind: Literal["learn", "teach", "undo", "preview", "teach-preview", "threshold", "recalibrate", "train"]
    model: str
    state: JobState
    stage: str
    done: int
    total: int
    result: dict[str, Any] | None
    error: str | None
    created: str
    updated: str
    by: str
    started: str | None = Field(description="when it was last started; null if it has not been")
    waiting_for: WaitingFor | None = Field(description="the running job that a waiting one waits for")
    fraction: float | None = Field(
        description="0 … 1, over all stages; never falls while a training runs. null: unknown", ge=0, le=1
    )
    seconds_left: float | None = Field(description="estimate for a running training; null: unknown")
    undoes: ChangeAnswer | None = Field(description="the change that an undo reverts")
    here: bool = Field(description="false if it belongs to another service on the same database")


class JobDetails(JobAnswer):
    """A job with its intermediate results."""

    inspections: list[str] = Field(description="inspections whose images the job learns or calibrates with")
    losses: list[dict[str, Any]] = Field(description="losses of a training by step")
    pictures: list[str] = Field(description="names of images that the job has written")


class JobsAnswer(Answer):
    """Jobs, newest first."""

    jobs: list[JobAnswer]


class DriftAnswer(Answer):
    """Whether images have changed since calibration."""

    images: int = Field(description="inspections in the current block so far")
    rate: float = Field(description="maximum probability of a false alarm in a block without a change")
    changes: list[dict[str, Any]] = Field(description="changes in the current block and in the previous one")
    evidence: dict[str, float] = Field(description="by image statistic, in the current block, as a power of ten")
    limit: float = Field(description="evidence at which a change is reported")
    block: int = Field(description="number of inspections in a block")
    first: int = Field(description="position of the current block's first inspection among all by this model")
    whole: bool = Field(
        description="false if its first inspections were deleted: it is not tested; try a smaller block"
    )
    noticed: dict[str, Any] = Field(description="permanent shifts that this number of calibration images can detect")


class HealthAnswer(Answer):
    """Whether the service is alive, or ready."""

    status: Literal["ok", "unavailable"]
    problems: list[str] = []
    warnings: list[str] = Field(default=[], description="what is wrong without keeping the service from working")
