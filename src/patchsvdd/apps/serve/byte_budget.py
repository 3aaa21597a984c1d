"""One budget of memory for uploads: from their first byte until they are answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from patchsvdd.apps.serve.problem_details import Problem

RETRY_SECONDS = 2.0
"""Suggested to clients whose upload does not fit now."""


class ByteBudget:
    """The bytes of all uploads in memory; used from the event loop alone.

    An upload larger than the whole budget is accepted when there is no other.
    """

    def __init__(self, total: int, on_refusal: Callable[[], None] = lambda: None) -> None:
        self.total = total
        self.used = 0
        self.peak = 0
        self._on_refusal = on_refusal

    @contextmanager
    def hold(self, size: int) -> Iterator[Held]:
        """Reserve ``size`` bytes until the block ends; raises Problem if they do not fit."""
        held = Held(self)
        try:
            held.grow_to(size)
            yield held
        finally:
            self.used -= held.size

    def add(self, size: int) -> None:
        """Reserve more; raises Problem if it does not fit."""
        if self.used + size > self.total:
            self._on_refusal()
            words = f"images that are arriving use all of the {self.total / 1e6:,.0f} MB for uploads; retry later"
            raise Problem("overloaded", words, retry_after=RETRY_SECONDS)
        self.used += size
        self.peak = max(self.peak, self.used)


class Held:
    """The bytes that one upload has reserved."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.size = 0

    def grow_to(self, size: int) -> None:
        """Reserve up to ``size`` bytes in all; raises Problem if they do not fit."""
        wanted = min(size, self._budget.total)
        if wanted > self.size:
            self._budget.add(wanted - self.size)
            self.size = wanted
