"""Inspection of single images and batches."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import MapKind, as_base64, clean_name, inspection_answer, map_bytes, map_media_type
from patchsvdd.apps.serve.routes.dependencies import MayInspect, ModelName, ServiceNeeded, problems
from patchsvdd.apps.serve.service import Inspected, Service
from patchsvdd.apps.serve.uploads import Upload, form_files, one_image
from patchsvdd.core.errors import ImageError, PatchSVDDError

AT_A_TIME = 4
"""Images of a batch that are processed at the same time."""
BATCH_SHARE = 2
"""One batch uses at most 1 / BATCH_SHARE of the queue's slots."""

IMAGE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary", "description": "the image"}},
                }
            },
            **{f"image/{kind}": {"schema": {"type": "string", "format": "binary"}} for kind in ("png", "jpeg", "webp")},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
FILES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {"files": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            }
        },
    }
}

router = APIRouter(prefix="/v1")


@router.post(
    "/models/{name}/inspect",
    response_model=s.InspectedAnswer,
    openapi_extra=IMAGE_BODY,
    responses=problems("not-found", "invalid-image", "unsupported-media-type", "too-large", "overloaded"),
    tags=["inspect"],
)
async def inspect(
    request: Request,
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    name: ModelName,
    map: Annotated[MapKind | None, Query(description="also return the map: png (colours) or npy (numbers)")] = None,  # noqa: A002
    explain: Annotated[bool, Query(description="also return the nearest normal patches")] = False,
    timeout: Annotated[float | None, Query(gt=0, le=600, description="time limit in seconds")] = None,
) -> dict[str, Any]:
    """Inspect one image: the field `file` of a form, or the raw body. It is stored before the response is sent."""
    model = service.models.named(name)
    with service.line.arriving():
        upload = await one_image(request, service.settings.limits.upload_bytes)
    with service.line.place():
        result = await service.inspect(model, upload.data, upload.name, timeout, explain=explain)
        return await service.aside(_answer, result, map)


@router.post(
    "/models/{name}/inspect-batch",
    response_model=s.BatchAnswer,
    openapi_extra=FILES_BODY,
    responses=problems("not-found", "unsupported-media-type", "too-large", "overloaded"),
    tags=["inspect"],
)
async def inspect_batch(
    request: Request,
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    name: ModelName,
    map: Annotated[MapKind | None, Query(description="also return the maps")] = None,  # noqa: A002
    timeout: Annotated[float | None, Query(gt=0, le=600, description="time limit in seconds for each image")] = None,
) -> dict[str, Any]:
    """Inspect many images, the fields `files` of a form. A bad image does not affect the others."""
    model = service.models.named(name)
    limits = service.settings.limits
    with service.line.batch():
        uploads, _ = await form_files(request, {"files", "file"}, limits.batch_images, limits.upload_bytes)
        slots = asyncio.Semaphore(max(1, min(AT_A_TIME, limits.queue // BATCH_SHARE)))

        async def one(upload: Upload) -> dict[str, Any]:
            async with slots:
                return await _batch_item(service, model, upload, map, timeout)

        items = await asyncio.gather(*(one(upload) for upload in uploads))
    failed = sum(item["problem"] is not None for item in items)
    return {"images": items, "inspected": len(items) - failed, "failed": failed}


async def _batch_item(
    service: Service, model: ServedModel, upload: Upload, kind: MapKind | None, seconds: float | None
) -> dict[str, Any]:
    name = clean_name(upload.name)
    try:
        result = await service.inspect(model, upload.data, upload.name, seconds)
        return {"name": name, "inspection": await service.aside(_answer, result, kind), "problem": None}
    except Problem as problem:
        return {"name": name, "inspection": None, "problem": problem.body()}
    except ImageError as error:
        return {"name": name, "inspection": None, "problem": Problem("invalid-image", str(error)).body()}
    except PatchSVDDError as error:
        return {"name": name, "inspection": None, "problem": Problem("conflict", str(error)).body()}


def _answer(result: Inspected, kind: MapKind | None) -> dict[str, Any]:
    answer = inspection_answer(result.row)
    if kind is not None:
        inspection = result.inspection
        answer["map"] = as_base64(map_bytes(inspection.anomaly_map, kind, inspection.threshold))
        answer["map_media_type"] = map_media_type(kind)
    if result.explanation is not None:
        answer["explanation"] = result.explanation.to_json()
    return answer
