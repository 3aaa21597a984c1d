"""Evaluation of a detector on the test images of a category: metrics, and verdicts at the threshold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.base import Detector
from patchsvdd.evaluation.collected_results import PRODUCT, Key, TestResults, inspect_test_images
from patchsvdd.evaluation.labelled_results import Mask, apply_labels, read_mask
from patchsvdd.evaluation.metrics import Confusion, auroc, average_precision, best_f1, confusion, roc_curve
from patchsvdd.evaluation.operating_point import OperatingPoint, RegionCounts, best_balanced_accuracy, intervals
from patchsvdd.evaluation.streaming_metrics import PixelCurves
from patchsvdd.images.mvtec_layout import TestSet, find_test_images
from patchsvdd.scoring.ranking import Curve
from patchsvdd.scoring.regions import region_mask


@dataclass(frozen=True)
class Evaluation:
    """The result of ``evaluate``. Metrics that could not be computed are absent and explained in ``skipped``."""

    metrics: dict[str, float]
    """Of the final map: detection_auroc, detection_ap, detection_f1_max, detection_f1_threshold, the same for
    segmentation, and aupro."""
    at_threshold: dict[str, float]
    """Metrics of the verdicts (``OperatingPoint``) and the regions (``RegionCounts``) at the shipped threshold."""
    scales: dict[int, dict[str, float]]
    """Patch size → the same metrics of that scale's map."""
    parts: dict[str, dict[str, float]]
    """ "memory" and "critic" → the same metrics of that part, if the map is a fusion of both."""
    images: int
    seconds_per_image: float
    verdicts: dict[str, dict[str, int]]
    """Folder name → number of images, and of images classified as anomalous."""
    confusion: Confusion | None
    """Verdicts compared with labels; None without a calibrated threshold."""
    threshold: float
    skipped: dict[str, str]
    warnings: tuple[str, ...]
    curves: dict[str, Curve] = field(repr=False)
    """Curves of the final map, for plots: roc (images), pixel_roc, pro."""

    def to_json(self) -> dict[str, Any]:
        """One object, as `evaluate` prints it in JSON."""
        return {
            **self.metrics,
            **self.at_threshold,
            "images": self.images,
            "seconds_per_image": self.seconds_per_image,
            "scales": {str(size): values for size, values in self.scales.items()},
            "parts": self.parts,
            "threshold": self.threshold if np.isfinite(self.threshold) else None,
            "false_alarm_rate": self.confusion.false_alarm_rate if self.confusion else None,
            "miss_rate": self.confusion.miss_rate if self.confusion else None,
            **(intervals(self.confusion) if self.confusion else {}),
            "confusion": dataclasses.asdict(self.confusion) if self.confusion else None,
            "verdicts": self.verdicts,
            "skipped": self.skipped,
            "warnings": list(self.warnings),
        }


def evaluate(
    detector: Detector, category: Path, on_progress: OnProgress | None = None, *, labels: Path | None = None
) -> Evaluation:
    """Inspect the test images of ``category``, then compare with their labels and masks.

    ``labels`` is a file or folder of labels (COCO, LabelMe, Label Studio, or a category with masks) to use instead of
    the folders; ``category`` may then be any folder of images.
    """
    if labels is not None and not labels.exists():
        raise DatasetError(f"there is no file or folder '{labels}' with labels; check the path")
    return measure(inspect_test_images(detector, category, on_progress, in_folders=labels is None), detector, labels)


def measure(results: TestResults, detector: Detector, labels_file: Path | None = None) -> Evaluation:
    """Compare the results of the test images with their labels and masks, which are not read before this call."""
    category = results.category
    test = find_test_images(category) if labels_file is None else results.test
    warnings = [str(error) for error in (*test.broken, *results.unreadable)]
    if not results.images:
        raise DatasetError(f"none of the test images in '{category}' could be read ({warnings[0]})")
    masks: Mapping[Path, Mask] = {image.file: image.mask for image in test.images}
    if labels_file is not None:
        results, masks, problems = apply_labels(results, labels_file)
        warnings += problems
    skipped: dict[str, str] = {}
    curves: dict[str, Curve] = {}
    metrics: dict[Key, dict[str, float]] = {key: {} for key in results.keys}
    at_threshold: dict[str, float] = {}

    labels = np.array([not image.is_good for image in results.images])
    reason = _why_no_detection(labels)
    if reason:
        skipped["detection_auroc"] = reason
    else:
        for key, scores in results.scores.items():
            metrics[key] |= _detection(labels, np.array(scores))
        curves["roc"] = roc_curve(labels, np.array(results.scores[PRODUCT]))

    calibrated = detector.calibration is not None
    verdicts = confusion(labels, np.array(results.anomalous)) if calibrated else None
    if verdicts is not None and not reason:
        best = best_balanced_accuracy(labels, np.array(results.scores[PRODUCT]))
        at_threshold |= OperatingPoint(verdicts, best, metrics[PRODUCT]["detection_f1_max"]).metrics()

    pixels, regions, mask_warnings = _count_pixels(results, masks, detector)
    whole = f"{detector.config.preset} scores whole images; it has no map"
    reason = _why_no_segmentation(test, pixels[PRODUCT], category, labels_file) if detector.localizes else whole
    if reason:
        skipped["segmentation_auroc"] = reason
    else:
        for key, counted in pixels.items():
            metrics[key] |= _segmentation(counted)
        if calibrated:
            at_threshold |= regions.metrics(metrics[PRODUCT]["segmentation_f1_max"])
        curves |= {"pixel_roc": pixels[PRODUCT].roc_curve(), "pro": pixels[PRODUCT].pro_curve()}
    return Evaluation(
        metrics=metrics.pop(PRODUCT),
        at_threshold=at_threshold,
        scales={key: values for key, values in metrics.items() if isinstance(key, int)},
        parts={key: values for key, values in metrics.items() if isinstance(key, str)},
        images=len(results.images),
        seconds_per_image=results.seconds / len(results.images),
        verdicts=_verdicts(results),
        confusion=verdicts,
        threshold=detector.threshold,
        skipped=skipped,
        warnings=(*warnings, *mask_warnings),
        curves=curves,
    )


