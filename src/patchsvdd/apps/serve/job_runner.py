"""Background jobs, run one after another. A job does not depend on the browser that started it, and an unfinished job
resumes when the service starts again."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.store import Row, Store, new_id
from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.core.files import output_errors

LOG = logging.getLogger("patchsvdd.apps.serve")
UNFINISHED = ("waiting", "running")
GRACE = 20.0
"""Seconds that a job has to save its progress when the service stops."""
CANCELLED = "cancelled"
"""File in the folder of a job that marks it as cancelled."""
NUMBER = re.compile(r"[0-9a-f]{24}")
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Jobs:
    """The jobs, and the thread that runs them."""

    def __init__(self, store: Store, folder: Path, on_done: Callable[[Row], None]) -> None:
        self._store, self._folder, self._on_done = store, folder, on_done
        self._changed = threading.Condition()
        self._stopped = False
        self._begun = new_id()[:12]
        self._running: subprocess.Popen[str] | None = None
        self._running_id: str | None = None
        self._thread = threading.Thread(target=self._run_all, name="jobs", daemon=True)

    def start(self) -> None:
        """Start running jobs, including unfinished ones."""
        self._thread.start()

    def folder(self, number: str) -> Path:
        """The folder of a job's files."""
        return self._folder / number

    def prepare(self) -> tuple[str, Path]:
        """Create the folder of a new job; returns its number and the folder."""
        number = new_id()
        folder = self.folder(number)
        with output_errors(folder):
            folder.mkdir(parents=True)
        return number, folder

    def add(self, number: str, kind: str, model: str, order: Mapping[str, Any], by: str) -> Row:
        """Queue a job; returns its row."""
        now = time.time()
        row: dict[str, Any] = {
            "id": number,
            "kind": kind,
            "model": model,
            "state": "waiting",
            "order": dict(order),
            "by": by,
        }
        row |= {"stage": "waiting", "done": 0, "total": 0, "created": now, "updated": now}
        self._store.insert_job(row)
        with self._changed:
            self._changed.notify()
        return {**row, "result": None, "error": None}

    def cancel(self, number: str) -> None:
        """Stop a job; a cancelled training does not resume."""
        mark = self.folder(number) / CANCELLED
        with output_errors(mark):  # on disk, so that it survives a restart
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        with self._changed:
            if self._running_id == number and self._running is not None and self._running.stdin is not None:
                with suppress(OSError):
                    self._running.stdin.close()
            self._changed.notify()

    def losses(self, number: str) -> list[dict[str, Any]]:
        """The losses of a training so far."""
        try:
            lines = (self.folder(number) / "losses.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        losses = []
        for line in lines:
            with suppress(ValueError):  # an incomplete last line, if the service was killed
                losses.append(json.loads(line))
        return losses

    def files(self, number: str) -> list[str]:
        """Names of the images that a job has written, sorted."""
        folder = self.folder(number) / "pictures"
        return sorted(path.name for path in folder.glob("*") if FILE.fullmatch(path.name)) if folder.is_dir() else []

    def close(self) -> None:
        """Stop the running job; it resumes when the service starts again."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            if self._running is not None and self._running.stdin is not None:
                with suppress(OSError):
                    self._running.stdin.close()
        if self._thread.is_alive():
            self._thread.join(GRACE)
        if self._running is not None:
            self._running.kill()

    def _tidy(self, before: str) -> None:
        """Delete folders of incomplete uploads of an earlier service, which never became a job."""
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                if NUMBER.fullmatch(folder.name) and folder.name[:12] < before and self._store.job(folder.name) is None:
                    shutil.rmtree(folder, ignore_errors=True)

    def _run_all(self) -> None:
        with suppress(StoreUnavailable, OSError):
            self._tidy(self._begun)
        while not self._stopped:
            try:
                waiting = self._store.jobs(states=UNFINISHED, limit=1000)
            except StoreUnavailable:
                waiting = []
            if waiting:
                try:
                    self._run(waiting[-1])
                except (StoreUnavailable, OSError, PatchSVDDError) as error:  # the outcome is unknown: run it again
                    LOG.warning("job %s: %s", waiting[-1]["id"], error)
                    self._pause(1.0)
                except Exception as error:
                    LOG.exception("job %s", waiting[-1]["id"])
                    with suppress(StoreUnavailable):
                        self._end(waiting[-1], state="failed", stage="failed", error=f"it failed: {error}")
                    self._pause(1.0)
                continue
            with self._changed:
                if not self._stopped:
                    self._changed.wait(timeout=5.0)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, timeout=seconds)

    def _is_cancelled(self, number: str) -> bool:
        return (self.folder(number) / CANCELLED).exists()

    def _run(self, row: Row) -> None:
        number = row["id"]
        if self._is_cancelled(number) and row["state"] == "waiting":
            self._end(row, state="cancelled", stage="cancelled")
            return
        again = row["state"] == "running"
        self.folder(number).mkdir(parents=True, exist_ok=True)
        self._store.update_job(number, state="running")
        order = {**row["order"], "kind": row["kind"], "again": again, "folder": str(self.folder(number))}
        command = [sys.executable, "-m", "patchsvdd.apps.serve.job_process"]
        with (
            (self.folder(number) / "errors.txt").open("w") as errors,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment()
            ) as process,
        ):
            with self._changed:
                self._running, self._running_id = process, number
            try:
                outcome = self._follow(process, number, order)
            finally:
                with self._changed:
                    self._running = self._running_id = None
        if "result" in outcome:  # even if it was cancelled: the model has changed
            self._end({**row, "result": outcome["result"]}, state="done", stage="done", result=outcome["result"])
        elif self._is_cancelled(number):
            self._end(row, state="cancelled", stage="cancelled")
        elif "error" in outcome:
            self._end(row, state="failed", stage="failed", error=outcome["error"])
        elif not self._stopped:
            output = (self.folder(number) / "errors.txt").read_text().strip().splitlines()
            LOG.error("job %s ended without a result: %s", number, output[-1] if output else "")
            words = "the job's process ended unexpectedly; see the server's log"
            self._end(row, state="failed", stage="failed", error=words)

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
        with (self.folder(number) / "losses.jsonl").open("a") as losses:
            for line in process.stdout:
                try:
                    message = json.loads(line)
                    if not isinstance(message, dict):
                        continue
                except ValueError:  # output of a library
                    continue
                if "losses" in message:
                    losses.write(json.dumps(message["losses"]) + "\n")
                    losses.flush()
                elif "stage" in message:
                    progress = {name: message[name] for name in ("stage", "done", "total")}
                    with suppress(StoreUnavailable):
                        self._store.update_job(number, **progress)
                else:
                    outcome = message
        return outcome

    def _end(self, row: Row, **values: Any) -> None:
        if values["state"] == "done":
            self._on_done(row)
        self._store.update_job(row["id"], **values)
        kept = () if row["kind"] == "train" else ("images",)
        for part in ("others", "model", *kept):
            shutil.rmtree(self.folder(row["id"]) / part, ignore_errors=True)


def _environment() -> dict[str, str]:
    """The environment of a job's process, without the PostgreSQL credentials."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def safe_name(name: str, number: int) -> str:
    """A file name that is safe on any file system, and unique for each number."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(name.replace("\\", "/")).name[-200:]).strip("._") or "image"
    return f"{number:04}-{stem[-80:]}"
