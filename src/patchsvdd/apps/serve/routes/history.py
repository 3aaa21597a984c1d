"""Looking back at inspections."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response

from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve.responses import MapKind, encoded, inspection_answer, map_media_type
from patchsvdd.apps.serve.routes.dependencies import (
    NEVER_CHANGES,
    InspectionId,
    MayInspect,
    ServiceNeeded,
    binary,
    problems,
)
from patchsvdd.apps.serve.store import Filter

Seconds = Annotated[float, Query(ge=0, le=4_000_000_000, description="seconds since 1970")]

router = APIRouter(prefix="/v1")


def wanted(
    model: Annotated[str | None, Query(max_length=100)] = None,
    verdict: Annotated[s.Verdict | None, Query()] = None,
    review: Annotated[s.Review | Literal["none"] | None, Query(description="'none': not reviewed yet")] = None,
    since: Annotated[Seconds | None, Query()] = None,
    until: Annotated[Seconds | None, Query()] = None,
    name: Annotated[str | None, Query(max_length=200, description="part of the image's name")] = None,
    learned: Annotated[bool | None, Query()] = None,
) -> Filter:
    """Which inspections a request asks for."""
    name = None if name is None else name.replace("\0", "")
    model = None if model is None else model.replace("\0", "")
    return Filter(model, verdict, review, since, until, name=name, learned=learned)


Wanted = Annotated[Filter, Depends(wanted)]
Cursor = Annotated[str | None, Query(pattern=r"^[0-9a-f]{24}$", description="only older ones than this inspection")]


@router.get("/inspections", response_model=s.HistoryAnswer, responses=problems(), tags=["history"])
async def inspections(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    which: Wanted,
    before: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=100_000_000, description="pass over so many first")] = 0,
) -> dict[str, Any]:
    """The history, newest first, a page at a time."""
    which = Filter(**{**which.__dict__, "before": before})
    rows = await service.aside(lambda: service.store.inspections(which, limit + 1, offset=offset))
    following = rows[limit - 1]["id"] if len(rows) > limit else None
    return {"inspections": [inspection_answer(row) for row in rows[:limit]], "next": following}


@router.get("/inspections/counts", response_model=s.CountsAnswer, responses=problems(), tags=["history"])
async def counts(service: ServiceNeeded, caller: MayInspect, which: Wanted) -> dict[str, Any]:  # noqa: ARG001
    """How many inspections there are, by verdict and by review."""
    found = await service.aside(service.store.count, which)
    return {"total": sum(found["verdict"].values()), **found}


@router.get("/inspections/scores", response_model=s.ScoresAnswer, responses=problems(), tags=["history"])
async def scores(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    which: Wanted,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> dict[str, Any]:
    """The latest inspections in few bytes, oldest first: for charts, and to try thresholds on."""
    names = ("id", "at", "score", "threshold", "verdict", "review", "identity")
    rows = (await service.aside(lambda: service.store.inspections(which, limit, columns=names)))[::-1]
    return {name: [row[name] for row in rows] for name in names}


@router.get(
    "/inspections/{number}", response_model=s.InspectionAnswer, responses=problems("not-found"), tags=["history"]
)
async def inspection(service: ServiceNeeded, caller: MayInspect, number: InspectionId) -> dict[str, Any]:  # noqa: ARG001
    """One inspection."""
    return inspection_answer(await service.aside(service.store.inspection, number))


@router.get(
    "/inspections/{number}/picture",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/png", "image/jpeg", "image/webp")},
    tags=["history"],
)
async def picture(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: InspectionId,
    side: Annotated[int | None, Query(ge=16, le=2048, description="longest side of a smaller JPEG")] = None,
) -> Response:
    """The image as it was uploaded, or smaller; BMP and TIFF come as JPEG, because browsers show neither."""
    row = await service.aside(service.store.inspection, number)
    data, kind = await service.picture(row, side)
    return Response(data, media_type=kind, headers=NEVER_CHANGES)


@router.get(
    "/inspections/{number}/map",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/png", "application/x-npy")},
    tags=["history"],
)
async def stored_map(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: InspectionId,
    format: Annotated[MapKind, Query()] = "png",  # noqa: A002
) -> Response:
    """The anomaly map: as colours to lay over the image, or as numbers."""
    row = await service.aside(service.store.inspection, number)
    data = await service.aside(service.map, row, format)
    return Response(data, media_type=map_media_type(format), headers=NEVER_CHANGES)


@router.get(
    "/inspections/{number}/explanation",
    responses={**problems("not-found", "overloaded"), 200: {"content": {"image/png": {}}}},
    response_model=None,
    tags=["history"],
)
async def explanation(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: InspectionId,
    format: Annotated[Literal["json", "png"], Query()] = "json",  # noqa: A002
) -> dict[str, Any] | Response:
    """Why: for each region the nearest normal patches, by the model as it is now; as JSON or as a picture."""
    row = await service.aside(service.store.inspection, number)
    with service.line.place():
        found = await service.explanation(row)
    if format == "png":
        drawn = await service.aside(lambda: encoded(found.picture(), "PNG"))
        return Response(drawn, media_type="image/png")
    now = service.models.named(row["model"]).identity
    return {**found.to_json(), "identity": now, "same_model": now == row["identity"]}
