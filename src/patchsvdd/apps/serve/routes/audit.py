"""The audit chain: who did what when, for administrators."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse

from patchsvdd.apps.serve import audit_schemas as s
from patchsvdd.apps.serve.audit_chain import Entry
from patchsvdd.apps.serve.audit_store import AuditFilter
from patchsvdd.apps.serve.reports.audit_report import csv_chunks, jsonl_chunks
from patchsvdd.apps.serve.responses import as_time
from patchsvdd.apps.serve.routes.dependencies import MayAdmin, ServiceNeeded, binary, problems
from patchsvdd.apps.serve.routes.history import Seconds
from patchsvdd.apps.serve.routes.reports import streamed, today

ACTION = r"^[a-z]{1,20}(\.[a-z-]{1,20})?$"

router = APIRouter(prefix="/v1")


def filter_of(
    model: Annotated[str | None, Query(max_length=100)] = None,
    who: Annotated[str | None, Query(max_length=200, description="name of a user or a key")] = None,
    action: Annotated[
        str | None, Query(pattern=ACTION, description="such as `review.given`, or a group such as `review`")
    ] = None,
    people: Annotated[bool, Query(description="only people, keys and commands; not the service by itself")] = False,
    since: Annotated[Seconds | None, Query()] = None,
    until: Annotated[Seconds | None, Query()] = None,
) -> AuditFilter:
    """The filter given by the query parameters."""
    model, who = (None if text is None else text.replace("\0", "") for text in (model, who))
    return AuditFilter(model, who, action, people, since, until)


FilterQuery = Annotated[AuditFilter, Depends(filter_of)]


@router.get("/audit", response_model=s.AuditAnswer, responses=problems(), tags=["audit"])
async def entries(
    service: ServiceNeeded,
    caller: MayAdmin,  # noqa: ARG001
    where: FilterQuery,
    before: Annotated[int | None, Query(ge=1, le=1 << 53, description="only entries before this number")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> dict[str, Any]:
    """Who reviewed, taught, undid, calibrated, trained, and changed people; the latest first, one page at a time."""
    found = await service.aside(service.store.audit_entries, replace(where, before=before), limit + 1)
    following = found[limit - 1].number if len(found) > limit else None
    return {"entries": [_answer(entry) for entry in found[:limit]], "next": following}


@router.get("/audit/verification", response_model=s.VerificationAnswer, responses=problems(), tags=["audit"])
async def verification(service: ServiceNeeded, caller: MayAdmin) -> dict[str, Any]:  # noqa: ARG001
    """Whether the chain is whole: every entry is checked, and that the chain has the entry this service knew last."""
    found = await service.aside(service.audit.verify)
    return {**found.to_json(), "at": as_time(time.time())}


@router.get(
    "/reports/audit.jsonl",
    response_class=StreamingResponse,
    responses={**problems("overloaded"), **binary("application/jsonl")},
    tags=["audit"],
)
async def audit_jsonl(service: ServiceNeeded, caller: MayAdmin) -> Response:  # noqa: ARG001
    """The whole chain as lines of JSON, which `patchsvdd audit verify FILE` checks without the service."""
    chunks = jsonl_chunks(service.store)
    return await streamed(service, chunks, "application/jsonl", f"audit-{today()}.jsonl")


@router.get(
    "/reports/audit.csv",
    response_class=StreamingResponse,
    responses={**problems("overloaded"), **binary("text/csv")},
    tags=["audit"],
)
async def audit_csv(service: ServiceNeeded, caller: MayAdmin, where: FilterQuery) -> Response:  # noqa: ARG001
    """The entries of a filter as CSV, the latest first, for spreadsheets. To verify entries, use `audit.jsonl`."""
    chunks = csv_chunks(service.store, where)
    return await streamed(service, chunks, "text/csv; charset=utf-8", f"audit-{today()}.csv")


def _answer(entry: Entry) -> dict[str, Any]:
    return {
        "number": entry.number,
        "at": as_time(entry.at / 1000),
        "who": {"name": entry.who, "kind": entry.who_kind, "id": entry.who_id},
        "action": entry.action,
        "model": entry.model,
        "subject": {"kind": entry.subject_kind, "id": entry.subject},
        "details": _details(entry.details),
        "previous": entry.previous,
        "hash": entry.hash,
    }


def _details(text: str) -> dict[str, Any]:
    """The details of an entry; as they are in the database, if somebody has changed them there to anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    return found if isinstance(found, dict) else {"text": text}
