"""Jobs that change models: learn reviewed false alarms, undo that, or train a new model."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.job_runner import Jobs
from patchsvdd.apps.serve.model_registry import NAME, ModelRegistry
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import SUFFIXES
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Filter, Row, Store
from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.core.files import output_errors
from patchsvdd.detector.model_folder import journal_of, read_index, undoable

LOG = logging.getLogger("patchsvdd.apps.serve")
COMPARED = 40
"""Number of other inspections that a preview of learning scores again."""


class ModelJobs:
    """Creates jobs for requests, and updates models and inspections when the jobs are done."""

    def __init__(self, settings: Settings, store: Store, blobs: Blobs, models: ModelRegistry) -> None:
        self._settings, self._store, self._blobs, self._models = settings, store, blobs, models
        self.jobs = Jobs(store, settings.data / "jobs", self._done)

    def _learnable(self, name: str, numbers: Sequence[str] | None) -> list[Row]:
        """The inspections to learn from; raises Problem if there are none or some must not be learned."""
        if numbers is None:
            rows = self._store.inspections(Filter(model=name, review="false_alarm", learned=False), 1000)
        else:
            rows = [self._store.inspection(number) for number in dict.fromkeys(numbers)]
        for row in rows:
            if row["model"] != name or row["review"] != "false_alarm":
                raise Problem(
                    "conflict",
                    f"inspection {row['id']} is not a reviewed false alarm of '{name}': review it first. A model "
                    f"learns only from images that a person has marked as good",
                )
        rows = [row for row in rows if row["picture"] is not None and row["learned_by"] is None]
        if not rows:
            raise Problem("conflict", "there are no reviewed false alarms left to learn from")
        return rows

    def learn(
        self, name: str, numbers: Sequence[str] | None, by: str, *, preview: bool, keep_threshold: bool = True
    ) -> Row:
        """Add a job that learns reviewed false alarms, or previews what that would change."""
        model = self._models.named(name)
        rows = self._learnable(name, numbers)
        kind = "preview" if preview else "learn"
        others: list[Row] = []
        if preview:
            chosen = {row["id"] for row in rows}
            others = [
                row for row in self._store.inspections(Filter(model=name), 4 * COMPARED) if row["id"] not in chosen
            ]
            others = [row for row in others if row["identity"] == model.identity and row["picture"]][:COMPARED]
        number, folder = self.jobs.prepare()
        try:
            self._copy_images(rows, folder / "images")
            if others:
                self._copy_images(others, folder / "others")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        order = {
            "model": str(model.folder.resolve()),
            "device": self._settings.device,
            "images": str(folder / "images"),
            "others": str(folder / "others"),
            "inspections": [row["id"] for row in rows],
            "compared": [row["id"] for row in others],
            "keep_threshold": keep_threshold,
        }
        return self.jobs.add(number, kind, name, order, by)

    def _copy_images(self, rows: Sequence[Row], folder: Path) -> None:
        """Copy images for a job, named by their inspections."""
        with output_errors(folder):
            folder.mkdir()
        for row in rows:
            data = self._blobs.get(row["picture"])
            path = folder / f"{row['id']}{SUFFIXES[row['media_type']]}"
            if data is not None:
                with output_errors(path):
                    path.write_bytes(data)

    def undo(self, name: str, by: str) -> Row:
        """Add a job that undoes a model's last change."""
        model = self._models.named(name)
        index = read_index(model.folder)
        journal = journal_of(index)
        in_force = undoable(journal)
        if not in_force:
            raise Problem("conflict", f"'{name}' has no change to undo")
        last = next(entry for entry in journal if entry["change"] != "undo" and entry["number"] == in_force[-1])
        number, _ = self.jobs.prepare()
        order = {"model": str(model.folder.resolve()), "identity": index["identity"], "images": last["images"]}
        return self.jobs.add(number, "undo", name, order, by)

    def train(self, name: str, folder: Path, number: str, preset: str, settings: dict[str, Any], by: str) -> Row:
        """Add a job that trains a model on the uploaded images in ``folder``."""
        if not NAME.fullmatch(name):
            raise Problem("invalid-request", f"model names have only letters, digits and . _ -; got '{name[:100]}'")
        out = self._settings.trained / name
        busy = any(job["model"] == name for job in self._store.jobs(states=("waiting", "running")))
        if name in self._models or out.exists() or busy:
            raise Problem("conflict", f"a model named '{name}' already exists; choose another name")
        order = {
            "model": str(out.resolve()),
            "device": self._settings.device,
            "images": str(folder.resolve()),
            "preset": preset,
            "settings": settings,
        }
        return self.jobs.add(number, "train", name, order, by)

    def _done(self, job: Row) -> None:
        """Update models and inspections after a job, before it is marked as done."""
        name, order = job["model"], job["order"]
        try:
            if job["kind"] == "train":
                if name not in self._models:
                    self._models.add(Path(order["model"]))
            elif job["kind"] in ("learn", "undo"):
                self._models.reload(name)
        except (PatchSVDDError, OSError, KeyError) as error:
            LOG.warning("the model '%s' could not be loaded right away: %s", name, error)
        if job["kind"] == "learn":
            self._store.mark_learned(order["inspections"], job["id"])
        if job["kind"] == "undo":
            undone = set(job["result"].get("images", ()))
            for earlier in self._store.jobs(model=name, states=("done",), limit=1000):
                learned = set((earlier["result"] or {}).get("images", ()))
                if earlier["kind"] == "learn" and learned and learned == undone:
                    self._store.mark_learned(earlier["order"]["inspections"], None)
                    break
