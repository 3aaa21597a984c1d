"""The overview: key figures of the last hours, models, jobs, disk space, drift, and estimates from reviews."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from patchsvdd.apps.serve import overview_store as counting
from patchsvdd.apps.serve.model_registry import ModelRegistry
from patchsvdd.apps.serve.overview_store import Counter, Period, Tally
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import as_time, inspection_answer, job_answer
from patchsvdd.apps.serve.samples import DAYS, Counts, Samples, estimate
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.telemetry import Telemetry
from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.detector.drift import Change

T = TypeVar("T")
DAY = 86_400.0
BLOCK = 500
"""Inspections in a block of the test for drift."""
ALARMS = 12
"""Latest alarms shown."""
STATIONS = 50
"""Lines and stations listed, those with the most inspections."""
RATE_DAYS = 7
"""Days over which the disk space used per day is averaged."""


class Remembered:
    """Results that are expensive to compute, kept for some seconds."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[float, Any]] = {}
        self._lock = threading.Lock()

    def get(self, key: Any, seconds: float, compute: Callable[[], T]) -> T:
        """The result for ``key``, computed anew if it is older than ``seconds``; by one thread at a time."""
        with self._lock:
            at, value = self._kept.get(key, (-seconds, None))
            if time.monotonic() - at >= seconds or key not in self._kept:
                value = compute()
                self._kept[key] = (time.monotonic(), value)
        result: T = value
        return result


class Changes(Protocol):
    """The result of a test for drift."""

    @property
    def changes(self) -> list[tuple[str, Change]]:
        """The block and the change of each statistic that changed."""


class Overview:
    """Answers what happens on the line now."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        models: ModelRegistry,
        telemetry: Telemetry,
        drift: Callable[[str, int], Changes],
    ) -> None:
        self._settings, self._store, self._models, self._telemetry = settings, store, models, telemetry
        self._drift = drift
        self.counter = Counter(store)
        self.samples = Samples(store, self.counter)
        self._remembered = Remembered()
        self._started = time.time()

    def now(self, hours: float) -> dict[str, Any]:
        """The overview of the last hours."""
        until = time.time()
        period = self.counter.period(until - 3600 * hours, until)
        total, estimates = period.total(), self._estimates()
        waiting = self._store.jobs(states=("waiting", "running"), limit=20)
        return {
            "since": as_time(period.since),
            "until": as_time(until),
            "hours": hours,
            **total.to_json(),
            "inspected_per_hour": total.inspected / hours,
            "alarms_per_hour": total.anomalous / hours,
            "not_inspected": {"count": self._refused(), "since": as_time(self._started)},
            "width": period.width,
            "buckets": buckets(period),
            "models": self._by_model(period, estimates),
            "stations": stations(period),
            "false_alarms": total.false_share.to_json(),
            "to_review": total.waiting,
            "estimate": estimate(sum(estimates.values(), Counts()), DAYS),
            "jobs": [job_answer(row) for row in waiting[::-1]],
            "disk": self.disk(),
            "alarms": [inspection_answer(row) for row in self._alarms(period)],
            "empty": total.inspected == 0 and counting.first_at(self._store) is None,
        }

    def _alarms(self, period: Period) -> list[Row]:
        return counting.alarms(self._store, period.since, period.until, ALARMS)

    def _estimates(self) -> dict[str, Counts]:
        return {model.name: self.samples.counts(model.name) for model in self._models.all()}

    def _by_model(self, period: Period, estimates: dict[str, Counts]) -> list[dict[str, Any]]:
        models, tallies = self._models, period.by(lambda group: group.model)
        served = {model.name: model for model in models.all()}
        broken: dict[str, str] = dict(getattr(models, "unavailable", list)())
        names = sorted({*served, *broken, *tallies})
        last = counting.last_of(self._store, names)
        answers = []
        for name in names:
            tally = tallies.get(name, Tally())
            calibration = served[name].detector.calibration if name in served else None
            answers.append(
                {
                    "name": name,
                    "served": name in served,
                    "trouble": broken.get(name) or models.trouble(name),
                    "caveat": calibration.caveat if calibration is not None else None,
                    "calibrated": calibration is not None,
                    **tally.to_json(),
                    "to_review": tally.waiting,
                    "last": as_time(last[name]) if name in last else None,
                    "drift": self.drift(name) if name in served else [],
                    "per_day": self.samples.per_day(name),
                    "due": len(self.samples.due(name)) if name in served else 0,
                    "estimate": estimate(estimates[name], DAYS) if name in estimates else None,
                }
            )
        return answers

    def drift(self, name: str) -> list[dict[str, Any]]:
        """Changes of the images since calibration; empty if there are none or they cannot be tested."""

        def compute() -> list[dict[str, Any]]:
            try:
                changes = self._drift(name, BLOCK).changes
            except (PatchSVDDError, Problem):
                return []
            keys = ("trait", "meaning", "direction", "before", "now")
            return [{**{key: change.to_json()[key] for key in keys}, "block": block} for block, change in changes]

        return self._remembered.get(("drift", name), 30, compute)

    def disk(self) -> dict[str, Any]:
        """Disk space: used by images, free, and how long it lasts at the rate of the last days."""
        settings, retention = self._settings, self._settings.retention
        used, per_day = self._remembered.get("disk", 300, self._bytes)
        free, total = _space(settings.data)
        days = None
        if free is not None and per_day:
            room = [free]
            if retention.bytes is not None:
                room.append(max(0, retention.bytes - used))
            if retention.days is not None:
                room.append(max(0, int(per_day * retention.days) - used))
            days = free / per_day if min(room) == free else None
        return {
            "used": used,
            "free": free,
            "total": total,
            "per_day": per_day,
            "days_left": days,
            "keep_days": retention.days,
            "keep_bytes": retention.bytes,
        }

    def _bytes(self) -> tuple[int, float | None]:
        store, owner, now = self._store, self._settings.service_id, time.time()
        first = counting.first_at(store)
        since = max(now - RATE_DAYS * DAY, now if first is None else first)
        used, written = counting.file_bytes(store, owner, since)
        days = (now - since) / DAY
        return used, written / days if days > 1 / 24 else None

    def _refused(self) -> int:
        families = self._telemetry.refused.collect()
        values = (one.value for family in families for one in family.samples if one.name.endswith("_total"))
        return int(sum(values))


def _space(folder: Path) -> tuple[int | None, int | None]:
    """Free bytes and all bytes of a folder's file system; None if it cannot be read."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None, None
    return usage.free, usage.total


def buckets(period: Period) -> list[dict[str, Any]]:
    """The counts of a period by time, empty buckets included."""
    tallies, starts = period.by(lambda group: group.start), period.starts()
    ends = [*starts[1:], period.until]
    return [
        {"start": as_time(start), "end": as_time(end), **tallies.get(start, Tally()).to_json()}
        for start, end in zip(starts, ends, strict=True)
    ]


def stations(period: Period) -> list[dict[str, Any]]:
    """The counts of a period by line and station, those without either last; empty if none is known."""
    tallies = period.by(lambda group: (group.line, group.station))
    if set(tallies) <= {(None, None)}:
        return []
    largest = sorted(tallies, key=lambda key: tallies[key].inspected)[-STATIONS:]
    order = sorted(largest, key=lambda key: (key == (None, None), key[0] or "", key[1] or ""))
    return [{"line": line, "station": station, **tallies[line, station].to_json()} for line, station in order]
