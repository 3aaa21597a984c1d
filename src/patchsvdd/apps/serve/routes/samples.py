"""Sample review: Good parts drawn at random, so that misses can be estimated."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query

from patchsvdd.apps.serve import report_schemas as s
from patchsvdd.apps.serve.responses import inspection_answer
from patchsvdd.apps.serve.routes.dependencies import MayAdmin, MayInspect, ModelName, ServiceNeeded, problems
from patchsvdd.apps.serve.samples import DAYS, estimate
from patchsvdd.apps.serve.service import Service

router = APIRouter(prefix="/v1")
Days = Annotated[int, Query(ge=1, le=366, description="days that the estimate covers, today included")]


@router.get("/samples", response_model=s.SampleAnswer, responses=problems("not-found"), tags=["review"])
async def sample(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    model: Annotated[str, Query(max_length=100, examples=["bottle"])],
    days: Days = DAYS,
) -> dict[str, Any]:
    """Good parts to review, and the estimate of misses.

    The sample of a day are its Good inspections with the smallest random numbers. Review them as `confirmed_good` or
    `true_defect`. Those of yesterday and today that have no review yet are listed.
    """
    return await service.aside(_answer, service, service.models.named(model.replace("\0", "")).name, days)


@router.put(
    "/samples/{name}",
    response_model=s.SampleAnswer,
    responses=problems("not-found", "cross-site"),
    tags=["review"],
)
async def set_sample(
    service: ServiceNeeded,
    caller: MayAdmin,
    name: ModelName,
    body: Annotated[s.SampleRequest, Body()],
) -> dict[str, Any]:
    """Set how many Good parts of a model are to be reviewed per day."""
    model = service.models.named(name).name
    await service.aside(service.samples.set_per_day, model, body.per_day, caller.actor)
    return await service.aside(_answer, service, model, DAYS)


def _answer(service: Service, model: str, days: int) -> dict[str, Any]:
    due = service.samples.due(model)
    return {
        "model": model,
        "per_day": service.samples.per_day(model),
        "due": len(due),
        "inspections": [inspection_answer(row) for row in due],
        "estimate": estimate(service.samples.counts(model, days), days),
    }
