"""Sample review: some parts judged *Good* are drawn at random every day, so that misses can be estimated.

Each inspection has a number, uniform in 0 … 1, that was drawn when it was stored. The sample of a day are the Good
inspections with the smallest numbers: nobody chooses them, and the rest of the day does not change a past day's sample.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import Record, this_process
from patchsvdd.apps.serve.ids import id_at
from patchsvdd.apps.serve.overview_store import LATE_SECONDS, Counter, Share, Tally, interval, unindexed
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.tables import inspections, samples
from patchsvdd.scoring.conformal import CONFIDENCE

PER_DAY = 5
"""Good parts to review per day and model, unless set otherwise: a minute of work, 150 parts in a month."""
DAYS = 30
"""Days that an estimate covers by default."""
KEPT = 5000
"""Samples of days kept in memory."""


@dataclass
class Counts:
    """What is known of a period: all parts by verdict, and the reviewed ones."""

    good: int = 0
    anomalous: int = 0
    false_alarms: int = 0
    true_defects: int = 0
    """Among the alarms."""
    sampled: int = 0
    """Good parts in the samples."""
    confirmed: int = 0
    missed: int = 0
    """Among the sample: reviewed as good, and as defects."""
    unsure: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__dict__})


def missed_defects(counts: Counts, confidence: float = CONFIDENCE) -> dict[str, Any]:
    """The estimated share of all defects that were judged Good, with an interval.

    Two numbers are unknown: the defects among all Good parts, of which a sample was reviewed, and those among all
    alarms, of which some were. Each has an exact interval at half of the error, so that both hold together with
    ``confidence`` (Bonferroni), and the share is largest with the most missed and the fewest found. What was reviewed
    itself bounds each number too.
    """
    halved = 1 - (1 - confidence) / 2
    missed = _number(counts.missed, counts.missed + counts.confirmed, counts.good, halved)
    found = _number(counts.true_defects, counts.true_defects + counts.false_alarms, counts.anomalous, halved)
    known = missed.estimate is not None and found.estimate is not None
    total = (missed.estimate or 0) + (found.estimate or 0)
    return {
        "share": (missed.estimate or 0) / total if known and total > 0 else None,
        "low": missed.low / (missed.low + found.high) if missed.low > 0 else 0.0,
        "high": missed.high / (missed.high + found.low) if missed.high > 0 else 0.0,
        "missed": missed.estimate,
        "found": found.estimate,
    }


@dataclass(frozen=True)
class _Number:
    estimate: float | None
    low: float
    high: float


def _number(hits: int, reviewed: int, total: int, confidence: float) -> _Number:
    """How many of ``total`` are hits, given those among the reviewed."""
    low, high = interval(hits, reviewed, confidence)
    most = total - (reviewed - hits)  # the others were seen not to be hits
    estimate = total * hits / reviewed if reviewed else (0.0 if total == 0 else None)
    return _Number(estimate, min(max(hits, total * low), most), max(hits, min(most, total * high)))


def day_start(day: date) -> float:
    """When a day begins at the server's place."""
    return datetime(day.year, day.month, day.day).timestamp()


