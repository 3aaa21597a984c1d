"""Jobs that change models: learn false alarms, teach defects, set another threshold, undo that, or train a model."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from patchsvdd.apps.serve.annotations import annotation_mask
from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.client_names import write_names
from patchsvdd.apps.serve.confirmed_images import confirmed_images
from patchsvdd.apps.serve.hidden_paths import HiddenPaths
from patchsvdd.apps.serve.job_runner import NUMBER, Jobs
from patchsvdd.apps.serve.job_store import CHANGING, UNFINISHED
from patchsvdd.apps.serve.model_registry import NAME, ModelRegistry, ServedModel
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import SUFFIXES, change_answer
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Filter, Row, Store
from patchsvdd.apps.serve.trade_off import NO_THRESHOLD, why_not
from patchsvdd.core.aims import Aim
from patchsvdd.core.errors import ConfigError, ModelError, PatchSVDDError
from patchsvdd.core.files import output_errors
from patchsvdd.detector.model_folder import holds_parts, is_model, journal_of, read_index, require_last
from patchsvdd.detector.teaching import why_not_teachable
from patchsvdd.detector.threshold_choice import choose_threshold
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.training.checkpoint import CheckpointFile

LOG = logging.getLogger("patchsvdd.apps.serve")
COMPARED = 40
"""Number of other inspections that a preview scores again."""
MOST_TAUGHT = 1000
"""Defects taught by one job."""


class ModelJobs:
    """Creates jobs for requests, and updates models and inspections when the jobs are done."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        blobs: Blobs,
        models: ModelRegistry,
        paths: HiddenPaths,
        may_run: Callable[[], bool],
    ) -> None:
        self._settings, self._store, self._blobs, self._models = settings, store, blobs, models
        self._naming = threading.Lock()
        """Held while a training's name is checked and taken."""
        self.jobs = Jobs(
            store, settings.data / "jobs", self._done, owner=settings.service_id, paths=paths, may_run=may_run
        )

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
        self, name: str, numbers: Sequence[str] | None, by: Actor, *, preview: bool, keep_threshold: bool = True
    ) -> Row:
        """Add a job that learns reviewed false alarms, or previews what that would change."""
        model = self._models.named(name)
        rows = self._learnable(name, numbers)
        others = self._others(model, rows) if preview else []
        number, order = self._order(model, rows, others)
        order["keep_threshold"] = keep_threshold
        return self.jobs.add(number, "preview" if preview else "learn", name, order, by)

    def teach(self, name: str, numbers: Sequence[str] | None, by: Actor, *, kind: str, preview: bool) -> Row:
        """Add a job that teaches reviewed defects, or previews what that would change.

        What people drew says where the defects are, and names their kinds; ``kind`` names the others.
        """
        model = self._models.named(name)
        if (reason := why_not_teachable(model.detector, name)) is not None:
            raise Problem("conflict", reason)
        rows = self._teachable(name, numbers)
        drawn = self._store.annotations_of([row["id"] for row in rows])
        others = self._others(model, rows) if preview else []
        number, order = self._order(model, rows, others)
        masks, kinds = Path(order["images"]).with_name("masks"), {}
        try:
            with output_errors(masks):
                masks.mkdir()
                for row in rows:
                    annotation = drawn.get(row["id"])
                    kinds[_file_of(row)] = annotation["shapes"][0]["kind"] if annotation else kind
                    if annotation:
                        image = Image.fromarray(annotation_mask(row, annotation))
                        image.save(masks / f"{row['id']}.png")
        except BaseException:
            shutil.rmtree(masks.parent, ignore_errors=True)
            raise
        order |= {"masks": str(masks), "kinds": kinds}
        return self.jobs.add(number, "teach-preview" if preview else "teach", name, order, by)

    def _teachable(self, name: str, numbers: Sequence[str] | None) -> list[Row]:
        """The inspections to teach; raises Problem if there are none or some must not be taught."""
        if numbers is None:
            rows = self._store.inspections(Filter(model=name, review="true_defect", learned=False), MOST_TAUGHT)
        else:
            rows = [self._store.inspection(number) for number in dict.fromkeys(numbers)]
        for row in rows:
            if row["model"] != name or row["review"] != "true_defect":
                words = f"inspection {row['id']} is not a reviewed defect of '{name}': review it first. A model is "
                raise Problem("conflict", f"{words}taught only images in which a person has confirmed a defect")
        rows = [row for row in rows if row["picture"] is not None and row["learned_by"] is None]
        if not rows:
            raise Problem("conflict", "there are no reviewed defects left to teach")
        return rows

    def _others(self, model: ServedModel, rows: Sequence[Row]) -> list[Row]:
        """Recent inspections other than ``rows``, to compare."""
        chosen = {row["id"] for row in rows}
        others = self._store.inspections(Filter(model=model.name, identity=model.identity), 4 * COMPARED)
        return [row for row in others if row["id"] not in chosen and row["picture"]][:COMPARED]

    def _order(self, model: ServedModel, rows: Sequence[Row], others: Sequence[Row]) -> tuple[str, dict[str, Any]]:
        """The number of a job, whose folder now has the images of inspections, and what its order says of them."""
        number, folder = self.jobs.prepare()
        try:
            self._copy_images(rows, folder / "images")
            if others:
                self._copy_images(others, folder / "others")
            write_names(folder, {_file_of(row): row["name"] for row in (*rows, *others)})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return number, {
            "model": str(model.folder.resolve()),
            "device": self._settings.device,
            "images": str(folder / "images"),
            "others": str(folder / "others"),
            "inspections": [row["id"] for row in rows],
            "compared": [row["id"] for row in others],
        }

    def _copy_images(self, rows: Sequence[Row], folder: Path) -> None:
        """Copy images for a job, named by their inspections."""
        with output_errors(folder):
            folder.mkdir()
        for row in rows:
            data = self._blobs.get(row["picture"])
            path = folder / _file_of(row)
            if data is not None:
                with output_errors(path):
                    path.write_bytes(data)

    def set_threshold(
        self,
        name: str,
        by: Actor,
        identity: str | None = None,
        *,
        aim: Aim | None = None,
        false_alarm_rate: float | None = None,
        threshold: float | None = None,
    ) -> Row:
        """Add a job that sets another threshold; raises Problem if it is not possible or changes nothing."""
        model, order = self._calibration_order(name, identity)
        index = read_index(model.folder)
        if index["calibration"] is None:
            raise Problem("conflict", NO_THRESHOLD)
        known = Calibration.from_json(index["calibration"])
        try:
            trial = choose_threshold(model.folder, aim, false_alarm_rate, threshold=threshold, dry_run=True)
        except (ConfigError, ModelError) as error:
            raise Problem("conflict", str(error)) from None
        chosen = trial.calibration
        if aim is not None and (reason := why_not(known, aim, chosen)) is not None:
            raise Problem("conflict", reason)
        if chosen == known:
            raise Problem("conflict", f"'{name}' has this threshold already; nothing was changed")
        number, _ = self.jobs.prepare()
        order |= {"aim": aim, "false_alarm_rate": false_alarm_rate, "threshold": threshold}
        return self.jobs.add(number, "threshold", name, order, by)

    def recalibrate(self, name: str, by: Actor, identity: str | None, days: int) -> Row:
        """Add a job that calibrates a model with images of the last days that people confirmed as good."""
        model, order = self._calibration_order(name, identity)
        found = confirmed_images(self._store, name, model.identity, days)
        if found.reason is not None:
            raise Problem("conflict", found.reason)
        number, folder = self.jobs.prepare()
        try:
            self._copy_images(found.chosen, folder / "images")
            write_names(folder, {_file_of(row): row["name"] for row in found.chosen})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        order |= {"device": self._settings.device, "images": str(folder / "images")}
        order |= {"inspections": [row["id"] for row in found.chosen]}
        return self.jobs.add(number, "recalibrate", name, order, by)

    def _calibration_order(self, name: str, identity: str | None) -> tuple[ServedModel, dict[str, Any]]:
        """The model, and what every order of a calibration says; raises Problem if it is not the version ``identity``.

        ``entry`` is the number that the change will have in the journal, by which a repeated job knows its work.
        """
        model = self._models.named(name)
        index = read_index(model.folder)
        if identity is not None and index["identity"] != identity:
            words = "the model was changed in the meantime; its threshold stays: look at it again"
            raise Problem("conflict", words)
        order = {"model": str(model.folder.resolve()), "identity": index["identity"]}
        return model, {**order, "entry": len(journal_of(index)) + 1}

    def undo(self, name: str, by: Actor, entry: int | None = None, identity: str | None = None) -> Row:
        """Add a job that undoes a model's last change, which must be number ``entry`` of its journal, if given."""
        model = self._models.named(name)
        index = read_index(model.folder)
        try:
            last = require_last(index, name, entry, identity)
        except ModelError as error:
            raise Problem("conflict", str(error)) from None
        number, _ = self.jobs.prepare()
        order = {
            "model": str(model.folder.resolve()),
            "entry": last["number"],
            "identity": index["identity"],
            "images": last["images"],
            "undoes": change_answer(index),
        }
        return self.jobs.add(number, "undo", name, order, by)

    def train(self, name: str, folder: Path, number: str, preset: str, settings: dict[str, Any], by: Actor) -> Row:
        """Add a job that trains a model on the uploaded images in ``folder``."""
        if not NAME.fullmatch(name):
            raise Problem("invalid-request", f"model names have only letters, digits and . _ -; got '{name[:100]}'")
        order = {
            "model": str((self._settings.trained / name).resolve()),
            "device": self._settings.device,
            "images": str(folder.resolve()),
            "preset": preset,
            "settings": settings,
        }
        with self._naming:
            self._require_free(name)
            return self.jobs.add(number, "train", name, order, by)

    def continue_training(self, number: str, by: Actor) -> Row:
        """Queue a failed or cancelled training again; it goes on from its checkpoint with the same images."""
        return self._repeat(number, by, resume=True)

    def restart_training(self, number: str, by: Actor) -> Row:
        """Queue a failed or cancelled training again, from the start, with the same images and settings."""
        return self._repeat(number, by, resume=False)

    def _repeat(self, number: str, by: Actor, *, resume: bool) -> Row:
        row = self.jobs.ended_here(number)
        images = Path(row["order"]["images"])
        if not images.is_dir() or not any(images.iterdir()):
            raise Problem("conflict", "the images of this training were deleted; start a new one with the images")
        with self._naming:
            self._require_free(row["model"])
            if not resume:
                CheckpointFile(Path(row["order"]["model"])).remove()
                self.jobs.forget_results(number)
            return self.jobs.repeat(number, {**row["order"], "resume": resume}, by)

    def _require_free(self, name: str) -> None:
        """Raise Problem if a model or an unfinished job has this name; the remains of ended trainings do not matter."""
        out = self._settings.trained / name
        damaged = holds_parts(out) and not CheckpointFile(out).any_exists()
        if name in self._models or is_model(out) or damaged or self._models.trouble(name) is not None:
            raise Problem("conflict", f"a model named '{name}' already exists; choose another name")
        unfinished = self._store.jobs(model=name, states=UNFINISHED, owner=self.jobs.owner)
        if unfinished:
            state = unfinished[0]["state"]
            raise Problem("conflict", f"a job for '{name}' is {state} already; choose another name, or cancel that job")

    def _done(self, job: Row) -> None:
        """Update models and inspections after a job, before it is marked as done."""
        name, order = job["model"], job["order"]
        try:
            if job["kind"] == "train":
                if name not in self._models:
                    self._models.add(Path(order["model"]))
            elif job["kind"] in CHANGING:
                self._models.reload(name)
        except (PatchSVDDError, OSError, KeyError) as error:
            LOG.warning("the model '%s' could not be loaded right away: %s", name, error)
        if job["kind"] in ("learn", "teach"):
            self._store.mark_learned(order["inspections"], job["id"])
        if job["kind"] == "undo":
            undone = [Path(image).stem[:24] for image in job["result"].get("images", ())]
            self._store.mark_unlearned(name, [number for number in undone if NUMBER.fullmatch(number)])


def _file_of(row: Row) -> str:
    """Name of an inspection's image in the folder of a job."""
    return f"{row['id']}{SUFFIXES[row['media_type']]}"
