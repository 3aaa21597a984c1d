"""One job in a process of its own: what it learns or trains takes no memory from the service, and may be killed.

It reads its order as a line of JSON from standard input and writes lines of JSON: progress, and at last a result or an
error. When standard input ends, so has the service, and the job stops; a training keeps what it has.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patchsvdd.core.errors import DatasetError, Interrupted, OutputError, PatchSVDDError
from patchsvdd.core.files import locked

EVERY = 0.5
"""Seconds between two words of progress on one stage."""
NICE = 10
OTHERS = 120.0
"""Seconds that an earlier process has to stop doing the same job."""


def main() -> None:
    """The process."""
    order = json.loads(sys.stdin.readline())
    stopped = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(stopped,), daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICE)  # inspections go first
    try:
        with _alone(Path(order["folder"])):
            tell(result=WORK[order["kind"]](order, Progress(stopped)))
    except Interrupted:
        tell(interrupted=True)
    except PatchSVDDError as error:
        tell(error=str(error))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The job for oneself: the process of a service that was killed may not have noticed yet."""
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


def tell(**facts: Any) -> None:
    """A line for the service."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _wait_for_the_end(stopped: threading.Event) -> None:
    sys.stdin.read()
    stopped.set()


class Progress:
    """Tells how far a job has come, not too often, and stops it when asked to."""

    def __init__(self, stopped: threading.Event) -> None:
        self.stopped = stopped
        self._last: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """So much of a stage is done; Interrupted if the job is to stop."""
        if self.stopped.is_set():
            raise Interrupted(f"stopped during {stage}")
        self.say(stage, done, total)

    def say(self, stage: str, done: int, total: int) -> None:
        """So much of a stage is done, which stops by itself and keeps what it has."""
        now = time.monotonic()
        if done < total and now - self._last.get(stage, -EVERY) < EVERY:
            return
        self._last[stage] = now
        tell(stage=stage, done=done, total=total)


def learn(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Put reviewed images into a model's memory."""
    from patchsvdd.detector.memory_update import add_images
    from patchsvdd.detector.model_folder import journal_of, read_index, undoable

    if order["again"]:  # it may have been done before the service ended
        index = read_index(Path(order["model"]))
        in_force = undoable(journal_of(index))
        for entry in journal_of(index):
            learned = {Path(name).stem[:24] for name in entry.get("images", ())}
            mine = bool(learned) and learned <= set(order["inspections"])
            if entry["change"] == "add" and entry["number"] in in_force and mine:
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


def undo(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Take a model's last change back."""
    from patchsvdd.core.errors import ModelError
    from patchsvdd.detector.memory_update import undo as undo_last
    from patchsvdd.detector.model_folder import read_index

    if read_index(Path(order["model"]))["identity"] != order["identity"]:
        if order["again"]:
            return {"change": "undo", "images": order["images"], "already": True}
        raise ModelError("the model was changed in the meantime; nothing was undone, look at it again")
    progress("undo", 0, 1)
    return undo_last(order["model"]).to_json()


def preview(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """What learning images would change, on a copy of the model."""
    from patchsvdd.detector.detector import PatchSVDD
    from patchsvdd.detector.memory_update import add_images

    copy = Path(order["folder"]) / "model"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(order["model"], copy, copy_function=_link)
    try:
        change = add_images(
            copy,
            Path(order["images"]),
            device=order["device"],
            recalibrate=not order["keep_threshold"],
            on_stage=progress,
        )
        detector = PatchSVDD.load(copy, order["device"])
        files = {path.name: path for part in ("images", "others") for path in sorted(Path(order[part]).glob("*"))}
        scores = {}
        for number, (name, path) in enumerate(files.items(), start=1):
            inspection = detector.inspect(path)
            scores[name] = {"score": inspection.score, "verdict": inspection.verdict}
            progress("comparing", number, len(files))
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return {**change.to_json(), "scores": scores}


def _link(source: str, target: str) -> None:
    """A second name for a file where the disk allows it: parts of a model are never changed."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def train(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Train a model from good images, going on where an earlier try was stopped."""
    from patchsvdd.apps.serve.training_previews import Previews
    from patchsvdd.core.device import choose_device
    from patchsvdd.core.presets import preset
    from patchsvdd.detector.detector import PatchSVDD
    from patchsvdd.detector.model_folder import is_model, read_index
    from patchsvdd.detector.schedule import limit_cpu_minutes
    from patchsvdd.images.loading import load_distinct_images
    from patchsvdd.training.checkpoint import CheckpointFile
    from patchsvdd.training.loop import TrainingHooks, TrainingProgress

    out = Path(order["model"])
    if is_model(out):
        if order["again"]:
            return {"identity": read_index(out)["identity"], "already": True}
        raise DatasetError(f"there is a model named '{out.name}' already; choose another name")
    settings = {name: value for name, value in order["settings"].items() if value is not None}
    config = preset(order["preset"], **settings)
    if not settings.keys() & {"steps", "epochs"}:
        config = limit_cpu_minutes(config, choose_device(order["device"]))

    def on_progress(now: TrainingProgress) -> None:
        progress.say("training", now.step, now.steps)
        tell(losses={"step": now.step, "steps": now.steps, "scales": now.metrics})

    def on_stage(stage: str, done: int, total: int) -> None:
        (progress.say if stage == "critic" else progress)(stage, done, total)

    checkpoint = CheckpointFile(out)
    images = load_distinct_images(Path(order["images"]), config, progress)
    previews = None
    if len(images) > 1:
        progress("pictures", 0, 1)
        previews = Previews(images, config, Path(order["folder"]) / "pictures", choose_device(order["device"]))
    hooks = TrainingHooks(
        on_progress,
        progress.stopped.is_set,
        checkpoint,
        resume=checkpoint.any_exists(),
        on_encoder=previews.of_encoder if previews is not None and previews.while_training else None,
    )
    detector = PatchSVDD.fit_images(
        images, config, device=order["device"], hooks=hooks, on_stage=on_stage, search="auto"
    )
    if previews is not None:
        progress("pictures", 0, 1)
        previews.of_detector(detector)
    detector.save(out)
    checkpoint.remove()
    known = detector.calibration
    return {
        "identity": detector.identity,
        "images": len(images),
        "skipped": [str(error) for error in images.skipped],
        "copies": [name for name, _ in images.copies],
        "threshold": detector.threshold if known is not None else None,
        "guarantee": known.guarantee if known is not None else None,
        "caveat": known.caveat if known is not None else None,
    }


WORK: dict[str, Callable[[dict[str, Any], Progress], dict[str, Any]]] = {
    "learn": learn,
    "undo": undo,
    "preview": preview,
    "train": train,
}

if __name__ == "__main__":
    main()
