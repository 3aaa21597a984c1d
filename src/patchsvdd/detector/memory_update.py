"""Updates a stored model's memory without training: adds and removes good images, and undoes changes.

Adding patches never increases a distance, so no score rises and the threshold stays valid. With local scaling distances
are rescaled, and this does not hold. Removing patches may raise scores.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.core.files import locked
from patchsvdd.core.progress import OnStage, stage
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.memory_addition import Addition, memory_of
from patchsvdd.detector.model_folder import StoredModel, change_model, read_model, undo_change
from patchsvdd.images.image_set import ImageBatch, ImageLike, ImageSet, digest_of_pixels, each_image, load_image_set
from patchsvdd.images.mvtec_layout import find_good_images
from patchsvdd.memory.segments import segments_of, without_images
from patchsvdd.scoring.calibration import Calibration


@dataclass(frozen=True)
class Change:
    """A change made to a stored model."""

    change: str
    """ "add", "remove" or "undo"."""
    images: tuple[str, ...]
    """Names, in the model, of the images added or removed."""
    total: int
    """Number of images in the memory after the change."""
    identity: str
    threshold: float | None
    threshold_before: float | None
    seconds: float
    known: tuple[str, ...] = ()
    """Images that were already in the memory and were not added again."""
    skipped: tuple[ImageError, ...] = ()
    """Files that could not be used."""
    alarming: tuple[str, ...] = ()
    """Added images that would be anomalous if scored without their own patches."""
    threshold_kept: bool = True
    """Whether the threshold is unchanged."""
    undone: str | None = None
    """The change that an undo reverted."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "change": self.change,
            "images": list(self.images),
            "total": self.total,
            "identity": self.identity,
            "threshold": self.threshold,
            "threshold_before": self.threshold_before,
            "seconds": round(self.seconds, 3),
            "known": list(self.known),
            "skipped": [str(error) for error in self.skipped],
            "alarming": list(self.alarming),
            "threshold_kept": self.threshold_kept,
            "undone": self.undone,
        }


def add_images(
    folder: str | os.PathLike[str],
    images: ImageBatch,
    *,
    device: str = "auto",
    recalibrate: bool = False,
    on_stage: OnStage | None = None,
) -> Change:
    """Add good images to the memory of a stored model; the model is replaced atomically.

    The threshold is unchanged unless ``recalibrate`` is true. Then it is set from the calibration scores and those of
    the added images, each scored without its own patches. Use it only for a random sample of good images: images chosen
    because they raised an alarm would push the threshold up, and more defects would be missed.
    """
    start, path = time.perf_counter(), Path(folder)
    with locked(path, "adding images"):
        stored = _read(path)
        detector = PatchSVDD.from_stored(stored, path, device)
        new, known = _unknown(detector, _load(detector, images, on_stage))
        if len(new) == 0:
            raise DatasetError(f"all {len(known)} images are in the memory of '{folder}' already; nothing was changed")
        addition = memory_of(detector, new, on_stage)
        grown = Addition(path, stored, detector, addition, new, on_stage)
        before = detector.calibration
        after = before
        alarming: tuple[str, ...] = ()
        if before is not None:
            seen = grown.seen()
            after = grown.recalibrated(before, seen) if recalibrate else before
            alarming = grown.above(after.threshold, seen)
        changes = {**grown.changes, "calibration": after.to_json() if after is not None else None}
        identity = change_model(path, changes, "add", grown.names, of=detector.identity)
    return Change(
        "add",
        grown.names,
        len(grown.after.memory.image_names),
        identity,
        _threshold(after),
        _threshold(before),
        time.perf_counter() - start,
        known=known,
        skipped=new.skipped,
        alarming=alarming,
        threshold_kept=before is None or not recalibrate,
    )


def remove_images(
    folder: str | os.PathLike[str], names: Sequence[str], *, device: str = "auto", on_stage: OnStage | None = None
) -> Change:
    """Remove images from the memory of a stored model, by name; the model is replaced atomically.

    The calibration scores are measured again if the memory holds everything that requires; otherwise the calibration
    records that it is older than the change.
    """
    start, path = time.perf_counter(), Path(folder)
    with locked(path, "removing images"):
        stored = _read(path)
        numbers = _numbers_of(stored.about["image_names"], names)
        left = [number for number in range(len(stored.about["image_names"])) if number not in set(numbers)]
        if len(left) < 2:
            raise DatasetError(f"a memory requires at least 2 images, {len(left)} would be left; nothing was changed")
        about = {
            **stored.about,
            "segments": [segment.to_json() for segment in without_images(segments_of(stored.about), numbers)],
            "image_names": [stored.about["image_names"][number] for number in left],
            "provenance": _provenance_of(stored.about["provenance"], left),
        }
        gone = tuple(stored.about["image_names"][number] for number in numbers)
        detector = PatchSVDD.from_stored(replace(stored, about=about), path, device)
        before = detector.calibration
        after = _without(detector, before, stored, numbers, on_stage) if before is not None else None
        changes = {key: about[key] for key in ("segments", "image_names", "provenance")}
        changes["calibration"] = after.to_json() if after is not None else None
        identity = change_model(path, changes, "remove", gone, of=stored.identity)
    now, earlier, seconds = _threshold(after), _threshold(before), time.perf_counter() - start
    return Change("remove", gone, len(left), identity, now, earlier, seconds, threshold_kept=now == earlier)


