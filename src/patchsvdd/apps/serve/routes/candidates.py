"""Candidates: a model that inspects in the shadow of the live one, the comparison, the switch and the roll back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query

from patchsvdd.apps.serve import shadow_schemas as s
from patchsvdd.apps.serve.responses import as_time, inspection_answer, model_answer
from patchsvdd.apps.serve.routes.dependencies import MayAdmin, MayReview, ModelName, ServiceNeeded, problems
from patchsvdd.apps.serve.service import Service

router = APIRouter(prefix="/v1/models/{name}", tags=["candidates"])
Seen = Annotated[s.SwitchRequest | None, Body()]


def _state(service: Service, name: str) -> dict[str, Any]:
    found = service.candidates.state(name)
    live, row, last = found["live"], found["candidate"], found["last"]
    candidate = None
    if row is not None:
        other = row["candidate"]
        served = service.models.get(other)
        candidate = {
            "model": other,
            "identity": None if served is None else served.identity,
            "since": as_time(row["at"]),
            "by": row["by"],
            "waiting": found["situation"]["waiting"],
            "trouble": found["situation"]["trouble"],
        }
    rollback = None
    if last is not None:
        before = {"identity": last["identity_before"], "folder": Path(last["folder_before"]).name}
        rollback = {**before, "at": as_time(last["at"]), "by": last["by"]}
    return {
        "model": name,
        "identity": None if live is None else live.identity,
        "folder": None if live is None else live.folder.resolve().name,
        "candidate": candidate,
        "rollback": rollback,
    }


def _switched(service: Service, name: str) -> dict[str, Any]:
    trouble, check = service.models.trouble(name), service.golden.answer(name)
    return {"model": model_answer(service.models.named(name), trouble, check), "state": _state(service, name)}


@router.get("/candidate", response_model=s.CandidateAnswer, responses=problems("not-found", "model-unusable"))
async def candidate(service: ServiceNeeded, caller: MayReview, name: ModelName) -> dict[str, Any]:  # noqa: ARG001
    """The live model of a name, its candidate, and what a roll back would restore."""
    return await service.aside(_state, service, name)


@router.put(
    "/candidate",
    response_model=s.CandidateAnswer,
    responses=problems("not-found", "conflict", "cross-site", "model-unusable"),
)
async def set_candidate(
    service: ServiceNeeded, caller: MayAdmin, name: ModelName, body: Annotated[s.CandidateRequest, Body()]
) -> dict[str, Any]:
    """Let another served model inspect in the shadow of this one.

    It inspects what this one has inspected and answered, while no image waits. Clients do not notice it.
    """

    def change() -> dict[str, Any]:
        service.candidates.set(name, body.model, caller.actor)
        return _state(service, name)

    return await service.aside(change)


@router.delete(
    "/candidate",
    response_model=s.CandidateAnswer,
    responses=problems("not-found", "conflict", "cross-site", "model-unusable"),
)
async def remove_candidate(service: ServiceNeeded, caller: MayAdmin, name: ModelName) -> dict[str, Any]:
    """Remove the candidate. Its results stay, as long as the inspections they belong to."""

    def change() -> dict[str, Any]:
        service.candidates.remove(name, caller.actor)
        return _state(service, name)

    return await service.aside(change)


@router.get("/shadow", response_model=s.ShadowAnswer, responses=problems("not-found", "conflict", "model-unusable"))
async def shadow(service: ServiceNeeded, caller: MayReview, name: ModelName) -> dict[str, Any]:  # noqa: ARG001
    """What the model and its candidate said about the same images: alarms of each, and whether the rates differ.

    Only images count that the present versions of both inspected. The interval of the difference is Tango's score
    interval for paired shares.
    """
    return await service.aside(service.candidates.comparison, name)


@router.get(
    "/disagreements",
    response_model=s.DisagreementsAnswer,
    responses=problems("not-found", "conflict", "model-unusable"),
)
async def disagreements(
    service: ServiceNeeded,
    caller: MayReview,  # noqa: ARG001
    name: ModelName,
    before: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{24}$", description="`next` of the previous page: only older ones")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
) -> dict[str, Any]:
    """Inspections on which the verdicts of the model and its candidate differ, newest first, one page at a time."""

    def read() -> dict[str, Any]:
        live, other = service.candidates.pair(name)
        found = service.store.disagreements(name, live.identity, other.identity, limit + 1, before)
        following = found[limit - 1][0]["id"] if len(found) > limit else None
        keys = ("candidate", "identity", "score", "threshold", "verdict")
        return {
            "disagreements": [
                {
                    "inspection": inspection_answer(dict(row)),
                    "shadow": {**{key: result[key] for key in keys}, "at": as_time(result["at"])},
                }
                for row, result in found[:limit]
            ],
            "next": following,
        }

    return await service.aside(read)


@router.post(
    "/switch",
    response_model=s.SwitchedAnswer,
    responses=problems("not-found", "conflict", "cross-site", "model-unusable"),
)
async def switch(service: ServiceNeeded, caller: MayAdmin, name: ModelName, body: Seen = None) -> dict[str, Any]:
    """Serve the candidate under this name from now on. Requests in progress finish with the model they began with.

    Refused (409) if the candidate fails the check with the golden images, unless the service only warns
    (`golden_check`).
    """

    def change() -> dict[str, Any]:
        service.candidates.switch(name, caller.actor, None if body is None else body.identity)
        return _switched(service, name)

    return await service.aside(change)


@router.post(
    "/rollback",
    response_model=s.SwitchedAnswer,
    responses=problems("not-found", "conflict", "cross-site", "model-unusable"),
)
async def rollback(service: ServiceNeeded, caller: MayAdmin, name: ModelName, body: Seen = None) -> dict[str, Any]:
    """Undo the last switch: serve the model that was live before it."""

    def change() -> dict[str, Any]:
        service.candidates.roll_back(name, caller.actor, None if body is None else body.identity)
        return _switched(service, name)

    return await service.aside(change)
