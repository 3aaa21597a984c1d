"""Recalibration: thresholds from good images, inside or outside the model's memory."""

from __future__ import annotations

import copy
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd.core.aims import Aim
from patchsvdd.core.errors import DatasetError, ImageError, ModelError
from patchsvdd.core.files import locked
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.image_statistics import image_statistics, together
from patchsvdd.detector.kept_pixels import KeptPixels
from patchsvdd.detector.model_folder import change_model, read_index
from patchsvdd.detector.score_shift import Shift, score_shift
from patchsvdd.detector.stored_memory import Search
from patchsvdd.encoder.embedder import Engine
from patchsvdd.encoder.engines import Precision
from patchsvdd.images.duplicates import duplicates_among, thumbnail
from patchsvdd.images.image_files import find_images
from patchsvdd.images.image_set import ImageBatch, LoadedImage, digest_of_pixels
from patchsvdd.images.loading import load_batches
from patchsvdd.images.mvtec_layout import GOOD, find_good_images
from patchsvdd.scoring.calibration import Basis, Calibration, calibrate, pixel_threshold
from patchsvdd.scoring.conformal import share_interval
from patchsvdd.scoring.trade_off import FEWEST_SCORES

PIXELS = 65_536
"""Evenly spaced pixels kept of each map to set the pixel threshold."""


@dataclass(frozen=True)
class DefectReport:
    """Detection rates on labelled defects, at the calibrated and at a suggested threshold."""

    scores: tuple[float, ...]
    found: int
    """Number of defects above the calibrated threshold."""
    suggested: float
    """The threshold with the smallest sum of miss rate and false-alarm rate."""
    suggested_misses: int
    suggested_false_alarms: int
    good: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        count = len(self.scores)
        return {
            "images": count,
            "found": self.found,
            "miss_rate": 1 - self.found / count,
            "miss_rate_interval": list(share_interval(count - self.found, count)),
            "suggested_threshold": self.suggested,
            "suggested_miss_rate": self.suggested_misses / count,
            "suggested_miss_rate_interval": list(share_interval(self.suggested_misses, count)),
            "suggested_false_alarm_rate": self.suggested_false_alarms / self.good,
            "suggested_false_alarm_rate_interval": list(share_interval(self.suggested_false_alarms, self.good)),
        }


@dataclass(frozen=True)
class Recalibration:
    """New thresholds, and the images they are based on."""

    calibration: Calibration
    before: float
    """The previous threshold."""
    separate: int
    """Number of images that are not in the model's memory."""
    known: int
    """Number of images in its memory, each scored without its own patches."""
    unusable: tuple[str, ...]
    """Images that a part of the model was trained on: their scores say nothing about new images."""
    copies: tuple[str, ...]
    """Images left out as near-copies of an image in the memory or of an earlier image."""
    defects: DefectReport | None
    min_area: int
    """Regions smaller than this many pixels of the original image are ignored."""
    shift: Shift | None = None
    """Comparison with the earlier calibration's scores; None if they are not comparable."""


