"""A lane: one thread that runs the jobs of some kinds one after another, each in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.client_names import read_names
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.hidden_paths import HiddenPaths
from patchsvdd.apps.serve.job_audit import job_record
from patchsvdd.apps.serve.job_store import UNFINISHED
from patchsvdd.apps.serve.loss_file import LossFile
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.training_progress import Forecast, TrainingProgress
from patchsvdd.core.errors import PatchSVDDError

LOG = logging.getLogger("patchsvdd.apps.serve")
COMMAND = (sys.executable, "-m", "patchsvdd.apps.serve.job_process")
CANCELLED = "cancelled"
"""File in the folder of a job that marks it as cancelled."""
LOSSES = "losses.jsonl"
CHECK_SECONDS = 5.0
"""Seconds between two looks at the database, if no new job is announced."""


@dataclass(frozen=True)
class LaneTools:
    """What all lanes of a service share."""

    store: Store
    folder: Path
    """Folder of the jobs' folders."""
    owner: str
    """Id of the service."""
    paths: HiddenPaths
    on_done: Callable[[Row], None]
    may_run: Callable[[], bool]
    """Whether this service may run jobs now."""


class Lane:
    """Runs jobs of some kinds. Interrupted jobs come first, then the oldest."""

    def __init__(self, name: str, kinds: Sequence[str], tools: LaneTools) -> None:
        self.kinds = tuple(kinds)
        self._tools, self._store = tools, tools.store
        self._changed = threading.Condition()
        self._stopped = False
        self._running: subprocess.Popen[str] | None = None
        self._running_id: str | None = None
        self._progress: TrainingProgress | None = None
        self._thread = threading.Thread(target=self._run_all, name=f"jobs-{name}", daemon=True)

    def start(self) -> None:
        """Start running jobs, including unfinished ones."""
        self._thread.start()

    def wake(self) -> None:
        """Tell the lane that there may be a new job."""
        with self._changed:
            self._changed.notify_all()

    def interrupt(self, number: str) -> None:
        """Ask a job to stop if it is running."""
        with self._changed:
            if self._running_id == number:
                self._close_input()
            self._changed.notify_all()

    def forecast(self, number: str) -> Forecast | None:
        """How far a running training is; None if it is not running here."""
        with self._changed:
            progress = self._progress if self._running_id == number else None
        return None if progress is None else progress.forecast()

    def stop(self) -> None:
        """Ask the running job to stop; it resumes when the service starts again."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._close_input()

    def join(self, seconds: float) -> None:
        """Wait for the running job to stop, and kill it after ``seconds``."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._running is not None:
            self._running.kill()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _close_input(self) -> None:
        if self._running is not None and self._running.stdin is not None:
            with suppress(OSError):
                self._running.stdin.close()

    def _run_all(self) -> None:
        while not self._stopped:
            row = None
            with suppress(StoreUnavailable):
                row = self._store.next_job(self._tools.owner, self.kinds) if self._tools.may_run() else None
            if row is None:
                with self._changed:
                    if not self._stopped:
                        self._changed.wait(timeout=CHECK_SECONDS)
                continue
            try:
                self._run(row)
            except (StoreUnavailable, OSError, PatchSVDDError) as error:  # the outcome is unknown: run it again
                LOG.warning("job %s: %s", row["id"], error)
                self._pause(1.0)
            except Exception as error:
                LOG.exception("job %s", row["id"])
                with suppress(StoreUnavailable):
                    self._end(row, state="failed", stage="failed", error=f"it failed: {error}")
                self._pause(1.0)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, timeout=seconds)

    def _folder(self, number: str) -> Path:
        return self._tools.folder / number

    def _is_cancelled(self, number: str) -> bool:
        return (self._folder(number) / CANCELLED).exists()

    def _canceller(self, number: str) -> Actor | None:
        """Who asked to cancel a job; None if that is not known."""
        try:
            said = json.loads((self._folder(number) / CANCELLED).read_text())
            return Actor(said["name"], said["kind"], said["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _run(self, row: Row) -> None:
        number, again = row["id"], row["state"] == "running"
        if not again and not self._store.claim_job(number, self._tools.owner):
            return  # it was cancelled
        self._folder(number).mkdir(parents=True, exist_ok=True)
        folder = str(self._folder(number))
        order = {**row["order"], "kind": row["kind"], "again": again, "folder": folder, "number": number}
        with (
            (self._folder(number) / "errors.txt").open("w") as errors,
            subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment()
            ) as process,
        ):
            LOG.info("job %s started: %s of '%s', process %d", number, row["kind"], row["model"], process.pid)
            with self._changed:
                self._running, self._running_id, self._progress = process, number, None
            try:
                outcome = self._follow(process, number, order)
            finally:
                with self._changed:
                    self._running = self._running_id = self._progress = None
        self._conclude(row, outcome, process.returncode)

    def _conclude(self, row: Row, outcome: Mapping[str, Any], status: int) -> None:
        """Store how a job's process ended."""
        number = row["id"]
        if "result" in outcome:  # even if it was cancelled: the model has changed
            result = self._told(number, outcome["result"])
            self._end({**row, "result": outcome["result"]}, state="done", stage="done", result=result, error=None)
        elif self._is_cancelled(number):
            self._end(row, state="cancelled", stage="cancelled")
        elif "error" in outcome:
            LOG.warning("job %s failed: %s", number, outcome["error"])
            error = self._tools.paths.hide(outcome["error"], read_names(self._folder(number)))
            self._end(row, state="failed", stage="failed", error=error)
        elif self._stopped or "interrupted" in outcome:  # by a signal to all processes of the service: it is stopping
            self._pause(1.0)
        else:
            output = (self._folder(number) / "errors.txt").read_text(errors="replace").strip().splitlines()
            words = _death(row["kind"], status)
            LOG.error("job %s: %s; its last line: %s", number, words, output[-1] if output else "none")
            self._end(row, state="failed", stage="failed", error=words)

    def _told(self, number: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """The result with images named as clients know them, where it says what is wrong with them."""
        names = read_names(self._folder(number))
        lists = {key: self._tools.paths.hide_in(result[key], names) for key in ("skipped", "copies") if key in result}
        return {**result, **lists}

    def _follow(self, process: subprocess.Popen[str], number: str, order: Mapping[str, Any]) -> dict[str, Any]:
        """Read a job's messages and store its progress; returns its outcome."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError, ValueError):  # it has ended, or was stopped
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            with self._changed:
                if self._stopped or self._is_cancelled(number):
                    process.stdin.close()
        outcome: dict[str, Any] = {}
        losses: LossFile | None = None
        try:
            for line in process.stdout:
                try:
                    message = json.loads(line)
                    if not isinstance(message, dict):
                        continue
                except ValueError:  # output of a library
                    continue
                if "losses" in message:
                    losses = losses or LossFile(self._folder(number) / LOSSES)
                    losses.add(message["losses"])
                elif "plan" in message:
                    with self._changed:
                        self._progress = TrainingProgress(message["plan"])
                elif "stage" in message:
                    self._report(number, message["stage"], message["done"], message["total"])
                else:
                    outcome = message
        finally:
            if losses is not None:
                losses.close()
        return outcome

    def _report(self, number: str, stage: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress.report(stage, done, total)
        with suppress(StoreUnavailable):
            self._store.update_job(number, stage=stage, done=done, total=total)

    def _end(self, row: Row, **values: Any) -> None:
        state = values["state"]
        if state == "done":
            self._tools.on_done(row)
        by = self._canceller(row["id"]) if state == "cancelled" else None
        record = job_record(row, state, by, **({"error": values["error"]} if state == "failed" else {}))
        self._store.change_state(row["id"], UNFINISHED, self._tools.owner, record=record, **values)
        tidy(self._folder(row["id"]), row["kind"])
        LOG.info("job %s ended: %s", row["id"], values["state"])


def tidy(folder: Path, kind: str) -> None:
    """Delete what an ended job does not need: all images, except those that a training may be continued with."""
    for part in ("others", "masks", "model", *(() if kind == "train" else ("images",))):
        shutil.rmtree(folder / part, ignore_errors=True)


def _death(kind: str, status: int) -> str:
    """What to tell a user if a job's process ended without a result."""
    process = "the training's process" if kind == "train" else "the job's process"
    remedy = "continue it" if kind == "train" else "try again"
    if status == -signal.SIGKILL:
        fewer = "use fewer or smaller images" if kind == "train" else "with fewer images"
        return f"{process} was killed (SIGKILL), probably because memory ran out; {remedy}, or {fewer}"
    if status < 0:
        with suppress(ValueError):
            return f"{process} was ended by a signal ({signal.Signals(-status).name}); {remedy}"
    return f"{process} ended unexpectedly (exit status {status}); {remedy}. The server's log says more"


def _environment() -> dict[str, str]:
    """The environment of a job's process, without the PostgreSQL credentials."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