def _detection(labels: NDArray[np.bool_], scores: NDArray[np.float64]) -> dict[str, float]:
    """The metrics of image scores (N,)."""
    f1, threshold = best_f1(labels, scores)
    return {
        "detection_auroc": auroc(labels, scores),
        "detection_ap": average_precision(labels, scores),
        "detection_f1_max": f1,
        "detection_f1_threshold": threshold,
    }


def _segmentation(pixels: PixelCurves) -> dict[str, float]:
    """The metrics of all pixels."""
    f1, threshold = pixels.best_f1()
    return {
        "segmentation_auroc": pixels.auroc(),
        "segmentation_ap": pixels.average_precision(),
        "segmentation_f1_max": f1,
        "segmentation_f1_threshold": threshold,
        "aupro": pixels.aupro(),
    }


def _verdicts(results: TestResults) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for image, anomalous in zip(results.images, results.anomalous, strict=True):
        entry = counts.setdefault(image.defect, {"images": 0, "anomalous": 0})
        entry["images"] += 1
        entry["anomalous"] += int(anomalous)
    return counts


def _why_no_detection(labels: NDArray[np.bool_]) -> str | None:
    """Why detection metrics cannot be computed; None if they can."""
    if labels.all():
        return "there are no good test images (test/good)"
    if not labels.any():
        return "there are no test images with defects (test/<defect>)"
    return None


def _count_pixels(
    results: TestResults, masks: Mapping[Path, Mask], detector: Detector
) -> tuple[dict[Key, PixelCurves], RegionCounts, list[str]]:
    """Pixel histograms of every map, pixels of the regions as shipped, and warnings about the masks.

    The mask of a good image is empty; a defective image without a readable mask is left out.
    """
    curves = {key: PixelCurves() for key in results.keys}
    regions = RegionCounts()
    warnings, without = [], []
    for index, image in enumerate(results.images):
        height, width = results.map_of(index).shape
        mask = np.zeros((height, width), dtype=bool) if image.is_good else None
        file = masks.get(image.file)
        if file is not None:
            try:
                mask = read_mask(file, (height, width), detector.config.resize)
            except ImageError as error:
                warnings.append(str(error))
        if mask is None:
            without.append(image)
            continue
        for key, counted in curves.items():
            counted.add(results.map_of(index, key), mask)
        regions.add(region_mask(results.map_of(index), detector.threshold, *results.outlines[index]), mask)
    if without and len(without) < sum(not image.is_good for image in results.images):
        warnings.append(
            f"{len(without)} defective images have no mask and are left out of segmentation, e.g. {without[0].file}"
        )
    return curves, regions, warnings


def _why_no_segmentation(test: TestSet, pixels: PixelCurves, category: Path, labels: Path | None) -> str | None:
    """Why segmentation metrics cannot be computed; None if they can."""
    if pixels.defect_pixels:
        return None if pixels.good_pixels else "the masks cover every pixel, so there is no good pixel"
    if labels is not None:
        return f"no label in '{labels}' marks where a defect is"
    if not (category / "ground_truth").is_dir():
        return "there are no masks (no ground_truth folder)"
    if test.stray_masks:
        stray = test.stray_masks[0].relative_to(category)
        return (
            f"none of the {len(test.stray_masks)} masks matches a test image by name: {stray} would belong to "
            f"test/{stray.parts[1]}/{stray.stem.removesuffix('_mask')}.*"
        )
    return "no mask of a test image marks a defect"
