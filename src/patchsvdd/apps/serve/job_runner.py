"""Background jobs. Trainings run one after another; changes of models and previews do too, beside the trainings.

A job does not depend on the browser that started it, and an unfinished job resumes when the service starts again. It
belongs to the service that accepted it, which has its files; other services on the same database leave it alone.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import this_process
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.hidden_paths import HiddenPaths
from patchsvdd.apps.serve.job_audit import as_order, job_record
from patchsvdd.apps.serve.job_lane import CANCELLED, LOSSES, Lane, LaneTools, tidy
from patchsvdd.apps.serve.job_store import UNFINISHED
from patchsvdd.apps.serve.loss_file import read_losses
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.service_lock import is_running
from patchsvdd.apps.serve.store import Row, Store, new_id
from patchsvdd.core.errors import OutputError
from patchsvdd.core.files import output_errors

LOG = logging.getLogger("patchsvdd.apps.serve")
GRACE = 20.0
"""Seconds that jobs have to save their progress when the service stops."""
LANES = {
    "train": ("train",),
    "change": ("learn", "undo", "teach", "preview", "teach-preview", "threshold", "recalibrate"),
}
"""Name of a lane → kinds of its jobs."""
NUMBER = re.compile(r"[0-9a-f]{24}")
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ENDED_EARLY = ("failed", "cancelled")


class Jobs:
    """The jobs of a service, and the lanes that run them."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        on_done: Callable[[Row], None],
        *,
        owner: str,
        paths: HiddenPaths | None = None,
        may_run: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._folder, self.owner = store, folder, owner
        self._begun = new_id()[:12]
        tools = LaneTools(store, folder, owner, paths or HiddenPaths(folder.parent), on_done, may_run)
        self._lanes = {name: Lane(name, kinds, tools) for name, kinds in LANES.items()}

    def start(self) -> None:
        """Start running jobs, including unfinished ones."""
        threading.Thread(target=self._prepare_folder, name="jobs", daemon=True).start()
        for lane in self._lanes.values():
            lane.start()

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

    def add(self, number: str, kind: str, model: str, order: Mapping[str, Any], by: Actor | str) -> Row:
        """Queue a job; returns its row."""
        now, actor = time.time(), Actor.of(by)
        row: dict[str, Any] = {"id": number, "kind": kind, "model": model, "by": actor.name}
        row["order"] = {**order, "by": as_order(actor)}
        row |= {"state": "waiting", "stage": "waiting", "done": 0, "total": 0, "created": now, "updated": now}
        row |= {"owner": self.owner, "started": None}
        self._store.insert_job(row, job_record(row, "started"))
        self._wake()
        return {**row, "result": None, "error": None}

    def cancel(self, number: str, by: Actor | None = None) -> Row:
        """Stop a job: at once if it waits, otherwise as soon as its process has stopped. Returns its row."""
        row = self.found(number)
        actor = by or this_process()
        ended: dict[str, Any] = {"state": "cancelled", "stage": "cancelled"}
        ended["record"] = job_record(row, "cancelled", actor)
        if row["state"] not in UNFINISHED:
            raise Problem("conflict", f"job {number} has already ended: it is {row['state']}")
        if row["owner"] != self.owner:
            if row["owner"] is not None and self._is_running(row["owner"]):
                raise _elsewhere("cancelled")
            self._store.change_state(number, UNFINISHED, **ended)  # its service is gone, and would run it later
        elif self._store.change_state(number, ("waiting",), **ended):
            tidy(self.folder(number), row["kind"])
        else:
            mark = self.folder(number) / CANCELLED
            with output_errors(mark):  # on disk, so that it survives a restart
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.write_text(json.dumps(as_order(actor)))
            for lane in self._lanes.values():
                lane.interrupt(number)
        return self.found(number)

    def repeat(self, number: str, order: Mapping[str, Any], by: Actor | None = None) -> Row:
        """Queue a failed or cancelled job of this service again; returns its row."""
        actor = by or this_process()
        order = {**order, "by": as_order(actor)}
        (self.folder(number) / CANCELLED).unlink(missing_ok=True)
        values: dict[str, Any] = {"state": "waiting", "stage": "waiting", "order": dict(order)}
        values |= dict.fromkeys(("error", "result", "started")) | {"done": 0, "total": 0}
        record = job_record({**self.found(number), "order": order}, "started", resume=order.get("resume", False))
        if not self._store.change_state(number, ENDED_EARLY, self.owner, record=record, **values):
            raise Problem("conflict", f"job {number} was started again in the meantime")
        self._wake()
        return self.found(number)

    def forget_results(self, number: str) -> None:
        """Delete the losses and pictures of a training that starts over."""
        (self.folder(number) / LOSSES).unlink(missing_ok=True)
        shutil.rmtree(self.folder(number) / "pictures", ignore_errors=True)

    def found(self, number: str) -> Row:
        """One job; raises Problem if it does not exist."""
        row = self._store.job(number)
        if row is None:
            raise Problem("not-found", f"there is no job {number}")
        return row

    def ended_here(self, number: str) -> Row:
        """A failed or cancelled training of this service; raises Problem if the job is anything else."""
        row = self.found(number)
        if row["kind"] != "train":
            raise Problem("conflict", f"job {number} is not a training; start it again from where it was started")
        if row["owner"] != self.owner:
            raise _elsewhere("continued")
        if row["state"] not in ENDED_EARLY:
            raise Problem("conflict", f"job {number} is {row['state']}; only failed or cancelled trainings can go on")
        return row

    def situation(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """For each job: what it waits for, how far it is, and whether it belongs to this service."""
        running: dict[tuple[str | None, str], Row] = {}
        if any(row["state"] == "waiting" for row in rows):
            running = {(row["owner"], _lane(row["kind"])): row for row in self._store.jobs(states=("running",))}
        return [self._situation(row, running) for row in rows]

    def _situation(self, row: Row, running: Mapping[tuple[str | None, str], Row]) -> dict[str, Any]:
        first = running.get((row["owner"], _lane(row["kind"]))) if row["state"] == "waiting" else None
        forecast = self._lanes[_lane(row["kind"])].forecast(row["id"]) if row["state"] == "running" else None
        fraction = 1.0 if row["state"] == "done" else None if forecast is None else forecast.fraction
        return {
            "waiting_for": None if first is None else {"kind": first["kind"], "model": first["model"]},
            "fraction": fraction,
            "seconds_left": None if forecast is None else forecast.seconds_left,
            "here": row["owner"] == self.owner,
        }

    def losses(self, number: str) -> list[dict[str, Any]]:
        """The losses of a training so far."""
        return read_losses(self.folder(number) / LOSSES)

    def files(self, number: str) -> list[str]:
        """Names of the images that a job has written, sorted."""
        folder = self.folder(number) / "pictures"
        return sorted(path.name for path in folder.glob("*") if FILE.fullmatch(path.name)) if folder.is_dir() else []

    def close(self) -> None:
        """Stop the running jobs; they resume when the service starts again."""
        for lane in self._lanes.values():
            lane.stop()
        end = time.monotonic() + GRACE
        for lane in self._lanes.values():
            lane.join(max(0.0, end - time.monotonic()))

    def _wake(self) -> None:
        for lane in self._lanes.values():
            lane.wake()

    def _is_running(self, service: str) -> bool:
        try:
            return is_running(self._store.url, service)
        except OutputError as error:
            raise StoreUnavailable(str(error)) from None

    def _prepare_folder(self) -> None:
        with suppress(StoreUnavailable, OSError):
            self._adopt()
            self._wake()
            self._tidy(self._begun)

    def _adopt(self) -> None:
        """Take over the jobs of an earlier version, which recorded no owner, if their files are here."""
        for number in self._store.jobs_without_owner():
            if self.folder(number).is_dir() and self._store.adopt_job(number, self.owner):
                LOG.info("job %s belongs to this service now", number)

    def _tidy(self, before: str) -> None:
        """Delete folders of incomplete uploads of an earlier service, which never became a job."""
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                if NUMBER.fullmatch(folder.name) and folder.name[:12] < before and self._store.job(folder.name) is None:
                    shutil.rmtree(folder, ignore_errors=True)


def _lane(kind: str) -> str:
    """Name of the lane that runs jobs of a kind."""
    return next((name for name, kinds in LANES.items() if kind in kinds), "change")


def _elsewhere(what: str) -> Problem:
    return Problem(
        "conflict", f"this job belongs to another service on the same database and can only be {what} on that one"
    )


def safe_name(name: str, number: int) -> str:
    """A file name that is safe on any file system, and unique for each number."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(name.replace("\\", "/")).name[-200:]).strip("._") or "image"
    return f"{number:04}-{stem[-80:]}"
