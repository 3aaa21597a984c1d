"""The handshake between a PLC and a line: a state machine over immutable ``Signals``.

    Ready=1 → Trigger 0→1 → Busy=1, Ready=0, ResultValid=0 → the stored result, ResultValid=1, Busy=0
    → Trigger=0 → ResultValid=0, Ready=1

A trigger that the line accepted ends in exactly one way: its result, or a fault that stays until it is acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from patchsvdd.apps.line.parts import CODES, PartResult, VerdictCode
from patchsvdd.apps.line.signals import MOST_REGIONS, Fault, FaultCode, LineControl, Signals

BEAT = 0.5
"""Seconds between two heartbeats."""
HEARTBEATS = 1 << 16
IMPORTANCE = (
    *(FaultCode.TIMEOUT, FaultCode.STORE, FaultCode.SOURCE, FaultCode.MODEL, FaultCode.STARTING, FaultCode.PAUSED),
    *(FaultCode.PRODUCT, FaultCode.OVERRUN),
)
"""Which of several faults is shown."""
STARTING = Fault(FaultCode.STARTING, "the line is starting")


@dataclass(frozen=True)
class _Part:
    """A part in progress."""

    part_number: str
    product: str
    trigger_id: int
    by: str
    started: float

    def __str__(self) -> str:
        named = f" {self.part_number}" if self.part_number else ""
        numbered = f", trigger {self.trigger_id}" if self.trigger_id else ""
        return f"part{named} ({self.by}{numbered})"

    def is_answered_by(self, result: PartResult) -> bool:
        """Whether a result belongs to this part, and not to one that timed out before it.

        A trigger that the PLC numbered is recognised by its number, so that a repeated one may be answered with the
        stored result; another one by its time.
        """
        trigger = result.trigger
        if self.part_number and trigger.part_number != self.part_number:
            return False
        if self.trigger_id or trigger.trigger_id:
            return trigger.trigger_id == self.trigger_id
        return trigger.monotonic >= self.started


class Handshake:
    """The signals of a line and the rules by which they change. All methods may be called from any thread.

    It starts with the fault STARTING; ``block(())`` makes it ready. ``timeout`` is how many seconds a part may wait for
    its result. ``on_event`` receives a sentence about everything that an operator may want to know.
    """

    def __init__(
        self,
        control: LineControl,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        on_event: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._control = control
        self._timeout = timeout
        self._clock = clock
        self._on_event = on_event
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[Signals], None]] = []
        self._pending: deque[Callable[[], None]] = deque()
        self._delivering = False
        self._part: _Part | None = None
        self._owner: str | None = None
        """The bus whose Trigger started the last part, until that Trigger is 0."""
        self._levels: dict[str, bool] = {}
        """Trigger as each bus wrote it last. One that is missing has not been 0 yet."""
        self._causes: tuple[Fault, ...] = (STARTING,)
        self._latched: dict[FaultCode, Fault] = {}
        self._failed = False
        """Whether a part got no result, and nobody acknowledged it."""
        self._beaten = clock()
        self._signals = replace(Signals(), fault=STARTING.code, fault_text=STARTING.text)

    # What the buses call

    def snapshot(self) -> Signals:
        """The signals at this moment."""
        with self._lock:
            return self._signals

    def subscribe(self, callback: Callable[[Signals], None]) -> Callable[[], None]:
        """Call ``callback`` with every new signals, in order and one at a time; returns what ends it.

        It is called by the thread that changed the signals, without a lock, and must return quickly.
        """
        with self._lock:
            self._subscribers.append(callback)

        def end() -> None:
            with self._lock:
                self._subscribers.remove(callback)

        return end

    def level(self, by: str) -> bool:
        """Trigger, as the bus wrote it last."""
        with self._lock:
            return self._levels.get(by, False)

    def write_trigger(
        self, level: bool, by: str, *, part_number: str = "", product: str = "", trigger_id: int = 0
    ) -> bool:
        """Set a bus's Trigger; returns whether that began a part.

        Only a change from 0 to 1 while the line is ready begins one. A 1 that begins none is the fault OVERRUN, unless
        it repeats a 1.
        """
        with self._changing():
            before = self._levels.get(by)
            began = False
            if level and not before:
                if before is None:
                    self._refuse(f"Trigger of {by} was 1 before it was 0")
                else:
                    began = self._begin(_Part(part_number, product, trigger_id, by, self._clock()))
            self._levels[by] = level
            if began:
                self._owner = by
            if not level and self._owner == by:
                self._owner = None
                if self._part is None:
                    self._show(result_valid=False)
            return began

    def trigger(self, by: str, *, part_number: str = "", product: str = "", trigger_id: int = 0) -> bool:
        """Begin a part without the signal Trigger; returns False, and latches OVERRUN, if the line is not ready.

        Its result stays valid until the next part begins.
        """
        with self._changing():
            return self._begin(_Part(part_number, product, trigger_id, by, self._clock()))

    def acknowledge(self) -> bool:
        """Clear latched faults, unless a cause such as a missing source is left; returns whether none is latched."""
        with self._changing():
            if not self._causes:
                if self._latched:
                    self._report(f"acknowledged: {self._fault_text()}")
                self._latched.clear()
                self._failed = False
            return not self._latched

    # What the line calls

    def answer(self, result: PartResult) -> bool:
        """Show the stored result of the part in progress; False if it is late, and must not be acted upon."""
        with self._changing():
            if self._part is None or not self._part.is_answered_by(result):
                number = result.trigger.part_number or result.trigger.sequence
                self._report(f"the result of part {number} came too late and is not on the bus")
                return False
            self._part = None
            self._show(busy=False, result_valid=True, **_shown(result))
            return True

    def fail(self, fault: Fault) -> bool:
        """End the part in progress without a result; the fault stays until it is acknowledged. False if there is none.

        For what makes a result impossible, such as an unknown product. A part that was inspected and could not be
        judged has a result instead, with the verdict error.
        """
        with self._changing():
            return self._fail(fault)

    def publish(self, result: PartResult) -> bool:
        """Show the stored result of a part that nobody triggered: ResultValid drops and rises.

        Returns False while a part that was triggered is in progress.
        """
        with self._changing():
            if self._part is not None:
                return False
            self._show(result_valid=False)
            self._show(result_valid=True, **_shown(result))
            return True

    def restore(self, last: PartResult) -> None:
        """Show the last stored result, as not valid; for a PLC that was waiting for it when the line stopped."""
        with self._changing():
            if self._part is None and not self._signals.result_valid:
                self._show(**_shown(last))

    def block(self, faults: Sequence[Fault]) -> None:
        """Set what keeps the line from working at present; none makes it ready, if nothing is latched."""
        with self._changing():
            self._causes = tuple(faults)

    def tick(self) -> None:
        """Count the heartbeat and time parts out. To be called about 10 times a second while the line works."""
        with self._changing():
            now = self._clock()
            if self._part is not None and now - self._part.started >= self._timeout:
                self._fail(Fault(FaultCode.TIMEOUT, f"{self._part} got no result within {self._timeout:g} s"))
            if now - self._beaten >= BEAT:
                self._beaten = now if now - self._beaten >= 2 * BEAT else self._beaten + BEAT
                self._show(heartbeat=(self._signals.heartbeat + 1) % HEARTBEATS)

    # The rules; the lock is held

    def _begin(self, part: _Part) -> bool:
        if not self._is_ready():
            why = f"{self._part} was in progress" if self._part else "the line was not ready"
            self._refuse(f"{part} was triggered while {why}")
            return False
        self._part = part
        self._show(busy=True, result_valid=False, verdict=VerdictCode.NONE, score=0.0, regions=())
        start = partial(self._control.start_part, part.part_number, part.product, part.trigger_id, part.by)
        self._pending.append(start)
        return True

    def _refuse(self, text: str) -> None:
        if FaultCode.OVERRUN not in self._latched:
            self._latched[FaultCode.OVERRUN] = Fault(FaultCode.OVERRUN, text)
            self._report(text)

    def _fail(self, fault: Fault) -> bool:
        if self._part is None:
            return False
        self._part = None
        self._latched[fault.code] = fault
        self._failed = True
        self._report(fault.text)
        self._show(busy=False)
        return True

    def _is_ready(self) -> bool:
        return not (self._part or self._causes or self._failed or any(self._levels.values()))

    def _faults(self) -> list[Fault]:
        return sorted((*self._causes, *self._latched.values()), key=lambda one: IMPORTANCE.index(one.code))

    def _fault_text(self) -> str:
        return "; ".join(dict.fromkeys(one.text for one in self._faults()))

    def _report(self, text: str) -> None:
        self._pending.append(partial(self._on_event, text))

    def _show(self, **changes: Any) -> None:
        """Change signals; those that follow from the state are computed."""
        faults = self._faults()
        new = replace(
            self._signals,
            ready=self._is_ready(),
            trigger=any(self._levels.values()),
            fault=faults[0].code if faults else FaultCode.NONE,
            fault_text=self._fault_text(),
            **changes,
        )
        if new != self._signals:
            self._signals = new
            self._pending.extend(partial(callback, new) for callback in self._subscribers)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, show what changed, then call those who wait for it without the lock."""
        with self._lock:
            yield
            self._show()
        self._deliver()

    def _deliver(self) -> None:
        """Make the pending calls in order. If another thread is at it, that one makes them."""
        while True:
            with self._lock:
                if self._delivering or not self._pending:
                    return
                self._delivering = True
                call = self._pending.popleft()
            try:
                call()
            finally:
                with self._lock:
                    self._delivering = False


def _shown(result: PartResult) -> dict[str, Any]:
    """The signals of a result."""
    strongest = sorted(result.regions, key=lambda region: -region.peak)[:MOST_REGIONS]
    return {
        "verdict": CODES[result.verdict],
        "score": result.score or 0.0,
        "regions": tuple(strongest),
        "part_number": result.trigger.part_number,
        "product": result.product,
        "model": ",".join(dict.fromkeys(view.identity for view in result.views)),
        "sequence": result.trigger.sequence,
        "trigger_id": result.trigger.trigger_id,
    }
