"""Two models on the same images: verdicts, rates, and the images on which they disagree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.core.progress import OnProgress, OnStage, stage
from patchsvdd.detector.base import Detector
from patchsvdd.evaluation.labelled_results import labels_of
from patchsvdd.evaluation.paired import Paired
from patchsvdd.images.image_files import find_images
from patchsvdd.images.mvtec_layout import GOOD, find_test_images, find_unlabelled_images

STAGES = ("first model", "second model")
"""Stages of a comparison, for progress."""


@dataclass(frozen=True)
class Result:
    """What a model found in an image."""

    score: float
    threshold: float
    is_anomalous: bool

    @property
    def ratio(self) -> float:
        """The score in multiples of the threshold."""
        return self.score / self.threshold

    @property
    def verdict(self) -> str:
        """ "anomalous" or "good"."""
        return "anomalous" if self.is_anomalous else "good"

    def to_json(self) -> dict[str, Any]:
        """The result as JSON."""
        return {"score": self.score, "ratio": self.ratio, "verdict": self.verdict}


@dataclass(frozen=True)
class ComparedImage:
    """What both models found in an image."""

    name: str
    """Relative to the folder of the images."""
    file: Path
    first: Result
    second: Result
    label: str | None
    """ "good", or the kind of defect; None if it is not known."""

    @property
    def is_defective(self) -> bool | None:
        """Whether the image shows a defect; None if it is not known."""
        return None if self.label is None else self.label != GOOD

    @property
    def disagrees(self) -> bool:
        """Whether the verdicts differ."""
        return self.first.is_anomalous != self.second.is_anomalous

    @property
    def distance(self) -> float:
        """How far both scores are from their thresholds, in thresholds, together."""
        return abs(self.first.ratio - 1) + abs(self.second.ratio - 1)

    def to_json(self) -> dict[str, Any]:
        """The image as JSON."""
        both = {"first": self.first.to_json(), "second": self.second.to_json()}
        return {"image": self.name, "label": self.label, "distance": self.distance, **both}


@dataclass(frozen=True)
class ComparedModel:
    """One of the two models."""

    name: str
    identity: str | None
    threshold: float


@dataclass(frozen=True)
class Comparison:
    """Two models on the same images."""

    first: ComparedModel
    second: ComparedModel
    images: tuple[ComparedImage, ...]
    """In the order of their names."""
    skipped: tuple[str, ...]
    """Files that could not be used, and labels that fit no image, with reasons."""

    @property
    def alarms(self) -> Paired:
        """Anomalous verdicts."""
        return Paired.of((one.first.is_anomalous, one.second.is_anomalous) for one in self.images)

    @property
    def has_labels(self) -> bool:
        """Whether it is known what the images show."""
        return any(one.label is not None for one in self.images)

    @property
    def misses(self) -> Paired:
        """Good verdicts on images with defects."""
        wrong = ((not one.first.is_anomalous, not one.second.is_anomalous) for one in self.images if one.is_defective)
        return Paired.of(wrong)

    @property
    def false_alarms(self) -> Paired:
        """Anomalous verdicts on good images."""
        good = (one for one in self.images if one.is_defective is False)
        return Paired.of((one.first.is_anomalous, one.second.is_anomalous) for one in good)

    @property
    def rates(self) -> dict[str, Paired]:
        """Name of a rate → its counts: alarms, and with labels misses and false alarms."""
        found = {"alarms": self.alarms}
        return {**found, "misses": self.misses, "false_alarms": self.false_alarms} if self.has_labels else found

    @property
    def disagreements(self) -> list[ComparedImage]:
        """The images with different verdicts, those farthest from the thresholds first."""
        return sorted((one for one in self.images if one.disagrees), key=lambda one: (-one.distance, one.name))

    def to_json(self) -> dict[str, Any]:
        """One object, as `compare` prints it in JSON."""
        models = {
            name: {"model": one.name, "identity": one.identity, "threshold": one.threshold}
            for name, one in (("first", self.first), ("second", self.second))
        }
        rates = {name: counted.to_json() for name, counted in self.rates.items()}
        return {
            **models,
            "images": len(self.images),
            "labels": self.has_labels,
            **{name: rates.get(name) for name in ("alarms", "misses", "false_alarms")},
            "disagreements": [one.to_json() for one in self.disagreements],
            "skipped": list(self.skipped),
        }


def compare(
    first: Detector,
    second: Detector,
    folder: Path,
    *,
    names: tuple[str, str] = ("A", "B"),
    labels: Path | None = None,
    on_progress: OnStage | None = None,
) -> Comparison:
    """Inspect the images of a folder with two models and compare their verdicts.

    In MVTec layout, the folders below ``test`` say what the images show; ``labels`` is a file or folder of labels to
    use instead. Images that one of the models cannot use are skipped.
    """
    check_models(first, second, names)
    images, skipped = _labelled(folder, labels)
    files = list(images)
    broken: dict[str, ImageError] = {}
    found = [
        _inspected(detector, files, broken, stage(on_progress, name))
        for detector, name in zip((first, second), STAGES, strict=True)
    ]
    root = folder / "test" if (folder / "test").is_dir() else folder
    compared = [
        ComparedImage(file.relative_to(root).as_posix(), file, found[0][str(file)], found[1][str(file)], images[file])
        for file in files
        if str(file) in found[0] and str(file) in found[1]
    ]
    skipped += map(str, broken.values())
    if not compared:
        raise DatasetError(f"none of the images in '{folder}' could be inspected by both models ({skipped[0]})")
    models = [
        ComparedModel(name, detector.identity, detector.threshold)
        for name, detector in zip(names, (first, second), strict=True)
    ]
    return Comparison(models[0], models[1], tuple(compared), tuple(skipped))


def check_models(first: Detector, second: Detector, names: tuple[str, str]) -> None:
    """Raise an error if two models cannot be compared: both are the same, or one has no threshold."""
    if first is second or (first.identity is not None and first.identity == second.identity):
        raise ConfigError(f"'{names[0]}' and '{names[1]}' are the same model ({first.identity}); give two models")
    for name, detector in zip(names, (first, second), strict=True):
        if not 0 < detector.threshold < math.inf:
            raise ModelError(
                f"the model '{name}' has no threshold and so gives no verdicts; calibrate it with good images first: "
                f"patchsvdd calibrate"
            )


def _labelled(folder: Path, labels: Path | None) -> tuple[dict[Path, str | None], list[str]]:
    """Image file → what it shows, if that is known, in the order of the names; and what could not be used."""
    if labels is not None and not labels.exists():
        raise DatasetError(f"there is no file or folder '{labels}' with labels; check the path")
    if labels is not None:
        test = find_unlabelled_images(folder)
        known, problems = labels_of(folder, [image.file for image in test.images], labels)
        kinds = {image.file: known[image.file].kinds for image in test.images if image.file in known}
        skipped = [*map(str, test.broken), *problems]
        return {file: " + ".join(found) or GOOD for file, found in kinds.items()}, skipped
    if (folder / "test").is_dir():
        test = find_test_images(folder, with_masks=False)
        return {image.file: image.defect for image in test.images}, [str(error) for error in test.broken]
    files, broken = find_images(folder)
    if not files:
        problem = f"; {broken[0]}" if broken else ""
        raise DatasetError(f"there is no image in '{folder}'{problem}; give PNG, JPEG, WebP, BMP or TIFF images")
    return dict.fromkeys(files), [str(error) for error in broken]


def _inspected(
    detector: Detector,
    files: Sequence[Path],
    broken: dict[str, ImageError],
    on_progress: OnProgress | None,
) -> dict[str, Result]:
    """File → what a model found in it; files that it cannot use are added to ``broken``."""
    failed: list[ImageError] = []
    found: dict[str, Result] = {}
    for inspection in detector.inspect_many(list(files), on_error=failed.append):
        found[inspection.name] = Result(inspection.score, inspection.threshold, inspection.is_anomalous)
        if on_progress is not None:
            on_progress(len(found) + len(failed), len(files))
    for error in failed:
        broken.setdefault(error.name, error)
    return found
