"""Long work in the background, one job after another. A job outlives the browser that asked for it, and the server:
what was not finished when a service ended is taken up again by the next."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from patchsvdd.files import output_errors
from patchsvdd.serve.store import Row, Store, StoreUnavailable, new_id

LOG = logging.getLogger("patchsvdd.serve")
UNFINISHED = ("waiting", "running")
ENDED = ("done", "failed", "cancelled")
GRACE = 20.0
"""Seconds that a job has to keep what it has done when the service ends."""
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Jobs:
    """The jobs, and the thread that runs them."""

    def __init__(self, store: Store, folder: Path, on_done: Callable[[Row], None]) -> None:
        self._store, self._folder, self._on_done = store, folder, on_done
        self._changed = threading.Condition()
        self._stopped = False
        self._running: subprocess.Popen[str] | None = None
        self._running_id: str | None = None
        self._cancelled: set[str] = set()
        self._thread = threading.Thread(target=self._run_all, name="jobs", daemon=True)

    def start(self) -> None:
        """Take up what was left unfinished, and whatever comes."""
        self._thread.start()

    def folder(self, number: str) -> Path:
        """Where a job keeps its files."""
        return self._folder / number

    def prepare(self) -> tuple[str, Path]:
        """The number and the folder of a job to come."""
        number = new_id()
        folder = self.folder(number)
        with output_errors(folder):
            folder.mkdir(parents=True)
        return number, folder

    def add(self, number: str, kind: str, model: str, order: Mapping[str, Any], by: str) -> Row:
        """A job that will be done."""
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
        """Stop a job; a training that was cancelled does not go on by itself."""
        self._cancelled.add(number)
        with self._changed:
            if self._running_id == number and self._running is not None and self._running.stdin is not None:
                with suppress(OSError):
                    self._running.stdin.close()
            self._changed.notify()

    def losses(self, number: str) -> list[dict[str, Any]]:
        """How a training went so far."""
        try:
            lines = (self.folder(number) / "losses.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with suppress(ValueError):  # the last line of a killed service
                found.append(json.loads(line))
        return found

    def files(self, number: str) -> list[str]:
        """Pictures that a job has made, in order."""
        folder = self.folder(number) / "pictures"
        return sorted(path.name for path in folder.glob("*") if FILE.fullmatch(path.name)) if folder.is_dir() else []

    def close(self) -> None:
        """Stop the job that runs; the next service goes on with it."""
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

    def _run_all(self) -> None:
        while not self._stopped:
            try:
                waiting = self._store.jobs(states=UNFINISHED, limit=1000)
            except StoreUnavailable:
                waiting = []
            if waiting:
                try:
                    self._run(waiting[-1])
                except StoreUnavailable as error:  # its state is not written down: it is done again
                    LOG.warning("job %s: %s", waiting[-1]["id"], error)
                    time.sleep(1.0)
                continue
            with self._changed:
                if not self._stopped:
                    self._changed.wait(timeout=5.0)

    def _run(self, row: Row) -> None:
        number = row["id"]
        if number in self._cancelled:
            self._end(row, state="cancelled", stage="cancelled")
            return
        again = row["state"] == "running"
        self._store.update_job(number, state="running")
        order = {**row["order"], "kind": row["kind"], "again": again, "folder": str(self.folder(number))}
        command = [sys.executable, "-m", "patchsvdd.serve.work"]
        with (
            (self.folder(number) / "errors.txt").open("w") as errors,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            with self._changed:
                self._running, self._running_id = process, number
            try:
                outcome = self._follow(process, number, order)
            finally:
                with self._changed:
                    self._running = self._running_id = None
        if number in self._cancelled:
            self._end(row, state="cancelled", stage="cancelled")
        elif "result" in outcome:
            self._end({**row, "result": outcome["result"]}, state="done", stage="done", result=outcome["result"])
        elif "error" in outcome:
            self._end(row, state="failed", stage="failed", error=outcome["error"])
        elif not self._stopped:
            said = (self.folder(number) / "errors.txt").read_text().strip().splitlines()
            LOG.error("job %s ended without a word: %s", number, said[-1] if said else "")
            words = "the process that did it ended unexpectedly; the server's log says more"
            self._end(row, state="failed", stage="failed", error=words)

    def _follow(self, process: subprocess.Popen[str], number: str, order: Mapping[str, Any]) -> dict[str, Any]:
        """The last word of a job's process; its progress on the way."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        outcome: dict[str, Any] = {}
        with (self.folder(number) / "losses.jsonl").open("a") as losses:
            for line in process.stdout:
                said = json.loads(line)
                if "losses" in said:
                    losses.write(json.dumps(said["losses"]) + "\n")
                    losses.flush()
                elif "stage" in said:
                    with suppress(StoreUnavailable):
                        self._store.update_job(number, stage=said["stage"], done=said["done"], total=said["total"])
                else:
                    outcome = said
        return outcome

    def _end(self, row: Row, **values: Any) -> None:
        if values["state"] == "done":
            self._on_done(row)
        self._store.update_job(row["id"], **values)
        for part in ("others", "model"):
            shutil.rmtree(self.folder(row["id"]) / part, ignore_errors=True)


def safe_names(names: Sequence[str]) -> list[str]:
    """File names, in order, that are safe on any disk and differ from each other."""
    found = []
    for number, name in enumerate(names, start=1):
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(name.replace("\\", "/")).name).strip("._") or "image"
        found.append(f"{number:04}-{stem[-80:]}")
    return found
