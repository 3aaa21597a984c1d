"""Counts over a period, read from the database: by time, model, line and station."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import sqlalchemy as sa

from patchsvdd.apps.serve.ids import id_at
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.tables import inspections, jobs, reviews
from patchsvdd.scoring.conformal import CONFIDENCE, share_interval

Key = TypeVar("Key", bound=Hashable)
WIDTHS = (300, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
"""Seconds that one bucket may cover."""
MOST_BUCKETS = 32
MOST_KEPT = 4000
"""Past pieces kept in memory."""
FRESH_SECONDS = 3600.0
"""How long a past piece is kept: retention deletes inspections."""
LATE_SECONDS = 120.0
"""Inspections and reviews may be written this much later than their time says."""


interval = lru_cache(1000)(share_interval)
"""The exact interval of a share; asked for again and again while nothing changes."""


@dataclass(frozen=True)
class Share:
    """A share with its exact (Clopper–Pearson) interval."""

    hits: int
    of: int
    confidence: float = CONFIDENCE

    def to_json(self) -> dict[str, Any]:
        """The share as JSON; null where nothing was seen."""
        low, high = interval(self.hits, self.of, self.confidence)
        value = self.hits / self.of if self.of else None
        return {"hits": self.hits, "of": self.of, "share": value, "low": low, "high": high}


@dataclass(frozen=True)
class Group:
    """Inspections of one bucket that agree in everything counted."""

    start: float
    model: str
    line: str | None
    station: str | None
    verdict: str
    review: str | None
    many: int


@dataclass
class Tally:
    """Numbers of inspections."""

    inspected: int = 0
    good: int = 0
    anomalous: int = 0
    false_alarms: int = 0
    true_defects: int = 0
    waiting: int = 0
    """Alarms without a review."""

    def add(self, verdict: str, review: str | None, many: int) -> None:
        """Count inspections with the same verdict and review."""
        self.inspected += many
        if verdict == "good":
            self.good += many
            return
        self.anomalous += many
        self.false_alarms += many if review == "false_alarm" else 0
        self.true_defects += many if review == "true_defect" else 0
        self.waiting += many if review is None else 0

    @property
    def yield_(self) -> float | None:
        """Share of inspected parts that were judged good; None without any."""
        return self.good / self.inspected if self.inspected else None

    def to_json(self) -> dict[str, Any]:
        """The numbers as JSON."""
        numbers = {"inspected": self.inspected, "good": self.good, "anomalous": self.anomalous}
        return {**numbers, "yield": self.yield_}

    @property
    def false_share(self) -> Share:
        """False alarms among the reviewed alarms."""
        return Share(self.false_alarms, self.false_alarms + self.true_defects)


@dataclass
class Period:
    """The counts of a period."""

    since: float
    until: float
    width: int
    """Seconds of a bucket."""
    groups: list[Group] = field(default_factory=list)

    def total(self) -> Tally:
        """All inspections."""
        return self.by(lambda _: None).get(None, Tally())

    def by(self, key: Callable[[Group], Key]) -> dict[Key, Tally]:
        """The inspections by something."""
        found: dict[Key, Tally] = {}
        for group in self.groups:
            found.setdefault(key(group), Tally()).add(group.verdict, group.review, group.many)
        return found

    def starts(self) -> list[float]:
        """When the buckets begin: at round times, the first not before the period."""
        return [max(self.since, edge) for edge in _edges(self.since, self.until, self.width)[:-1]]


class Counter:
    """Counts inspections by periods, in pieces of an hour at most, and remembers the counts of past pieces.

    A past piece changes only if one of its inspections is reviewed; new reviews are looked up before each count.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._past: dict[tuple[float, float], tuple[float, list[tuple[Any, ...]]]] = {}
        self._looked = 0.0
        self._lock = threading.Lock()

    def period(self, since: float, until: float) -> Period:
        """Count the inspections of a period, in about MOST_BUCKETS buckets at most."""
        width = next((width for width in WIDTHS if (until - since) / width <= MOST_BUCKETS - 2), WIDTHS[-1])
        found = Period(since, until, width)
        for start, rows in self._pieces(since, until, width):
            shown = max(since, math.floor(start / width) * width)
            found.groups += [Group(shown, *row) for row in rows]
        return found

    def by_model(self, since: float, until: float) -> dict[str, Tally]:
        """Count the inspections of a period by model."""
        found: dict[str, Tally] = {}
        for _, rows in self._pieces(since, until, 3600):
            for model, _, _, verdict, review, many in rows:
                found.setdefault(model, Tally()).add(verdict, review, many)
        return found

    def _pieces(self, since: float, until: float, width: int) -> list[tuple[float, Sequence[tuple[Any, ...]]]]:
        """The start and the counts of each piece of a period."""
        piece = min(width, 3600) if until - since <= 32 * 86_400 else WIDTHS[-1]
        with self._lock, self._store.reading() as connection:
            now = time.time()
            self._forget(connection, now)
            return [
                (start, self._rows(connection, (max(since, start), min(until, end)), piece, now))
                for start, end in pairwise(_edges(since, until, piece))
            ]

    def _rows(
        self, connection: sa.Connection, bounds: tuple[float, float], piece: int, now: float
    ) -> Sequence[tuple[Any, ...]]:
        """The columns of Group, except the start, of a piece of a period."""
        at, rows = self._past.get(bounds, (0.0, []))
        if now - at <= FRESH_SECONDS:
            return rows
        columns = inspections.c
        by = (columns.model, columns.line, columns.station, columns.verdict, columns.review)
        query = sa.select(*by, sa.func.count()).where(columns.id >= id_at(bounds[0]), columns.id < id_at(bounds[1]))
        rows = [tuple(row) for row in connection.execute(query.group_by(*by))]
        if bounds[1] - bounds[0] == piece and bounds[1] < now - LATE_SECONDS:
            self._past[bounds] = (now, rows)
        return rows

    def _forget(self, connection: sa.Connection, now: float) -> None:
        """Forget the buckets in which inspections were reviewed since the last look."""
        columns = reviews.c
        query = sa.select(columns.inspection).where(columns.id >= id_at(self._looked - LATE_SECONDS))
        for (number,) in connection.execute(query) if self._past else ():
            at = int(number[:12], 16) / 1000
            for start, end in [bucket for bucket in self._past if bucket[0] <= at < bucket[1]]:
                del self._past[start, end]
        self._looked = now
        while len(self._past) > MOST_KEPT:
            del self._past[next(iter(self._past))]


