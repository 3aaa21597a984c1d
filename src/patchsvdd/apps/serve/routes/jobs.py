"""Background jobs, including training."""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve.client_names import write_names
from patchsvdd.apps.serve.job_runner import FILE, safe_name
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import clean_name, job_answer
from patchsvdd.apps.serve.routes.caching import cache_headers, unchanged
from patchsvdd.apps.serve.routes.dependencies import (
    JobId,
    MayAdmin,
    MayInspect,
    ServiceNeeded,
    binary,
    described,
    problems,
)
from patchsvdd.apps.serve.uploads import Upload, announced_length, form_files
from patchsvdd.core.aims import AIMS
from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.core.files import output_errors
from patchsvdd.core.presets import DEFAULT
from patchsvdd.core.presets import preset as preset_config

LOSSES = 400
"""Maximum number of losses in a response."""

KINDS: dict[str, type] = {
    "minutes": float,
    "steps": int,
    "image_size": str,
    "smallest_defect": float,
    "aim": str,
    "synthetic_defects": int,
    "false_alarm_rate": float,
    "min_area": int,
}
"""Training settings accepted in a request, with their types."""

IMAGE_SIZE = "auto, 256, 336x448 (width x height) or native; by default auto, 256 for the preset paper"
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
                        "preset": {"type": "string", "default": DEFAULT, "example": DEFAULT},
                        "minutes": {"type": "number", "example": 10},
                        "steps": {"type": "integer", "example": 500},
                        "image_size": {"type": "string", "example": "auto", "description": IMAGE_SIZE},
                        "smallest_defect": {"type": "number", "example": 8},
                        "aim": {"type": "string", "enum": list(AIMS), "example": "balanced"},
                        "synthetic_defects": {"type": "integer", "minimum": 0, "example": 128},
                        "false_alarm_rate": {"type": "number", "example": 0.01},
                        "min_area": {"type": "integer", "minimum": 0, "example": 0},
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    },
                }
            }
        },
    }
}

router = APIRouter(prefix="/v1")


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
    images, names = folder / "images", dict[str, str]()

    def write(upload: Upload, name: str) -> None:
        path = images / name
        with output_errors(path):
            images.mkdir(exist_ok=True)
            path.write_bytes(upload.data)

    async def keep(upload: Upload) -> None:
        name = safe_name(upload.name, len(names) + 1)
        names[name] = clean_name(upload.name)
        await service.aside(write, upload, name)

    try:
        with service.arriving.hold(min(limits.upload_bytes, announced_length(request.headers) or limits.upload_bytes)):
            _, fields = await form_files(
                request, {"files"}, limits.training_images, limits.upload_bytes, fields=12, keep=keep
            )
        settings = training_settings(fields)
        name, preset = fields.get("name", ""), fields.get("preset") or DEFAULT
        await service.aside(write_names, folder, names)
        row = await service.aside(service.model_jobs.train, name, images, number, preset, settings, caller.actor)
        return await service.aside(described, service, row)
    except BaseException:
        await service.aside(partial(shutil.rmtree, folder, ignore_errors=True))
        raise


def training_settings(fields: dict[str, str]) -> dict[str, Any]:
    """Training settings from a form; raises Problem if they are invalid."""
    for name, value in fields.items():
        if len(value) > 100:
            raise Problem("invalid-request", f"the field '{name[:100]}' is too long")
    settings: dict[str, Any] = {}
    try:
        for name, kind in KINDS.items():
            if fields.get(name):
                settings[name] = kind(fields[name])
        preset_config(fields.get("preset") or DEFAULT, **settings)
    except (ValueError, OverflowError) as error:
        raise Problem("invalid-request", f"a setting is not a number: {error}") from None
    except PatchSVDDError as error:
        raise Problem("invalid-request", str(error)) from None
    return settings


@router.get("/jobs", response_model=s.JobsAnswer, responses=problems(), tags=["train"])
async def jobs(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    model: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> dict[str, Any]:
    """Background jobs, newest first."""

    def read() -> list[dict[str, Any]]:
        rows = service.store.jobs(model and model.replace("\0", ""), limit=limit)
        return [job_answer(row, more) for row, more in zip(rows, service.jobs.situation(rows), strict=True)]

    return {"jobs": await service.aside(read)}


@router.get("/jobs/{number}", response_model=s.JobDetails, responses=problems("not-found"), tags=["train"])
async def job(service: ServiceNeeded, caller: MayInspect, number: JobId) -> dict[str, Any]:  # noqa: ARG001
    """A job with its progress and intermediate results."""

    def read() -> dict[str, Any]:
        row = service.jobs.found(number)
        return {
            **described(service, row),
            "inspections": row["order"].get("inspections", []),
            "losses": _subsample(service.jobs.losses(number)),
            "pictures": service.jobs.files(number),
        }

    return await service.aside(read)


def _subsample(losses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most LOSSES evenly spaced losses, including the last one."""
    every = -(-len(losses) // LOSSES) or 1
    return losses[::-1][::every][::-1]


@router.get(
    "/jobs/{number}/pictures/{file}",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/jpeg", "image/png")},
    tags=["train"],
)
async def job_picture(
    request: Request,
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: JobId,
    file: Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")],
) -> Response:
    """An image that a job has written."""

    def read() -> bytes:
        if file in service.jobs.files(number) and FILE.fullmatch(file):
            with suppress(OSError):
                return (service.jobs.folder(number) / "pictures" / file).read_bytes()
        raise Problem("not-found", f"job {number} has no image '{file}'")

    kind = "image/png" if file.endswith(".png") else "image/jpeg"
    headers = cache_headers(service, f"{number}-{file}")
    return unchanged(request, headers) or Response(await service.aside(read), media_type=kind, headers=headers)


@router.post(
    "/jobs/{number}/cancel",
    response_model=s.JobAnswer,
    responses=problems("not-found", "conflict", "cross-site"),
    tags=["train"],
)
async def cancel(service: ServiceNeeded, caller: MayAdmin, number: JobId) -> dict[str, Any]:
    """Stop a job: at once if it waits, otherwise as soon as its process has stopped."""
    return await service.aside(lambda: described(service, service.jobs.cancel(number, caller.actor)))


@router.post(
    "/jobs/{number}/continue",
    response_model=s.JobAnswer,
    status_code=202,
    responses=problems("not-found", "conflict", "cross-site"),
    tags=["train"],
)
async def continue_job(service: ServiceNeeded, caller: MayAdmin, number: JobId) -> dict[str, Any]:
    """Continue a failed or cancelled training from its checkpoint, with the same images."""
    return await service.aside(lambda: described(service, service.model_jobs.continue_training(number, caller.actor)))


@router.post(
    "/jobs/{number}/restart",
    response_model=s.JobAnswer,
    status_code=202,
    responses=problems("not-found", "conflict", "cross-site"),
    tags=["train"],
)
async def restart_job(service: ServiceNeeded, caller: MayAdmin, number: JobId) -> dict[str, Any]:
    """Start a failed or cancelled training over, with the same images and settings."""
    return await service.aside(lambda: described(service, service.model_jobs.restart_training(number, caller.actor)))
