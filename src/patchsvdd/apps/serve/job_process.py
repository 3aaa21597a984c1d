"""One job in a separate process, which does not use the memory of the service and may be killed.

It reads its order as a line of JSON from standard input and writes lines of JSON: progress, and finally a result or an
error. When standard input ends, the service has ended, and the job stops; a training keeps its checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchsvdd.apps.serve.change_previews import preview_change
from patchsvdd.apps.serve.client_names import read_names
from patchsvdd.apps.serve.problem_details import in_fields
from patchsvdd.core.errors import DatasetError, ImageError, Interrupted, ModelError, OutputError, PatchSVDDError
from patchsvdd.core.files import locked, output_errors

if TYPE_CHECKING:
    from patchsvdd.detector.recalibration import Recalibration

EVERY = 0.5
"""Seconds between two progress reports of one stage."""
NICE = 10
JOB = ".job"
"""File in the folder of an unfinished model with the number of the job that trains it."""
CALIBRATION = "calibration.json"
"""File in the folder of a job with the calibration that it is about to store."""
OTHERS = 120.0
"""Seconds to wait for an earlier process with the same job to stop."""


def main() -> None:
    """Run the job that is given on standard input."""
    order = json.loads(sys.stdin.readline())
    stopped = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stopped,), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a service: stop as if it had asked
        signal.signal(number, lambda *_: stopped.set())
    if hasattr(os, "nice"):
        os.nice(NICE)  # inspections have priority
    try:
        with _exclusive(Path(order["folder"])):
            send(result=WORK[order["kind"]](order, Progress(stopped)))
    except Interrupted:
        send(interrupted=True)
    except PatchSVDDError as error:
        send(error=in_fields(str(error)))


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock the job; the job process of a killed service may still be running for a moment."""
    end = time.monotonic() + OTHERS
    while True:
        lock = locked(folder, "doing this job again")
        try:
            lock.__enter__()
            break
        except OutputError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def send(**values: Any) -> None:
    """Send a line of JSON to the service."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _wait_for_end_of_input(stopped: threading.Event) -> None:
    sys.stdin.read()
    stopped.set()


class Progress:
    """Reports the progress of a job, at a limited rate, and stops it on request."""

    def __init__(self, stopped: threading.Event) -> None:
        self.stopped = stopped
        self._last: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report progress; raises Interrupted if the job should stop."""
        if self.stopped.is_set():
            raise Interrupted(f"stopped during {stage}")
        self.report(stage, done, total)

    def report(self, stage: str, done: int, total: int) -> None:
        """Report progress of a stage that checks for the stop request and saves a checkpoint."""
        now = time.monotonic()
        if done < total and now - self._last.get(stage, -EVERY) < EVERY:
            return
        self._last[stage] = now
        send(stage=stage, done=done, total=total)


