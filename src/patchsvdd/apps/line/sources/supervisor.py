"""A thread that keeps a source running: it reads, and opens the source again whenever it fails."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any, Literal

from patchsvdd.apps.line.frame_queue import FrameQueue
from patchsvdd.apps.line.sources.source import Source, SourceEnded, SourceError
from patchsvdd.core.errors import PatchSVDDError

Activity = Literal["connecting", "running", "failed", "ended", "stopped"]

READ = 0.25
"""Seconds that one call of ``read`` waits."""
STEADY = 10.0
"""If a source fails after running for at least this many seconds, it is opened again at once. If it fails sooner, the
pause before the next attempt grows."""
RATE_OVER = 10.0
"""Seconds over which the frame rate is measured."""


@dataclass(frozen=True)
class SourceState:
    """What a source does, and what it has done."""

    name: str
    state: Activity
    since: float
    """Seconds since 1970."""
    reason: str | None
    """Why it failed or ended."""
    frames: int
    """Images that were read."""
    dropped: int
    """Of these, images that the queue dropped."""
    lost: int
    """Images that the camera or the network lost."""
    reconnects: int
    frames_per_second: float
    """Over the last ten seconds."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)


class SupervisedSource:
    """A source whose images are put into a queue, by a thread that never ends before it is closed.

    A source that ended, such as a video file, is not opened again.
    """

    def __init__(
        self,
        source: Source,
        queue: FrameQueue,
        *,
        on_event: Callable[[str], None] | None = None,
        retry_first: float = 0.5,
        retry_longest: float = 30.0,
        stall: float | None = None,
    ) -> None:
        """``on_event`` is called, in the thread, with one line when the source is connected or lost. ``stall``: seconds
        without an image after which a source has failed; None if images come only now and then.
        """
        self.source = source
        self._queue = queue
        self._event = on_event or (lambda _: None)
        self._first, self._longest, self._stall = retry_first, retry_longest, stall
        self._lock = threading.Lock()
        self._activity: Activity = "connecting"
        self._reason: str | None = None
        self._since = time.time()
        self._frames = self._reconnects = self._failures = 0
        self._running_since: float | None = None  # None until it was connected once
        self._loss_reported = False
        self._recent: deque[float] = deque()
        self._flushed = float("-inf")
        self._stop = threading.Event()
        self._triggers: SimpleQueue[bool] = SimpleQueue()
        self._trigger_error: SourceError | None = None
        self._threads = [
            threading.Thread(target=target, name=f"{what} {source.name}", daemon=True)
            for target, what in ((self._work, "source"), (self._pull_triggers, "trigger"))
        ]

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.source.name

    def start(self) -> None:
        """Start reading."""
        for thread in self._threads:
            thread.start()

    def trigger(self) -> None:
        """Take one image now; returns at once, even if the camera does not answer."""
        self._triggers.put(True)

    def reopen(self, reason: str) -> None:
        """Close the source and open it again, because it does not do what it should."""
        self._trigger_error = SourceError(reason)

    def flush(self) -> None:
        """Discard images that arrived before this call, also those that wait in the queue."""
        self._flushed = time.monotonic()
        self._queue.discard(self.name)

    def close(self, seconds: float = 10.0) -> None:
        """Stop reading and disconnect; waits up to ``seconds`` for the threads."""
        self._stop.set()
        self._triggers.put(False)
        end = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))

    def state(self) -> SourceState:
        """Returns what the source does at the moment."""
        now = time.monotonic()
        with self._lock:
            self._forget(now)
            return SourceState(
                self.name,
                self._activity,
                self._since,
                self._reason,
                self._frames,
                self._queue.dropped(self.name),
                self.source.lost,
                self._reconnects,
                round(len(self._recent) / self._measured(now), 2),
            )

    def _work(self) -> None:
        while not self._stop.is_set():
            opened = time.monotonic()
            try:
                self._run()
            except SourceEnded as end:
                self._change("ended", str(end))
                self._event(f"{self.name}: ended: {end}")
                break
            except Exception as error:  # noqa: BLE001  # whatever a driver raises, the line goes on
                self._failed(error, time.monotonic() - opened)
            finally:
                self._close_source()
        if self._stop.is_set():
            self._change("stopped", None)

    def _run(self) -> None:
        """Open the source and read until it fails or is stopped."""
        self._change("connecting", self._reason)
        self._trigger_error = None
        self.source.open()
        if self._stop.is_set():
            return
        last = time.monotonic()
        again = self._running_since is not None
        with self._lock:
            self._reconnects += again
            self._running_since = last
            self._recent.clear()
        self._change("running", None)
        if not again or self._loss_reported:
            self._event(f"{self.name}: connected{' again' if again else ''}")
        self._loss_reported = False
        while not self._stop.is_set():
            frame = self.source.read(READ)
            if self._trigger_error is not None:
                raise self._trigger_error
            now = time.monotonic()
            if frame is None:
                if self._stall is not None and now - last > self._stall:
                    raise SourceError(f"no image for {self._stall:g} s")
                continue
            last = now
            with self._lock:
                self._frames += 1
                self._recent.append(now)
                self._forget(now)
            if frame.arrived >= self._flushed:
                self._queue.put(frame, self._stop)

    def _failed(self, error: Exception, seconds: float) -> None:
        """Report a failure of a source that ran for some ``seconds``, and pause."""
        reason = str(error) or type(error).__name__
        if not isinstance(error, PatchSVDDError):
            reason = f"{type(error).__name__}: {reason}"
        was_running = self._activity == "running"
        if was_running and seconds >= STEADY:
            self._failures = 0
        pause = min(self._longest, self._first * 2.0 ** min(self._failures, 30)) * random.uniform(0.75, 1.0)
        self._failures += 1
        self._change("failed", reason)
        if self._failures & (self._failures - 1) == 0:  # the first, second, fourth, … in a row
            self._loss_reported = True
            what = "lost" if was_running else "not connected"
            self._event(f"{self.name}: {what}: {reason}; trying again in {pause:.1f} s")
        self._stop.wait(pause)

    def _close_source(self) -> None:
        try:
            self.source.close()
        except Exception as error:  # noqa: BLE001  # it is opened again in any case
            self._event(f"{self.name}: closing failed: {error}")

    def _pull_triggers(self) -> None:
        """Pass on triggers; a camera that does not answer keeps this thread waiting, not the caller."""
        while self._triggers.get() and not self._stop.is_set():
            if self._activity != "running":
                continue
            try:
                self.source.trigger()
            except Exception as error:  # noqa: BLE001  # raised again where the source is read
                self._trigger_error = error if isinstance(error, SourceError) else SourceError(str(error))

    def _change(self, activity: Activity, reason: str | None) -> None:
        with self._lock:
            if activity != self._activity:
                self._since = time.time()
            self._activity, self._reason = activity, reason

    def _measured(self, now: float) -> float:
        """Seconds over which the frame rate is measured: fewer if the source was opened just now."""
        return RATE_OVER if self._running_since is None else min(RATE_OVER, max(1.0, now - self._running_since))

    def _forget(self, now: float) -> None:
        """Leave out frames that are too old for the frame rate."""
        while self._recent and self._recent[0] < now - RATE_OVER:
            self._recent.popleft()
