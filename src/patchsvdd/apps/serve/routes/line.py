"""The running line: its state, what people ask of it, its parts and figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response

from patchsvdd.apps.line.parts import PartVerdict
from patchsvdd.apps.serve import line_schemas as s
from patchsvdd.apps.serve.audit_store import Record
from patchsvdd.apps.serve.line_statistics import Shift, line_statistics, shift_bounds
from patchsvdd.apps.serve.line_view import LineView
from patchsvdd.apps.serve.part_answers import part_answers, result_answer
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.routes.dependencies import MayInspect, MayReview, ServiceNeeded, binary, problems
from patchsvdd.apps.serve.routes.history import Seconds
from patchsvdd.apps.serve.service import Service

LONGEST_HOURS = 24 * 31
DAY = 86_400.0

router = APIRouter(prefix="/v1", tags=["line"])
ViewName = Annotated[str, Path(pattern=r"^[^/\\\x00-\x1f\x7f]{1,100}$", examples=["top"])]
PartId = Annotated[str, Path(pattern=r"^[0-9a-f]{24}$", examples=["019a8c2f1e7b3f0c9d2a4b6c"])]


def running_line(service: Service) -> LineView:
    """The line of the service; raises Problem if it runs none."""
    if service.line_view is None:
        raise Problem("not-found", "this service runs no line; `patchsvdd run LINE.toml` starts a service with one")
    return service.line_view


def _state(service: Service) -> dict[str, Any]:
    facts = running_line(service).state()
    last = None if facts["last"] is None else result_answer(facts["name"], facts["last"])
    return {**facts, "last": last}


async def _changed(service: Service, change: Callable[[LineView], None]) -> dict[str, Any]:
    """The state of the line after a change of it."""

    def work() -> dict[str, Any]:
        change(running_line(service))
        return _state(service)

    return await service.aside(work)


@router.get("/line", response_model=s.LineAnswer, responses=problems("not-found"))
async def line(service: ServiceNeeded, caller: MayInspect) -> dict[str, Any]:  # noqa: ARG001
    """What the line is doing now: its state, sources, buses and last part; 404 if the service runs no line."""
    return await service.aside(_state, service)


@router.post("/line/trigger", response_model=s.LineAnswer, responses=problems("not-found", "conflict", "cross-site"))
async def trigger(
    service: ServiceNeeded, caller: MayReview, body: Annotated[s.TriggerRequest | None, Body()] = None
) -> dict[str, Any]:
    """Begin a part, as a PLC would. Its verdict is the next `last` of the line; 409 if the line is not ready."""
    asked = body or s.TriggerRequest()
    part_number, product = (text.replace("\0", "") for text in (asked.part_number, asked.product))

    def begin(line: LineView) -> None:
        state = line.state()
        if state["state"] != "ready":
            raise Problem("conflict", f"the line is not ready: its state is '{state['state']}'; wait, or see its fault")
        if product and product not in state["products"]:
            known = ", ".join(state["products"])
            raise Problem("invalid-request", f"the line has no product '{product}'; its products are: {known}")
        facts = {"part_number": part_number, "product": product, "trigger_id": asked.trigger_id}
        _record(service, Record(caller.actor, "line.triggered", None, "line", state["name"], facts))
        line.trigger(part_number, product, asked.trigger_id)

    return await _changed(service, begin)


@router.post("/line/acknowledge", response_model=s.LineAnswer, responses=problems("not-found", "cross-site"))
async def acknowledge(service: ServiceNeeded, caller: MayReview) -> dict[str, Any]:
    """Acknowledge the fault of the line, and its parts without a verdict."""

    def clear(line: LineView) -> None:
        state = line.state()
        fault = state["fault"]
        facts = {} if fault is None else {"fault": fault["name"], "text": fault["text"]}
        record = Record(caller.actor, "line.acknowledged", None, "line", state["name"], facts)
        service.store.acknowledge_parts(service.settings.service_id, state["name"], record, always=fault is not None)
        line.acknowledge(caller.actor)

    return await _changed(service, clear)


@router.post("/line/pause", response_model=s.LineAnswer, responses=problems("not-found", "cross-site"))
async def pause(service: ServiceNeeded, caller: MayReview) -> dict[str, Any]:
    """Let the line begin no more parts; the part in progress is finished."""

    def stop(line: LineView) -> None:
        state = line.state()
        if state["state"] != "paused":
            _record(service, Record(caller.actor, "line.paused", None, "line", state["name"]))
            line.pause(caller.actor)

    return await _changed(service, stop)


@router.post("/line/resume", response_model=s.LineAnswer, responses=problems("not-found", "cross-site"))
async def resume(service: ServiceNeeded, caller: MayReview) -> dict[str, Any]:
    """Let a paused line begin parts again."""

    def go_on(line: LineView) -> None:
        state = line.state()
        if state["state"] == "paused":
            _record(service, Record(caller.actor, "line.resumed", None, "line", state["name"]))
            line.resume(caller.actor)

    return await _changed(service, go_on)


def _record(service: Service, record: Record) -> None:
    """Record an action before it is done: what cannot be recorded is not done."""
    service.store.record(record).result()


@router.get(
    "/line/live/{view}",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/jpeg")},
)
async def live(service: ServiceNeeded, caller: MayInspect, view: ViewName) -> Response:  # noqa: ARG001
    """The latest image of a view, whether it belongs to a part or not."""
    data = await service.aside(running_line(service).live, view)
    if data is None:
        raise Problem("not-found", f"there is no image of a view '{view}' yet")
    return Response(data, media_type="image/jpeg")


@router.get("/line/statistics", response_model=s.StatisticsAnswer, responses=problems("not-found"))
async def statistics(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    shift: Annotated[
        Shift, Query(description="without `hours`; shifts begin at the service's `shift_start`")
    ] = "current",
    hours: Annotated[float | None, Query(ge=0.1, le=LONGEST_HOURS, description="the last hours, not a shift")] = None,
) -> dict[str, Any]:
    """Yield, parts by verdict, and the p-chart, of a shift or the last hours."""
    name, now = running_line(service).state()["name"], time.time()
    settings = service.settings
    bounds = (now - 3600 * hours, now) if hours is not None else shift_bounds(settings.shift_starts, shift, now)
    return await service.aside(line_statistics, service.store, settings.service_id, name, *bounds)


@router.get(
    "/line/heat/{view}",
    response_class=Response,
    responses={**problems("not-found"), **binary("image/png")},
)
async def heat(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    view: ViewName,
    since: Annotated[Seconds | None, Query(description="seconds since 1970; without it, the last 24 hours")] = None,
) -> Response:
    """Where defects occurred on the part: the sum of the latest 200 anomalous maps of a view above the threshold.

    A PNG to lay over the image: only places with defects are coloured. It may be smaller than the image.
    """
    state = running_line(service).state()
    if view not in state["views"]:
        raise Problem("not-found", f"the line has no view '{view}'; its views are: {', '.join(state['views'])}")
    start = time.time() - DAY if since is None else since
    data = await service.aside(service.heat.png, service.settings.service_id, state["name"], view, start)
    return Response(data, media_type="image/png")


@router.get("/parts", response_model=s.PartsAnswer, responses=problems())
async def parts(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    line: Annotated[str | None, Query(max_length=100)] = None,
    verdict: Annotated[PartVerdict | None, Query()] = None,
    part_number: Annotated[str | None, Query(max_length=s.TEXT)] = None,
    before: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{24}$", description="only parts older than this one")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> dict[str, Any]:
    """The inspected parts, newest first, one page at a time."""
    line, part_number = (None if text is None else text.replace("\0", "") for text in (line, part_number))

    def read() -> dict[str, Any]:
        where: dict[str, Any] = {"line": line, "verdict": verdict, "part_number": part_number, "before": before}
        rows = service.store.parts(limit + 1, **where)
        following = rows[limit - 1]["id"] if len(rows) > limit else None
        return {"parts": part_answers(service.store, rows[:limit]), "next": following}

    return await service.aside(read)


@router.get("/parts/{number}", response_model=s.PartAnswer, responses=problems("not-found"))
async def part(service: ServiceNeeded, caller: MayInspect, number: PartId) -> dict[str, Any]:  # noqa: ARG001
    """One part with its views."""
    return (await service.aside(lambda: part_answers(service.store, [service.store.part(number)])))[0]
