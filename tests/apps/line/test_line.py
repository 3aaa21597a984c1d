"""The line: from triggers and images to one stored verdict per part."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchsvdd.apps.line.frame_queue import FrameQueue
from patchsvdd.apps.line.inspector import Inspected, InspectionFailed, StoreFailed
from patchsvdd.apps.line.line import Line
from patchsvdd.apps.line.line_file import ONLY, LineSettings, PartSettings, ServiceSettings
from patchsvdd.apps.line.part_storage import TOO_LATE
from patchsvdd.apps.line.parts import PartResult, PartView, Trigger, VerdictCode
from patchsvdd.apps.line.signals import Fault, FaultCode, Signals
from patchsvdd.apps.line.sources.source import Frame, SourceError
from patchsvdd.apps.line.sources.supervisor import SupervisedSource
from patchsvdd.apps.line.verdicts import Judgement
from support.waiting import wait_until

PIXELS = np.zeros((2, 2), np.uint8)


class Camera:
    """A camera that a test holds: each trigger gives an image, unless it is covered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_covered = False
        self.is_gone = False
        self.triggers = 0
        self.images: queue.Queue[Frame] = queue.Queue()
        self.lost = 0

    def open(self) -> None:
        if self.is_gone:
            raise SourceError(f"{self.name} does not answer")

    def read(self, seconds: float) -> Frame | None:
        if self.is_gone:
            raise SourceError(f"{self.name} is gone")
        try:
            return self.images.get(timeout=min(seconds, 0.02))
        except queue.Empty:
            return None

    def trigger(self) -> None:
        self.triggers += 1
        if not self.is_covered:
            self.send()

    def send(self, part: str | None = None) -> None:
        name = f"{self.name}-{self.triggers}.png"
        self.images.put(Frame(self.name, self.triggers, time.time(), time.monotonic(), name, PIXELS, part=part))

    def flush(self) -> None:
        while not self.images.empty():
            self.images.get_nowait()

    def close(self) -> None:
        pass


class Records:
    """An inspector that keeps everything in memory, and can be made to fail."""

    def __init__(self) -> None:
        self.parts: list[PartResult] = []
        self.scores: dict[str, float] = {}
        self.cannot_store = False
        self.cannot_inspect: str | None = None
        self.waits: threading.Event | None = None
        self.seen: list[tuple[str, str]] = []

    def new_id(self, at: float) -> str:
        return f"{at:.6f}-{len(self.parts)}"

    def inspect(self, frame: Frame, model: Path, trigger: Trigger, seconds: float) -> Future[Inspected]:
        future: Future[Inspected] = Future()
        if self.cannot_inspect is not None:
            future.set_exception(InspectionFailed(self.cannot_inspect))
            return future
        assert trigger.monotonic <= frame.arrived
        self.seen.append((model.name, frame.source))
        score = self.scores.get(frame.source, 0.5)
        verdict = "anomalous" if score > 1 else "good"
        view = PartView(frame.source, "1", model.name, "abc", score, 1.0, verdict, frame.number, frame.captured)

        def answer() -> None:
            if self.waits is not None:
                self.waits.wait(seconds)
            if future.set_running_or_notify_cancel():
                future.set_result((view, ()))

        threading.Thread(target=answer).start()
        return future

    def store(self, result: PartResult) -> None:
        if self.cannot_store:
            raise StoreFailed("the disk is full")
        self.parts.append(result)

    def correct(self, result: PartResult) -> None:
        self.parts = [result if one.id == result.id else one for one in self.parts]

    def last(self) -> PartResult | None:
        return self.parts[-1] if self.parts else None

    def faults(self) -> Sequence[Fault]:
        return [Fault(FaultCode.STORE, "the disk is full")] if self.cannot_store else []


def rule(product: str, views: Sequence[PartView], missing: Sequence[str]) -> Judgement:
    score = max((one.score for one in views), default=None)
    if score is not None and score > 1:
        return Judgement("anomalous", score)
    return Judgement("incomplete", score, f"{', '.join(missing)} missing") if missing else Judgement("good", score)


def settings(**parts: Any) -> LineSettings:
    views = ("top", "side")
    return LineSettings(
        name="press-3",
        home=Path(),
        views=views,
        products={"bracket": {view: Path(f"bracket-{view}") for view in views}, "plate": {"top": Path("plate-top")}},
        sources={view: {} for view in views},
        parts=PartSettings(**{"deadline": 0.5, "timeout": 1.5, **parts}),
        service=ServiceSettings(Path()),
    )


