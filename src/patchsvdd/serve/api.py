"""The routes. Each declares who may call it; ``tests/test_serve_security.py`` walks them all."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, FastAPI, Path, Query, Request, Response
from PIL import Image

from patchsvdd.errors import ImageError, PatchSVDDError
from patchsvdd.files import output_errors
from patchsvdd.serve import schemas as s
from patchsvdd.serve.jobs import FILE, safe_name
from patchsvdd.serve.problems import MEDIA_TYPE, TITLES, Problem
from patchsvdd.serve.security import COOKIE, SESSION_SECONDS, Caller, Role
from patchsvdd.serve.served import Loaded
from patchsvdd.serve.service import (
    Inspected,
    MapKind,
    Service,
    as_base64,
    clean_name,
    encoded,
    inspection_answer,
    job_answer,
    map_bytes,
)
from patchsvdd.serve.store import Filter
from patchsvdd.serve.telemetry import CONTENT_TYPE_LATEST
from patchsvdd.serve.uploads import Upload, form_files, one_image

NEVER_CHANGES = {"Cache-Control": "private, max-age=31536000, immutable"}
LOSSES = 400
"""Of a training that are answered at most."""
AT_A_TIME = 4
"""Images of a batch that are on their way together."""
BATCH_SHARE = 2
"""At most one of so many places is taken by one batch."""

ModelName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", examples=["bottle"])]
InspectionId = Annotated[str, Path(pattern=r"^[0-9a-f]{24}$", examples=["019a8c2f1e7b3f0c9d2a4b6c"])]
JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{24}$", examples=["019a8c2f1e7b3f0c9d2a4b6c"])]
Seconds = Annotated[float, Query(ge=0, le=4_000_000_000, description="seconds since 1970")]

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
TRAINING_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files", "name"],
                    "properties": {
                        "name": {"type": "string", "example": "washer"},
                        "preset": {"type": "string", "example": "encoder"},
                        "minutes": {"type": "number", "example": 10},
                        "steps": {"type": "integer", "example": 500},
                        "image_size": {"type": "string", "example": "256"},
                        "false_alarm_rate": {"type": "number", "example": 0.01},
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    },
                }
            }
        },
    }
}


def problems(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's responses for kinds of problems; every route may answer some of them."""
    by_status: dict[int | str, list[str]] = {}
    for kind in ("invalid-request", "unauthenticated", "forbidden", "store-unavailable", *kinds):
        by_status.setdefault(TITLES[kind][0], []).append(TITLES[kind][1])
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {
        status: {"description": "; ".join(dict.fromkeys(titles)), "content": content}
        for status, titles in by_status.items()
    }


def binary(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's response for a file."""
    return {200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}}}


def service_of(request: Request) -> Service:
    """The service behind a request."""
    found: Service = request.app.state.service
    return found


ServiceNeeded = Annotated[Service, Depends(service_of)]


class Allowed:
    """A route's guard: callers with at least a role."""

    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request, service: ServiceNeeded) -> Caller:
        """Who calls; a Problem if they may not."""
        guard = service.guard
        if guard.needs_key:
            caller = await service.aside(guard.caller, request.headers, request.cookies, request.method)
        else:
            caller = guard.caller(request.headers, request.cookies, request.method)
        if not caller.may(self.role):
            raise Problem(
                "forbidden", f"the key '{caller.name}' has the role '{caller.role}'; this takes '{self.role}'"
            )
        return caller


MayInspect = Annotated[Caller, Depends(Allowed("inspect"))]
MayReview = Annotated[Caller, Depends(Allowed("review"))]
MayAdmin = Annotated[Caller, Depends(Allowed("admin"))]

router = APIRouter(prefix="/v1")
open_router = APIRouter()


