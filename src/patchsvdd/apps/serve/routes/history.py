"""Stored inspections: lists, counts, images, maps and explanations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from patchsvdd.apps.serve import schemas as s
from patchsvdd.apps.serve.responses import MapKind, encoded, inspection_answer, map_media_type
from patchsvdd.apps.serve.routes.caching import cache_headers, unchanged
from patchsvdd.apps.serve.routes.dependencies import InspectionId, MayInspect, ServiceNeeded, binary, problems
from patchsvdd.apps.serve.store import Filter

Seconds = Annotated[float, Query(ge=0, le=4_000_000_000, description="seconds since 1970")]

router = APIRouter(prefix="/v1")


def filter_of(
    model: Annotated[str | None, Query(max_length=100)] = None,
    verdict: Annotated[s.Verdict | None, Query()] = None,
    review: Annotated[s.Review | Literal["none"] | None, Query(description="'none': not reviewed yet")] = None,
    since: Annotated[Seconds | None, Query()] = None,
    until: Annotated[Seconds | None, Query()] = None,
    name: Annotated[str | None, Query(max_length=200, description="part of the image's name")] = None,
    learned: Annotated[bool | None, Query()] = None,
    serial: Annotated[str | None, Query(max_length=100)] = None,
    lot: Annotated[str | None, Query(max_length=100)] = None,
    line: Annotated[str | None, Query(max_length=100)] = None,
    station: Annotated[str | None, Query(max_length=100)] = None,
) -> Filter:
    """The filter given by the query parameters."""
    texts = {"model": model, "name": name, "serial": serial, "lot": lot, "line": line, "station": station}
    given = {key: text.replace("\0", "") for key, text in texts.items() if text is not None}
    return Filter(verdict=verdict, review=review, since=since, until=until, learned=learned, **given)


FilterQuery = Annotated[Filter, Depends(filter_of)]
Cursor = Annotated[str | None, Query(pattern=r"^[0-9a-f]{24}$", description="only inspections older than this one")]


Newer = Annotated[str | None, Query(pattern=r"^[0-9a-f]{24}$", description="only inspections newer than this one")]


@router.get("/inspections", response_model=s.HistoryAnswer, responses=problems(), tags=["history"])
async def inspections(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    where: FilterQuery,
    before: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=100_000_000, description="number of inspections to skip")] = 0,
) -> dict[str, Any]:
    """The history, newest first, one page at a time."""
    where = Filter(**{**where.__dict__, "before": before})
    rows = await service.aside(lambda: service.store.inspections(where, limit + 1, offset=offset))
    following = rows[limit - 1]["id"] if len(rows) > limit else None
    return {"inspections": [inspection_answer(row) for row in rows[:limit]], "next": following}


@router.get("/inspections/counts", response_model=s.CountsAnswer, responses=problems(), tags=["history"])
async def counts(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    where: FilterQuery,
    after: Newer = None,
) -> dict[str, Any]:
    """The numbers of inspections, by verdict and by review; with `after`, of those that are new."""
    where = Filter(**{**where.__dict__, "after": after})
    numbers = await service.aside(service.store.count, where)
    return {"total": sum(numbers["verdict"].values()), **numbers}


@router.get("/inspections/scores", response_model=s.ScoresAnswer, responses=problems(), tags=["history"])
async def scores(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    where: FilterQuery,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> dict[str, Any]:
    """The latest inspections in compact form, oldest first, for charts and for trying thresholds."""
    names = ("id", "at", "score", "threshold", "verdict", "review", "identity")
    rows = (await service.aside(lambda: service.store.inspections(where, limit, columns=names)))[::-1]
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
    responses={**problems("not-found", "overloaded"), **binary("image/png", "image/jpeg", "image/webp")},
    tags=["history"],
)
async def picture(
    request: Request,
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: InspectionId,
    side: Annotated[
        int | None,
        Query(
            ge=16,
            le=2048,
            description="longest side of a smaller version, usually a JPEG. 256 (and less) and 1600 are stored with "
            "the inspection; others are drawn on request",
        ),
    ] = None,
) -> Response:
    """The uploaded image, or a smaller version; BMP and TIFF are sent as JPEG, because browsers cannot display them."""
    row = await service.aside(service.store.inspection, number)
    headers = cache_headers(service, f"{row['picture']}-{side or 'full'}")
    if row["picture"] is not None and (known := unchanged(request, headers)) is not None:
        return known

    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    data, kind = await service.picture(row, side, hung_up)
    return Response(data, media_type=kind, headers=headers)


@router.get(
    "/inspections/{number}/map",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/png", "application/x-npy")},
    tags=["history"],
)
async def stored_map(
    request: Request,
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    number: InspectionId,
    format: Annotated[MapKind, Query()] = "png",  # noqa: A002
) -> Response:
    """The anomaly map, as a colour overlay or as numbers."""
    row = await service.aside(service.store.inspection, number)
    headers = cache_headers(service, f"{row['map']}-{row['threshold']}-{format}")
    if row["map"] is not None and (known := unchanged(request, headers)) is not None:
        return known
    data = await service.aside(service.map, row, format)
    return Response(data, media_type=map_media_type(format), headers=headers)


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
    """The nearest normal patches for each region, from the current model; as JSON or as an image."""
    row = await service.aside(service.store.inspection, number)
    with service.queue.place():
        result = await service.explanation(row)
    if format == "png":
        image = await service.aside(lambda: encoded(result.picture(), "PNG"))
        return Response(image, media_type="image/png")
    now = service.models.named(row["model"]).identity
    return {**result.to_json(), "identity": now, "same_model": now == row["identity"]}
