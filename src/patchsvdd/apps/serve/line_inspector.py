"""Inspects and stores the parts of a line with the service."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

from patchsvdd.apps.line.inspector import Inspected, InspectionFailed, StoreFailed
from patchsvdd.apps.line.parts import PartRegion, PartResult, PartView, Trigger
from patchsvdd.apps.line.signals import Fault, FaultCode
from patchsvdd.apps.line.sources.source import Frame
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.ids import new_id
from patchsvdd.apps.serve.part_store import RepeatedSequence
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.store import Row
from patchsvdd.core.errors import PatchSVDDError

PASSING = ("overloaded", "store-unavailable", "deadline-exceeded", "stopping")
"""Problems of an inspection that may be over when it is tried again."""
CHECK_STORE = 2.0
"""Seconds between two checks of the database and the disk."""
LEAST_FREE = 64 << 20
"""Bytes that must be free on the disk."""
PROBE = 1 << 16
"""Bytes that are written to find out whether the disk works again."""


class ServiceInspector:
    """The service as a line uses it."""

    def __init__(self, service: Service, line: str, models: Iterable[Path]) -> None:
        self._service, self._line = service, line
        self._loop: asyncio.AbstractEventLoop | None = None
        self._models = sorted({folder.resolve().name for folder in models})
        self._data, self._owner = service.settings.data, service.settings.service_id
        self._encoding = ThreadPoolExecutor(2, thread_name_prefix="encoding")
        self._store_problem: str | None = None
        self._stopped = threading.Event()
        self._watching = threading.Thread(target=self._watch_store, name="line-store", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to inspect in the service's loop, and to watch the database and the disk."""
        self._loop = loop
        self._watching.start()

    def close(self) -> None:
        """Stop."""
        self._stopped.set()
        if self._watching.ident is not None:
            self._watching.join()
        self._encoding.shutdown()

    def new_id(self, at: float) -> str:
        """An id for a part that was triggered at a time, in seconds since 1970."""
        return new_id(at)

    def inspect(self, frame: Frame, model: Path, trigger: Trigger, seconds: float) -> Future[Inspected]:
        """Inspect and store a view."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(
            self._inspect(frame, model.resolve().name, trigger, seconds), self._loop
        )

    async def _inspect(self, frame: Frame, model: str, trigger: Trigger, seconds: float) -> Inspected:
        end = time.monotonic() + seconds
        data = frame.data
        if data is None:
            data = await asyncio.get_running_loop().run_in_executor(self._encoding, _png, frame)
        details = {"serial": trigger.part_number or None, "line": self._line, "station": frame.source}
        while True:
            try:
                with self._service.queue.place():
                    served = self._service.models.named(model)
                    left = max(0.01, end - time.monotonic())
                    found = await self._service.inspect(served, data, frame.name, left, details=details)
                break
            except Problem as problem:
                if problem.kind == "store-unavailable":
                    self._store_problem = problem.detail
                if problem.kind not in PASSING or time.monotonic() + 0.2 >= end:
                    kind = StoreFailed if problem.kind == "store-unavailable" else InspectionFailed
                    raise kind(problem.detail) from None
                await asyncio.sleep(0.1)
            except PatchSVDDError as error:
                raise InspectionFailed(str(error)) from None
        return _seen(frame, found.row)

    def store(self, result: PartResult) -> None:
        """Store a part."""
        try:
            self._service.store_part(self._line, result)
        except StoreUnavailable as error:
            raise self._store_failed(str(error)) from None
        except RepeatedSequence as error:
            raise self._store_failed(f"{error}; is another line of this name running on the database?") from None

    def correct(self, result: PartResult) -> None:
        """Replace a stored part."""
        try:
            self._service.store.correct_part(self._owner, self._line, result)
        except StoreUnavailable as error:
            raise self._store_failed(str(error)) from None

    def last(self) -> PartResult | None:
        """The part of this line that was stored last."""
        try:
            row = self._service.store.last_part(self._owner, self._line)
        except StoreUnavailable as error:
            raise self._store_failed(str(error)) from None
        return None if row is None else part_of(row)

    def faults(self) -> Sequence[Fault]:
        """Why nothing can be inspected or stored at present."""
        found = []
        if (problem := self._store_problem) is not None:
            found.append(Fault(FaultCode.STORE, problem))
        for name in self._models:
            if name not in self._service.models:
                reason = self._service.models.trouble(name) or "it is not served"
                found.append(Fault(FaultCode.MODEL, f"the model '{name}' cannot be used: {reason}"))
            elif self._service.golden.is_blocked(name):
                words = f"the model '{name}' failed the check with its golden images"
                found.append(Fault(FaultCode.MODEL, words))
        return found

    def _store_failed(self, problem: str) -> StoreFailed:
        self._store_problem = problem
        return StoreFailed(problem)

    def _watch_store(self) -> None:
        while not self._stopped.wait(CHECK_STORE):
            try:
                self._check_store(writing=self._store_problem is not None)
            except StoreUnavailable as error:
                self._store_problem = str(error)
            except OSError as error:
                self._store_problem = f"nothing can be written to {self._data}: {error.strerror or error}"
            else:
                self._store_problem = None

    def _check_store(self, *, writing: bool) -> None:
        """Raise StoreUnavailable or OSError if results cannot be stored; after a failure, by writing something."""
        self._service.store.check()
        if shutil.disk_usage(self._data).free < LEAST_FREE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if writing:
            self._service.store.check(writing=True)
            with tempfile.TemporaryFile(dir=self._data) as file:
                file.write(bytes(PROBE))
                file.flush()
                os.fsync(file.fileno())


def _png(frame: Frame) -> bytes:
    buffer = io.BytesIO()
    assert frame.pixels is not None
    Image.fromarray(frame.pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _seen(frame: Frame, row: Row) -> Inspected:
    """What the line needs to know of a stored inspection."""
    threshold = float(row["threshold"] or 0.0)
    view = PartView(
        view=frame.source,
        inspection=row["id"],
        model=row["model"],
        identity=row["identity"],
        score=row["score"],
        threshold=threshold,
        verdict=row["verdict"],
        frame=frame.number,
        captured=frame.captured,
    )
    regions = []
    for region in row["regions"]:
        left, top, right, bottom = region["box"]
        peak = region["peak"] / threshold if threshold > 0 else 0.0
        regions.append(PartRegion(frame.source, left, top, right - left, bottom - top, peak, region.get("kind")))
    return view, tuple(regions)


def part_of(row: Mapping[str, Any]) -> PartResult:
    """The part of a row of the store."""
    trigger = Trigger(
        row["sequence"], row["triggered"], 0.0, row["part_number"], row["product"], row["trigger_id"], row["by"]
    )
    return PartResult(
        id=row["id"],
        trigger=trigger,
        product=row["product"],
        verdict=row["verdict"],
        score=row["score"],
        threshold=row["threshold"],
        views=tuple(PartView(**one) for one in row["views"]),
        missing=tuple(row["missing"]),
        regions=tuple(PartRegion(**one) for one in row["regions"]),
        reason=row["reason"],
        answered=row["answered"],
        seconds=row["seconds"],
    )
