"""What is ordered of the models, as jobs: learning reviewed false alarms, taking that back, training a new one."""

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
"""Other inspections that a preview of learning scores again."""


class ModelJobs:
    """Makes jobs of what is wanted, and draws the consequences when they are done."""

    def __init__(self, settings: Settings, store: Store, blobs: Blobs, models: ModelRegistry) -> None:
        self._settings, self._store, self._blobs, self._models = settings, store, blobs, models
        self.jobs = Jobs(store, settings.data / "jobs", self._done)

    def _learnable(self, name: str, numbers: Sequence[str] | None) -> list[Row]:
        """The inspections to learn from; a Problem if there are none, or some may not be."""
        if numbers is None:
            rows = self._store.inspections(Filter(model=name, review="false_alarm", learned=False), 1000)
        else:
            rows = [self._store.inspection(number) for number in dict.fromkeys(numbers)]
        for row in rows:
            if row["model"] != name or row["review"] != "false_alarm":
                raise Problem(
                    "conflict",
                    f"inspection {row['id']} is not a reviewed false alarm of '{name}': review it first. Nothing is "
                    f"learned that a person has not called good",
                )
        rows = [row for row in rows if row["picture"] is not None and row["learned_by"] is None]
        if not rows:
            raise Problem("conflict", "there is no reviewed false alarm to learn from that is not learned yet")
        return rows

    def learn(
        self, name: str, numbers: Sequence[str] | None, by: str, *, preview: bool, keep_threshold: bool = True
    ) -> Row:
        """A job that puts reviewed false alarms into a model's memory, or says what that would change."""
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
            self._hand_out(rows, folder / "images")
            if others:
                self._hand_out(others, folder / "others")
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

    def _hand_out(self, rows: Sequence[Row], folder: Path) -> None:
        """Copies of pictures, named by their inspections, for a job."""
        with output_errors(folder):
            folder.mkdir()
        for row in rows:
            data = self._blobs.get(row["picture"])
            path = folder / f"{row['id']}{SUFFIXES[row['media_type']]}"
            if data is not None:
                with output_errors(path):
                    path.write_bytes(data)

    def undo(self, name: str, by: str) -> Row:
        """A job that takes a model's last change back."""
        model = self._models.named(name)
        index = read_index(model.folder)
        journal = journal_of(index)
        in_force = undoable(journal)
        if not in_force:
            raise Problem("conflict", f"there is no change of '{name}' to undo")
        last = next(one for one in journal if one["change"] != "undo" and one["number"] == in_force[-1])
        number, _ = self.jobs.prepare()
        order = {"model": str(model.folder.resolve()), "identity": index["identity"], "images": last["images"]}
        return self.jobs.add(number, "undo", name, order, by)

    def train(self, name: str, folder: Path, number: str, preset: str, settings: dict[str, Any], by: str) -> Row:
        """A job that trains a model on uploaded images, which lie in ``folder``."""
        if not NAME.fullmatch(name):
            raise Problem("invalid-request", f"a model's name has letters, digits and . _ - alone; got '{name[:100]}'")
        out = self._settings.trained / name
        busy = any(job["model"] == name for job in self._store.jobs(states=("waiting", "running")))
        if name in self._models or out.exists() or busy:
            raise Problem("conflict", f"there is a model named '{name}' already; choose another name")
        order = {
            "model": str(out.resolve()),
            "device": self._settings.device,
            "images": str(folder.resolve()),
            "preset": preset,
            "settings": settings,
        }
        return self.jobs.add(number, "train", name, order, by)

    def _done(self, job: Row) -> None:
        """What follows from a finished job, before it is called so."""
        name, order = job["model"], job["order"]
        try:
            if job["kind"] == "train":
                if name not in self._models:
                    self._models.add(Path(order["model"]))
            elif job["kind"] in ("learn", "undo"):
                self._models.reload(name)
        except (PatchSVDDError, OSError, KeyError) as error:
            LOG.warning("the model '%s' could not be taken up at once: %s", name, error)
        if job["kind"] == "learn":
            self._store.mark_learned(order["inspections"], job["id"])
        if job["kind"] == "undo":
            undone = set(job["result"].get("images", ()))
            for earlier in self._store.jobs(model=name, states=("done",), limit=1000):
                learned = set((earlier["result"] or {}).get("images", ()))
                if earlier["kind"] == "learn" and learned and learned == undone:
                    self._store.mark_learned(earlier["order"]["inspections"], None)
                    break
