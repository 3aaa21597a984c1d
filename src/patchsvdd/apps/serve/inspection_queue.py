"""Images wait in one queue and are computed in small batches, oldest first; requests past their deadline are dropped.

One thread computes, because a detector already uses all cores or the whole GPU.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.telemetry import Telemetry
from patchsvdd.images.image_set import LoadedImage
from patchsvdd.scoring.inspection import Inspection

Answer = TypeVar("Answer")
CPU_BATCH = 4
GPU_BATCH = 64
READERS = 4
"""Uploads that may be read at a time per slot of the queue, so that slow clients do not occupy slots."""
BATCHES = 4
"""Batch requests accepted at a time."""
MEASURED = 16
"""Latest images whose time tells how long the next ones will take."""
CAUTION = 0.9
"""Share of the time limit that the expected time may take."""


@dataclass
class _Task(Generic[Answer]):
    """A computation with a model."""

    model: ServedModel
    deadline: float
    """By ``time.monotonic``."""
    answer: Future[Answer]
    image: LoadedImage | None = None
    """Image to inspect, batched with others of its size."""
    work: Callable[[], Answer] | None = None
    """Or any other computation, run separately."""
    since: float = field(default_factory=time.monotonic)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Tasks of the same kind may share a batch."""
        if self.image is None:
            return (id(self),)
        return (id(self.model.detector), self.image.pixels.shape, self.image.pixels.dtype)


@dataclass(frozen=True)
class Computed:
    """An inspection and its timings."""

    inspection: Inspection
    waited: float
    seconds: float
    """Of the batch."""
    batch: int


