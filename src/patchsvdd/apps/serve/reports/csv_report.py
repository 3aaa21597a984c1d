"""Inspections as CSV (RFC 4180), one page of rows at a time.

The file is UTF-8 with a byte-order mark: without it, Excel takes the file for the machine's old code page.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator

from patchsvdd.apps.serve.overview_store import Counter
from patchsvdd.apps.serve.reports.rows import COLUMNS, READ, cells, pages
from patchsvdd.apps.serve.samples import Samples
from patchsvdd.apps.serve.store import Filter, Row, Store

BOM = "\ufeff"


def csv_text(rows: Iterable[Row], drawn: Collection[str] = (), *, header: bool = False) -> str:
    """Lines of CSV, ended by CR LF. ``drawn``: ids that were drawn at random for sample review."""
    text = io.StringIO()
    writer = csv.writer(text)
    if header:
        writer.writerow(COLUMNS)
    writer.writerows(cells(row, drawn) for row in rows)
    return text.getvalue()


def csv_chunks(store: Store, where: Filter, samples: Samples | None = None) -> Iterator[bytes]:
    """The file of a filter, in pieces."""
    samples = samples or Samples(store, Counter(store))
    yield (BOM + csv_text((), header=True)).encode()
    for rows in pages(store, where, columns=READ):
        yield csv_text(rows, samples.drawn(rows)).encode("utf-8", "replace")