class Bench:
    """A running line with two cameras, and a PLC."""

    def __init__(self, given: LineSettings, records: Records) -> None:
        self.records = records
        self.cameras = {view: Camera(view) for view in given.views}
        frames = FrameQueue(given.queue_size, given.when_full)
        self.events: list[str] = []
        sources = {
            view: SupervisedSource(camera, frames, retry_first=0.05, retry_longest=0.1)
            for view, camera in self.cameras.items()
        }
        self.line = Line(given, records, rule, sources, frames, self.events.append)
        self.plc = self.line.handshake

    def start(self) -> None:
        self.line.start()
        for bus in ("opcua", "modbus"):
            self.plc.write_trigger(False, bus)
        wait_until(lambda: self.shown.ready)

    @property
    def shown(self) -> Signals:
        return self.plc.snapshot()

    def inspect(self, product: str = "bracket", bus: str = "opcua", **more: Any) -> Signals:
        """A whole handshake; returns the signals of the result or fault."""
        assert self.plc.write_trigger(True, bus, product=product, **more)
        wait_until(lambda: self.shown.result_valid or self.shown.fault)
        found = self.shown
        self.plc.write_trigger(False, bus)
        return found


@contextmanager
def bench(records: Records | None = None, **parts: Any) -> Iterator[Bench]:
    running = Bench(settings(**parts), records or Records())
    try:
        running.start()
        yield running
    finally:
        running.line.close()


def test_each_trigger_has_one_stored_verdict() -> None:
    with bench() as line:
        for number in range(1, 6):
            line.records.scores["side"] = 2.0 if number % 2 else 0.3
            shown = line.inspect(part_number=f"A{number}")
            assert shown.verdict == (VerdictCode.ANOMALOUS if number % 2 else VerdictCode.GOOD)
            assert (shown.sequence, shown.part_number) == (number, f"A{number}")
            wait_until(lambda: line.shown.ready)
        assert [part.trigger.part_number for part in line.records.parts] == [f"A{n}" for n in range(1, 6)]
        assert [len(part.views) for part in line.records.parts] == [2] * 5
        assert [camera.triggers for camera in line.cameras.values()] == [5, 5]


def test_a_product_has_its_own_views_and_models() -> None:
    with bench() as line:
        assert line.inspect("plate").verdict == VerdictCode.GOOD
        assert line.records.seen == [("plate-top", "top")]
        assert line.cameras["side"].triggers == 0
        wait_until(lambda: line.shown.ready)
        assert line.inspect("panel").verdict == VerdictCode.ERROR
        assert line.records.parts[-1].reason == "unknown product 'panel'; known: bracket, plate"


def test_a_missing_view_is_never_good_and_a_late_image_joins_no_other_part() -> None:
    with bench() as line:
        line.cameras["side"].is_covered = True
        shown = line.inspect()
        assert shown.verdict == VerdictCode.INCOMPLETE
        assert line.records.parts[-1].missing == ("side",)
        line.cameras["side"].send()
        wait_until(lambda: line.line.late["side"] == 1)
        wait_until(lambda: line.shown.ready)
        assert line.inspect().verdict == VerdictCode.INCOMPLETE
        line.cameras["side"].is_covered = False
        line.records.scores["top"] = 3.0
        wait_until(lambda: line.shown.ready)
        assert line.inspect().verdict == VerdictCode.ANOMALOUS


def test_a_defect_in_the_view_that_arrived_is_an_alarm() -> None:
    with bench() as line:
        line.cameras["side"].is_covered = True
        line.records.scores["top"] = 3.0
        assert line.inspect().verdict == VerdictCode.ANOMALOUS


def test_a_view_that_cannot_be_inspected_is_an_error() -> None:
    with bench() as line:
        line.records.cannot_inspect = "the image is truncated"
        assert line.inspect().verdict == VerdictCode.ERROR
        assert line.records.parts[-1].reason == "top: the image is truncated; side: the image is truncated"


def test_a_verdict_that_cannot_be_stored_is_not_on_the_bus() -> None:
    with bench() as line:
        line.records.cannot_store = True
        line.plc.write_trigger(True, "opcua", product="bracket")
        wait_until(lambda: line.shown.fault == FaultCode.TIMEOUT)
        assert not line.shown.result_valid
        assert not line.records.parts
        line.plc.write_trigger(False, "opcua")
        line.records.cannot_store = False
        wait_until(lambda: len(line.records.parts) == 1)
        assert (line.records.parts[0].verdict, line.records.parts[0].reason) == ("error", TOO_LATE)
        wait_until(line.plc.acknowledge)
        wait_until(lambda: line.shown.ready)
        assert line.inspect().verdict == VerdictCode.GOOD
        assert [part.trigger.sequence for part in line.records.parts] == [1, 2]


