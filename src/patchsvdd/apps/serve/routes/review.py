"""Operators' verdicts, and adding false alarms to the memory."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body

from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import inspection_answer
from patchsvdd.apps.serve.routes.dependencies import (
    InspectionId,
    MayAdmin,
    MayReview,
    ModelName,
    ServiceNeeded,
    described,
    problems,
)
from patchsvdd.images.labels.shapes import checked_kind

REFUSED = {
    "false_alarm": ("good", "the part was judged good, so there is no false alarm; send 'confirmed_good'"),
    "confirmed_good": ("anomalous", "the part raised an alarm; if it is good, send 'false_alarm'"),
}
"""Review → the verdict it contradicts, and what to send instead."""

router = APIRouter(prefix="/v1")


@router.post(
    "/inspections/{number}/review",
    response_model=s.InspectionAnswer,
    responses=problems("not-found", "conflict", "cross-site"),
    tags=["review"],
)
async def review(
    service: ServiceNeeded, caller: MayReview, number: InspectionId, body: Annotated[s.ReviewRequest, Body()]
) -> dict[str, Any]:
    """Store an operator's verdict; null withdraws the last one.

    An alarm is a true defect or a false alarm; a Good part is confirmed good, or a true defect that was missed.
    """
    if body.verdict in REFUSED:
        judged = (await service.aside(service.store.inspection, number))["verdict"]
        if judged == REFUSED[body.verdict][0]:
            raise Problem("conflict", REFUSED[body.verdict][1])
    row = await service.aside(service.store.review, number, body.verdict, body.note.replace("\0", ""), caller.actor)
    if row is None:
        raise Problem("not-found", f"there is no inspection {number}, or it was deleted")
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
    body: Annotated[s.LearnRequest | None, Body()] = None,
) -> dict[str, Any]:
    """Add reviewed false alarms to the model's memory, as a job; `preview` only reports what would change."""
    request = body or s.LearnRequest()

    def add() -> dict[str, Any]:
        how = {"preview": request.preview, "keep_threshold": request.keep_threshold}
        return described(service, service.model_jobs.learn(name, request.inspections, caller.actor, **how))

    return await service.aside(add)


@router.post(
    "/models/{name}/teach",
    response_model=s.JobAnswer,
    status_code=202,
    responses=problems("not-found", "conflict", "cross-site"),
    tags=["review"],
)
async def teach(
    service: ServiceNeeded,
    caller: MayAdmin,
    name: ModelName,
    body: Annotated[s.TeachRequest | None, Body()] = None,
) -> dict[str, Any]:
    """Teach the model reviewed defects, so that it finds others like them, as a job; `preview` only reports.

    What is drawn on an inspection says where its defect is, and names its kind. The threshold is set again with the new
    scores of good images and never falls, so that the rate of false alarms stays as it is.
    """
    request = body or s.TeachRequest()

    def add() -> dict[str, Any]:
        kind = checked_kind(request.kind)
        row = service.model_jobs.teach(name, request.inspections, caller.actor, kind=kind, preview=request.preview)
        return described(service, row)

    return await service.aside(add)


@router.post(
    "/models/{name}/undo",
    response_model=s.JobAnswer,
    status_code=202,
    responses=problems("not-found", "conflict", "cross-site", "model-unusable"),
    tags=["review"],
)
async def undo(
    service: ServiceNeeded,
    caller: MayAdmin,
    name: ModelName,
    body: Annotated[s.UndoRequest | None, Body()] = None,
) -> dict[str, Any]:
    """Undo the model's last change, as a job.

    The body names the change that the client expects to be the last one; without a body it is whatever `undoes` of the
    answer says.
    """
    entry, identity = (None, None) if body is None else (body.entry, body.identity)

    def add() -> dict[str, Any]:
        return described(service, service.model_jobs.undo(name, caller.actor, entry, identity))

    return await service.aside(add)