def recalibrate_model(
    folder: str | os.PathLike[str],
    good: str | os.PathLike[str],
    false_alarm_rate: float | None = None,
    *,
    aim: Aim | None = None,
    pixel_rate: float | None = None,
    min_area: int | None = None,
    defects: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    device: str = "auto",
    engine: Engine = "auto",
    precision: Precision = "float32",
    search: Search = "auto",
    on_error: Callable[[ImageError], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Recalibration:
    """Recalibrate the model in ``folder`` on a folder of good images and store its new thresholds.

    See ``recalibrate`` for the rates, the aim and ``min_area``. ``defects`` is a folder of labelled defects to report
    on. With ``dry_run`` the model is not changed. Raise ModelError if the model was replaced in the meantime. An
    unusable image raises ImageError, or is passed to ``on_error`` and left out.
    """
    model = Path(folder)
    detector = PatchSVDD.load(model, device, engine=engine, precision=precision, search=search)
    images = find_good_images(Path(good))
    defect_files, broken_defects = find_images(Path(defects)) if defects is not None else (None, ())
    for error in (*images.broken, *broken_defects):
        if on_error is None:
            raise error
        on_error(error)
    result = recalibrate(
        detector,
        images.files,
        false_alarm_rate,
        aim=aim,
        pixel_rate=pixel_rate,
        min_area=min_area,
        defects=defect_files,
        on_error=on_error,
        on_progress=None if on_progress is None else lambda done: on_progress(done, len(images.files)),
    )
    if not dry_run:
        with locked(model, "calibrating"):
            changes = {"calibration": result.calibration.to_json()}
            if min_area is not None:
                changes["config"] = {**read_index(model)["config"], "min_area": result.min_area}
            change_model(model, changes, "calibrate", of=detector.identity)
    return result


def aim_for(aim: Aim | None, false_alarm_rate: float | None, earlier: Calibration | None, default: Aim) -> Aim:
    """Return the aim: as given, that of a given rate, that of the earlier calibration, or the default."""
    if aim is not None:
        return aim
    if false_alarm_rate is not None:
        return "few-alarms"
    return default if earlier is None or earlier.aim == "chosen" else earlier.aim


def recalibrate(
    detector: PatchSVDD,
    good: ImageBatch,
    false_alarm_rate: float | None = None,
    *,
    aim: Aim | None = None,
    pixel_rate: float | None = None,
    min_area: int | None = None,
    defects: ImageBatch | None = None,
    on_error: Callable[[ImageError], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Recalibration:
    """Set the image and pixel thresholds of ``detector`` from good images, for a false-alarm rate.

    ``aim`` is what the threshold is for: by default the model's, or "few-alarms" if a rate is given. Synthetic
    defects are drawn into the images if the aim requires them or the model was trained with some.
    ``false_alarm_rate`` defaults to the model's, ``pixel_rate`` to ``false_alarm_rate``. With ``min_area`` the detector
    ignores smaller regions from then on. Images outside its memory are scored as usual. Images in its memory are scored
    without their own patches if possible: not with a coreset, and not if the critic was trained on them.
    ``on_progress`` receives the number of images done.
    """
    earlier = detector.calibration
    rate = false_alarm_rate if false_alarm_rate is not None else detector.config.false_alarm_rate
    pixels = pixel_rate if pixel_rate is not None else rate
    if isinstance(good, str | os.PathLike) and (Path(good) / "train" / GOOD).is_dir():
        good = Path(good) / "train" / GOOD  # not the category's test images
    measuring = copy.copy(detector)  # the detector itself is unchanged if anything fails
    measuring.min_area = detector.min_area if min_area is None else min_area
    known = _Known(detector)
    aim = aim_for(aim, false_alarm_rate, earlier, detector.config.aim)
    draws = aim != "few-alarms" or detector.config.synthetic_defects > 0
    kept = KeptPixels()
    scored: list[_Scored] = []
    unusable: list[str] = []
    for done, loaded in enumerate(_each(measuring, good, on_error)):
        index = known.find(loaded)
        basis = known.basis(index)
        if basis is None:
            unusable.append(loaded.name)
        else:
            scored.append(known.in_own_units(_score(measuring, loaded, index, basis), measuring.min_area))
            if draws:
                kept.add(loaded.tensor, index, scored[-1].digest)
        if on_progress is not None:
            on_progress(done + 1)
    distinct, copies = known.distinct(scored)
    if not distinct:
        raise DatasetError(_nothing_left([*unusable, *copies]))
    if aim != "few-alarms" and len(distinct) < FEWEST_SCORES:
        raise DatasetError(
            f"the aim '{aim}' requires at least {FEWEST_SCORES} different good images; got {len(distinct)} of "
            f"{len(scored) + len(unusable)}. Give more good images, or choose `aim=few-alarms`"
        )
    bases = [image.basis for image in distinct]
    scores = [image.score for image in distinct]
    digests = tuple(image.digest for image in distinct)
    gathered = kept.evidence(measuring, statistics.median(scores), digests) if draws else None
    evidence = gathered.evidence if gathered is not None else None if earlier is None else earlier.evidence
    calibration = calibrate(scores, rate, worst_of(bases), aim, evidence)
    if gathered is not None:
        calibration = gathered.outlined(calibration)
    elif earlier is not None and pixel_rate is None:
        calibration = replace(calibration, region_level=earlier.region_level, region_share=earlier.region_share)
    calibration = replace(
        calibration,
        traits=together([image.traits for image in distinct]),
        digests=digests,
        pixel_threshold=pixel_threshold([image.values for image in distinct], pixels),
        pixel_rate=pixels,
    )
    report = None
    if defects is not None:
        report = _compare(calibration, [i.score for i in measuring.inspect_many(defects, on_error=on_error)])
    new = [image.score for image in distinct if image.basis == "separate"]
    shift = score_shift(earlier, new) if measuring.min_area == detector.min_area else None
    detector.min_area, detector.calibration = measuring.min_area, calibration
    separate = sum(basis == "separate" for basis in bases)
    before = earlier.threshold if earlier is not None else float("inf")
    known_images = len(distinct) - separate
    return Recalibration(
        calibration, before, separate, known_images, tuple(unusable), copies, report, detector.min_area, shift
    )


def worst_of(bases: Sequence[Basis]) -> Basis:
    """Return the weakest of the given bases."""
    order: tuple[Basis, ...] = get_args(Basis)
    return min(bases, key=order.index)


class _Known:
    """The images in a model's memory, by their pixels."""

    def __init__(self, detector: PatchSVDD) -> None:
        data = detector.provenance.get("data", {})
        if "digests" not in data:
            raise ModelError("this model does not record which images it holds; train it again to calibrate it")
        self._index = {digest: index for index, digest in enumerate(data["digests"])}
        self._whole, self._critic = detector.config.memory_size.is_whole, detector.critic is not None
        self._held_out = set(data["held_out"])
        self._tuned = detector.map_builder.fusion is not None or detector.map_builder.positions is not None
        self._pictures = detector.pictures
        self._min_area = detector.min_area
        stored = detector.calibration
        cross_fitted = stored is not None and stored.basis == "held-out" and stored.is_guaranteed
        self._stored = dict(zip(stored.digests, stored.scores, strict=False)) if stored and cross_fitted else {}

    def find(self, loaded: LoadedImage) -> int | None:
        """Return the image's index in the memory; None if it is not there."""
        return self._index.get(digest_of_pixels(loaded.tensor))

    def basis(self, index: int | None) -> Basis | None:
        """Return the basis that the image provides; None if its score cannot be used."""
        if index is None:
            return "separate"
        held_out = index in self._held_out
        if not self._whole or (self._critic and not held_out):
            return None
        if held_out:
            return "tuned" if self._tuned else "held-out"
        return "learned"

    def in_own_units(self, image: _Scored, min_area: int) -> _Scored:
        """Return a held-out image with its stored cross-fitted score, if there is one."""
        if image.basis != "tuned" or min_area != self._min_area or image.digest not in self._stored:
            return image
        return replace(image, score=self._stored[image.digest], basis="held-out")

    def distinct(self, scored: Sequence[_Scored]) -> tuple[list[_Scored], tuple[str, ...]]:
        """Return the distinct images, and the names of near-copies of an image in the memory or of an earlier one."""
        memory = [thumbnail(torch.tensor(image).permute(2, 0, 1)) for image in self._pictures or ()]
        new = [image for image in scored if image.number is None or not memory]
        every = [*memory, *(image.thumbnail for image in new)]
        first = duplicates_among(torch.stack(every)) if every else []
        shown = Counter(first[: len(memory)])
        places = {id(image): place for place, image in enumerate(new, start=len(memory))}
        kept: list[_Scored] = []
        taken: set[int] = set()
        for image in scored:
            group = first[places.get(id(image), image.number or 0)]
            # An image in the memory is not its own copy, but the memory may hold another copy of it.
            others = shown[group] - (1 if id(image) not in places else 0)
            if others == 0 and group not in taken:
                kept.append(image)
                taken.add(group)
        counted = {id(image) for image in kept}
        return kept, tuple(image.name for image in scored if id(image) not in counted)


@dataclass(frozen=True)
class _Scored:
    """A good image, scored as if it were new to the model."""

    name: str
    score: float
    values: NDArray[np.float32]
    """Some pixels of its map."""
    basis: Basis
    traits: dict[str, float]
    digest: str
    thumbnail: Tensor
    number: int | None
    """Index in the memory; None if it is not there."""


def _score(detector: PatchSVDD, loaded: LoadedImage, number: int | None, basis: Basis) -> _Scored:
    score, anomaly_map = seen_without(detector, loaded.tensor, number)
    area = detector.config.area((anomaly_map.shape[0], anomaly_map.shape[1]))
    counting = anomaly_map.ravel() if area is None else anomaly_map[area.mask]
    return _Scored(
        loaded.name,
        score,
        counting[:: max(1, counting.size // PIXELS)].copy(),  # a view would keep the map of every large image
        basis,
        image_statistics(loaded.tensor, anomaly_map, detector.config.frame),
        digest_of_pixels(loaded.tensor),
        thumbnail(loaded.tensor),
        number,
    )


def _each(
    detector: PatchSVDD, images: ImageBatch, on_error: Callable[[ImageError], None] | None
) -> Iterator[LoadedImage]:
    for batch in load_batches(images, detector.config, 1, on_error):
        yield from batch


def seen_without(detector: PatchSVDD, pixels: Tensor, index: int | None) -> tuple[float, NDArray[np.float32]]:
    """Return score and map (H, W) of pixels (3, H, W), against a memory without the patches of image ``index``."""
    maps = detector.anomaly_maps(pixels[None], index)
    return float(maps.scores[0]), maps.combined[0].cpu().numpy()


def _compare(calibration: Calibration, scores: Sequence[float]) -> DefectReport:
    if not scores:
        raise DatasetError("there is no usable image among the defects")
    good, bad = np.sort(calibration.scores), np.sort(scores)
    # All thresholds between two neighbouring scores act alike, so only the midpoints are tried.
    values = np.unique(np.concatenate((good, bad)))
    candidates = np.concatenate((values[:1] - 1e-6, (values[1:] + values[:-1]) / 2, values[-1:]))
    missed = np.searchsorted(bad, candidates, side="right")
    alarms = len(good) - np.searchsorted(good, candidates, side="right")
    cost = missed / len(bad) + alarms / len(good)
    best = int(np.flatnonzero(cost == cost.min())[-1])  # the highest of equals: fewer false alarms
    found = int((bad > calibration.threshold).sum())
    return DefectReport(
        tuple(scores), found, float(candidates[best]), int(missed[best]), int(alarms[best]), len(calibration.scores)
    )


def _nothing_left(unusable: Sequence[str]) -> str:
    if not unusable:
        return "there is no usable good image to calibrate with"
    return (
        f"the model knows all {len(unusable)} usable images: they trained its critic, are in its coreset, or are "
        f"copies of images in its memory. Their scores say nothing about new images; give good images it has not seen"
    )
