"""Train a detector on good images and write its model folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection
from pathlib import Path

from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device
from patchsvdd.core.errors import ConfigError, OutputError
from patchsvdd.core.files import require_writable
from patchsvdd.core.progress import OnStage
from patchsvdd.detector.base import Detector
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import is_model
from patchsvdd.detector.stored_memory import as_search
from patchsvdd.detector.training_backend import LOCAL, TrainingBackend
from patchsvdd.images.image_set import ImageBatch, ImageSet
from patchsvdd.images.loading import load_training_images
from patchsvdd.memory.bank import memory_bytes
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.hooks import TrainingHooks


@dataclasses.dataclass(frozen=True)
class Method:
    """How detectors of one method are fitted to good images, and loaded."""

    fit_images: Callable[..., Detector]
    """Like ``PatchSVDD.fit_images``."""
    load: Callable[[Path, str], Detector]
    """Model folder and device → the detector."""


PATCH_SVDD = Method(PatchSVDD.fit_images, PatchSVDD.load)


def train_model(
    images: ImageBatch,
    out: str | os.PathLike[str],
    config: Config,
    *,
    device: str = "auto",
    search: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    hooks: TrainingHooks | None = None,
    on_stage: OnStage | None = None,
    on_images: Callable[[ImageSet], None] | None = None,
    on_detector: Callable[[Detector], None] | None = None,
    backend: TrainingBackend = LOCAL,
    leave_out: Collection[str] = (),
    method: Method = PATCH_SVDD,
) -> Detector:
    """Train a detector on good images, write it to the model folder ``out`` and return it.

    Training keeps a checkpoint in ``out`` until the model is saved. ``resume`` continues from it, or returns the model
    if it is already finished; ``overwrite`` discards both. Without either, raise OutputError if one exists.
    ``on_images`` receives the loaded images before training, ``on_detector`` the detector before it is saved.
    Images with a name in ``leave_out`` are not used. ``method`` fits and loads detectors.
    """
    out = Path(out)
    if resume and overwrite:
        raise ConfigError("`resume=True` continues a training and `overwrite=True` discards it; give only one")
    if resume and is_finished(out):
        return method.load(out, "cpu")
    checkpoint = CheckpointFile(out)
    if not (resume or overwrite):
        _require_free(out, checkpoint)
    chosen_search = as_search(search, choose_device(device))  # checked before the images are read
    require_writable(out)
    loaded, config = load_training_images(images, config, on_stage, leave_out)
    require_writable(out, memory_bytes(config, loaded.size, len(loaded)))
    if overwrite:
        checkpoint.remove()  # so that a later resume does not find it
    if on_images is not None:
        on_images(loaded)
    detector = method.fit_images(
        loaded,
        config,
        device=device,
        hooks=dataclasses.replace(hooks or TrainingHooks(), checkpoint=checkpoint, resume=resume),
        on_stage=on_stage,
        search=chosen_search,
        backend=backend,
    )
    if on_detector is not None:
        on_detector(detector)
    detector.save(out)
    checkpoint.remove()
    return detector


def is_finished(out: Path) -> bool:
    """Return whether the folder holds a model and no unfinished training."""
    return is_model(out) and not CheckpointFile(out).any_exists()


def _require_free(out: Path, checkpoint: CheckpointFile) -> None:
    """Raise OutputError if the folder holds an unfinished training or a model."""
    if checkpoint.any_exists():
        raise OutputError(
            f"{out} holds an unfinished training; continue it with `resume=True`, or start over with `overwrite=True`"
        )
    if is_model(out):
        raise OutputError(f"{out} already holds a model; choose another folder, or replace it with `overwrite=True`")
