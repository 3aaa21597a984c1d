"""Rows of a report: which inspections, their cells as text, and the filter in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from patchsvdd.apps.serve.ids import id_at
from patchsvdd.apps.serve.responses import as_time
from patchsvdd.apps.serve.store import TRACE, Filter, Row, Store

PAGE = 1000
"""Inspections read at a time."""
COLUMNS = (
    *("id", "time", "time_utc", "model", "version", "image", "serial", "lot", "line", "station", "verdict", "score"),
    *("threshold", "score_per_threshold", "regions", "review", "reviewed_by", "reviewed_at", "note", "sample"),
)
READ = (
    *("id", "at", "model", "identity", "name", *TRACE, "verdict", "score", "threshold", "regions", "review"),
    *("reviewed_by", "reviewed_at", "note"),
)
"""Columns of the database that the cells are made of."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
"""Spreadsheets run a text that begins with one of these."""
VERDICTS = {"good": "Good", "anomalous": "Anomalous"}
REVIEWS = {
    **{"true_defect": "True defect", "false_alarm": "False alarm", "unsure": "Unsure"},
    **{"confirmed_good": "Confirmed good", "none": "Not reviewed"},
}


def pages(store: Store, where: Filter, size: int = PAGE, columns: tuple[str, ...] | None = None) -> Iterator[list[Row]]:
    """All inspections of a filter, newest first, some at a time; never all in memory."""
    if where.since is not None and where.after is None:
        where = replace(where, after=id_at(where.since - 0.001))
    before = where.before if where.before is not None or where.until is None else id_at(where.until)
    while True:
        rows = store.inspections(replace(where, before=before), size, columns=columns)
        if rows:
            yield rows
        if len(rows) < size:
            return
        before = rows[-1]["id"]


def cells(row: Row, drawn: Collection[str] = ()) -> list[object]:
    """The cells of COLUMNS. Text that a spreadsheet would run as a formula gets a leading apostrophe.

    ``drawn``: ids of inspections that were drawn at random for sample review.
    """
    threshold, reviewed = row["threshold"], row["reviewed_at"]
    values: dict[str, Any] = {
        "id": row["id"],
        "time": local(row["at"]),
        "time_utc": as_time(row["at"]),
        "model": row["model"],
        "version": row["identity"],
        "image": row["name"],
        **{name: row[name] for name in TRACE},
        "verdict": row["verdict"],
        "score": row["score"],
        "threshold": threshold,
        "score_per_threshold": float(f"{row['score'] / threshold:.6g}") if threshold else None,
        "regions": len(row["regions"]),
        "review": row["review"],
        "reviewed_by": row["reviewed_by"],
        "reviewed_at": local(reviewed) if reviewed is not None else None,
        "note": row["note"],
        "sample": "yes" if row["id"] in drawn else None,
    }
    return [defused(values[name]) for name in COLUMNS]


def defused(value: object) -> object:
    """A value that no spreadsheet runs as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def local(at: float, *, seconds: bool = True) -> str:
    """A time at the server's place, as spreadsheets read it."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def in_words(where: Filter) -> str:
    """A filter in words."""
    said = []
    if where.model is not None:
        said.append(f"model {where.model}")
    if where.verdict is not None:
        said.append(VERDICTS[where.verdict].lower())
    if where.review is not None:
        said.append(REVIEWS[where.review].lower())
    if where.since is not None:
        said.append(f"from {local(where.since, seconds=False)}")
    if where.until is not None:
        said.append(f"until {local(where.until, seconds=False)}")
    if where.name is not None:
        said.append(f"name contains “{where.name}”")
    if where.learned is not None:
        said.append("learned" if where.learned else "not learned")
    said += [f"{name} {getattr(where, name)}" for name in TRACE if getattr(where, name) is not None]
    words = ", ".join(said) or "all inspections"
    return words[0].upper() + words[1:]


def share_in_words(share: dict[str, Any]) -> str:
    """A share with its interval."""
    if share["share"] is None:
        return "not known yet"
    counted = f" ({share['hits']:,} of {share['of']:,})" if "of" in share else ""
    return f"{percent(share['share'])}{counted}, 95 % interval {percent(share['low'])} to {percent(share['high'])}"


def percent(part: float | None) -> str:
    """A fraction in per cent, with as many digits as matter; never 100 % unless it is all."""
    if part is None:
        return "–"
    value = 100 * part
    digits = 0 if value in (0, 100) else 2 if value > 99 or value < 1 else 1
    text = f"{value:.{digits}f}"
    if part < 1 and float(text) == 100:
        text = "99.99"
    return f"{text} %"
