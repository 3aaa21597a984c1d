"""Inspections as CSV (RFC 4180), one page of rows at a time.

The file is UTF-8 with a byte-order mark: without it, Excel takes the file for the machine's old code page.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from patchsvdd.apps.serve.reports.rows import COLUMNS, READ, cells, pages
from patchsvdd.apps.serve.store import Filter, Row, Store

BOM = "\ufeff"


def csv_text(rows: Iterable[Row], *, header: bool = False) -> str:
    """Lines of CSV, ended by CR LF."""
    text = io.StringIO()
    writer = csv.writer(text)
    if header:
        writer.writerow(COLUMNS)
    writer.writerows(cells(row) for row in rows)
    return text.getvalue()


def csv_chunks(store: Store, where: Filter) -> Iterator[bytes]:
    """The file of a filter, in pieces."""
    yield (BOM + csv_text((), header=True)).encode()
    for rows in pages(store, where, columns=READ):
        yield csv_text(rows).encode("utf-8", "replace")
