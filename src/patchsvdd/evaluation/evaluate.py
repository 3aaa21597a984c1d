"""A detector on the test images of a category: detection and segmentation AUROC, verdicts at the threshold."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.category import TestImage, TestSet, find_test_images
from patchsvdd.detector import PatchSVDD
from patchsvdd.errors import DatasetError, ImageError
from patchsvdd.evaluation.metrics import auroc
from patchsvdd.images import load_mask
from patchsvdd.inspection import Inspection

PRODUCT = 0
"""Key of the product map among the maps of the scales."""


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate`` measured. Metrics that could not be computed are absent and explained in ``skipped``."""

    metrics: dict[str, float]
    scales: dict[int, dict[str, float]]
    images: int
    seconds_per_image: float
    verdicts: dict[str, dict[str, int]]
    """Folder name → images and how many of them were called anomalous."""
    threshold: float
    skipped: dict[str, str]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """One object, as ``evaluate --json`` prints it."""
        return {
            **self.metrics,
            "images": self.images,
            "seconds_per_image": self.seconds_per_image,
            "scales": {str(size): values for size, values in self.scales.items()},
            "threshold": self.threshold if np.isfinite(self.threshold) else None,
            "verdicts": self.verdicts,
            "skipped": self.skipped,
            "warnings": list(self.warnings),
        }


class TestResults:
    """What is kept of each inspected test image until the labels are looked at."""

    __test__ = False  # not a pytest class

    def __init__(self, category: Path) -> None:
        self.category = category
        self.test = find_test_images(category)
        self.images: list[TestImage] = []
        self.scores: dict[int, list[float]] = defaultdict(list)
        self.maps: dict[int, list[NDArray[np.float32]]] = defaultdict(list)
        self.anomalous: list[bool] = []
        self.unreadable: list[ImageError] = []
        self._by_name = {str(image.file): image for image in self.test.images}
        self._start = time.perf_counter()

    @property
    def files(self) -> list[Path]:
        """The images to inspect."""
        return [image.file for image in self.test.images]

    def add(self, inspection: Inspection) -> None:
        """Take in the inspection of one of the files."""
        self.images.append(self._by_name[inspection.name])
        self.anomalous.append(inspection.is_anomalous)
        for size, one in {PRODUCT: inspection.anomaly_map, **inspection.scale_maps}.items():
            self.scores[size].append(float(one.max()))
            self.maps[size].append(one)
        self.seconds = time.perf_counter() - self._start


def evaluate(detector: PatchSVDD, category: Path, on_progress: Callable[[int, int], None] | None = None) -> Evaluation:
    """Inspect the test images of ``category``, then compare with their labels and masks."""
    results = TestResults(category)
    for inspection in detector.inspect_many(results.files, on_error=results.unreadable.append):
        results.add(inspection)
        if on_progress is not None:
            on_progress(len(results.images) + len(results.unreadable), len(results.files))
    return measure(results, detector)


def measure(results: TestResults, detector: PatchSVDD) -> Evaluation:
    """Compare what the detector said of the test images with their labels and masks."""
    test, category = results.test, results.category
    warnings = [str(error) for error in (*test.broken, *results.unreadable)]
    if not results.images:
        raise DatasetError(f"none of the test images in '{category}' could be read ({warnings[0]})")

    # From here on labels are read.
    metrics: dict[int, dict[str, float]] = defaultdict(dict)
    skipped: dict[str, str] = {}
    reason = _why_no_detection(results)
    if reason:
        skipped["detection_auroc"] = reason
    else:
        defective = np.array([not image.is_good for image in results.images])
        for size, scores in results.scores.items():
            metrics[size]["detection_auroc"] = auroc(defective, np.array(scores))
    masks, mask_warnings = _load_masks(results, detector)
    warnings += mask_warnings
    reason = _why_no_segmentation(test, masks, category)
    if reason:
        skipped["segmentation_auroc"] = reason
    else:
        pixels = np.concatenate([mask.ravel() for mask in masks if mask is not None])
        for size, maps in results.maps.items():
            values = [one.ravel() for one, mask in zip(maps, masks, strict=True) if mask is not None]
            metrics[size]["segmentation_auroc"] = auroc(pixels, np.concatenate(values))
    return Evaluation(
        metrics=metrics[PRODUCT],
        scales={scale.patch_size: metrics[scale.patch_size] for scale in detector.config.scales},
        images=len(results.images),
        seconds_per_image=results.seconds / len(results.images),
        verdicts=_verdicts(results),
        threshold=detector.threshold,
        skipped=skipped,
        warnings=tuple(warnings),
    )


def _verdicts(results: TestResults) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for image, anomalous in zip(results.images, results.anomalous, strict=True):
        entry = counts.setdefault(image.defect, {"images": 0, "anomalous": 0})
        entry["images"] += 1
        entry["anomalous"] += int(anomalous)
    return counts


def _why_no_detection(results: TestResults) -> str | None:
    """Why detection AUROC cannot be computed; None if it can."""
    good = sum(image.is_good for image in results.images)
    if good == 0:
        return "there are no good test images (test/good)"
    if good == len(results.images):
        return "there are no test images with defects (test/<defect>)"
    return None


def _load_masks(results: TestResults, detector: PatchSVDD) -> tuple[list[NDArray[np.bool_] | None], list[str]]:
    """The mask of each image at the size of its map: empty for good images, None where there is none."""
    masks: list[NDArray[np.bool_] | None] = []
    warnings = []
    for image, one in zip(results.images, results.maps[PRODUCT], strict=True):
        mask: NDArray[np.bool_] | None = np.zeros(one.shape, dtype=bool) if image.is_good else None
        if image.mask is not None:
            try:
                mask = load_mask(image.mask, (one.shape[0], one.shape[1]), detector.config.resize)
            except ImageError as error:
                warnings.append(str(error))
        masks.append(mask)
    without = [image for image, mask in zip(results.images, masks, strict=True) if mask is None]
    if without and len(without) < sum(not image.is_good for image in results.images):
        warnings.append(
            f"{len(without)} defective images have no mask and do not count for segmentation, e.g. {without[0].file}"
        )
    return masks, warnings


def _why_no_segmentation(test: TestSet, masks: list[NDArray[np.bool_] | None], category: Path) -> str | None:
    """Why segmentation AUROC cannot be computed; None if it can."""
    if any(mask is not None and mask.any() for mask in masks):
        if all(mask is None or mask.all() for mask in masks):
            return "the masks leave no good pixel to compare with"
        return None
    if not (category / "ground_truth").is_dir():
        return "there are no masks (no ground_truth folder)"
    if test.stray_masks:
        stray = test.stray_masks[0].relative_to(category)
        return (
            f"none of the {len(test.stray_masks)} masks fits a test image by name: {stray} would belong to "
            f"test/{stray.parts[1]}/{stray.stem.removesuffix('_mask')}.*"
        )
    return "no test image has a mask with a defect in it"