@dataclass
class Samples:
    """The samples of a store's inspections."""

    store: Store
    counter: Counter
    _days: dict[tuple[str, date, int], tuple[float, tuple[tuple[float, str], ...]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def per_day(self, model: str) -> int:
        """Good parts of a model to review per day; 0 if there is no sample."""
        with self.store.reading() as connection:
            found = connection.execute(sa.select(samples.c.per_day).where(samples.c.model == model)).scalar()
        return PER_DAY if found is None else int(found)

    def set_per_day(self, model: str, per_day: int, by: Actor | None = None) -> None:
        """Set how many Good parts of a model are to be reviewed per day."""
        record = Record(by or this_process(), "sample.changed", model, "model", model)

        def write(connection: sa.Connection) -> None:
            query = sa.select(samples.c.per_day).where(samples.c.model == model)
            before = connection.execute(query).scalar()
            connection.execute(sa.delete(samples).where(samples.c.model == model))
            connection.execute(sa.insert(samples).values(model=model, per_day=per_day))
            record.write(connection, before=PER_DAY if before is None else before, per_day=per_day)

        self.store.write(write)

    def of_day(self, model: str, day: date, per_day: int) -> tuple[str, ...]:
        """Ids of the day's sample, in random order. Inspections are read once; later calls read only new ones."""
        start, end, now = day_start(day), day_start(day + timedelta(days=1)), time.time()
        with self._lock:
            seen, best = self._days.get((model, day, per_day), (start, ()))
        if seen < end:
            columns = inspections.c
            query = sa.select(columns.draw, columns.id).where(columns.id >= id_at(seen), columns.id < id_at(end))
            query = query.where(unindexed(columns.model) == model, unindexed(columns.verdict) == "good")
            query = query.where(columns.draw.is_not(None))
            with self.store.reading() as connection:
                found = connection.execute(query.order_by(columns.draw, columns.id).limit(per_day)).all()
            best = tuple(sorted({*best, *((draw, number) for draw, number in found)})[:per_day])
            with self._lock:
                while len(self._days) >= KEPT:
                    self._days.pop(next(iter(self._days)))
                self._days[model, day, per_day] = (max(start, min(end, now - LATE_SECONDS)), best)
        return tuple(number for _, number in best)

    def due(self, model: str, now: datetime | None = None) -> list[Row]:
        """Inspections of yesterday's and today's sample without a review; yesterday's, which is complete, first."""
        per_day, today = self.per_day(model), (now or datetime.now()).date()
        if per_day == 0:
            return []
        days = (today - timedelta(days=1), today)
        numbers = [number for day in days for number in self.of_day(model, day, per_day)]
        rows = {row["id"]: row for row in self._rows(numbers, inspections.c)}
        return [rows[number] for number in numbers if number in rows and rows[number]["review"] is None]

    def drawn(self, rows: Sequence[Row]) -> set[str]:
        """Ids of those inspections that are in the sample of their day."""
        days = {(row["model"], datetime.fromtimestamp(row["at"]).date()) for row in rows if row["verdict"] == "good"}
        per_day = {model: self.per_day(model) for model, _ in days}
        return {number for model, day in days if per_day[model] for number in self.of_day(model, day, per_day[model])}

    def counts(self, model: str, days: int = DAYS, now: datetime | None = None) -> Counts:
        """What is known of the days up to ``now``, that day included."""
        return self.counts_of([model], days, now)[model]

    def counts_of(self, models: Sequence[str], days: int = DAYS, now: datetime | None = None) -> dict[str, Counts]:
        """What is known of each model."""
        today = (now or datetime.now()).date()
        period = [today - timedelta(days=back) for back in range(days)]
        end = min(day_start(today + timedelta(days=1)), time.time())
        tallies = self.counter.by_model(day_start(period[-1]), end)
        found = {}
        for model in models:
            tally, per_day = tallies.get(model, Tally()), self.per_day(model)
            counts = Counts(tally.good, tally.anomalous, tally.false_alarms, tally.true_defects)
            numbers = [number for day in period for number in self.of_day(model, day, per_day)] if per_day else []
            for row in self._rows(numbers, [inspections.c.id, inspections.c.review]):
                counts.sampled += 1
                counts.confirmed += row["review"] == "confirmed_good"
                counts.missed += row["review"] == "true_defect"
                counts.unsure += row["review"] == "unsure"
            found[model] = counts
        return found

    def _rows(self, numbers: Sequence[str], columns: Any) -> list[Row]:
        found: list[Row] = []
        with self.store.reading() as connection:
            for start in range(0, len(numbers), 500):
                query = sa.select(*columns).where(inspections.c.id.in_(numbers[start : start + 500]))
                found += [dict(row) for row in connection.execute(query).mappings()]
        return found


def estimate(counts: Counts, days: int) -> dict[str, Any]:
    """The estimates of a period as JSON."""
    return {
        "days": days,
        "confidence": CONFIDENCE,
        "good": counts.good,
        "anomalous": counts.anomalous,
        "sampled": counts.sampled,
        "unsure": counts.unsure,
        "misses": Share(counts.missed, counts.missed + counts.confirmed).to_json(),
        "false_alarms": Share(counts.false_alarms, counts.false_alarms + counts.true_defects).to_json(),
        "missed_defects": missed_defects(counts),
    }
