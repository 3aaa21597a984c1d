"""Browser sessions: a browser sends a password or a key once and gets a cookie."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from patchsvdd.apps.serve import people_schemas as s
from patchsvdd.apps.serve.accounts import set_password
from patchsvdd.apps.serve.auth import ROLES, SESSION_SECONDS, Authenticator, Caller
from patchsvdd.apps.serve.passwords import check_password
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.routes.dependencies import MayInspect, ServiceNeeded, problems
from patchsvdd.apps.serve.service import Service
from patchsvdd.core.errors import ConfigError

router = APIRouter(prefix="/v1")


@router.get("/me", response_model=s.CallerAnswer, responses=problems(), tags=["session"])
async def me(service: ServiceNeeded, caller: MayInspect) -> dict[str, Any]:
    """The client of the request, and what it may do."""
    return _answer(service, caller)


@router.get("/session", response_model=s.SignInAnswer, responses=problems(), tags=["session"])
async def ways_to_sign_in(service: ServiceNeeded) -> dict[str, Any]:
    """What the sign-in form asks for; answered without a sign-in."""
    return {"passwords": await service.aside(service.store.has_users)}


@router.post(
    "/session",
    response_model=s.CallerAnswer,
    responses=problems("cross-site", "too-many-attempts"),
    tags=["session"],
)
async def open_session(
    request: Request, service: ServiceNeeded, body: Annotated[s.SignInRequest, Body()], response: Response
) -> dict[str, Any]:
    """Sign in with name and password, or with a key; sets a cookie that no script can read and no other site send.

    After some failed attempts further ones are refused for a while (429 with `Retry-After`).
    """
    guard = service.guard
    guard.refuse_other_sites(request.headers, request.method)
    address = guard.address(request.scope)
    if body.key is not None:
        token, caller = await service.aside(guard.open_session, body.key, address)
    else:
        token, caller = await guard.slowly(guard.sign_in, body.name, body.password, address)
    _set_cookie(response, guard, token)
    return _answer(service, caller)


@router.delete("/session", status_code=204, responses=problems("cross-site"), tags=["session"])
async def close_session(request: Request, service: ServiceNeeded, response: Response) -> None:
    """Sign out: end the session, and have the browser forget the pictures that it keeps."""
    service.guard.refuse_other_sites(request.headers, request.method)
    token = request.cookies.get(service.guard.cookie)
    if token:
        await service.aside(service.guard.close_session, token)
    response.delete_cookie(service.guard.cookie, path="/")
    response.headers["Clear-Site-Data"] = '"cache"'


@router.post(
    "/users/me/password",
    response_model=s.CallerAnswer,
    responses=problems("cross-site", "conflict", "too-many-attempts"),
    tags=["session"],
)
async def change_password(
    request: Request,
    service: ServiceNeeded,
    caller: MayInspect,
    body: Annotated[s.PasswordRequest, Body()],
    response: Response,
) -> dict[str, Any]:
    """Change one's own password; ends all sessions of the user and opens a new one for this browser."""
    guard = service.guard
    if caller.kind != "user":
        raise Problem("conflict", "only a user has a password; you use an API key or are on this machine")

    def change() -> str:
        guard.require_password(caller.name, body.password, guard.address(request.scope))
        try:
            check_password(body.new, caller.name)
        except ConfigError as error:
            raise Problem("invalid-request", str(error)) from None
        set_password(service.store, caller.name, body.new, caller.actor)
        return guard.renewed_session(caller.name)

    _set_cookie(response, guard, await guard.slowly(change))
    return _answer(service, caller)


def _set_cookie(response: Response, guard: Authenticator, token: str) -> None:
    options: dict[str, Any] = {"httponly": True, "samesite": "strict", "secure": guard.secure_cookies, "path": "/"}
    response.set_cookie(guard.cookie, token, max_age=int(SESSION_SECONDS), **options)


def _answer(service: Service, caller: Caller) -> dict[str, Any]:
    return {
        "name": caller.name,
        "role": caller.role,
        "user": caller.kind == "user",
        "may": [role for role in ROLES if caller.may(role)],
        "key_needed": service.guard.needs_key,
        "line": service.line_view is not None,
    }
