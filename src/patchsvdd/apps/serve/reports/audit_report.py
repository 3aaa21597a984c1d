"""The audit chain as files: JSON lines that can be verified without the service, and CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import replace

from patchsvdd.apps.serve.audit_chain import Entry, header_line
from patchsvdd.apps.serve.audit_store import AuditFilter, AuditStore
from patchsvdd.apps.serve.reports.csv_report import BOM
from patchsvdd.apps.serve.reports.rows import PAGE, defused, local
from patchsvdd.apps.serve.responses import as_time

COLUMNS = (
    *("number", "time", "time_utc", "who", "who_kind", "who_id", "action", "model", "subject_kind", "subject"),
    *("details", "previous", "hash", "id"),
)


def jsonl_chunks(store: AuditStore) -> Iterator[bytes]:
    """The whole chain as lines of JSON; the first line names its head, all others are entries in their order."""
    head = store.audit_head()
    yield f"{header_line(head)}\n".encode()
    lines: list[str] = []
    for entry in store.audit_chain(head.number):
        lines.append(entry.line())
        if len(lines) == PAGE:
            yield _text(lines)
            lines = []
    yield _text(lines)


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def csv_chunks(store: AuditStore, where: AuditFilter) -> Iterator[bytes]:
    """The entries of a filter as CSV, the latest first."""
    yield (BOM + _csv([COLUMNS])).encode()
    while entries := store.audit_entries(where, PAGE):
        yield _csv(map(_cells, entries)).encode("utf-8", "replace")
        if len(entries) < PAGE:
            return
        where = replace(where, before=entries[-1].number)


def _csv(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _cells(entry: Entry) -> list[object]:
    at = entry.at / 1000
    values = {**entry.__dict__, "time": local(at), "time_utc": as_time(at)}
    return [defused(values[name]) for name in COLUMNS]
