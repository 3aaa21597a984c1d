"""Whether an exported file says what the detector says, on real images."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.runtime import Detector

ALLOWED = 1e-3
"""Largest relative error of a map or a score."""
TIE = 1e-5
"""A score this near to the threshold, as a share of it, is a tie: rounding decides it on any two machines."""
FLOOR = 0.1
"""Of the threshold: maps that lie below it throughout are measured against it. An image that the model has learned
from is at distance 0 from itself, and a share of nothing says nothing."""
BATCH = 2
"""Images at a time, so that more than one is tried as well."""


@dataclass(frozen=True)
class ComparedImage:
    """One image through both."""

    name: str
    score: float
    """The detector's."""
    exported_score: float
    error: float
    """Largest difference of the maps, or of the scores, as a share of the map's largest value; infinite if one of
    these is not a number."""
    is_anomalous: bool
    exported_is_anomalous: bool
    is_tie: bool

    @property
    def agrees(self) -> bool:
        """Whether map, score and verdict are the detector's."""
        return self.error < ALLOWED and (self.is_tie or self.is_anomalous == self.exported_is_anomalous)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "image": self.name,
            "score": self.score,
            "exported_score": self.exported_score,
            "map_error": self.error,
            "verdict": verdict(self.is_anomalous),
            "exported_verdict": verdict(self.exported_is_anomalous),
            "tie": self.is_tie,
        }


@dataclass(frozen=True)
class Parity:
    """All images compared, and how long both took."""

    images: tuple[ComparedImage, ...]
    seconds: float
    """Of the detector, an image."""
    exported_seconds: float
    """Of the exported file, an image, in this process."""

    @property
    def holds(self) -> bool:
        """Whether every image agrees."""
        return all(one.agrees for one in self.images)

    @property
    def largest_error(self) -> float:
        """Of any map or score; infinite if one is not a number."""
        errors = [one.error for one in self.images]
        return max(errors) if np.isfinite(errors).all() else float("inf")

    @property
    def same_verdicts(self) -> int:
        """Images with the same verdict."""
        return sum(one.is_anomalous == one.exported_is_anomalous for one in self.images)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "holds": self.holds,
            "images": len(self.images),
            "anomalous": sum(one.is_anomalous for one in self.images),
            "largest_map_error": self.largest_error,
            "same_verdicts": self.same_verdicts,
            "ties": sum(one.is_tie for one in self.images),
            "time_ratio": self.exported_seconds / self.seconds,
        }


def verdict(is_anomalous: bool) -> str:
    """ "anomalous" or "good"."""
    return "anomalous" if is_anomalous else "good"


def compare(
    detector: PatchSVDD,
    exported: Detector,
    images: Sequence[tuple[str, NDArray[np.uint8]]],
    on_progress: Callable[[int, int], None] | None = None,
) -> Parity:
    """Both on the same (name, pixels (H, W, 3)), all of one size."""
    frame, compared = detector.config.frame, list[ComparedImage]()
    seconds = [0.0, 0.0]
    for start in range(0, len(images), BATCH):
        batch = images[start : start + BATCH]
        pixels = np.stack([one for _, one in batch])
        began = time.perf_counter()
        seen = pixels if frame is None else np.stack([frame.cut(one) for one in pixels])
        maps = detector.anomaly_maps(torch.from_numpy(seen.transpose(0, 3, 1, 2).copy()))
        expected, scores = maps.combined.cpu().numpy(), maps.scores.tolist()
        expected = expected if frame is None else np.stack([frame.spread(one) for one in expected])
        between = time.perf_counter()
        found = exported.run(pixels)
        seconds[0] += between - began
        seconds[1] += time.perf_counter() - between
        for index, (name, _) in enumerate(batch):
            own = (name, expected[index], scores[index])
            compared.append(_compare(own, (found[0][index], found[1][index], found[2][index]), detector.threshold))
        if on_progress is not None:
            on_progress(len(compared), len(images))
    return Parity(tuple(compared), seconds[0] / len(images), seconds[1] / len(images))


def _compare(
    own: tuple[str, NDArray[np.float32], float],
    found: tuple[NDArray[np.float32], np.float32, np.bool_],
    threshold: float,
) -> ComparedImage:
    name, expected, score = own
    least = FLOOR * threshold if np.isfinite(threshold) else 0.0
    scale = max(float(np.abs(expected).max()), least, float(np.finfo(np.float32).tiny))
    differences = np.append(np.abs(found[0] - expected), abs(float(found[1]) - score))
    error = float(differences.max()) / scale  # NaN if any of them is: numpy's maximum passes it on, Python's does not
    is_tie = bool(abs(score - threshold) <= TIE * abs(threshold)) if np.isfinite(threshold) else False
    return ComparedImage(
        name, score, float(found[1]), error if np.isfinite(error) else np.inf, score > threshold, bool(found[2]), is_tie
    )
