"""Stores the verdicts on parts, in order, and shows each once it is stored."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from patchsvdd.apps.line.handshake import Handshake
from patchsvdd.apps.line.inspector import Inspector, StoreFailed
from patchsvdd.apps.line.parts import PartResult

RETRY = 1.0
"""Seconds between two attempts to store a part."""
TOO_LATE = "no verdict was stored within the time-out, so the field bus showed a fault"


class PartStorage:
    """Results of parts that wait to be stored, the oldest first; a database that fails is tried again."""

    def __init__(
        self,
        inspector: Inspector,
        handshake: Handshake,
        timeout: float | None,
        on_stored: Callable[[PartResult], None],
        on_event: Callable[[str], None],
    ) -> None:
        """``timeout``: seconds after a trigger when a field bus shows a fault; None if no bus triggers."""
        self._inspector, self._handshake, self._timeout = inspector, handshake, timeout
        self._on_stored, self._note = on_stored, on_event
        self._waiting: deque[tuple[PartResult, bool]] = deque()
        """Parts to store, and whether each only corrects a stored one."""
        self._next = 0.0
        self.problem: str | None = None
        """Why the last attempt failed."""
        self.last: PartResult | None = None
        """The latest part that was stored."""
        self._last_by: dict[str, PartResult] = {}
        """Bus → the latest part that it triggered."""

    @property
    def is_empty(self) -> bool:
        """Whether everything is stored."""
        return not self._waiting

    def restore(self) -> PartResult | None:
        """Find out what was stored last, by this process or one before it; raises StoreFailed."""
        self.last = self._inspector.last()
        if self.last is not None:
            self._handshake.restore(self.last)
        return self.last

    def last_by(self, bus: str) -> PartResult | None:
        """The latest part that a bus triggered; the latest of all if it is not known, after a restart."""
        return self._last_by.get(bus, self.last)

    def add(self, result: PartResult) -> None:
        """Store a result, now if possible."""
        self._waiting.append((result, False))
        self.store_waiting()

    def store_waiting(self) -> None:
        """Store what waits, oldest first; each verdict is shown once it is stored."""
        while self._waiting and time.monotonic() >= self._next:
            result, corrects = self._waiting[0]
            if self._is_too_late(result):
                self._handshake.tick()  # the time-out comes first
                result = _as_error(result)
            try:
                (self._inspector.correct if corrects else self._inspector.store)(result)
            except StoreFailed as error:
                self._next = time.monotonic() + RETRY
                self.problem = str(error)
                self._note(f"part {result.trigger.sequence} could not be stored, trying again: {error}")
                return
            self._waiting.popleft()
            self.problem = None
            self.last = self._last_by[result.trigger.by] = result
            self._on_stored(result)
            if not corrects:
                self._show(result)

    def _show(self, result: PartResult) -> None:
        """Answer the field bus; a verdict that it does not expect any more becomes an error."""
        if self._timeout is None:
            self._handshake.publish(result)
        elif not self._handshake.answer(result) and result.reason != TOO_LATE:
            self._waiting.appendleft((_as_error(result), True))

    def _is_too_late(self, result: PartResult) -> bool:
        return self._timeout is not None and time.monotonic() >= result.trigger.monotonic + self._timeout


def _as_error(result: PartResult) -> PartResult:
    """The result as the field bus showed it: without a verdict."""
    return replace(result, verdict="error", reason=TOO_LATE)
