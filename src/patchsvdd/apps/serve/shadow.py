"""Candidates inspect in the shadow of live models: what was answered is inspected again when there is time.

Nothing here may delay or fail a live answer. An offer only puts an entry into a bounded backlog, whose oldest entry is
dropped if it is full. One thread takes entries while no image is arriving, waiting or being inspected. The candidate
runs in a process of its own, on one core, with the lowest priority; while live work arrives, the process is stopped.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.hidden_paths import HiddenPaths
from patchsvdd.apps.serve.model_registry import ModelRegistry
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.telemetry import Telemetry

LOG = logging.getLogger("patchsvdd.apps.serve")
COMMAND = (sys.executable, "-m", "patchsvdd.apps.serve.shadow_process")
BACKLOG = 200
"""Images that may wait for a candidate."""
PAUSE = 0.01
"""Seconds between two looks at whether live work has arrived."""
LOAD_SECONDS = 300.0
"""Time to load a candidate, without the time for which it is stopped."""
INSPECT_SECONDS = 60.0
"""Time to inspect an image, without the time for which the process is stopped."""
RETRY_SECONDS = 10.0
"""Time before a candidate that could not be loaded is tried again."""
TOGETHER = 16
"""Results written in one transaction."""
WRITE_SECONDS = 1.0
"""Longest time that a result waits for others."""
LINE = 1 << 16


class Stopped(Exception):
    """The service is stopping, or the candidate was removed."""


class CandidateFailed(Exception):
    """The candidate's process has ended, cannot load its model or exceeds its time."""


@dataclass(frozen=True)
class Offer:
    """An inspected image that a candidate is to inspect."""

    inspection: str
    picture: str
    name: str
    identity: str
    verdict: str


@dataclass
class Followed:
    """A model with a candidate."""

    candidate: str
    backlog: deque[Offer] = field(default_factory=deque)
    dropped: int = 0
    failed: int = 0
    trouble: str | None = None
    """Why the candidate does not inspect; None if it does."""
    retry_at: float = 0.0
    removed: bool = False
    process: CandidateProcess | None = None


