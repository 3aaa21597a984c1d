from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from patchsvdd.apps.line.frame_queue import FrameQueue
from patchsvdd.apps.line.sources.folder import FolderSource
from patchsvdd.apps.line.sources.source import Frame, SourceEnded, SourceError
from patchsvdd.apps.line.sources.supervisor import SupervisedSource
from support.waiting import wait_until


class Script:
    """A source that does what a list says: a number of images, or an error; then it gives nothing."""

    name = "top"
    lost = 3

    def __init__(self, *runs: Sequence[int | Exception]) -> None:
        self.runs = [list(run) for run in runs]
        self.run: list[int | Exception] = []
        self.opened: list[float] = []
        self.closed = 0
        self.triggers = 0
        self.hangs = threading.Event()
        self.trigger_error: Exception | None = None

    def open(self) -> None:
        self.opened.append(time.monotonic())
        self.run = self.runs.pop(0) if self.runs else []
        if self.run and isinstance(self.run[0], SourceError):
            raise self.run[0]

    def read(self, seconds: float) -> Frame | None:
        if not self.run:
            time.sleep(min(seconds, 0.01))
            return None
        step = self.run.pop(0)
        if isinstance(step, Exception):
            raise step
        return Frame(self.name, step, 0.0, time.monotonic(), f"{step}.png")

    def trigger(self) -> None:
        self.triggers += 1
        if self.trigger_error is not None:
            raise self.trigger_error
        self.hangs.wait(10)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


@contextmanager
def running(
    source: Script, queue: FrameQueue, events: list[str], stall: float | None = None
) -> Iterator[SupervisedSource]:
    kept = SupervisedSource(source, queue, on_event=events.append, retry_first=0.01, retry_longest=0.04, stall=stall)
    kept.start()
    try:
        yield kept
    finally:
        source.hangs.set()
        kept.close()
        assert kept.state().state in ("stopped", "ended")


def test_a_source_is_opened_until_it_works_and_again_when_it_fails() -> None:
    gone = SourceError("no cable")
    source = Script([gone], [gone], [gone], [1, 2, SourceError("unplugged")], [gone], [3])
    queue, events = FrameQueue(10), list[str]()
    with running(source, queue, events) as kept:
        wait_until(lambda: kept.state().frames == 3)
        state = kept.state()
        assert (state.name, state.state, state.reason) == ("top", "running", None)
        assert (state.frames, state.dropped, state.lost, state.reconnects) == (3, 0, 3, 1)
        assert abs(state.since - time.time()) < 60
        assert 0 < state.frames_per_second <= 3
        assert json.loads(json.dumps(state.to_json()))["state"] == "running"
    assert source.closed == 6
    assert [getattr(queue.get(0), "number", None) for _ in range(4)] == [1, 2, 3, None]
    kinds = [event.split(";")[0] for event in events]
    assert kinds[:2] == ["top: not connected: no cable"] * 2  # the first, second, fourth, … failure in a row
    assert kinds[2:] == ["top: connected", "top: lost: unplugged", "top: connected again"]
    assert events[0].endswith("; trying again in 0.0 s")


def test_pauses_grow_and_reports_become_rare() -> None:
    source = Script(*[[SourceError("no cable")]] * 40)
    events: list[str] = []
    with running(source, FrameQueue(1), events) as kept:
        wait_until(lambda: len(source.opened) >= 20)
        assert kept.state().state in ("failed", "connecting")
        assert kept.state().reason == "no cable"
    pauses = [later - earlier for earlier, later in zip(source.opened, source.opened[1:], strict=False)]
    assert min(pauses[3:]) >= 0.03 * 0.9
    assert len(events) <= 6


def test_errors_of_drivers_do_not_end_the_thread() -> None:
    source = Script([ZeroDivisionError("in the driver")], [5])
    events: list[str] = []
    with running(source, FrameQueue(1), events) as kept:
        wait_until(lambda: kept.state().frames == 1)
    assert events[1].startswith("top: lost: ZeroDivisionError: in the driver")


def test_a_source_without_images_has_stalled() -> None:
    source = Script([1], [2])
    events: list[str] = []
    with running(source, FrameQueue(5), events, stall=0.1) as kept:
        wait_until(lambda: kept.state().frames == 2)
    assert events[1].startswith("top: lost: no image for 0.1 s")


def test_a_source_that_ended_is_not_opened_again() -> None:
    source = Script([1, SourceEnded("the tape is over")])
    events: list[str] = []
    with running(source, FrameQueue(5), events) as kept:
        wait_until(lambda: kept.state().state == "ended")
        assert kept.state().reason == "the tape is over"
    assert len(source.opened) == 1
    assert events == ["top: connected", "top: ended: the tape is over"]


def test_a_trigger_never_waits_for_the_camera() -> None:
    source = Script([])
    with running(source, FrameQueue(5), []) as kept:
        wait_until(lambda: kept.state().state == "running")
        start = time.monotonic()
        for _ in range(3):
            kept.trigger()
        assert time.monotonic() - start < 5
        wait_until(lambda: source.triggers == 1)  # the others wait
        source.hangs.set()
        wait_until(lambda: source.triggers == 3)


def test_a_trigger_that_fails_opens_the_camera_again() -> None:
    source = Script([])
    source.trigger_error = SourceError("timeout")
    events: list[str] = []
    with running(source, FrameQueue(5), events) as kept:
        wait_until(lambda: kept.state().state == "running")
        kept.trigger()
        wait_until(lambda: kept.state().reconnects == 1)
    assert events[1].startswith("top: lost: timeout")


def test_flushing_discards_what_waits() -> None:
    source, queue = Script([1, 2]), FrameQueue(5)
    with running(source, queue, []) as kept:
        wait_until(lambda: len(queue) == 2)
        kept.flush()
        assert queue.get(0) is None
        source.run.append(3)
        frame = queue.get(20)
    assert frame is not None
    assert frame.number == 3


def test_a_full_queue_does_not_keep_a_source_from_closing(tmp_path: Path) -> None:
    for index in range(5):
        (tmp_path / f"{index}.png").write_bytes(b"x")
    queue = FrameQueue(2, "block")
    kept = SupervisedSource(FolderSource("folder", tmp_path, settle=0.0, poll=0.01), queue)
    kept.start()
    wait_until(lambda: kept.state().frames == 3)
    kept.close(20)
    assert kept.state().state == "stopped"
    assert not [thread for thread in threading.enumerate() if thread.name.endswith(" folder")]


def test_a_source_that_was_never_started_can_be_closed() -> None:
    kept = SupervisedSource(Script(), FrameQueue(1))
    kept.close(0)
    assert kept.state().frames == 0
