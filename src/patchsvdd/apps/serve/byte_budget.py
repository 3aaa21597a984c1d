"""One budget of memory for uploads: from their first byte until they are answered."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from patchsvdd.apps.serve.problem_details import Problem

TRIM_BYTES = 16 << 20
"""Bytes of finished uploads after which free memory is returned to the system."""
TRIM_SECONDS = 10.0
"""Minimum seconds between two returns."""
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
        self._released = 0
        self._trimmed = -TRIM_SECONDS

    @contextmanager
    def hold(self, size: int) -> Iterator[Held]:
        """Reserve ``size`` bytes until the block ends; raises Problem if they do not fit."""
        held = Held(self)
        try:
            held.grow_to(size)
            yield held
        finally:
            self._release(held.size)

    def add(self, size: int) -> None:
        """Reserve more; raises Problem if it does not fit."""
        if self.used + size > self.total:
            self._on_refusal()
            words = f"images that are arriving use all of the {self.total / 1e6:,.0f} MB for uploads; retry later"
            raise Problem("overloaded", words, retry_after=RETRY_SECONDS)
        self.used += size
        self.peak = max(self.peak, self.used)

    def _release(self, size: int) -> None:
        self.used -= size
        self._released += size
        now = time.monotonic()
        if self.used == 0 and self._released >= TRIM_BYTES and now - self._trimmed >= TRIM_SECONDS:
            self._released, self._trimmed = 0, now
            with suppress(RuntimeError):  # no event loop
                asyncio.get_running_loop().run_in_executor(None, trim_memory)


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


def trim_memory() -> None:
    """Return free memory to the system. The C library keeps it otherwise, and a burst would stay visible for good."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)
