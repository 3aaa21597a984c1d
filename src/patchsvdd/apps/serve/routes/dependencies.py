"""Shared by the routes: permissions, path parameters, and OpenAPI responses for errors and files."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request

from patchsvdd.apps.serve.admission import caller_of
from patchsvdd.apps.serve.auth import Caller, Role
from patchsvdd.apps.serve.overview import Overview
from patchsvdd.apps.serve.problem_details import MEDIA_TYPE, TITLES, Problem
from patchsvdd.apps.serve.responses import job_answer
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.store import Row

ModelName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", examples=["bottle"])]
InspectionId = Annotated[str, Path(pattern=r"^[0-9a-f]{24}$", examples=["019a8c2f1e7b3f0c9d2a4b6c"])]
JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{24}$", examples=["019a8c2f1e7b3f0c9d2a4b6c"])]


def problems(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for kinds of problems, including those that any route may return."""
    by_status: dict[int | str, list[str]] = {}
    for kind in ("invalid-request", "unauthenticated", "forbidden", "store-unavailable", *kinds):
        by_status.setdefault(TITLES[kind][0], []).append(TITLES[kind][1])
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {
        status: {"description": "; ".join(dict.fromkeys(titles)), "content": content}
        for status, titles in by_status.items()
    }


def binary(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI response for a file."""
    return {200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}}}


def service_of(request: Request) -> Service:
    """The service that handles a request."""
    service: Service = request.app.state.service
    return service


ServiceNeeded = Annotated[Service, Depends(service_of)]


def overview_of(request: Request) -> Overview:
    """The overview of the service that handles a request."""
    overview: Overview = request.app.state.overview
    return overview


OverviewNeeded = Annotated[Overview, Depends(overview_of)]


def described(service: Service, row: Row) -> dict[str, Any]:
    """The response for a job."""
    return job_answer(row, service.jobs.situation([row])[0])


class Allowed:
    """A dependency that requires at least a role."""

    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request, service: ServiceNeeded) -> Caller:
        """The client of the request; raises Problem if its role does not suffice."""
        caller = await caller_of(service, request)
        if not caller.may(self.role):
            words = f"the {caller.kind} '{caller.name}' has the role '{caller.role}'; this requires '{self.role}'"
            raise Problem("forbidden", words)
        return caller


MayInspect = Annotated[Caller, Depends(Allowed("inspect"))]
MayReview = Annotated[Caller, Depends(Allowed("review"))]
MayAdmin = Annotated[Caller, Depends(Allowed("admin"))]