def undo(folder: str | os.PathLike[str], *, entry: int | None = None, identity: str | None = None) -> Change:
    """Undo the last change of a stored model; the model is replaced atomically.

    Raise ModelError if the last change is not number ``entry`` of the journal, or the model's identity is not
    ``identity``; None for whatever they are.
    """
    start, path = time.perf_counter(), Path(folder)
    with locked(path, "undoing a change"):
        before = read_model(path)
        undone = undo_change(path, entry, identity)
        after = read_model(path)
    now, earlier = _stored_threshold(after), _stored_threshold(before)
    return Change(
        "undo",
        tuple(undone["images"]),
        len(after.about["image_names"]),
        after.identity,
        now,
        earlier,
        time.perf_counter() - start,
        threshold_kept=now == earlier,
        undone=undone["change"],
    )


def _read(folder: Path) -> StoredModel:
    """Return a stored model; raise ModelError if it does not record its images."""
    stored = read_model(folder)
    if "digests" not in stored.about["provenance"].get("data", {}):
        raise ModelError(f"'{folder}' does not record which images it holds; train it again to change its memory")
    return stored


def _load(detector: PatchSVDD, images: ImageBatch, on_stage: OnStage | None) -> ImageSet:
    """Load images, decoded and resized as the model's; raise DatasetError if their size differs."""
    broken: tuple[ImageError, ...] = ()
    sources: list[tuple[str, ImageLike]]
    if isinstance(images, str | os.PathLike) and Path(images).is_dir():
        good = find_good_images(Path(images))
        sources, broken = list(good.named()), good.broken
    else:
        sources = list(each_image(images))
    if not sources:
        raise DatasetError("there is no image to add; give a folder of good images, or files")
    loaded = load_image_set(sources, detector.config, stage(on_stage, "images"))
    height, width = detector.image_size
    if loaded.size != (height, width):
        raise DatasetError(
            f"the images are {loaded.size[1]}x{loaded.size[0]} and those in the memory {width}x{height}; "
            f"give images of that size, or train a model for this one"
        )
    return replace(loaded, skipped=(*broken, *loaded.skipped))


def _unknown(detector: PatchSVDD, images: ImageSet) -> tuple[ImageSet, tuple[str, ...]]:
    """Return the images that the model does not hold, without duplicates, and the names of the others."""
    seen = set(detector.provenance["data"]["digests"])
    new: list[int] = []
    known: list[str] = []
    for index, pixels in enumerate(images.pixels):
        digest = digest_of_pixels(pixels)
        if digest in seen:
            known.append(images.names[index])
        else:
            new.append(index)
            seen.add(digest)
    return images.subset(new), tuple(known)


def _numbers_of(known: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the indices of images by name, or by file name if it is unique."""
    if not names:
        raise ConfigError("`remove` must name an image of the memory; `patchsvdd info` lists them")
    numbers = []
    for name in dict.fromkeys(names):
        matches = [index for index, other in enumerate(known) if other == name]
        matches = matches or [index for index, other in enumerate(known) if Path(other).name == name]
        if len(matches) != 1:
            like = [known[index] for index in matches] or difflib.get_close_matches(name, known, 3)
            hint = f"; did you mean {' or '.join(like)}" if like else ""
            many = f"{len(matches)} images" if matches else "no image"
            raise DatasetError(f"the memory has {many} named '{name}'{hint}; nothing was changed")
        numbers += matches
    return sorted(numbers)


def _without(
    detector: PatchSVDD, known: Calibration, stored: StoredModel, gone: Sequence[int], on_stage: OnStage | None
) -> Calibration:
    """Return the calibration of a detector after removing images."""
    data = stored.about["provenance"]["data"]
    lost = {data["digests"][number] for number in gone}
    kept = [index for index, digest in enumerate(known.digests) if digest not in lost]
    if not known.digests or not kept:
        return replace(known, removed_since=known.removed_since + len(gone))
    scores, digests = [known.scores[index] for index in kept], [known.digests[index] for index in kept]
    numbers = {digest: number for number, digest in enumerate(detector.provenance["data"]["digests"])}
    outdated = known.removed_since + len(gone)
    in_memory = detector.config.memory_size.is_whole and all(digest in numbers for digest in digests)
    if in_memory and detector.critic is None:
        every_score = detector.leave_one_out_scores(detector.image_size, stage(on_stage, "threshold"))
        scores, outdated = [every_score[numbers[digest]] for digest in digests], 0
    traits = {name: [values[index] for index in kept] for name, values in known.traits.items()}
    return replace(
        known.renewed(scores, known.basis),
        traits=traits,
        digests=tuple(digests),
        removed_since=outdated,
    )


def _provenance_of(provenance: dict[str, Any], left: Sequence[int]) -> dict[str, Any]:
    """Return the provenance of the remaining images, renumbered."""
    data = provenance["data"]
    held_out = set(data.get("held_out", ()))
    numbers = {old: new for new, old in enumerate(left)}
    listed = [one for one in provenance.get("unusual") or () if one["image"] in numbers]
    return {
        **provenance,
        "unusual": [{**one, "image": numbers[one["image"]]} for one in listed],
        "data": {
            **data,
            "images": len(left),
            "digests": [data["digests"][number] for number in left],
            "held_out": [new for new, old in enumerate(left) if old in held_out],
        },
    }


def _threshold(calibration: Calibration | None) -> float | None:
    return calibration.threshold if calibration is not None else None


def _stored_threshold(stored: StoredModel) -> float | None:
    calibration = stored.about["calibration"]
    return calibration["threshold"] if calibration else None
