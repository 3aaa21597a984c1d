"""The figures of a line over a shift or some hours: yield, parts by verdict, and the p-chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

from patchsvdd.apps.line.parts import PartVerdict
from patchsvdd.apps.serve.overview_store import WIDTHS, Period
from patchsvdd.apps.serve.p_chart import p_chart
from patchsvdd.apps.serve.part_store import VERDICTS
from patchsvdd.apps.serve.responses import as_time
from patchsvdd.apps.serve.store import Store

Shift = Literal["current", "previous"]
HOURS = 8.0
"""Length of a shift where no shift starts are set."""
MOST_BUCKETS = 24


def shift_bounds(starts: Sequence[str], shift: Shift, now: float) -> tuple[float, float]:
    """Start and end of the current shift, which ends now, or of the one before.

    ``starts`` are local times (HH:MM). Without any, a shift is the last 8 hours.
    """
    if not starts:
        end = now if shift == "current" else now - 3600 * HOURS
        return end - 3600 * HOURS, end
    today = datetime.fromtimestamp(now).date()
    moments = sorted(
        datetime.combine(today - timedelta(days=back), datetime.strptime(start, "%H:%M").time()).timestamp()
        for back in range(3)
        for start in starts
    )
    begun = [moment for moment in dict.fromkeys(moments) if moment <= now]
    return (begun[-1], now) if shift == "current" else (begun[-2], begun[-1])


def line_statistics(store: Store, owner: str, line: str, since: float, until: float) -> dict[str, Any]:
    """The figures of a line between two times, as JSON.

    Yield and p-chart are about the parts that got a verdict on their quality, good or anomalous. Incomplete parts and
    errors are counted beside them: they say something about the station, not about the parts.
    """
    width = next((width for width in WIDTHS if (until - since) / width <= MOST_BUCKETS), WIDTHS[-1])
    edges = [*Period(since, until, width).starts(), until]
    counts = store.count_parts(owner, line, edges)
    total = {verdict: sum(one[verdict] for one in counts) for verdict in VERDICTS}
    centre, points = p_chart([(judged(one), one["anomalous"]) for one in counts])
    buckets = [
        {"start": as_time(start), "end": as_time(end), "counts": count, **asdict(point)}
        for (start, end), count, point in zip(pairwise(edges), counts, points, strict=True)
    ]
    return {
        "line": line,
        "since": as_time(since),
        "until": as_time(until),
        "width": width,
        "counts": total,
        "parts": sum(total.values()),
        "yield": total["good"] / judged(total) if judged(total) else None,
        "centre": centre,
        "buckets": buckets,
    }


def judged(counts: dict[PartVerdict, int]) -> int:
    """Parts with a verdict on their quality."""
    return counts["good"] + counts["anomalous"]