class InspectionQueue:
    """The accepted images, and the thread that computes them."""

    def __init__(self, room: int, batch_size: int | None, telemetry: Telemetry, seconds_per_image: float = 0.1) -> None:
        self.room = room
        self._batch_size = batch_size
        self._telemetry = telemetry
        self._tasks: deque[_Task[Any]] = deque()
        self._changed = threading.Condition()
        self._in_flight = 0
        self._arriving = 0
        self._batches = 0
        self._recent = deque([seconds_per_image], MEASURED)
        self._last_done = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._compute_all, name="inspecting", daemon=True)
        self._thread.start()

    @contextmanager
    def place(self, seconds: float | None = None, images: int = 1) -> Iterator[None]:
        """Reserve slots for images until they are answered.

        Raises Problem if the queue is full, or so long that an image would not be answered within ``seconds``.
        """
        with self._changed:
            self._require_room(seconds, images)
            self._in_flight += images
            self._telemetry.waiting.set(self._in_flight)
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= images
                self._telemetry.waiting.set(self._in_flight)

    @contextmanager
    def arriving(self, seconds: float | None = None) -> Iterator[None]:
        """Count an upload while it is read from a possibly slow client; raises Problem as ``place`` does."""
        with self._counted("_arriving", READERS * self.room, seconds):
            yield

    @contextmanager
    def batch(self, images: int) -> Iterator[None]:
        """Reserve slots for a batch request that has ``images`` in progress at a time; raises Problem if too many."""
        with self._counted("_batches", BATCHES), self.place(images=images):
            yield

    @contextmanager
    def _counted(self, name: str, most: int, seconds: float | None = None) -> Iterator[None]:
        with self._changed:
            self._require_room(seconds)
            if getattr(self, name) >= most:
                self._refuse()
            setattr(self, name, getattr(self, name) + 1)
        try:
            yield
        finally:
            with self._changed:
                setattr(self, name, getattr(self, name) - 1)

    def _require_room(self, seconds: float | None, images: int = 1) -> None:
        """Raise Problem if the queue is full or too long. An image that finds it empty is always accepted."""
        if self._closed or self._in_flight + images > self.room:
            self._refuse()
        expected = (self._in_flight + images) * self.seconds_per_image
        if seconds is not None and self._in_flight and expected > CAUTION * seconds:
            self._telemetry.refused.labels("overloaded").inc()
            raise Problem(
                "overloaded",
                f"{self._in_flight} images are waiting; this one would not be answered within {seconds:g} s; retry "
                f"later, or allow more time",
                retry_after=self.expected_wait,
            )

    def done(self, since: float) -> None:
        """Record that an image was answered that was accepted at ``since``, by ``time.monotonic``."""
        with self._changed:
            now = time.monotonic()
            self._recent.append(now - max(since, self._last_done))  # time shared with the one before counts once
            self._last_done = now

    def _refuse(self) -> NoReturn:
        if self._closed:
            raise Problem("stopping", "the service is stopping; retry when it has restarted", retry_after=5)
        self._telemetry.refused.labels("overloaded").inc()
        raise Problem(
            "overloaded",
            f"{self._in_flight} images are waiting and the queue is full; retry later",
            retry_after=self.expected_wait,
        )

    @property
    def expected_wait(self) -> float:
        """Estimated seconds until the images in the queue are computed."""
        return self._in_flight * self.seconds_per_image

    @property
    def seconds_per_image(self) -> float:
        """Measured seconds for one of many images, with decoding and storing."""
        recent = tuple(self._recent)
        return sum(recent) / len(recent)

    @property
    def in_flight(self) -> int:
        """Number of images accepted but not yet answered."""
        return self._in_flight

    def inspect(self, model: ServedModel, image: LoadedImage, deadline: float) -> Future[Computed]:
        """Queue an image; the future has its inspection."""
        return self._put(_Task(model, deadline, Future(), image=image))

    def compute(self, model: ServedModel, work: Callable[[], Answer], deadline: float) -> Future[Answer]:
        """Queue another computation with the model; the future has its result."""
        return self._put(_Task(model, deadline, Future(), work=work))

    def _put(self, task: _Task[Answer]) -> Future[Answer]:
        with self._changed:
            if self._closed:
                self._refuse()
            self._tasks.append(task)
            self._changed.notify()
        return task.answer

    def close(self) -> None:
        """Compute the accepted tasks, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _compute_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tasks or self._closed)
                if not self._tasks:
                    return
                batch = self._next()
            now = time.monotonic()
            for task in batch:
                if task.deadline <= now and task.answer.set_running_or_notify_cancel():
                    self._telemetry.refused.labels("deadline").inc()
                    problem = (
                        "deadline-exceeded",
                        "the image waited too long in the queue; send fewer at a time, or allow more time",
                    )
                    task.answer.set_exception(Problem(*problem, retry_after=self.expected_wait))
            active = [task for task in batch if task.deadline > now and task.answer.set_running_or_notify_cancel()]
            if active:
                self._compute(active)

    def _next(self) -> list[_Task[Any]]:
        """The next batch: the oldest task and others of its kind."""
        first = self._tasks.popleft()
        size = self._batch_size or (GPU_BATCH if first.model.detector.device.type == "cuda" else CPU_BATCH)
        batch, rest = [first], deque[_Task[Any]]()
        while self._tasks and len(batch) < size:
            task = self._tasks.popleft()
            (batch if task.kind == first.kind else rest).append(task)
        rest.extend(self._tasks)
        self._tasks = rest
        return batch

    def _compute(self, batch: list[_Task[Any]]) -> None:
        start = time.monotonic()
        images = [task.image for task in batch if task.image is not None]
        try:
            if not images:
                task = batch[0]
                assert task.work is not None
                task.answer.set_result(task.work())
                return
            inspections = batch[0].model.detector.inspect_loaded(images)
        except Exception as error:  # noqa: BLE001  # passed on to the caller
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            for task in batch:  # a single image may be the cause
                self._compute([task])
            return
        seconds = time.monotonic() - start
        self._telemetry.batch_images.observe(len(batch))
        self._telemetry.stage_seconds.labels("compute").observe(seconds)
        for task, inspection in zip(batch, inspections, strict=True):
            task.answer.set_result(Computed(inspection, start - task.since, seconds, len(batch)))
