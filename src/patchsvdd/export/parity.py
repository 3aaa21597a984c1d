"""Check that an exported file and its detector agree on real images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.runtime import Detector


@dataclass(frozen=True)
class Limits:
    """Largest relative errors of an exported file that are allowed."""

    map: float
    score: float


EXACT = Limits(1e-3, 1e-3)
"""Limits of an exact search: only rounding differs."""
CELLS = Limits(0.05, 0.01)
"""Limits of a search by cells: about what the graph search of the library deviates from its exact search."""
TIE = 1e-5
"""A score this close to the threshold, relative to it, is a tie: rounding decides, even between two machines."""
FLOOR = 0.1
"""Maps below this fraction of the threshold are compared relative to it. A training image has distance 0 to itself,
where a relative error is meaningless."""
BATCH = 2
"""Images at a time, so that batches are checked too."""


@dataclass(frozen=True)
class ComparedImage:
    """The results of both for one image."""

    name: str
    score: float
    """The detector's score."""
    exported_score: float
    error: float
    """Largest difference of maps or scores, relative to the map's largest value; infinite if any value is NaN."""
    score_error: float
    """Difference of the scores, relative to the map's largest value; infinite if a score is NaN."""
    is_anomalous: bool
    exported_is_anomalous: bool
    is_tie: bool
    limits: Limits = EXACT

    @property
    def agrees(self) -> bool:
        """Whether map, score and verdict match the detector's."""
        is_near = self.error < self.limits.map and self.score_error < self.limits.score
        return is_near and (self.is_tie or self.is_anomalous == self.exported_is_anomalous)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "image": self.name,
            "score": self.score,
            "exported_score": self.exported_score,
            "map_error": self.error,
            "score_error": self.score_error,
            "verdict": verdict(self.is_anomalous),
            "exported_verdict": verdict(self.exported_is_anomalous),
            "tie": self.is_tie,
        }


@dataclass(frozen=True)
class Parity:
    """All compared images, and the run times."""

    images: tuple[ComparedImage, ...]
    seconds: float
    """Seconds per image of the detector."""
    exported_seconds: float
    """Seconds per image of the exported file, in this process."""

    @property
    def holds(self) -> bool:
        """Whether all images agree."""
        return all(image.agrees for image in self.images)

    @property
    def largest_error(self) -> float:
        """Largest error of any map or score; infinite if any value is NaN."""
        errors = [image.error for image in self.images]
        return max(errors) if np.isfinite(errors).all() else float("inf")

    @property
    def largest_score_error(self) -> float:
        """Largest error of any score; infinite if any value is NaN."""
        return max(image.score_error for image in self.images)

    @property
    def same_verdicts(self) -> int:
        """Number of images with the same verdict."""
        return sum(image.is_anomalous == image.exported_is_anomalous for image in self.images)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "holds": self.holds,
            "images": len(self.images),
            "anomalous": sum(image.is_anomalous for image in self.images),
            "largest_map_error": self.largest_error,
            "largest_score_error": self.largest_score_error,
            "same_verdicts": self.same_verdicts,
            "ties": sum(image.is_tie for image in self.images),
            "time_ratio": self.exported_seconds / self.seconds,
        }


def verdict(is_anomalous: bool) -> str:
    """ "anomalous" or "good"."""
    return "anomalous" if is_anomalous else "good"


def compare(
    detector: PatchSVDD,
    exported: Detector,
    images: Sequence[tuple[str, NDArray[np.uint8]]],
    limits: Limits = EXACT,
    on_progress: OnProgress | None = None,
) -> Parity:
    """Run both on the same (name, pixels (H, W, 3)), all of one size."""
    frame, compared = detector.config.frame, list[ComparedImage]()
    seconds = [0.0, 0.0]
    for start in range(0, len(images), BATCH):
        batch = images[start : start + BATCH]
        pixels = np.stack([image for _, image in batch])
        began = time.perf_counter()
        cropped = pixels if frame is None else np.stack([frame.cut(image) for image in pixels])
        maps = detector.anomaly_maps(torch.from_numpy(cropped.transpose(0, 3, 1, 2).copy()))
        expected, scores = maps.combined.cpu().numpy(), maps.scores.tolist()
        expected = expected if frame is None else np.stack([frame.spread(image) for image in expected])
        between = time.perf_counter()
        other = exported.run(pixels)
        seconds[0] += between - began
        seconds[1] += time.perf_counter() - between
        for index, (name, _) in enumerate(batch):
            reference = (name, expected[index], scores[index])
            result = (other[0][index], other[1][index], other[2][index])
            compared.append(_compare(reference, result, detector.threshold, limits))
        if on_progress is not None:
            on_progress(len(compared), len(images))
    return Parity(tuple(compared), seconds[0] / len(images), seconds[1] / len(images))


def _compare(
    reference: tuple[str, NDArray[np.float32], float],
    other: tuple[NDArray[np.float32], np.float32, np.bool_],
    threshold: float,
    limits: Limits,
) -> ComparedImage:
    name, expected, score = reference
    least = FLOOR * threshold if np.isfinite(threshold) else 0.0
    scale = max(float(np.abs(expected).max()), least, float(np.finfo(np.float32).tiny))
    score_error = abs(float(other[1]) - score) / scale
    error = max(float(np.abs(other[0] - expected).max()) / scale, score_error)
    is_finite = bool(np.isfinite(other[0]).all() and np.isfinite(score_error))
    is_tie = bool(abs(score - threshold) <= TIE * abs(threshold)) if np.isfinite(threshold) else False
    return ComparedImage(
        name=name,
        score=score,
        exported_score=float(other[1]),
        error=error if is_finite else np.inf,
        score_error=score_error if is_finite else np.inf,
        is_anomalous=score > threshold,
        exported_is_anomalous=bool(other[2]),
        is_tie=is_tie,
        limits=limits,
    )
