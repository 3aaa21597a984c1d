"""Reports out of the service: CSV, PDF, ZIP and labels of a filter of the history, and the report of a shift."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from patchsvdd.apps.serve import report_schemas as s
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.reports.csv_report import csv_chunks
from patchsvdd.apps.serve.reports.inspections_pdf import MOST, inspections_pdf
from patchsvdd.apps.serve.reports.labels_report import LabelFormat, labels_file
from patchsvdd.apps.serve.reports.shift import shift_report
from patchsvdd.apps.serve.reports.shift_html import shift_html
from patchsvdd.apps.serve.reports.shift_pdf import shift_pdf
from patchsvdd.apps.serve.reports.thumbnails import thumbnails
from patchsvdd.apps.serve.reports.zip_report import zip_chunks
from patchsvdd.apps.serve.responses import inspection_answer
from patchsvdd.apps.serve.routes.dependencies import MayInspect, OverviewNeeded, ServiceNeeded, binary, problems
from patchsvdd.apps.serve.routes.history import FilterQuery, Seconds
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.store import Row
from patchsvdd.core.errors import ConfigError
from patchsvdd.report.pdf_document import require_reportlab

AT_A_TIME = 4
"""Reports made at the same time; more are refused, so that inspections keep the machine."""
SHIFT_HOURS = 8.0
LONGEST = 31 * 86_400.0
"""Longest period of a shift report in seconds."""

router = APIRouter(prefix="/v1/reports")
_places = threading.BoundedSemaphore(AT_A_TIME)


def _require_pdf() -> None:
    """Raise Problem if PDFs cannot be written."""
    try:
        require_reportlab()
    except ConfigError as error:
        raise Problem("conflict", str(error)) from None


@contextmanager
def _place() -> Iterator[None]:
    """A place among the reports being made; raises Problem if all are taken."""
    if not _places.acquire(blocking=False):
        raise Problem("overloaded", f"{AT_A_TIME} reports are being made; try again soon", retry_after=10)
    try:
        yield
    finally:
        _places.release()


def _held(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """The chunks, with a place taken until they end or the client leaves."""
    with _place():
        yield b""
        yield from chunks


async def streamed(service: Service, chunks: Iterator[bytes], media_type: str, name: str) -> Response:
    """A response that sends chunks as they are made, in threads. Errors of the first come before the response."""
    held = _held(chunks)
    await service.aside(next, held)
    first = await service.aside(next, held)

    def whole() -> Generator[bytes, None, None]:
        yield first
        yield from held

    return Download(whole(), media_type, name)


class Download(StreamingResponse):
    """A file that is made while it is sent. Its place is given back when it ends or the client leaves."""

    def __init__(self, chunks: Generator[bytes, None, None], media_type: str, name: str) -> None:
        super().__init__(chunks, media_type=media_type, headers=_download(name))
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._chunks.close()


def _download(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def today() -> str:
    """The date at the server's place, for names of files."""
    return datetime.now().strftime("%Y-%m-%d")


@router.get(
    "/inspections.csv",
    response_class=StreamingResponse,
    responses={**problems("overloaded"), **binary("text/csv")},
    tags=["reports"],
)
async def inspections_csv(service: ServiceNeeded, caller: MayInspect, where: FilterQuery) -> Response:  # noqa: ARG001
    """All inspections of a filter as CSV, newest first.

    UTF-8 with a byte-order mark; lines end with CR LF. Text that a spreadsheet would run as a formula gets a leading
    apostrophe. `time` is local time at the server, `time_utc` the same in UTC. `sample` is "yes" for parts that were
    drawn at random for sample review.
    """
    chunks = csv_chunks(service.store, where, service.samples)
    return await streamed(service, chunks, "text/csv; charset=utf-8", f"inspections-{today()}.csv")


@router.get(
    "/inspections.pdf",
    response_class=Response,
    responses={**problems("overloaded", "conflict"), **binary("application/pdf")},
    tags=["reports"],
)
async def inspections_as_pdf(service: ServiceNeeded, caller: MayInspect, where: FilterQuery) -> Response:  # noqa: ARG001
    """Inspections of a filter as PDF: key figures and the latest 500 inspections, alarms with their pictures."""
    _require_pdf()
    with _place():
        counts = await service.aside(service.store.count, where)
        rows = await service.aside(service.store.inspections, where, MOST)
        pictures = await thumbnails(service, [row for row in rows if row["verdict"] == "anomalous"])
        data = await service.aside(inspections_pdf, where, counts, rows, pictures, time.time())
    return Response(data, media_type="application/pdf", headers=_download(f"inspections-{today()}.pdf"))


