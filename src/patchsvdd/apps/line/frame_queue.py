"""The images that wait to be inspected: a bounded queue between the sources and the line."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import Literal, get_args

from patchsvdd.apps.line.sources.source import Frame
from patchsvdd.core.errors import ConfigError

WhenFull = Literal["drop-oldest", "drop-new", "block"]

CHECK = 0.1
"""Seconds between two looks at ``stopped`` while ``put`` waits for room."""


class FrameQueue:
    """At most ``size`` images in the order in which they were put. Any thread may use it."""

    def __init__(self, size: int, when_full: WhenFull = "drop-oldest") -> None:
        """``when_full``: which image is dropped if there is no room, or that ``put`` waits for room."""
        if size < 1:
            raise ConfigError(f"`size` of a queue must be at least 1; got {size}")
        if when_full not in get_args(WhenFull):
            raise ConfigError(f"`when_full` must be one of {', '.join(get_args(WhenFull))}; got '{when_full}'")
        self.size = size
        self.when_full = when_full
        self._frames: deque[Frame] = deque()
        self._dropped: Counter[str] = Counter()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, frame: Frame, stopped: threading.Event | None = None) -> Frame | None:
        """Add an image; returns the image that was dropped, or None.

        A closed queue drops every new image. A queue that blocks drops the new image if ``stopped`` is set while there
        is no room.
        """
        with self._changed:
            while self.when_full == "block" and len(self._frames) >= self.size and not self._closed:
                if stopped is not None and stopped.is_set():
                    return self._drop(frame)
                self._changed.wait(None if stopped is None else CHECK)
            if self._closed:
                return self._drop(frame)
            dropped = None
            if len(self._frames) >= self.size:
                if self.when_full == "drop-new":
                    return self._drop(frame)
                dropped = self._drop(self._frames.popleft())
            self._frames.append(frame)
            self._changed.notify_all()
            return dropped

    def get(self, seconds: float) -> Frame | None:
        """Remove and return the oldest image; None if there is none within ``seconds``, or the queue is closed and
        empty."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._frames:
                left = end - time.monotonic()
                if self._closed or left <= 0:
                    return None
                self._changed.wait(left)
            frame = self._frames.popleft()
            self._changed.notify_all()
            return frame

    def discard(self, source: str) -> int:
        """Remove the waiting images of a source; returns how many. They do not count as dropped."""
        with self._changed:
            kept = [frame for frame in self._frames if frame.source != source]
            discarded = len(self._frames) - len(kept)
            self._frames = deque(kept)
            self._changed.notify_all()
            return discarded

    def dropped(self, source: str | None = None) -> int:
        """Returns the number of images of a source, or of all, that were dropped."""
        with self._changed:
            return self._dropped.total() if source is None else self._dropped[source]

    def close(self) -> None:
        """Accept no more images and wake every waiting thread; what waits can still be got."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        with self._changed:
            return len(self._frames)

    def _drop(self, frame: Frame) -> Frame:
        self._dropped[frame.source] += 1
        return frame
