"""Where defects are: drawn on the page, or imported from files of labels."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request

from patchsvdd.apps.serve import annotation_schemas as s
from patchsvdd.apps.serve.annotations import annotate, annotation_answer, import_labels
from patchsvdd.apps.serve.responses import clean_name
from patchsvdd.apps.serve.routes.dependencies import InspectionId, MayInspect, MayReview, ServiceNeeded, problems
from patchsvdd.apps.serve.uploads import announced_length, one_image

FILE = {"type": "string", "format": "binary", "description": "COCO instances, LabelMe or Label Studio's export"}
LABELS_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {}},
            "multipart/form-data": {"schema": {"type": "object", "required": ["file"], "properties": {"file": FILE}}},
        },
    }
}

router = APIRouter(prefix="/v1")


@router.get(
    "/inspections/{number}/annotation",
    response_model=s.AnnotationAnswer,
    responses=problems("not-found"),
    tags=["review"],
)
async def annotation(service: ServiceNeeded, caller: MayInspect, number: InspectionId) -> dict[str, Any]:  # noqa: ARG001
    """Where the defects of an inspection are, as drawn by a person; without shapes if nobody has drawn any."""

    def find() -> dict[str, Any]:
        service.store.inspection(number)
        return annotation_answer(service.store, number, service.store.annotation(number))

    return await service.aside(find)


@router.put(
    "/inspections/{number}/annotation",
    response_model=s.AnnotationAnswer,
    responses=problems("not-found", "conflict", "cross-site", "too-large"),
    tags=["review"],
)
async def set_annotation(
    service: ServiceNeeded, caller: MayReview, number: InspectionId, body: Annotated[s.AnnotationRequest, Body()]
) -> dict[str, Any]:
    """Store where the defects of an inspection are; it replaces what was drawn before, an empty list withdraws it.

    Strokes and erasers are turned into painted pixels. At most 500 shapes with 20,000 points, and 2 MB.
    """

    def store() -> dict[str, Any]:
        return annotation_answer(service.store, number, annotate(service.store, number, body.shapes, caller.actor))

    return await service.aside(store)


@router.post(
    "/annotations",
    response_model=s.LabelsImportAnswer,
    openapi_extra=LABELS_BODY,
    responses=problems("too-large", "overloaded", "cross-site", "unsupported-media-type"),
    tags=["review"],
)
async def import_annotations(
    request: Request,
    service: ServiceNeeded,
    caller: MayReview,
    model: Annotated[str | None, Query(max_length=100, description="only inspections by this model")] = None,
) -> dict[str, Any]:
    """Store the shapes of a file of labels: COCO instances, one LabelMe file, or Label Studio's JSON export.

    Inspections are found by the image's name, without leading folders if need be. Names that no inspection or several
    have are reported, as are broken entries. Images in which nothing is marked change nothing.
    """
    with service.arriving.hold(announced_length(request.headers) or 0) as held:
        upload, _ = await one_image(request, service.settings.limits.upload_bytes, held)
        chosen = None if model is None else model.replace("\0", "")
        source = clean_name(upload.name) if upload.name != "image" else "labels"
        return await service.aside(import_labels, service.store, bytes(upload.data), source, chosen, caller.actor)
