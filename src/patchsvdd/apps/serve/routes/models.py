"""The served models."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from PIL import Image

from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve.audit_store import Record
from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import encoded, model_answer, model_details
from patchsvdd.apps.serve.routes.caching import cache_headers, unchanged
from patchsvdd.apps.serve.routes.dependencies import (
    MayAdmin,
    MayInspect,
    MayReview,
    ModelName,
    ServiceNeeded,
    binary,
    problems,
)
from patchsvdd.apps.serve.service import Service
from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.detector.drift import noticed

router = APIRouter(prefix="/v1")


def _answer(service: Service, model: ServedModel) -> dict[str, Any]:
    return model_answer(model, service.models.trouble(model.name), service.golden.answer(model.name))


@router.get("/models", response_model=s.ModelsAnswer, responses=problems(), tags=["models"])
async def models(service: ServiceNeeded, caller: MayInspect) -> dict[str, Any]:  # noqa: ARG001
    """The served models, and those that cannot be loaded."""
    return {
        "models": [_answer(service, model) for model in service.models.all()],
        "unavailable": [{"name": name, "reason": reason} for name, reason in service.models.unavailable()],
    }


@router.get("/models/{name}", response_model=s.ModelDetails, responses=problems("not-found"), tags=["models"])
async def model(service: ServiceNeeded, caller: MayInspect, name: ModelName) -> dict[str, Any]:  # noqa: ARG001
    """A model with its provenance and calibration."""
    served = service.models.named(name)
    return await service.aside(model_details, served, service.models.trouble(name), service.golden.answer(name))


@router.get(
    "/models/{name}/pictures/{index}",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/jpeg")},
    tags=["models"],
)
async def model_picture(
    request: Request,
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    name: ModelName,
    index: Annotated[int, Path(ge=0, le=10_000_000)],
    identity: Annotated[
        str | None, Query(max_length=64, description="the model's version; makes the response cacheable")
    ] = None,
) -> Response:
    """A good image in the model's memory, at the size the model uses."""
    served = service.models.named(name)
    pictures = served.detector.pictures
    if pictures is None or index >= len(pictures):
        raise Problem("not-found", f"model '{name}' has no image {index}")
    headers = cache_headers(service, f"{served.identity}-{index}") if identity == served.identity else {}
    if headers and (known := unchanged(request, headers)) is not None:
        return known
    data = await service.aside(lambda: encoded(Image.fromarray(pictures[index]), "JPEG"))
    return Response(data, media_type="image/jpeg", headers=headers)


@router.post(
    "/models/{name}/reload",
    response_model=s.ReloadAnswer,
    responses=problems("not-found", "cross-site", "model-unusable"),
    tags=["models"],
)
async def reload(service: ServiceNeeded, caller: MayAdmin, name: ModelName) -> dict[str, Any]:
    """Reload a model from its folder. Requests already in progress finish with the old model."""
    service.models.named(name)
    try:
        fresh, replaced = await service.aside(service.models.reload, name)
    except (PatchSVDDError, OSError) as error:
        raise Problem("model-unusable", f"the previous model stays in use: {error}", retry_after=10) from None
    if replaced:
        record = Record(caller.actor, "model.reloaded", name, "model", name, {"identity": fresh.identity})
        await service.aside(service.store.write, record.write)
    return {"model": _answer(service, fresh), "replaced": replaced}


@router.post(
    "/models/{name}/check",
    response_model=s.CheckAnswer,
    responses=problems("not-found", "conflict", "cross-site", "deadline-exceeded"),
    tags=["models"],
)
async def check(service: ServiceNeeded, caller: MayReview, name: ModelName) -> dict[str, Any]:
    """Check a model with its golden images now.

    If it fails, the model gives no verdicts until it passes, unless the service only warns (`golden_check`).
    """
    service.models.named(name)
    await service.aside(service.check_golden, name, caller.actor)
    answer = service.golden.answer(name)
    if answer is None:
        words = f"the model '{name}' has no golden images; store some with `patchsvdd check`"
        raise Problem("conflict", words)
    return answer


@router.get(
    "/models/{name}/drift", response_model=s.DriftAnswer, responses=problems("not-found", "conflict"), tags=["models"]
)
async def drift(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    name: ModelName,
    images: Annotated[int, Query(ge=1, le=5000, description="inspections in a block")] = 500,
) -> dict[str, Any]:
    """Whether light, focus or material have changed since calibration.

    Inspections by a model are tested in consecutive blocks of ``images``, starting with the model's first. A block
    without a change raises a false alarm with probability at most ``rate``. The response is about the current block;
    ``changes`` also includes those of the previous block.
    """
    service.models.named(name)
    try:
        result = await service.aside(service.drift, name, images)
    except PatchSVDDError as error:
        raise Problem("conflict", str(error)) from None
    test = result.current
    return {
        "images": test.count,
        "rate": test.rate,
        "changes": [{**change.to_json(), "block": block} for block, change in result.changes],
        "evidence": test.evidence,
        "limit": test.limit_as_power,
        "block": result.size,
        "first": result.first,
        "whole": result.whole,
        "noticed": noticed(test.references),
    }
