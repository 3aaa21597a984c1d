"""Sampling plans: how many parts show that a rate is at most a limit, when some of them may fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from patchsvdd.core.errors import ConfigError
from patchsvdd.scoring.conformal import CONFIDENCE, at_least

ALLOWED = (0, 1, 2, 3, 5)
"""Failures that a plan allows."""
BETTER = 4
"""A plan also states how often it is passed if the true rate is the limit divided by this."""
MOST_PARTS = 10_000_000
"""Parts that a plan may need."""


@dataclass(frozen=True)
class PlanRow:
    """A number of parts, of which some may fail."""

    allowed: int
    """Failures at most."""
    parts: int
    """The fewest parts that show the claim."""
    chance: float
    """Probability of passing if the true rate is the limit divided by ``BETTER``."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"allowed": self.allowed, "parts": self.parts, "chance": self.chance}


def sampling_plan(limit: float, confidence: float = CONFIDENCE, allowed: Sequence[int] = ALLOWED) -> list[PlanRow]:
    """The parts that show, with this confidence, that a rate is at most ``limit``; a row per allowed failures."""
    rows = []
    for failures in allowed:
        parts = parts_needed(limit, confidence, failures)
        rows.append(PlanRow(failures, parts, 1 - at_least(failures + 1, parts, limit / BETTER)))
    return rows


def parts_needed(limit: float, confidence: float = CONFIDENCE, failures: int = 0) -> int:
    """The fewest parts, of which ``failures`` fail, that show a rate of at most ``limit``.

    59 parts without a failure show at most 5 % with 95 % confidence.
    """
    if not 0 < limit < 1:
        raise ConfigError(f"a limit that parts can show is between 0 and 1; got {limit:g}")
    needed = _needed(limit, confidence, failures)
    if needed is None:
        raise ConfigError(f"a limit of {limit:g} needs more than {MOST_PARTS:,} parts; choose a larger one")
    return needed


def more_needed(failures: int, parts: int, limit: float, confidence: float = CONFIDENCE) -> int | None:
    """How many more parts, none of which fails, show a rate of at most ``limit``; None if more than ``MOST_PARTS``.

    0 if these parts show it.
    """
    needed = _needed(limit, confidence, failures)
    return max(0, needed - parts) if needed is not None else None


def _needed(limit: float, confidence: float, failures: int) -> int | None:
    return _first(lambda parts: at_least(failures + 1, parts, limit) >= confidence, failures + 1)


def _first(holds: Callable[[int], bool], start: int) -> int | None:
    """The smallest number from ``start`` for which a condition holds that then holds for all larger ones."""
    low, high = start - 1, start
    while not holds(high):
        if high > MOST_PARTS:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