@router.get(
    "/inspections.zip",
    response_class=StreamingResponse,
    responses={**problems("overloaded"), **binary("application/zip")},
    tags=["reports"],
)
async def inspections_zip(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    where: FilterQuery,
    maps: Annotated[bool, Query(description="also the heat maps, as transparent PNGs")] = False,
) -> Response:
    """Images of a filter's inspections as ZIP, newest first, with `inspections.csv`.

    At most 2,000 images or 4 GB; `README.txt` in the archive says what was left out.
    """

    def picture(row: Row) -> bytes | None:
        return service.blobs.get(row["picture"]) if row["picture"] else None

    def heat_map(row: Row) -> bytes | None:
        try:
            return service.map(row, "png")
        except Problem:
            return None

    chunks = zip_chunks(service.store, where, picture, heat_map if maps else None)
    return await streamed(service, chunks, "application/zip", f"inspections-{today()}.zip")


@router.get(
    "/labels.json",
    response_class=Response,
    responses={
        **problems("overloaded", "conflict"),
        200: {"content": {kind: {} for kind in ("application/json", "application/zip")}},
    },
    tags=["reports"],
)
async def labels(
    service: ServiceNeeded,
    caller: MayInspect,  # noqa: ARG001
    where: FilterQuery,
    format: Annotated[LabelFormat, Query(description="labelme: a ZIP with one file per image")] = "coco",  # noqa: A002
) -> Response:
    """Labels of a filter's reviewed inspections, newest first: good, or a defect with what was drawn on it.

    Alarms that are not reviewed, or unsure, are left out unless somebody drew on them. At most 5,000 images.
    """
    with _place():
        data = await service.aside(labels_file, service.store, where, format)
    is_zip = format == "labelme"
    name = f"labels-{format}-{today()}.{'zip' if is_zip else 'json'}"
    return Response(data, media_type=f"application/{'zip' if is_zip else 'json'}", headers=_download(name))


@router.get(
    "/shift",
    response_model=s.ShiftAnswer,
    responses={
        **problems("overloaded", "conflict"),
        200: {"content": {kind: {} for kind in ("text/html", "application/pdf")}},
    },
    tags=["reports"],
)
async def shift(
    service: ServiceNeeded,
    overview: OverviewNeeded,
    caller: MayInspect,  # noqa: ARG001
    start: Annotated[Seconds | None, Query(description="seconds since 1970; 8 hours before the end by default")] = None,
    end: Annotated[Seconds | None, Query(description="seconds since 1970; now by default")] = None,
    format: Annotated[Literal["html", "pdf", "json"], Query()] = "html",  # noqa: A002
) -> Response:
    """The report of a shift: yield, alarms with pictures, reviews, false alarms and misses, drift, changes of models.

    The HTML file needs nothing else and can be printed. At most 31 days.
    """
    until = time.time() if end is None else end
    since = max(0.0, until - 3600 * SHIFT_HOURS) if start is None else start
    if not 0 < until - since <= LONGEST:
        words = "the start of the report must be before its end, by 31 days at most"
        raise Problem("invalid-request", words)
    if format == "pdf":
        _require_pdf()
    with _place():
        facts, alarms = await service.aside(shift_report, service, overview, since, until)
        if format == "json":
            answer: dict[str, Any] = {**facts, "alarms": [inspection_answer(row) for row in alarms]}
            valid = s.ShiftAnswer.model_validate(answer)
            return JSONResponse(valid.model_dump(by_alias=True))
        pictures = await thumbnails(service, alarms)
        if format == "html":
            page = await service.aside(shift_html, facts, alarms, pictures)
            data, media_type = page.encode("utf-8", "replace"), "text/html; charset=utf-8"
        else:
            data, media_type = await service.aside(shift_pdf, facts, alarms, pictures), "application/pdf"
    name = f"shift-{datetime.fromtimestamp(since):%Y-%m-%d-%H%M}.{format}"
    return Response(data, media_type=media_type, headers=_download(name))