def _edges(since: float, until: float, width: int) -> list[float]:
    first = math.floor(since / width)
    return [float(width * number) for number in range(first, max(first + 1, math.ceil(until / width)) + 1)]


def unindexed(column: sa.Column[str]) -> sa.ColumnElement[str]:
    """A column as an expression, so that SQLite reads a range of ids from the index that has all columns needed."""
    return column + ""


def alarms(store: Store, since: float, until: float, limit: int) -> list[Row]:
    """The latest alarms of a period, newest first."""
    columns = inspections.c
    latest = sa.select(columns.id).where(columns.id >= id_at(since), columns.id < id_at(until))
    latest = latest.where(unindexed(columns.verdict) == "anomalous").order_by(columns.id.desc()).limit(limit)
    with store.reading() as connection:
        numbers = [number for (number,) in connection.execute(latest)]
        query = sa.select(inspections).where(columns.id.in_(numbers)).order_by(columns.id.desc())
        return [dict(row) for row in connection.execute(query).mappings()] if numbers else []


def file_bytes(store: Store, owner: str, since: float) -> tuple[int, int]:
    """Bytes of a service's images and maps: of all, and of those stored since a time."""
    columns = inspections.c
    size = columns.picture_bytes + columns.map_bytes + columns.view_bytes
    recent = sa.case((columns.id >= id_at(since), size), else_=0)
    query = sa.select(sa.func.sum(size), sa.func.sum(recent))
    query = query.where(sa.or_(columns.owner == owner, columns.owner.is_(None)))
    with store.reading() as connection:
        total, new = connection.execute(query).one()
    return int(total or 0), int(new or 0)


def first_at(store: Store) -> float | None:
    """When the oldest inspection was made; None without any."""
    query = sa.select(inspections.c.at).order_by(inspections.c.id).limit(1)
    with store.reading() as connection:
        found = connection.execute(query).scalar()
    return None if found is None else float(found)


def last_of(store: Store, models: Iterable[str]) -> dict[str, float]:
    """When each model inspected last."""
    found = {}
    with store.reading() as connection:
        for model in models:
            query = sa.select(inspections.c.at).where(inspections.c.model == model)
            at = connection.execute(query.order_by(inspections.c.id.desc()).limit(1)).scalar()
            if at is not None:
                found[model] = float(at)
    return found


def reviews_between(store: Store, since: float, until: float) -> list[tuple[str, str, int]]:
    """Person, verdict and number of the reviews given in a period; withdrawn ones are not counted."""
    columns = reviews.c
    query = sa.select(columns.by, columns.verdict, sa.func.count()).where(columns.verdict.is_not(None))
    query = query.where(columns.id >= id_at(since), columns.id < id_at(until)).group_by(columns.by, columns.verdict)
    with store.reading() as connection:
        return sorted((by, verdict, int(many)) for by, verdict, many in connection.execute(query))


def ended_jobs(store: Store, since: float, until: float, kinds: Sequence[str]) -> list[Row]:
    """Finished jobs that changed a model in a period, oldest first."""
    columns = jobs.c
    query = sa.select(jobs).where(columns.kind.in_(kinds), columns.state == "done")
    query = query.where(columns.updated >= since, columns.updated < until).order_by(columns.updated)
    with store.reading() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]
