"""The report of a shift: yield, alarms, reviews, drift and changes of models in a period."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from patchsvdd.apps.serve import overview_store as counting
from patchsvdd.apps.serve.overview import Overview, buckets, stations
from patchsvdd.apps.serve.responses import as_time
from patchsvdd.apps.serve.samples import DAYS, Counts, estimate
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.store import Row
from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.detector.model_folder import journal_of, read_index

MOST_ALARMS = 120
"""Alarms listed with their pictures."""
CHANGES = {
    **{"add": "images added", "remove": "images removed", "teach": "defects taught"},
    **{"undo": "last change undone", "calibrate": "calibrated", "threshold": "threshold set"},
}


def shift_report(service: Service, overview: Overview, start: float, end: float) -> tuple[dict[str, Any], list[Row]]:
    """The report as JSON, without its alarms, and the rows of these."""
    period = service.counter.period(start, end)
    total, hours = period.total(), (end - start) / 3600
    tallies = period.by(lambda group: group.model)
    served = {model.name for model in service.models.all()}
    last = datetime.fromtimestamp(end)
    estimates = service.samples.counts_of(sorted(served & tallies.keys()), DAYS, last)
    alarms = counting.alarms(service.store, start, end, MOST_ALARMS)
    facts = {
        "start": as_time(start),
        "end": as_time(end),
        "hours": hours,
        **total.to_json(),
        "inspected_per_hour": total.inspected / hours,
        "alarms_per_hour": total.anomalous / hours,
        "width": period.width,
        "buckets": buckets(period),
        "models": [
            {
                "name": name,
                **tally.to_json(),
                "false_alarms": tally.false_share.to_json(),
                "to_review": tally.waiting,
                "drift": overview.drift(name) if name in served else [],
                "estimate": estimate(estimates[name], DAYS) if name in estimates else None,
            }
            for name, tally in sorted(tallies.items())
        ],
        "stations": stations(period),
        "false_alarms": total.false_share.to_json(),
        "to_review": total.waiting,
        "estimate": estimate(sum(estimates.values(), Counts()), DAYS),
        "reviews": [
            {"by": by, "verdict": verdict, "count": many}
            for by, verdict, many in counting.reviews_between(service.store, start, end)
        ],
        "changes": sorted(_changes(service, start, end), key=lambda change: str(change["at"])),
        "left_out": max(0, total.anomalous - len(alarms)),
    }
    return facts, alarms


def _changes(service: Service, start: float, end: float) -> Iterator[dict[str, Any]]:
    """Changes of models: entries of their journals, and trainings."""
    people = {
        tuple(sorted(job["result"].get("images", ()))): job["by"]
        for job in counting.ended_jobs(service.store, start - 3600, end + 3600, ("learn", "teach", "undo"))
        if isinstance(job["result"], dict)
    }
    calibrated = {
        (job["model"], job["result"].get("entry")): job["by"]
        for job in counting.ended_jobs(service.store, start - 3600, end + 3600, ("threshold", "recalibrate"))
        if isinstance(job["result"], dict)
    }
    for model in service.models.all():
        try:
            journal = journal_of(read_index(model.folder))
        except PatchSVDDError:
            continue
        for entry in journal:
            at = _seconds(entry.get("at"))
            if at is None or not start <= at < end:
                continue
            images = entry.get("images") or []
            words = CHANGES.get(str(entry.get("change")), str(entry.get("change")))
            words = f"{words} ({len(images)} {'image' if len(images) == 1 else 'images'})" if images else words
            person = people.get(tuple(sorted(images))) if images else None
            by = person or calibrated.get((model.name, entry.get("number")))
            yield {"at": as_time(at), "model": model.name, "change": words, "by": by}
    for job in counting.ended_jobs(service.store, start, end, ("train",)):
        yield {"at": as_time(job["updated"]), "model": job["model"], "change": "trained", "by": job["by"]}


def _seconds(at: object) -> float | None:
    if isinstance(at, int | float):
        return float(at)
    try:
        return datetime.fromisoformat(str(at).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
