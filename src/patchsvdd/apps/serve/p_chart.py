"""The p-chart: shares of nonconforming parts over time, with the limits that chance alone hardly exceeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SIGMAS = 3.0


@dataclass(frozen=True)
class Point:
    """A subgroup of the chart."""

    size: int
    nonconforming: int
    share: float | None
    """None without parts."""
    low: float | None
    high: float | None
    outside: bool
    """Whether the share lies outside the limits."""


def p_chart(subgroups: Sequence[tuple[int, int]]) -> tuple[float | None, list[Point]]:
    """The centre line p̄ and the points of a chart, for (parts, nonconforming parts) of each subgroup.

    The limits of a subgroup of n parts are p̄ ± 3 √(p̄ (1 − p̄) / n), no less than 0 and no more than 1. The centre line
    is None without parts.
    """
    total = sum(size for size, _ in subgroups)
    centre = sum(bad for _, bad in subgroups) / total if total else None
    return centre, [_point(size, bad, centre) for size, bad in subgroups]


def _point(size: int, bad: int, centre: float | None) -> Point:
    if size == 0 or centre is None:
        return Point(size, bad, None, None, None, outside=False)
    reach = SIGMAS * math.sqrt(centre * (1 - centre) / size)
    low, high, share = max(0.0, centre - reach), min(1.0, centre + reach), bad / size
    return Point(size, bad, share, low, high, outside=not low <= share <= high)
