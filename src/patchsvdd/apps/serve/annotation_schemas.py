"""The request and response bodies of annotations."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from patchsvdd.apps.serve.schemas import Answer

SHAPE = (
    "polygon: `kind`, `rings` of [x, y]; box: `kind`, `box` (left, top, right, bottom); brush: `kind`, `left`, `top`, "
    "`size` (height, width), `counts` (COCO's compressed run lengths)"
)


class AnnotationRequest(BaseModel):
    """What was drawn on an inspection's image, in pixels of the original image, in the order of drawing."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"shapes": [{"type": "box", "kind": "scratch", "box": [10, 12, 40, 20]}]}},
    )
    shapes: list[dict[str, Any]] = Field(
        max_length=500,
        description=f"{SHAPE}; stroke: `kind`, `width`, `points`, painted; erase: `width`, `points`, removed from all "
        "before it. An empty list withdraws the annotation",
    )


class AnnotationAnswer(Answer):
    """Where the defects of an inspection are, as a person drew them."""

    inspection: str
    shapes: list[dict[str, Any]] = Field(description=SHAPE)
    at: str | None = Field(description="time, UTC; null if nothing is drawn")
    by: str | None
    kinds: list[str] = Field(description="kinds of defects that were drawn before, to suggest")


class LabelsImportAnswer(Answer):
    """What became of a file of labels."""

    format: str = Field(examples=["coco"])
    images: int = Field(description="images in the file")
    annotated: int = Field(description="inspections whose annotation was stored")
    without_shapes: int = Field(description="images in which nothing is marked; they change nothing")
    problems: list[str] = Field(description="what was not used and why, at most 100")
    more_problems: int = Field(description="number of problems that are not listed")