def learn(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Add reviewed images to a model's memory."""
    from patchsvdd.detector.memory_update import add_images
    from patchsvdd.detector.model_folder import journal_of, read_index, undoable

    if order["again"]:  # the job may have finished before the service ended
        index = read_index(Path(order["model"]))
        in_force = undoable(journal_of(index))
        for entry in journal_of(index):
            learned = {Path(name).stem[:24] for name in entry.get("images", ())}
            is_this_job = bool(learned) and learned <= set(order["inspections"])
            if entry["change"] == "add" and entry["number"] in in_force and is_this_job:
                done = {"identity": index["identity"], "already": True}
                return {"change": "add", "images": list(entry["images"]), **done}
    change = add_images(
        order["model"],
        Path(order["images"]),
        device=order["device"],
        recalibrate=not order["keep_threshold"],
        on_stage=progress,
    )
    return change.to_json()


def teach(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Teach a model reviewed defects."""
    from patchsvdd.detector.model_folder import journal_of, read_index, undoable

    if order["again"]:  # the job may have finished before the service ended
        index = read_index(Path(order["model"]))
        in_force = undoable(journal_of(index))
        for entry in journal_of(index):
            taught = set(entry.get("images", ()))
            is_this_job = bool(taught) and taught <= set(order["kinds"])
            if entry["change"] == "teach" and entry["number"] in in_force and is_this_job:
                return {"change": "teach", "images": sorted(taught), "identity": index["identity"], "already": True}
    return _teach(order, order["model"], progress)


def _teach(order: dict[str, Any], model: str | Path, progress: Progress) -> dict[str, Any]:
    from patchsvdd.detector.teaching import teach_defects
    from patchsvdd.images.defect_examples import DefectExample

    examples = []
    for name, kind in order["kinds"].items():
        file, mask = Path(order["images"]) / name, Path(order["masks"]) / f"{Path(name).stem}.png"
        if file.exists():  # the image may have been deleted before it was copied
            examples.append(DefectExample(name, file, kind, mask if mask.exists() else None))
    return teach_defects(model, examples, device=order["device"], on_stage=progress).to_json()


def undo(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Undo a model's last change, if it is still the one that the order names."""
    from patchsvdd.detector.memory_update import undo as undo_last
    from patchsvdd.detector.model_folder import journal_of, read_index

    index, entry = read_index(Path(order["model"])), order.get("entry")  # orders of earlier versions have none
    undone = any(one["change"] == "undo" and one["undoes"] == entry for one in journal_of(index))
    if order["again"] and (undone or (entry is None and index["identity"] != order["identity"])):
        return {"change": "undo", "images": order["images"], "entry": entry, "already": True}
    progress("undo", 0, 1)
    return {**undo_last(order["model"], entry=entry, identity=order["identity"]).to_json(), "entry": entry}


def set_threshold(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Set another threshold of a model, from the scores that it stores."""
    from patchsvdd.detector.threshold_choice import choose_threshold

    if (done := _calibrated_before(order)) is not None:
        return done
    progress("threshold", 0, 1)
    rate, threshold = order["false_alarm_rate"], order["threshold"]
    return _calibrated(order, choose_threshold(order["model"], order["aim"], rate, threshold=threshold, dry_run=True))


def recalibrate(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Calibrate a model with images that people confirmed as good; those that cannot be used are left out."""
    from patchsvdd.detector.recalibration import recalibrate_model

    if (done := _calibrated_before(order)) is not None:
        return done
    broken: list[ImageError] = []
    chosen = recalibrate_model(
        order["model"],
        order["images"],
        dry_run=True,
        device=order["device"],
        on_error=broken.append,
        on_progress=lambda done, total: progress("calibrating", done, total),
    )
    skipped = [str(error) for error in broken]
    used = chosen.separate + chosen.known
    copies = [*chosen.copies, *chosen.unusable]
    return {**_calibrated(order, chosen), "used": used, "copies": copies, "skipped": skipped}


def _calibrated(order: dict[str, Any], chosen: Recalibration) -> dict[str, Any]:
    """Store a calibration in the model that the order names; returns what has changed.

    It is written to the job's folder first: a job that is repeated knows by it whether the change is its own.
    """
    from patchsvdd.detector.model_folder import change_model

    calibration, model = chosen.calibration, Path(order["model"])
    with locked(model, "calibrating"):
        _require_unchanged(order)
        path = Path(order["folder"]) / CALIBRATION
        with output_errors(path):
            path.write_text(json.dumps(calibration.to_json()))
        identity = change_model(model, {"calibration": calibration.to_json()}, "calibrate")
    return {
        "change": "calibrate",
        "images": [],
        "entry": order["entry"],
        "identity": identity,
        "aim": calibration.aim,
        "threshold": calibration.threshold,
        "threshold_before": chosen.before,
        "miss_rate": calibration.miss_rate,
        "sentence": calibration.sentence,
    }


def _calibrated_before(order: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a repeated order whose change was made; None if it was not, ModelError if another was."""
    from patchsvdd.detector.model_folder import journal_of, read_index

    path, index = Path(order["folder"]) / CALIBRATION, read_index(Path(order["model"]))
    if order["again"] and path.exists() and json.loads(path.read_text()) == index["calibration"]:
        for entry in journal_of(index):
            if (entry["change"], entry["number"], entry["before"]) == ("calibrate", order["entry"], order["identity"]):
                return {"change": "calibrate", "images": [], "entry": entry["number"], "already": True}
    _require_unchanged(order)
    return None


def _require_unchanged(order: dict[str, Any]) -> None:
    from patchsvdd.detector.model_folder import read_index

    if read_index(Path(order["model"]))["identity"] != order["identity"]:
        raise ModelError("the model was changed in the meantime; its threshold stays: look at it again")


def preview(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Report what learning the images would change, using a copy of the model."""
    from patchsvdd.detector.memory_update import add_images

    def change(copy: Path) -> dict[str, Any]:
        images, again = Path(order["images"]), not order["keep_threshold"]
        return add_images(copy, images, device=order["device"], recalibrate=again, on_stage=progress).to_json()

    return preview_change(order, change, progress)


def teach_preview(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Report what teaching the defects would change, using a copy of the model."""
    return preview_change(order, lambda copy: _teach(order, copy, progress), progress)


def train(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Train a model on good images, or continue a training that was stopped."""
    from patchsvdd.apps.serve.training_plan import training_plan
    from patchsvdd.apps.serve.training_previews import Previews
    from patchsvdd.core.device import choose_device
    from patchsvdd.core.presets import preset
    from patchsvdd.detector.base import Detector
    from patchsvdd.detector.detector import PatchSVDD
    from patchsvdd.detector.model_folder import is_model, read_index
    from patchsvdd.detector.schedule import limit_cpu_minutes
    from patchsvdd.detector.train_model import train_model
    from patchsvdd.detector.unusual_images import unusual_images, unusual_in_words
    from patchsvdd.encoder.networks import PatchEncoder
    from patchsvdd.images.image_set import ImageSet
    from patchsvdd.images.loading import sized_for
    from patchsvdd.training.hooks import TrainingHooks, TrainingProgress

    out = Path(order["model"])
    if is_model(out):
        if order["again"]:
            return {"identity": read_index(out)["identity"], "already": True}
        raise DatasetError(f"a model named '{out.name}' already exists; choose another name")
    _take_over(out, order)
    device = choose_device(order["device"])
    config = limit_cpu_minutes(preset(order["preset"], **order["settings"]), device, order["settings"])
    previews: Previews | None = None
    images = Path(order["images"])
    send(plan=training_plan(sized_for(images, config), sum(1 for _ in images.iterdir())))

    def on_progress(now: TrainingProgress) -> None:
        progress.report("training", now.step, now.steps)
        send(losses={"step": now.step, "steps": now.steps, "scales": now.metrics})

    def on_stage(stage: str, done: int, total: int) -> None:
        (progress.report if stage == "critic" else progress)(stage, done, total)

    def on_images(loaded: ImageSet) -> None:
        nonlocal previews
        progress("pictures", 0, 0)
        previews = Previews(loaded, config, Path(order["folder"]) / "pictures", device)

    def on_encoder(encoder: PatchEncoder, step: int) -> None:
        if previews is not None and previews.while_training:
            previews.of_encoder(encoder, step)

    def on_detector(detector: Detector) -> None:
        progress("pictures", 0, 0)
        if previews is not None and isinstance(detector, PatchSVDD):
            previews.of_detector(detector)
        _name_unusual(detector.provenance, read_names(Path(order["folder"])))

    detector = train_model(
        images,
        out,
        config,
        device=order["device"],
        resume=True,
        hooks=TrainingHooks(on_progress, progress.stopped.is_set, on_encoder=on_encoder),
        on_stage=on_stage,
        on_images=on_images,
        on_detector=on_detector,
    )
    (out / JOB).unlink(missing_ok=True)
    data = detector.provenance["data"]
    calibration, unusual = detector.calibration, unusual_images(detector.provenance)
    return {
        "identity": detector.identity,
        "images": data["images"],
        "skipped": data["skipped"],
        "copies": [name for name, _ in data["copies"]],
        "threshold": detector.threshold if calibration is not None else None,
        "guarantee": calibration.guarantee if calibration is not None else None,
        "caveat": calibration.caveat if calibration is not None else None,
        "unusual": [one.name for one in unusual if one.stands_out],
        "unusual_in_words": unusual_in_words(unusual, data["images"]),
    }


def _name_unusual(provenance: dict[str, Any], names: Mapping[str, str]) -> None:
    """Name the listed images as the client does, who will look for them among the files that were sent."""
    if "unusual" in provenance:
        provenance["unusual"] = [{**one, "name": names.get(one["name"], one["name"])} for one in provenance["unusual"]]


def _take_over(out: Path, order: dict[str, Any]) -> None:
    """Delete the checkpoint that a training of another job left under this name; that of this job is kept."""
    from patchsvdd.training.checkpoint import CheckpointFile

    mark = out / JOB
    try:
        keeps = mark.read_text() == order["number"]
    except OSError:  # a checkpoint of a version that left no mark
        keeps = order["again"] or order.get("resume", False)
    if not keeps:
        CheckpointFile(out).remove()
    with output_errors(mark):
        out.mkdir(parents=True, exist_ok=True)
        mark.write_text(order["number"])


WORK: dict[str, Callable[[dict[str, Any], Progress], dict[str, Any]]] = {
    "learn": learn,
    "undo": undo,
    "preview": preview,
    "teach": teach,
    "teach-preview": teach_preview,
    "threshold": set_threshold,
    "recalibrate": recalibrate,
    "train": train,
}

if __name__ == "__main__":
    main()
