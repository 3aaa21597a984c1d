"""The overview: key figures of the last hours."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from patchsvdd.apps.serve import report_schemas as s
from patchsvdd.apps.serve.routes.dependencies import MayInspect, OverviewNeeded, ServiceNeeded, problems

router = APIRouter(prefix="/v1")


@router.get("/overview", response_model=s.OverviewAnswer, responses=problems(), tags=["overview"])
async def last_hours(
    service: ServiceNeeded,
    overview: OverviewNeeded,
    caller: MayInspect,  # noqa: ARG001
    hours: Annotated[float, Query(ge=1, le=24 * 31, description="length of the period")] = 8,
) -> dict[str, Any]:
    """Yield, alarms, models, jobs, disk space and drift of the last hours."""
    return await service.aside(overview.now, hours)