class CandidateProcess:
    """The process of a candidate."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        # In a group of its own: if the service is killed while the process is stopped, the system ends it.
        self._process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment, process_group=0
        )
        self._order = {
            "model": str(folder),
            "loading": str(settings.data / "loading"),
            "device": settings.device,
            "engine": settings.engine,
            "search": settings.search,
        }
        self.identity: str | None = None
        """The version that was loaded; None before."""

    def load(self, may_run: Callable[[], bool]) -> None:
        """Load the model; raises CandidateFailed."""
        answer = self._ask(self._order, may_run, LOAD_SECONDS)
        if "identity" not in answer:
            raise CandidateFailed(str(answer.get("error", "its process sent an invalid reply")))
        self.identity = str(answer["identity"])

    def inspect(self, path: Path, name: str, may_run: Callable[[], bool]) -> dict[str, Any]:
        """Inspect an image; returns the result, or ``failed`` with a reason."""
        return self._ask({"path": str(path), "name": name}, may_run, INSPECT_SECONDS)

    def _ask(self, order: dict[str, Any], may_run: Callable[[], bool], seconds: float) -> dict[str, Any]:
        """Send a line and wait for one; the process is stopped while ``may_run`` is false."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        said, ran, is_stopped = b"", 0.0, False
        try:
            self._process.stdin.write((json.dumps(order) + "\n").encode())
            with selectors.DefaultSelector() as selector:
                selector.register(self._process.stdout, selectors.EVENT_READ)
                while not said.endswith(b"\n"):
                    if is_stopped == (now := may_run()):
                        self._process.send_signal(signal.SIGCONT if now else signal.SIGSTOP)
                        is_stopped = not now
                    start = time.monotonic()
                    ready = selector.select(PAUSE)
                    ran += 0.0 if is_stopped else time.monotonic() - start
                    if ready:
                        some = os.read(self._process.stdout.fileno(), LINE)
                        if not some:
                            raise CandidateFailed("its process has ended; the server's log says more")
                        said += some
                    elif ran > seconds:
                        raise CandidateFailed(f"it needs more than {seconds:g} s")
            answer = json.loads(said)
        except (OSError, ValueError) as error:
            raise CandidateFailed(f"its process does not answer ({error})") from None
        if not isinstance(answer, dict):
            raise CandidateFailed("its process sent an invalid reply")
        return answer

    def kill(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._process.kill()

    def close(self) -> None:
        """End the process and close its pipes."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class Shadow:
    """The candidates of a service, and the thread that lets them inspect."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        models: ModelRegistry,
        settings: Settings,
        paths: HiddenPaths,
        telemetry: Telemetry,
        is_idle: Callable[[], bool],
    ) -> None:
        self._store, self._blobs, self._models, self._settings = store, blobs, models, settings
        self._paths, self._telemetry, self._is_idle = paths, telemetry, is_idle
        self._followed: dict[str, Followed] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._ended: list[CandidateProcess] = []
        self._results: list[dict[str, Any]] = []
        self._oldest = 0.0
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and end the processes; images that still wait are not inspected."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def follow(self, model: str, candidate: str) -> None:
        """Let a candidate inspect what a model inspects from now on."""
        with self._changed:
            self._remove(model)
            self._followed[model] = Followed(candidate)
            self._changed.notify_all()

    def forget(self, model: str) -> None:
        """Let no candidate inspect for a model."""
        with self._changed:
            self._remove(model)
            self._changed.notify_all()

    def _remove(self, model: str) -> None:
        before = self._followed.pop(model, None)
        if before is not None:
            before.removed = True
            if before.process is not None:
                before.process.kill()
                self._ended.append(before.process)  # its pipes may be in use: the thread closes them

    def offer(self, row: Row) -> None:
        """Put a stored inspection into the backlog of its model's candidate, if it has one."""
        with self._changed:
            followed = self._followed.get(row["model"])
            if followed is None or row["picture"] is None or row["threshold"] is None:
                return
            if len(followed.backlog) >= BACKLOG:
                followed.backlog.popleft()
                followed.dropped += 1
                self._telemetry.shadow.labels(row["model"], "dropped").inc()
            offer = Offer(row["id"], row["picture"], row["name"], row["identity"], row["verdict"])
            followed.backlog.append(offer)
            self._changed.notify_all()

    def situation(self, model: str) -> dict[str, Any]:
        """How many images wait, were dropped and could not be inspected since the candidate was set or the start."""
        with self._changed:
            followed = self._followed.get(model) or Followed("")
            return {
                "waiting": len(followed.backlog),
                "dropped": followed.dropped,
                "failed": followed.failed,
                "trouble": followed.trouble,
            }

    # The thread

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._step()
                except Stopped:
                    continue
                except Exception:  # this thread must outlive any error
                    LOG.exception("shadow")
                    time.sleep(1)
        finally:
            with suppress(StoreUnavailable):
                self._write()
            with self._changed:
                for model in list(self._followed):
                    self._remove(model)
            self._close_ended()

    def _close_ended(self) -> None:
        with self._changed:
            ended, self._ended = self._ended, []
        for process in ended:
            process.close()

    def _step(self) -> None:
        """Inspect one image if there is one and no live work, or wait a moment."""
        self._close_ended()
        if self._results and (len(self._results) >= TOGETHER or time.monotonic() > self._oldest + WRITE_SECONDS):
            self._write()
        with self._changed:
            now = time.monotonic()
            ready = [name for name, one in self._followed.items() if one.backlog and now >= one.retry_at]
            if not ready and not self._closed:
                self._changed.wait(WRITE_SECONDS / 2)
            if not ready or self._closed:
                return
            model = ready[0]
            followed = self._followed.pop(model)
            self._followed[model] = followed  # the others come first next time
        if not self._is_idle():
            time.sleep(PAUSE)
            return
        self._inspect(model, followed)

    def _inspect(self, model: str, followed: Followed) -> None:
        def may_run() -> bool:
            if self._closed or followed.removed:
                raise Stopped
            return self._is_idle()

        try:
            process = self._process_of(followed, may_run)
            with self._changed:
                if not followed.backlog:
                    return
                offer = followed.backlog.popleft()
            try:
                path = self._blobs.path(offer.picture)
                answer = process.inspect(path, offer.name, may_run)
            except CandidateFailed:
                self._count_failed(model, followed)
                raise
        except CandidateFailed as error:
            if followed.removed or self._closed:
                raise Stopped from None
            self._end(followed)
            trouble = self._paths.hide(str(error))
            if trouble != followed.trouble:
                LOG.warning("the candidate '%s' of '%s' does not inspect: %s", followed.candidate, model, trouble)
            followed.trouble, followed.retry_at = trouble, time.monotonic() + RETRY_SECONDS
            return
        followed.trouble = None
        if "failed" in answer:
            self._count_failed(model, followed)
            return
        if not self._results:
            self._oldest = time.monotonic()
        live = {"live_identity": offer.identity, "live_verdict": offer.verdict}
        found = {key: answer[key] for key in ("identity", "score", "threshold", "verdict", "seconds")}
        subject = {"inspection": offer.inspection, "model": model, "candidate": followed.candidate, "at": time.time()}
        self._results.append({**subject, **found, **live})

    def _process_of(self, followed: Followed, may_run: Callable[[], bool]) -> CandidateProcess:
        """The process with the present version of the candidate."""
        if followed.candidate not in self._models:
            raise CandidateFailed(f"the model '{followed.candidate}' is not served")
        served = self._models[followed.candidate]
        process = followed.process
        if process is not None and process.identity != served.identity:
            self._end(followed)
            process = None
        if process is None:
            process = CandidateProcess(served.folder, self._settings)
            with self._changed:
                if followed.removed:
                    process.close()
                    raise Stopped
                followed.process = process
            process.load(may_run)
        return process

    def _end(self, followed: Followed) -> None:
        with self._changed:
            process, followed.process = followed.process, None
        if process is not None:
            process.close()

    def _count_failed(self, model: str, followed: Followed) -> None:
        followed.failed += 1
        self._telemetry.shadow.labels(model, "failed").inc()

    def _write(self) -> None:
        """Store the results that wait."""
        rows, self._results = self._results, []
        if not rows:
            return
        try:
            self._store.add_shadow_results(rows)
        except StoreUnavailable as error:
            LOG.warning("%d results of candidates were not stored: %s", len(rows), error)
            return
        for row in rows:
            self._telemetry.shadow.labels(row["model"], "stored").inc()
