"""Helpers for tests of a line's buses: results, and a line that answers every trigger."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from patchsvdd.apps.line.handshake import Handshake
from patchsvdd.apps.line.parts import PartRegion, PartResult, PartVerdict, PartView, Trigger
from patchsvdd.apps.line.signals import Fault, FaultCode
from support.parts import ROOT

PAGE = ROOT / "docs" / "line-bus.md"
REGION = PartRegion("top", 10, 20, 30, 40, 2.5, "scratch")


def result(
    trigger: Trigger,
    verdict: PartVerdict = "good",
    *,
    score: float | None = 0.5,
    regions: tuple[PartRegion, ...] = (),
    product: str | None = None,
) -> PartResult:
    """A result of a part with one view."""
    view = PartView("top", "1", "flange", f"model-{trigger.sequence}", 0.5, 1.0, verdict, 1, trigger.at)
    return PartResult(
        id=f"part-{trigger.sequence}",
        trigger=trigger,
        product=trigger.product if product is None else product,
        verdict=verdict,
        score=score,
        threshold=1.0,
        views=(view,),
        missing=(),
        regions=regions,
        reason=None,
        answered=trigger.at,
        seconds=0.0,
    )


def expected(part_number: str, trigger_id: int) -> tuple[PartVerdict, float, tuple[PartRegion, ...]]:
    """What ``AnsweringLine`` finds on a part: every third one is anomalous."""
    if trigger_id % 3:
        return "good", trigger_id % 100 / 128, ()
    return "anomalous", 1 + trigger_id % 100 / 128, (REGION,) * (1 + trigger_id % 8)


def example(package: str) -> str:
    """The example on the documentation's page that imports a package."""
    blocks: list[str] = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (code,) = (block for block in blocks if f"from {package}" in block)
    return code


class AnsweringLine:
    """A line that answers every trigger from a thread of its own, and ticks; part number ``slow`` gets no answer."""

    def __init__(self, timeout: float = 30.0, seconds: float = 0.0) -> None:
        self.events: list[str] = []
        self.started: list[tuple[str, str, int, str]] = []
        self.handshake = Handshake(self, timeout, on_event=self.events.append)
        self.seconds = seconds
        self._parts: queue.Queue[Trigger | None] = queue.Queue()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._answer, self._tick)]

    def start_part(self, part_number: str, product: str, trigger_id: int, by: str) -> None:
        """Give the part to the thread."""
        self.started.append((part_number, product, trigger_id, by))
        now = time.time(), time.monotonic()
        self._parts.put(Trigger(len(self.started), *now, part_number, product, trigger_id, by))

    @contextmanager
    def running(self) -> Iterator[Handshake]:
        """The handshake of a line that works during the block."""
        for thread in self._threads:
            thread.start()
        self.handshake.block(())
        try:
            yield self.handshake
        finally:
            self.handshake.block((Fault(FaultCode.PAUSED, "the test is over"),))
            self._ended.set()
            self._parts.put(None)
            for thread in self._threads:
                thread.join()

    def _answer(self) -> None:
        while (trigger := self._parts.get()) is not None:
            if self.seconds:
                time.sleep(self.seconds)
            if trigger.part_number != "slow":
                verdict, score, regions = expected(trigger.part_number, trigger.trigger_id)
                self.handshake.answer(result(trigger, verdict, score=score, regions=regions))

    def _tick(self) -> None:
        while not self._ended.wait(0.05):
            self.handshake.tick()
