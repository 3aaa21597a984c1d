"""Users and API keys, for administrators."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Path

from patchsvdd.apps.serve import people_schemas as s
from patchsvdd.apps.serve.accounts import add_user
from patchsvdd.apps.serve.auth import Caller, add_key
from patchsvdd.apps.serve.passwords import check_password
from patchsvdd.apps.serve.people_store import LastAdministrator, Row
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import as_time
from patchsvdd.apps.serve.routes.dependencies import MayAdmin, ServiceNeeded, problems
from patchsvdd.apps.serve.service import Service
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.password_hash import hashed

LOG = logging.getLogger("patchsvdd.apps.serve")
T = TypeVar("T")
PersonName = Annotated[str, Path(pattern=s.PERSON_NAME, examples=["anna"])]

router = APIRouter(prefix="/v1")


@router.get("/users", response_model=s.UsersAnswer, responses=problems(), tags=["people"])
async def users(service: ServiceNeeded, caller: MayAdmin) -> dict[str, Any]:  # noqa: ARG001
    """All users, oldest first."""
    return {"users": [_user(row) for row in await service.aside(service.store.all_users)]}


@router.post(
    "/users",
    response_model=s.UserAnswer,
    status_code=201,
    responses=problems("cross-site", "conflict", "too-many-attempts"),
    tags=["people"],
)
async def new_user(
    service: ServiceNeeded, caller: MayAdmin, body: Annotated[s.NewUserRequest, Body()]
) -> dict[str, Any]:
    """Add a user with a role and a password, or a PIN of six or more digits."""
    _require_sign_in(service)
    _require_password(body.password, body.name)
    row = await service.guard.slowly(add_user, service.store, body.name, body.role, body.password, caller.actor)
    LOG.info("%s added the user '%s' (%s)", _who(caller), row["name"], row["role"])
    return _user(row)


@router.patch(
    "/users/{name}",
    response_model=s.UserAnswer,
    responses=problems("cross-site", "conflict", "not-found", "too-many-attempts"),
    tags=["people"],
)
async def change_user(
    service: ServiceNeeded, caller: MayAdmin, name: PersonName, body: Annotated[s.UserChange, Body()]
) -> dict[str, Any]:
    """Change a user's role or password, disable or enable the user. A new password and disabling end the sessions."""
    _require_sign_in(service)
    values: dict[str, Any] = {}
    if body.role is not None:
        values["role"] = body.role
    if body.disabled is not None:
        values["disabled"] = time.time() if body.disabled else None
    if body.password is not None:
        _require_password(body.password, name)
        if await service.aside(service.store.user, name) is None:
            raise _nobody(name)
        values["hash"] = await service.guard.slowly(hashed, body.password)
    by = caller.actor
    row = await service.aside(_keeping_admin, lambda: service.store.change_user(name, keep_admin=True, by=by, **values))
    if row is None:
        raise _nobody(name)
    changed = ", ".join("password" if one == "hash" else one for one in values)
    LOG.info("%s changed the user '%s': %s", _who(caller), row["name"], changed)
    return _user(row)


@router.delete(
    "/users/{name}", status_code=204, responses=problems("cross-site", "conflict", "not-found"), tags=["people"]
)
async def delete_user(service: ServiceNeeded, caller: MayAdmin, name: PersonName) -> None:
    """Delete a user and end the sessions; reviews keep the name."""
    _require_sign_in(service)
    if not await service.aside(
        _keeping_admin, lambda: service.store.delete_user(name, keep_admin=True, by=caller.actor)
    ):
        raise _nobody(name)
    LOG.info("%s deleted the user '%s'", _who(caller), name)


@router.get("/keys", response_model=s.KeysAnswer, responses=problems(), tags=["people"])
async def keys(service: ServiceNeeded, caller: MayAdmin) -> dict[str, Any]:  # noqa: ARG001
    """All API keys, oldest first; without their secrets, which nobody has."""
    return {"keys": [_key(row) for row in await service.aside(service.store.all_keys)]}


@router.post(
    "/keys",
    response_model=s.NewKeyAnswer,
    status_code=201,
    responses=problems("cross-site", "conflict"),
    tags=["people"],
)
async def new_key(service: ServiceNeeded, caller: MayAdmin, body: Annotated[s.NewKeyRequest, Body()]) -> dict[str, Any]:
    """Create an API key; the response has it once, and the database only its hash."""
    _require_sign_in(service)
    key = await service.aside(add_key, service.store, body.name, body.role, caller.actor)
    LOG.info("%s created the key '%s' (%s)", _who(caller), body.name, body.role)
    return {"name": body.name, "role": body.role, "key": key}


@router.delete(
    "/keys/{name}", status_code=204, responses=problems("cross-site", "conflict", "not-found"), tags=["people"]
)
async def revoke_key(service: ServiceNeeded, caller: MayAdmin, name: PersonName) -> None:
    """Revoke an API key immediately and end its sessions."""
    _require_sign_in(service)
    if not await service.aside(
        _keeping_admin, lambda: service.store.revoke_key(name, keep_admin=True, by=caller.actor)
    ):
        raise Problem("not-found", f"there is no active key named '{name}'")
    LOG.info("%s revoked the key '%s'", _who(caller), name)


def _require_sign_in(service: Service) -> None:
    """Raise Problem on a service without sign-in.

    There, anyone on the machine could add an administrator who stays when sign-in is required later.
    """
    if not service.guard.needs_key:
        words = (
            "this service requires no sign-in; start it with `require_key`, and add people with `patchsvdd user add`"
        )
        raise Problem("conflict", words)


def _require_password(password: str, name: str) -> None:
    try:
        check_password(password, name)
    except ConfigError as error:
        raise Problem("invalid-request", str(error)) from None


def _keeping_admin(change: Callable[[], T]) -> T:
    try:
        return change()
    except LastAdministrator:
        words = "this is the last administrator; make another one first"
        raise Problem("conflict", words) from None


def _nobody(name: str) -> Problem:
    return Problem("not-found", f"there is no user named '{name}'")


def _who(caller: Caller) -> str:
    return f"{caller.kind} '{caller.name}'"


def _user(row: Row) -> dict[str, Any]:
    return {**_dated(row), "disabled": _time(row["disabled"])}


def _key(row: Row) -> dict[str, Any]:
    return {**_dated(row), "revoked": _time(row["revoked"])}


def _dated(row: Row) -> dict[str, Any]:
    return {"name": row["name"], "role": row["role"], "created": as_time(row["created"]), "used": _time(row["used"])}


def _time(at: float | None) -> str | None:
    return None if at is None else as_time(at)
