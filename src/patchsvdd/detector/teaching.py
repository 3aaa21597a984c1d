"""Teaches a stored model defects that people confirmed, so that it finds others like them.

Nothing is trained: filters are fitted to features of the critic that already exist. The threshold is set again with the
new scores of its good images, so that no more of them raise an alarm than before, and it is never lowered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from patchsvdd.core.config import is_large
from patchsvdd.core.device import reproducible
from patchsvdd.core.errors import DatasetError, ImageError, ModelError
from patchsvdd.core.files import locked
from patchsvdd.core.progress import OnStage
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import change_model, read_model, write_parts
from patchsvdd.detector.teacher import Taught, Teacher
from patchsvdd.images.defect_examples import DefectExample
from patchsvdd.scoring.calibration import Calibration


@dataclass(frozen=True)
class Teaching:
    """What a model was taught, and what changes."""

    taught: tuple[Taught, ...]
    kinds: Mapping[str, int]
    """Kind → confirmed images of it, including earlier ones."""
    threshold: float
    threshold_before: float
    alarms: int
    """Good images of the calibration above the threshold."""
    alarms_before: int
    calibration: Calibration
    copies: int
    """Good images of the calibration whose change of score was measured on the copies in the model."""
    identity: str | None
    """Identity of the changed model; None for a preview."""
    seconds: float
    known: tuple[str, ...] = ()
    """Images that were taught before."""
    skipped: tuple[ImageError, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "change": "teach",
            "preview": self.identity is None,
            "images": [one.name for one in self.taught],
            "taught": [one.to_json() for one in self.taught],
            "kinds": dict(self.kinds),
            "threshold": self.threshold,
            "threshold_before": self.threshold_before,
            "calibration_images": len(self.calibration.scores),
            "alarms": self.alarms,
            "alarms_before": self.alarms_before,
            "scored_from_copies": self.copies,
            "guarantee": self.calibration.guarantee,
            "identity": self.identity,
            "known": list(self.known),
            "skipped": [str(error) for error in self.skipped],
            "seconds": round(self.seconds, 3),
        }


def teach_defects(
    folder: str | os.PathLike[str],
    examples: Sequence[DefectExample],
    *,
    good: str | os.PathLike[str] | None = None,
    preview: bool = False,
    device: str = "auto",
    skipped: Sequence[ImageError] = (),
    on_stage: OnStage | None = None,
) -> Teaching:
    """Teach a stored model confirmed defects; the model is replaced atomically and the change can be undone.

    ``good`` is a folder with the good images that the model was trained and calibrated with; without it, or for images
    not in it, the copies in the model are used. With ``preview`` nothing is changed. Examples that cannot be used are
    left out and reported, after those in ``skipped``.
    """
    start, path = time.perf_counter(), Path(folder)
    with locked(path, "teaching defects"):
        stored = read_model(path)
        detector = PatchSVDD.from_stored(stored, path, device)
        before = require_teachable(detector, str(path))
        with reproducible(), torch.inference_mode():
            teacher = Teacher(detector, before, good, on_stage)
            new, known, broken = teacher.read(examples)
            if not new:
                raise DatasetError(_nothing_new(path, known, [*skipped, *broken]))
            defects = teacher.fit(new)
            after, copies = teacher.recalibrated(defects.filters)
            taught = teacher.tried(new, defects, after.threshold)
        identity = None
        if not preview:
            changes = {
                "defects": [one.to_json() for one in defects.defects],
                "files": {**stored.about["files"], **write_parts(path, {"defects": defects.state()}, {})},
                "calibration": after.to_json(),
            }
            identity = change_model(path, changes, "teach", [one.name for one in taught], of=stored.identity)
    counts = {kind: sum(one.kind == kind for one in defects.defects) for kind in defects.kinds}
    return Teaching(
        taught,
        counts,
        after.threshold,
        before.threshold,
        sum(score > after.threshold for score in after.scores),
        sum(score > before.threshold for score in before.scores),
        after,
        copies,
        identity,
        time.perf_counter() - start,
        known,
        (*skipped, *broken),
    )


def why_not_teachable(detector: PatchSVDD, name: str) -> str | None:
    """Return why a detector cannot be taught defects; None if it can."""
    try:
        require_teachable(detector, name)
    except ModelError as error:
        return str(error)
    return None


def require_teachable(detector: PatchSVDD, name: str) -> Calibration:
    """Return the calibration of a detector; raise an error if it cannot be taught."""
    if detector.critic is None or detector.map_builder.fusion is None:
        raise ModelError(
            f"'{name}' has no critic (`preset={detector.config.preset}`), whose features tell kinds of defects apart; "
            f"train a model with `preset=best` to teach it defects"
        )
    if detector.map_builder.fusion.share == 1:
        raise ModelError(f"'{name}' decides by its memory alone: its critic has no weight, so it cannot be taught")
    if is_large(*detector.image_size):
        raise ModelError(
            f"'{name}' inspects images of {detector.image_size[1]}x{detector.image_size[0]} pixels in tiles; a model "
            f"of such large images cannot be taught. Train one with a smaller `image_size`"
        )
    if detector.calibration is None:
        raise ModelError(f"'{name}' has no threshold; run `patchsvdd calibrate` first")
    if not detector.pictures:
        raise ModelError(f"'{name}' was trained by a version that kept no copies of its good images; train it again")
    return detector.calibration


def _nothing_new(path: Path, known: Sequence[str], broken: Sequence[ImageError]) -> str:
    if known and not broken:
        return f"'{path}' was taught all {len(known)} images already; nothing was changed"
    reason = f" ({broken[0]})" if broken else ""
    return f"there is no usable image of a defect{reason}; give a folder of images, or of one folder for each kind"
