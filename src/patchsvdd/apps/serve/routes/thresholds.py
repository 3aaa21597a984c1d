"""Thresholds: what the present one costs, another one, one from reviews, and recalibration with confirmed images."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query

from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve import threshold_schemas as t
from patchsvdd.apps.serve.confirmed_images import LEAST, confirmed_images
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.routes.dependencies import (
    MayAdmin,
    MayInspect,
    ModelName,
    OverviewNeeded,
    ServiceNeeded,
    described,
    problems,
)
from patchsvdd.apps.serve.threshold_proposal import proposal_answer
from patchsvdd.apps.serve.trade_off import trade_off_answer

router = APIRouter(prefix="/v1")
Days = Annotated[int, Query(ge=1, le=366, description="inspections of the last days count")]


@router.get(
    "/models/{name}/trade-off", response_model=t.TradeOffAnswer, responses=problems("not-found"), tags=["models"]
)
async def trade_off(service: ServiceNeeded, caller: MayInspect, name: ModelName) -> dict[str, Any]:  # noqa: ARG001
    """False alarms against missed synthetic defects, at the model's threshold and at others.

    The shares come from good images and from synthetic defects that were drawn into good images; real defects may
    differ. Nothing is changed.
    """
    return await service.aside(trade_off_answer, service.models.named(name))


@router.post(
    "/models/{name}/threshold",
    response_model=s.JobAnswer,
    status_code=202,
    responses=problems("not-found", "conflict", "cross-site", "model-unusable"),
    tags=["models"],
)
async def set_threshold(
    service: ServiceNeeded, caller: MayAdmin, name: ModelName, body: Annotated[t.ThresholdRequest, Body()]
) -> dict[str, Any]:
    """Set another threshold, as a job: for an aim, for a false-alarm rate, or a value. It needs no images.

    The change is in the model's journal and can be undone (`undo`).
    """
    check_request(body)

    def add() -> dict[str, Any]:
        row = service.model_jobs.set_threshold(
            name,
            caller.actor,
            body.identity,
            aim=body.aim,
            false_alarm_rate=body.false_alarm_rate,
            threshold=body.threshold,
        )
        return described(service, row)

    return await service.aside(add)


def check_request(body: t.ThresholdRequest) -> None:
    """Raise Problem unless the request says in one way which threshold is wanted."""
    if body.aim is None and body.false_alarm_rate is None and body.threshold is None:
        raise Problem("invalid-request", "say which threshold you want: give an aim, a false_alarm_rate or a threshold")
    if body.threshold is not None and (body.aim is not None or body.false_alarm_rate is not None):
        raise Problem("invalid-request", "a threshold has no aim or false_alarm_rate: give one or the other")
    if body.false_alarm_rate is not None and body.aim not in (None, "few-alarms"):
        raise Problem("invalid-request", f"a false_alarm_rate has the aim 'few-alarms'; got the aim '{body.aim}' too")


@router.get(
    "/models/{name}/threshold-proposal",
    response_model=t.ThresholdProposalAnswer,
    responses=problems("not-found"),
    tags=["models"],
)
async def threshold_proposal(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    name: ModelName,
    days: Days = t.DAYS,
) -> dict[str, Any]:
    """The threshold that reviews suggest, with what to expect of it and of the present one.

    Only parts that this version of the model inspected with its present threshold count. Nothing is changed: set the
    proposed value with `threshold`.
    """
    return await service.aside(proposal_answer, service.samples, service.models.named(name), days)


@router.get(
    "/models/{name}/recalibration",
    response_model=t.RecalibrationAnswer,
    responses=problems("not-found"),
    tags=["models"],
)
async def recalibration(
    service: ServiceNeeded,
    overview: OverviewNeeded,
    caller: MayInspect,  # noqa: ARG001
    name: ModelName,
    days: Days = t.DAYS,
) -> dict[str, Any]:
    """Whether images have changed since calibration, and which confirmed images another calibration could use."""
    model = service.models.named(name)

    def read() -> dict[str, Any]:
        changes = overview.drift(name)
        found = confirmed_images(service.store, name, model.identity, days)
        return {
            "model": name,
            "identity": model.identity,
            "changes": changes,
            "higher": any((one["trait"], one["direction"]) == ("distance", "higher") for one in changes),
            "days": days,
            "confirmed_good": len(found.good),
            "false_alarms": len(found.alarms),
            "images": len(found.chosen),
            "needed": LEAST,
            "possible": found.reason is None,
            "reason": found.reason,
        }

    return await service.aside(read)


@router.post(
    "/models/{name}/recalibration",
    response_model=s.JobAnswer,
    status_code=202,
    responses=problems("not-found", "conflict", "cross-site", "model-unusable"),
    tags=["models"],
)
async def recalibrate(
    service: ServiceNeeded,
    caller: MayAdmin,
    name: ModelName,
    body: Annotated[t.RecalibrationRequest | None, Body()] = None,
) -> dict[str, Any]:
    """Calibrate the model again with images that people confirmed as good, as a job.

    Confirmed Good parts and false alarms are used in the proportion in which the line produces them. The change is in
    the model's journal and can be undone (`undo`).
    """
    request = body or t.RecalibrationRequest()

    def add() -> dict[str, Any]:
        row = service.model_jobs.recalibrate(name, caller.actor, request.identity, request.days)
        return described(service, row)

    return await service.aside(add)
