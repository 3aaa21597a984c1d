"""Health checks, metrics and the OpenAPI schema."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve.routes.dependencies import MayInspect, ServiceNeeded, binary, problems
from patchsvdd.apps.serve.telemetry import CONTENT_TYPE_LATEST

router = APIRouter()


@router.get("/healthz", response_model=s.HealthAnswer, tags=["health"])
async def healthz() -> dict[str, Any]:
    """Whether the process is alive."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    response_model=s.HealthAnswer,
    responses={503: {"model": s.HealthAnswer, "description": "The service is not ready"}},
    tags=["health"],
)
async def readyz(service: ServiceNeeded, response: Response) -> dict[str, Any]:
    """Whether images can be inspected and stored."""
    start = time.monotonic()
    problems = await service.aside(service.ready)
    response.status_code = 503 if problems else 200
    response.headers["Server-Timing"] = f"store;dur={1000 * (time.monotonic() - start):.1f}"
    return {"status": "unavailable" if problems else "ok", "problems": problems, "warnings": service.warnings()}


@router.get("/openapi.json", tags=["health"], responses=problems())
async def openapi(request: Request, caller: MayInspect) -> dict[str, Any]:  # noqa: ARG001
    """The OpenAPI schema."""
    app: FastAPI = request.app
    return app.openapi()


@router.get("/metrics", response_class=Response, responses={**problems(), **binary("text/plain")}, tags=["health"])
async def metrics(service: ServiceNeeded, caller: MayInspect) -> Response:  # noqa: ARG001
    """Metrics for Prometheus."""
    return Response(service.telemetry.page(), media_type=CONTENT_TYPE_LATEST)
