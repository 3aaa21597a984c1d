"""Inspection of single images and batches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from patchsvdd.apps.serve import idempotency
from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import (
    DETAIL_LENGTH,
    MapKind,
    as_base64,
    clean_detail,
    clean_name,
    inspection_answer,
    map_bytes,
    map_media_type,
)
from patchsvdd.apps.serve.routes.dependencies import MayInspect, ModelName, ServiceNeeded, problems
from patchsvdd.apps.serve.service import Inspected, Service
from patchsvdd.apps.serve.store import TRACE, Row
from patchsvdd.apps.serve.uploads import Upload, announced_length, form_files, one_image
from patchsvdd.core.errors import ImageError, PatchSVDDError

AT_A_TIME = 4
"""Images of a batch that are processed at the same time."""
BATCH_SHARE = 2
"""One batch uses at most 1 / BATCH_SHARE of the queue's slots."""

DETAIL_FIELDS = {name: {"type": "string", "maxLength": DETAIL_LENGTH} for name in TRACE}
IMAGE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "format": "binary", "description": "the image"},
                        **DETAIL_FIELDS,
                    },
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
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        **DETAIL_FIELDS,
                    },
                }
            }
        },
    }
}

router = APIRouter(prefix="/v1")
Detail = Annotated[str | None, Query(max_length=DETAIL_LENGTH)]
Details = Mapping[str, str | None]


def details_of(serial: Detail = None, lot: Detail = None, line: Detail = None, station: Detail = None) -> Details:
    """What the query says about the part."""
    return {"serial": serial, "lot": lot, "line": line, "station": station}


DetailsQuery = Annotated[Details, Depends(details_of)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x20-\x7e]+$",
        description="the same key with the same image within 24 hours returns the first answer",
    ),
]


def _clean_details(query: Details, form: Mapping[str, str]) -> dict[str, str | None]:
    """What is said about the part; a field of the form takes precedence over the query."""
    return {name: clean_detail(name, form.get(name, query[name])) for name in TRACE}


@router.post(
    "/models/{name}/inspect",
    response_model=s.InspectedAnswer,
    openapi_extra=IMAGE_BODY,
    responses=problems("not-found", "invalid-image", "unsupported-media-type", "too-large", "overloaded", "conflict"),
    tags=["inspect"],
)
async def inspect(
    request: Request,
    response: Response,
    service: ServiceNeeded,
    caller: MayInspect,
    name: ModelName,
    details: DetailsQuery,
    map: Annotated[MapKind | None, Query(description="also return the map: png (colours) or npy (numbers)")] = None,  # noqa: A002
    explain: Annotated[bool, Query(description="also return the nearest normal patches")] = False,
    timeout: Annotated[float | None, Query(gt=0, le=600, description="time limit in seconds")] = None,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Inspect one image: the field `file` of a form, or the raw body. It is stored before the response is sent.

    `serial`, `lot`, `line` and `station` are stored with it; send them in the query or as fields of the form.
    """
    model, limit = service.models.named(name), service.settings.limits.upload_bytes
    seconds = service.time_limit(timeout)
    with service.arriving.hold(announced_length(request.headers) or 0) as held:
        with service.queue.arriving(seconds):
            upload, fields = await one_image(request, limit, held, fields=len(TRACE))
        said = _clean_details(details, fields)

        async def once(repeatable: idempotency.Request | None = None) -> dict[str, Any]:
            options: dict[str, Any] = {"explain": explain, "details": said, "request": repeatable}
            with service.queue.place(seconds):
                result = await service.inspect(model, upload.data, upload.name, seconds, **options)
                return await service.aside(_answer, result, map)

        if idempotency_key is None:
            return await once()
        digest = await service.aside(idempotency.digest, name, upload.data, said)
        repeatable = idempotency.Request(caller.name, idempotency_key, digest)
        async with service.turns.turn(repeatable):
            row = await service.aside(idempotency.earlier, service.store, repeatable)
            if row is None:
                try:
                    return await once(repeatable)
                except idempotency.Repeated:
                    row = await service.aside(idempotency.earlier, service.store, repeatable)
                    if row is None:
                        raise Problem("conflict", "this Idempotency-Key is in use; retry", retry_after=1) from None
        response.headers["Idempotent-Replay"] = "true"
        return await _replay(service, row, map, explain)


async def _replay(service: Service, row: Row, kind: MapKind | None, explain: bool) -> dict[str, Any]:
    """The answer of an inspection that was stored before."""
    answer = inspection_answer(row)
    if kind is not None:
        answer["map"] = as_base64(await service.aside(service.map, row, kind))
        answer["map_media_type"] = map_media_type(kind)
    if explain:
        with service.queue.place():
            answer["explanation"] = (await service.explanation(row)).to_json()
    return answer


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
    details: DetailsQuery,
    map: Annotated[MapKind | None, Query(description="also return the maps")] = None,  # noqa: A002
    timeout: Annotated[float | None, Query(gt=0, le=600, description="time limit in seconds for each image")] = None,
) -> dict[str, Any]:
    """Inspect many images, the fields `files` of a form. A bad image does not affect the others.

    `lot`, `line` and `station` are stored with all of them; send serial numbers with single images.
    """
    model, limits = service.models.named(name), service.settings.limits
    if "idempotency-key" in request.headers:
        raise Problem("invalid-request", "an Idempotency-Key is for one image; send it to `inspect`, or leave it out")
    at_a_time = max(1, min(AT_A_TIME, limits.queue // BATCH_SHARE))
    with service.arriving.hold(announced_length(request.headers) or 0) as held, service.queue.batch(at_a_time):
        uploads, fields = await form_files(
            request, {"files", "file"}, limits.batch_images, limits.upload_bytes, fields=len(TRACE), held=held
        )
        said = _clean_details(details, fields)
        if said["serial"] is not None and len(uploads) > 1:
            raise Problem("invalid-request", "a serial number belongs to one image; send the images one by one")
        slots = asyncio.Semaphore(at_a_time)

        async def one(upload: Upload) -> dict[str, Any]:
            async with slots:
                return await _batch_item(service, model, upload, map, timeout, said)

        items = await asyncio.gather(*(one(upload) for upload in uploads))
    failed = sum(item["problem"] is not None for item in items)
    return {"images": items, "inspected": len(items) - failed, "failed": failed}


async def _batch_item(
    service: Service,
    model: ServedModel,
    upload: Upload,
    kind: MapKind | None,
    seconds: float | None,
    details: Details,
) -> dict[str, Any]:
    name = clean_name(upload.name)
    try:
        result = await service.inspect(model, upload.data, upload.name, seconds, details=details)
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
