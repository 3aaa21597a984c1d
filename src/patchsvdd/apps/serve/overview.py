"""The overview: key figures of the last hours, models, jobs, disk space, drift, and estimates from reviews."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from patchsvdd.apps.serve import overview_store as counting
from patchsvdd.apps.serve.overview_store import Period, Tally
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import as_time, inspection_answer, job_answer
from patchsvdd.apps.serve.samples import DAYS, Counts, estimate
from patchsvdd.apps.serve.service import Service
from patchsvdd.core.errors import PatchSVDDError

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
        """The result for ``key``, computed again if it is older than ``seconds``; by one thread at a time."""
        with self._lock:
            at, value = self._kept.get(key, (-seconds, None))
            if time.monotonic() - at >= seconds or key not in self._kept:
                value = compute()
                self._kept[key] = (time.monotonic(), value)
        result: T = value
        return result


class Overview:
    """Answers what happens on the line now."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._remembered = Remembered()
        self._started = time.time()

    def now(self, hours: float) -> dict[str, Any]:
        """The overview of the last hours."""
        until = time.time()
        period = self._service.counter.period(until - 3600 * hours, until)
        total, estimates = period.total(), self._estimates()
        waiting = self._service.store.jobs(states=("waiting", "running"), limit=20)
        situations = self._service.jobs.situation(waiting)
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
            "models": self._models(period, estimates),
            "stations": stations(period),
            "false_alarms": total.false_share.to_json(),
            "to_review": total.waiting,
            "estimate": estimate(sum(estimates.values(), Counts()), DAYS),
            "jobs": [job_answer(row, more) for row, more in zip(waiting, situations, strict=True)][::-1],
            "disk": self.disk(),
            "alarms": [inspection_answer(row) for row in self._alarms(period)],
            "empty": total.inspected == 0 and counting.first_at(self._service.store) is None,
        }

    def _alarms(self, period: Period) -> list[Any]:
        return counting.alarms(self._service.store, period.since, period.until, ALARMS)

    def _estimates(self) -> dict[str, Counts]:
        return self._service.samples.counts_of([model.name for model in self._service.models.all()])

    def _models(self, period: Period, estimates: dict[str, Counts]) -> list[dict[str, Any]]:
        models, tallies = self._service.models, period.by(lambda group: group.model)
        served = {model.name: model for model in models.all()}
        broken: dict[str, str] = dict(getattr(models, "unavailable", list)())
        names = sorted({*served, *broken, *tallies})
        last = counting.last_of(self._service.store, names)
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
                    "per_day": self._service.samples.per_day(name),
                    "due": len(self._service.samples.due(name)) if name in served else 0,
                    "estimate": estimate(estimates[name], DAYS) if name in estimates else None,
                }
            )
        return answers

    def drift(self, name: str) -> list[dict[str, Any]]:
        """Changes of the images since calibration; empty if there are none or they cannot be tested."""

        def compute() -> list[dict[str, Any]]:
            try:
                changes = self._service.drift(name, BLOCK).changes
            except (PatchSVDDError, Problem):
                return []
            keys = ("trait", "meaning", "direction", "before", "now")
            return [{**{key: change.to_json()[key] for key in keys}, "block": block} for block, change in changes]

        return self._remembered.get(("drift", name), 30, compute)

    def disk(self) -> dict[str, Any]:
        """Disk space: used by images, free, and how long it lasts at the rate of the last days."""
        settings, retention = self._service.settings, self._service.settings.retention
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
        store, owner, now = self._service.store, self._service.settings.service_id, time.time()
        first = counting.first_at(store)
        since = max(now - RATE_DAYS * DAY, now if first is None else first)
        used, written = counting.file_bytes(store, owner, since)
        days = (now - since) / DAY
        return used, written / days if days > 1 / 24 else None

    def _refused(self) -> int:
        families = self._service.telemetry.refused.collect()
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