# Inspecting


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
    map: Annotated[MapKind | None, Query(description="send the map too: png (colours), npy (numbers)")] = None,  # noqa: A002
    explain: Annotated[bool, Query(description="say why: the nearest normal patches")] = False,
    timeout: Annotated[float | None, Query(gt=0, le=600, description="seconds to wait for an answer")] = None,
) -> dict[str, Any]:
    """Inspect one image: the field `file` of a form, or the raw body. It is stored before it is answered."""
    model = service.model(name)
    with service.line.arriving():
        upload = await one_image(request, service.settings.limits.upload_bytes)
    with service.line.place():
        found = await service.inspect(model, upload.data, upload.name, timeout, explain=explain)
        return await service.aside(_answer, found, map)


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
    map: Annotated[MapKind | None, Query(description="send the maps too")] = None,  # noqa: A002
    timeout: Annotated[float | None, Query(gt=0, le=600, description="seconds for each image")] = None,
) -> dict[str, Any]:
    """Inspect many images, the fields `files` of a form. Each is answered by itself: one bad image fails alone."""
    model = service.model(name)
    limits = service.settings.limits
    with service.line.batch():
        uploads, _ = await form_files(request, {"files", "file"}, limits.batch_images, limits.upload_bytes)
        few = asyncio.Semaphore(max(1, min(AT_A_TIME, limits.queue // BATCH_SHARE)))

        async def one(upload: Upload) -> dict[str, Any]:
            async with few:
                return await _batch_item(service, model, upload, map, timeout)

        items = await asyncio.gather(*(one(upload) for upload in uploads))
    failed = sum(item["problem"] is not None for item in items)
    return {"images": items, "inspected": len(items) - failed, "failed": failed}


async def _batch_item(
    service: Service, model: Loaded, upload: Upload, kind: MapKind | None, seconds: float | None
) -> dict[str, Any]:
    name = clean_name(upload.name)
    try:
        found = await service.inspect(model, upload.data, upload.name, seconds)
        return {"name": name, "inspection": await service.aside(_answer, found, kind), "problem": None}
    except Problem as problem:
        return {"name": name, "inspection": None, "problem": problem.body()}
    except ImageError as error:
        return {"name": name, "inspection": None, "problem": Problem("invalid-image", str(error)).body()}
    except PatchSVDDError as error:
        return {"name": name, "inspection": None, "problem": Problem("conflict", str(error)).body()}


def _answer(found: Inspected, kind: MapKind | None) -> dict[str, Any]:
    answer = inspection_answer(found.row)
    if kind is not None:
        inspection = found.inspection
        answer["map"] = as_base64(map_bytes(inspection.anomaly_map, kind, inspection.threshold))
        answer["map_media_type"] = "image/png" if kind == "png" else "application/x-npy"
    if found.explanation is not None:
        answer["explanation"] = found.explanation.to_json()
    return answer


# Models


@router.get("/models", response_model=s.ModelsAnswer, responses=problems(), tags=["models"])
async def models(service: ServiceNeeded, caller: MayInspect) -> dict[str, Any]:  # noqa: ARG001
    """The models that are served."""
    return {"models": [service.about(model) for model in service.models.all()]}


@router.get("/models/{name}", response_model=s.ModelDetails, responses=problems("not-found"), tags=["models"])
async def model(service: ServiceNeeded, caller: MayInspect, name: ModelName) -> dict[str, Any]:  # noqa: ARG001
    """A model with its provenance and calibration."""
    return await service.aside(service.details, service.model(name))


@router.get(
    "/models/{name}/pictures/{index}",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/jpeg")},
    tags=["models"],
)
async def model_picture(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    name: ModelName,
    index: Annotated[int, Path(ge=0, le=10_000_000)],
    identity: Annotated[
        str | None, Query(max_length=64, description="of the model; an answer to it may be kept")
    ] = None,
) -> Response:
    """A good image that the model has learned from, as it sees it."""
    found = service.model(name)
    pictures = found.detector.pictures
    if pictures is None or index >= len(pictures):
        raise Problem("not-found", f"model '{name}' has no picture {index}")
    data = await service.aside(lambda: encoded(Image.fromarray(pictures[index]), "JPEG"))
    return Response(data, media_type="image/jpeg", headers=NEVER_CHANGES if identity == found.identity else {})


@router.post(
    "/models/{name}/reload",
    response_model=s.ReloadAnswer,
    responses=problems("not-found", "cross-site", "model-unusable"),
    tags=["models"],
)
async def reload(service: ServiceNeeded, caller: MayAdmin, name: ModelName) -> dict[str, Any]:  # noqa: ARG001
    """Swap in the model that its folder holds now. Requests that have begun end with the model they began with."""
    service.model(name)
    try:
        fresh, replaced = await service.aside(service.models.reload, name)
    except (PatchSVDDError, OSError) as error:
        raise Problem("model-unusable", f"the model before stays in use: {error}", retry_after=10) from None
    return {"model": service.about(fresh), "replaced": replaced}


@router.get(
    "/models/{name}/drift", response_model=s.DriftAnswer, responses=problems("not-found", "conflict"), tags=["models"]
)
async def drift(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    name: ModelName,
    images: Annotated[int, Query(ge=1, le=5000, description="latest inspections to look at")] = 500,
) -> dict[str, Any]:
    """Whether light, focus or material have changed since calibration, by the latest inspections."""
    service.model(name)
    try:
        test = await service.aside(service.drift, name, images)
    except PatchSVDDError as error:
        raise Problem("conflict", str(error)) from None
    return {
        "images": test.count,
        "rate": test.rate,
        "changes": [change.to_json() for change in test.changes.values()],
        "evidence": test.fortunes,
        "limit": test.limit_as_power,
    }


# History


def wanted(
    model: Annotated[str | None, Query(max_length=100)] = None,
    verdict: Annotated[s.Verdict | None, Query()] = None,
    review: Annotated[s.Review | Literal["none"] | None, Query(description="'none': not reviewed yet")] = None,
    since: Annotated[Seconds | None, Query()] = None,
    until: Annotated[Seconds | None, Query()] = None,
    name: Annotated[str | None, Query(max_length=200, description="part of the image's name")] = None,
    learned: Annotated[bool | None, Query()] = None,
) -> Filter:
    """Which inspections a request asks for."""
    name = None if name is None else name.replace("\0", "")
    model = None if model is None else model.replace("\0", "")
    return Filter(model, verdict, review, since, until, name=name, learned=learned)


Wanted = Annotated[Filter, Depends(wanted)]
Cursor = Annotated[str | None, Query(pattern=r"^[0-9a-f]{24}$", description="only older ones than this inspection")]


@router.get("/inspections", response_model=s.HistoryAnswer, responses=problems(), tags=["history"])
async def inspections(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    which: Wanted,
    before: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=100_000_000, description="pass over so many first")] = 0,
) -> dict[str, Any]:
    """The history, newest first, a page at a time."""
    which = Filter(**{**which.__dict__, "before": before})
    rows = await service.aside(lambda: service.store.inspections(which, limit + 1, offset=offset))
    following = rows[limit - 1]["id"] if len(rows) > limit else None
    return {"inspections": [inspection_answer(row) for row in rows[:limit]], "next": following}


@router.get("/inspections/counts", response_model=s.CountsAnswer, responses=problems(), tags=["history"])
async def counts(service: ServiceNeeded, caller: MayInspect, which: Wanted) -> dict[str, Any]:  # noqa: ARG001
    """How many inspections there are, by verdict and by review."""
    found = await service.aside(service.store.count, which)
    return {"total": sum(found["verdict"].values()), **found}


@router.get("/inspections/scores", response_model=s.ScoresAnswer, responses=problems(), tags=["history"])
async def scores(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    which: Wanted,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> dict[str, Any]:
    """The latest inspections in few bytes, oldest first: for charts, and to try thresholds on."""
    rows = (await service.aside(service.store.inspections, which, limit))[::-1]
    names = ("id", "at", "score", "threshold", "verdict", "review", "identity")
    return {name: [row[name] for row in rows] for name in names}


@router.get(
    "/inspections/{number}", response_model=s.InspectionAnswer, responses=problems("not-found"), tags=["history"]
)
async def inspection(service: ServiceNeeded, caller: MayInspect, number: InspectionId) -> dict[str, Any]:  # noqa: ARG001
    """One inspection."""
    return inspection_answer(await service.aside(service.inspection, number))


@router.get(
    "/inspections/{number}/picture",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/png", "image/jpeg", "image/webp")},
    tags=["history"],
)
async def picture(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: InspectionId,
    side: Annotated[int | None, Query(ge=16, le=2048, description="longest side of a smaller JPEG")] = None,
) -> Response:
    """The image as it was uploaded, or smaller; BMP and TIFF come as JPEG, because browsers show neither."""
    row = await service.aside(service.inspection, number)
    data, kind = await service.picture(row, side)
    return Response(data, media_type=kind, headers=NEVER_CHANGES)


@router.get(
    "/inspections/{number}/map",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/png", "application/x-npy")},
    tags=["history"],
)
async def stored_map(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: InspectionId,
    format: Annotated[MapKind, Query()] = "png",  # noqa: A002
) -> Response:
    """The anomaly map: as colours to lay over the image, or as numbers."""
    row = await service.aside(service.inspection, number)
    data = await service.aside(service.map, row, format)
    return Response(data, media_type="image/png" if format == "png" else "application/x-npy", headers=NEVER_CHANGES)


@router.get(
    "/inspections/{number}/explanation",
    responses={**problems("not-found", "overloaded"), 200: {"content": {"image/png": {}}}},
    response_model=None,
    tags=["history"],
)
async def explanation(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: InspectionId,
    format: Annotated[Literal["json", "png"], Query()] = "json",  # noqa: A002
) -> dict[str, Any] | Response:
    """Why: for each region the nearest normal patches, by the model as it is now; as JSON or as a picture."""
    row = await service.aside(service.inspection, number)
    with service.line.place():
        found = await service.explanation(row)
    if format == "png":
        drawn = await service.aside(lambda: encoded(found.picture(), "PNG"))
        return Response(drawn, media_type="image/png")
    now = service.model(row["model"]).identity
    return {**found.to_json(), "identity": now, "same_model": now == row["identity"]}


# Reviewing and learning


@router.post(
    "/inspections/{number}/review",
    response_model=s.InspectionAnswer,
    responses=problems("not-found", "cross-site"),
    tags=["review"],
)
async def review(
    service: ServiceNeeded, caller: MayReview, number: InspectionId, said: Annotated[s.ReviewRequest, Body()]
) -> dict[str, Any]:
    """An operator's verdict: a true defect, a false alarm, unsure. null withdraws the last one."""
    row = await service.aside(service.store.review, number, said.verdict, said.note.replace("\0", ""), caller.name)
    if row is None:
        raise Problem("not-found", f"there is no inspection {number}, or it is no longer kept")
    return inspection_answer(row)


@router.post(
    "/models/{name}/learn",
    response_model=s.JobAnswer,
    status_code=202,
    responses=problems("not-found", "conflict", "cross-site"),
    tags=["review"],
)
async def learn(
    service: ServiceNeeded,
    caller: MayAdmin,
    name: ModelName,
    said: Annotated[s.LearnRequest | None, Body()] = None,
) -> dict[str, Any]:
    """Put reviewed false alarms into the model's memory, as a job; `preview` says what that would change."""
    said = said or s.LearnRequest()

    def add() -> dict[str, Any]:
        how = {"preview": said.preview, "keep_threshold": said.keep_threshold}
        return job_answer(service.learn(name, said.inspections, caller.name, **how))

    return await service.aside(add)


@router.post(
    "/models/{name}/undo",
    response_model=s.JobAnswer,
    status_code=202,
    responses=problems("not-found", "conflict", "cross-site", "model-unusable"),
    tags=["review"],
)
async def undo(service: ServiceNeeded, caller: MayAdmin, name: ModelName) -> dict[str, Any]:
    """Take the model's last change back, as a job."""
    return job_answer(await service.aside(service.undo, name, caller.name))


# Jobs and trainings


@router.post(
    "/trainings",
    response_model=s.JobAnswer,
    status_code=202,
    openapi_extra=TRAINING_BODY,
    responses=problems("conflict", "too-large", "unsupported-media-type", "cross-site"),
    tags=["train"],
)
async def train(request: Request, service: ServiceNeeded, caller: MayAdmin) -> dict[str, Any]:
    """Train a model on uploaded good images, as a job that survives a restart of the service."""
    limits = service.settings.limits
    number, folder = await service.aside(service.jobs.prepare)
    images, count = folder / "images", 0

    def write(upload: Upload, index: int) -> None:
        path = images / safe_name(upload.name, index)
        with output_errors(path):
            images.mkdir(exist_ok=True)
            path.write_bytes(upload.data)

    async def keep(upload: Upload) -> None:
        nonlocal count
        count += 1
        await service.aside(write, upload, count)

    try:
        _, fields = await form_files(
            request, {"files"}, limits.training_images, limits.upload_bytes, fields=12, keep=keep
        )
        settings = training_settings(fields)
        name, preset = fields.get("name", ""), fields.get("preset") or "encoder"
        return job_answer(await service.aside(service.train, name, images, number, preset, settings, caller.name))
    except BaseException:
        await service.aside(partial(shutil.rmtree, folder, ignore_errors=True))
        raise


def training_settings(fields: dict[str, str]) -> dict[str, Any]:
    """Settings of a training from a form; a Problem if there is something wrong with them."""
    from patchsvdd.presets import preset

    for name, value in fields.items():
        if len(value) > 100:
            raise Problem("invalid-request", f"the field '{name[:100]}' is too long")
    kinds: dict[str, type] = {
        "minutes": float,
        "steps": int,
        "image_size": str,
        "false_alarm_rate": float,
        "min_area": int,
    }
    settings: dict[str, Any] = {}
    try:
        for name, kind in kinds.items():
            if fields.get(name):
                settings[name] = kind(fields[name])
        preset(fields.get("preset") or "encoder", **settings)
    except (ValueError, OverflowError) as error:
        raise Problem("invalid-request", f"a setting is no number: {error}") from None
    except PatchSVDDError as error:
        raise Problem("invalid-request", re.sub(r"--(\w)", r"\1", str(error))) from None
    return settings


@router.get("/jobs", response_model=s.JobsAnswer, responses=problems(), tags=["train"])
async def jobs(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    model: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> dict[str, Any]:
    """Work in the background, newest first."""
    rows = await service.aside(lambda: service.store.jobs(model and model.replace("\0", ""), limit=limit))
    return {"jobs": [job_answer(row) for row in rows]}


@router.get("/jobs/{number}", response_model=s.JobDetails, responses=problems("not-found"), tags=["train"])
async def job(service: ServiceNeeded, caller: MayInspect, number: JobId) -> dict[str, Any]:  # noqa: ARG001
    """A job: how far it has come, and what it has shown."""

    def read() -> dict[str, Any]:
        row = service.store.job(number)
        if row is None:
            raise Problem("not-found", f"there is no job {number}")
        return {
            **job_answer(row),
            "inspections": row["order"].get("inspections", []),
            "losses": _thinned(service.jobs.losses(number)),
            "pictures": service.jobs.files(number),
        }

    return await service.aside(read)


def _thinned(losses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """So many of them that a chart looks the same; the last one is among them."""
    every = -(-len(losses) // LOSSES) or 1
    return losses[::-1][::every][::-1]


@router.get(
    "/jobs/{number}/pictures/{file}",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/jpeg", "image/png")},
    tags=["train"],
)
async def job_picture(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: JobId,
    file: Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")],
) -> Response:
    """A picture that a job has made."""

    def read() -> bytes:
        if file in service.jobs.files(number) and FILE.fullmatch(file):
            with suppress(OSError):
                return (service.jobs.folder(number) / "pictures" / file).read_bytes()
        raise Problem("not-found", f"job {number} has made no picture '{file}'")

    kind = "image/png" if file.endswith(".png") else "image/jpeg"
    return Response(await service.aside(read), media_type=kind, headers=NEVER_CHANGES)


@router.post(
    "/jobs/{number}/cancel",
    response_model=s.JobAnswer,
    responses=problems("not-found", "conflict", "cross-site"),
    tags=["train"],
)
async def cancel(service: ServiceNeeded, caller: MayAdmin, number: JobId) -> dict[str, Any]:  # noqa: ARG001
    """Stop a job."""
    row = await service.aside(service.store.job, number)
    if row is None:
        raise Problem("not-found", f"there is no job {number}")
    if row["state"] not in ("waiting", "running"):
        raise Problem("conflict", f"job {number} has ended: it is {row['state']}")
    await service.aside(service.jobs.cancel, number)
    return job_answer(row)


# Sessions


@router.get("/me", response_model=s.CallerAnswer, responses=problems(), tags=["session"])
async def me(service: ServiceNeeded, caller: MayInspect) -> dict[str, Any]:
    """Who is asking."""
    return {"name": caller.name, "role": caller.role, "key_needed": service.guard.needs_key}


@open_router.post(
    "/v1/session",
    response_model=s.CallerAnswer,
    responses=problems("cross-site"),
    tags=["session"],
)
async def open_session(
    request: Request, service: ServiceNeeded, said: Annotated[s.KeyRequest, Body()], response: Response
) -> dict[str, Any]:
    """A browser shows its key, and gets a cookie that no script can read and no other site can send."""
    guard = service.guard
    guard.refuse_other_sites(request.headers, request.method)
    token, caller = await service.aside(guard.open_session, said.key)
    options: dict[str, Any] = {"httponly": True, "samesite": "strict", "secure": guard.secure_cookies, "path": "/"}
    response.set_cookie(COOKIE, token, max_age=int(SESSION_SECONDS), **options)
    return {"name": caller.name, "role": caller.role, "key_needed": guard.needs_key}


@open_router.delete("/v1/session", status_code=204, responses=problems("cross-site"), tags=["session"])
async def close_session(request: Request, service: ServiceNeeded, response: Response) -> None:
    """Forget the browser."""
    service.guard.refuse_other_sites(request.headers, request.method)
    token = request.cookies.get(COOKIE)
    if token:
        await service.aside(service.guard.close_session, token)
    response.delete_cookie(COOKIE, path="/")


# Health


@open_router.get("/healthz", response_model=s.HealthAnswer, tags=["health"])
async def healthz() -> dict[str, Any]:
    """Whether the process lives."""
    return {"status": "ok"}


@open_router.get(
    "/readyz",
    response_model=s.HealthAnswer,
    responses={503: {"model": s.HealthAnswer, "description": "It cannot work now"}},
    tags=["health"],
)
async def readyz(service: ServiceNeeded, response: Response) -> dict[str, Any]:
    """Whether images can be inspected and stored."""
    start = time.monotonic()
    problems = await service.aside(service.ready)
    response.status_code = 503 if problems else 200
    response.headers["Server-Timing"] = f"store;dur={1000 * (time.monotonic() - start):.1f}"
    return {"status": "unavailable" if problems else "ok", "problems": problems}


@open_router.get("/openapi.json", tags=["health"], responses=problems())
async def openapi(request: Request, caller: MayInspect) -> dict[str, Any]:  # noqa: ARG001
    """This description."""
    app: FastAPI = request.app
    return app.openapi()


@open_router.get("/metrics", response_class=Response, responses={**problems(), **binary("text/plain")}, tags=["health"])
async def metrics(service: ServiceNeeded, caller: MayInspect) -> Response:  # noqa: ARG001
    """For Prometheus."""
    return Response(service.telemetry.page(), media_type=CONTENT_TYPE_LATEST)
