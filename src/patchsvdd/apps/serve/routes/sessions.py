"""Browser sessions: a browser sends its key once and gets a cookie."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve.auth import COOKIE, SESSION_SECONDS
from patchsvdd.apps.serve.routes.dependencies import MayInspect, ServiceNeeded, problems

router = APIRouter(prefix="/v1")


@router.get("/me", response_model=s.CallerAnswer, responses=problems(), tags=["session"])
async def me(service: ServiceNeeded, caller: MayInspect) -> dict[str, Any]:
    """The client of the request."""
    return {"name": caller.name, "role": caller.role, "key_needed": service.guard.needs_key}


@router.post(
    "/session",
    response_model=s.CallerAnswer,
    responses=problems("cross-site"),
    tags=["session"],
)
async def open_session(
    request: Request, service: ServiceNeeded, body: Annotated[s.KeyRequest, Body()], response: Response
) -> dict[str, Any]:
    """Open a session with a key; sets a cookie that scripts cannot read and other sites cannot send."""
    guard = service.guard
    guard.refuse_other_sites(request.headers, request.method)
    token, caller = await service.aside(guard.open_session, body.key)
    options: dict[str, Any] = {"httponly": True, "samesite": "strict", "secure": guard.secure_cookies, "path": "/"}
    response.set_cookie(COOKIE, token, max_age=int(SESSION_SECONDS), **options)
    return {"name": caller.name, "role": caller.role, "key_needed": guard.needs_key}


@router.delete("/session", status_code=204, responses=problems("cross-site"), tags=["session"])
async def close_session(request: Request, service: ServiceNeeded, response: Response) -> None:
    """End the session."""
    service.guard.refuse_other_sites(request.headers, request.method)
    token = request.cookies.get(COOKIE)
    if token:
        await service.aside(service.guard.close_session, token)
    response.delete_cookie(COOKIE, path="/")
