"""Fit and load detectors of any method."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from patchsvdd.baselines.detector import BaselineDetector
from patchsvdd.core.config import Config
from patchsvdd.core.errors import ConfigError
from patchsvdd.detector.base import Detector
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import read_index
from patchsvdd.detector.train_model import PATCH_SVDD, Method
from patchsvdd.detector.training_backend import LOCAL, TrainingBackend
from patchsvdd.images.image_set import ImageSet


def method_of(config: Config) -> Method:
    """Return how detectors with these settings are fitted and loaded."""
    return PATCH_SVDD if config.baseline is None else BASELINE


def load_detector(folder: str | os.PathLike[str], device: str = "auto", **options: Any) -> Detector:
    """Load the detector stored in a folder, of any method; raise ModelError if it is missing or damaged.

    ``options`` are those of ``PatchSVDD.load``; baselines have none of them.
    """
    if is_baseline(folder):
        return BaselineDetector.load(folder, device)
    return PatchSVDD.load(folder, device, **options)


def is_baseline(folder: str | os.PathLike[str]) -> bool:
    """Return whether a model folder holds a baseline."""
    return read_index(Path(folder))["config"].get("baseline") is not None


def _fit_baseline(
    images: ImageSet, config: Config, *, backend: TrainingBackend = LOCAL, **options: Any
) -> BaselineDetector:
    if backend is not LOCAL:
        raise ConfigError(f"`{config.preset}` is trained by one process; leave out the workers and the cluster")
    options.pop("search", None)  # there is no memory to search
    return BaselineDetector.fit_images(images, config, **options)


BASELINE = Method(_fit_baseline, BaselineDetector.load)