def test_an_inspection_that_takes_too_long_is_an_error_in_the_record() -> None:
    records = Records()
    records.waits = threading.Event()
    with bench(records) as line:
        line.plc.write_trigger(True, "opcua", product="plate")
        wait_until(lambda: line.shown.fault == FaultCode.TIMEOUT)
        wait_until(lambda: len(records.parts) == 1)
        assert records.parts[0].verdict == "error"
        records.waits.set()


def test_a_camera_that_is_gone_is_a_fault_until_it_is_back() -> None:
    with bench() as line:
        line.cameras["top"].is_gone = True
        wait_until(lambda: line.shown.fault == FaultCode.SOURCE)
        assert not line.shown.ready
        assert "top" in line.shown.fault_text
        line.cameras["top"].is_gone = False
        wait_until(lambda: line.shown.ready)
        assert line.inspect().verdict == VerdictCode.GOOD


def test_a_source_that_misses_two_parts_is_opened_again() -> None:
    with bench() as line:
        line.cameras["side"].is_covered = True
        for _ in range(2):
            assert line.inspect().verdict == VerdictCode.INCOMPLETE
            wait_until(lambda: line.shown.ready)
        wait_until(lambda: line.line.sources["side"].state().reconnects == 1)
        line.cameras["side"].is_covered = False
        wait_until(lambda: line.shown.ready)
        assert line.inspect().verdict == VerdictCode.GOOD
        assert line.line.sources["top"].state().reconnects == 0


def test_a_repeated_trigger_has_the_stored_verdict() -> None:
    with bench() as line:
        first = line.inspect(part_number="A1", trigger_id=77)
        wait_until(lambda: line.shown.ready)
        again = line.inspect(part_number="A1", trigger_id=77)
        assert replace(again, heartbeat=0) == replace(first, heartbeat=0)
        assert len(line.records.parts) == 1


def test_a_repeated_trigger_has_its_verdict_after_a_part_of_another_bus() -> None:
    with bench() as line:
        first = line.inspect(part_number="A1", trigger_id=77)
        wait_until(lambda: line.shown.ready)
        line.inspect(bus="modbus", part_number="A2", trigger_id=78)
        wait_until(lambda: line.shown.ready)
        again = line.inspect(part_number="A1", trigger_id=77)
        assert replace(again, heartbeat=0) == replace(first, heartbeat=0)
        assert [one.trigger.trigger_id for one in line.records.parts] == [77, 78]


def test_a_restart_goes_on_counting_and_shows_the_last_part() -> None:
    records = Records()
    with bench(records) as line:
        line.inspect(part_number="A1", trigger_id=5)
    with bench(records) as line:
        shown = line.shown
        assert (shown.sequence, shown.part_number, shown.trigger_id) == (1, "A1", 5)
        assert not shown.result_valid
        assert line.inspect(part_number="A2").sequence == 2


def test_a_paused_line_is_not_ready() -> None:
    with bench() as line:
        line.line.pause()
        assert (line.shown.ready, line.shown.fault) == (False, FaultCode.PAUSED)
        line.line.resume()
        assert line.shown.ready


def test_cameras_that_trigger_themselves() -> None:
    given = replace(settings(trigger="camera"), products={ONLY: {"top": Path("top"), "side": Path("side")}})
    line = Bench(given, Records())
    line.line.start()
    try:
        wait_until(lambda: line.shown.ready)
        for number in ("A1", "A2"):
            for camera in line.cameras.values():
                camera.send(number)
        line.cameras["top"].send("A3")
        wait_until(lambda: len(line.records.parts) == 3)
        found = {part.trigger.part_number: part.verdict for part in line.records.parts}
        assert found == {"A1": "good", "A2": "good", "A3": "incomplete"}
        assert line.shown.sequence == 3
        assert line.shown.result_valid
    finally:
        line.line.close()


@pytest.mark.parametrize("views", [("top",), ("top", "side")])
def test_a_part_is_incomplete_when_no_view_arrives(views: tuple[str, ...]) -> None:
    with bench() as line:
        for camera in line.cameras.values():
            camera.is_covered = True
        shown = line.inspect("plate" if views == ("top",) else "bracket")
        assert shown.verdict == VerdictCode.INCOMPLETE
        assert line.records.parts[-1].missing == views
        assert line.records.parts[-1].score is None
