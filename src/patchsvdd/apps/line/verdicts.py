"""What the views of a part say about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from patchsvdd.apps.line.parts import PartVerdict, PartView


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the score that it comes from."""

    verdict: PartVerdict
    score: float | None
    """In multiples of the limit: above 1 is anomalous. None if no view was inspected."""
    reason: str | None = None
    """Why the part is incomplete or could not be judged."""


class PartRule(Protocol):
    """Turns the views of a part into one verdict."""

    def __call__(self, product: str, views: Sequence[PartView], missing: Sequence[str]) -> Judgement:
        """Judge a part of a product. One with a missing view is never good."""
