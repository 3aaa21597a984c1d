"""A baseline as a detector: fit on good images, inspect new images, save and load."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchsvdd.baselines.deep_svdd import DeepSvdd
from patchsvdd.baselines.training import BaselineTrainer, Network, build_baseline, sees_crops, train_baseline
from patchsvdd.core.baseline_settings import BaselineSettings
from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device, reproducible
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.presets import preset as preset_config
from patchsvdd.core.progress import OnStage, stage
from patchsvdd.critic.validation import hold_out
from patchsvdd.detector.base import Detector
from patchsvdd.detector.inspections import to_inspections
from patchsvdd.detector.model_folder import StoredModel, read_model, write_model
from patchsvdd.detector.provenance import describe_training
from patchsvdd.detector.schedule import limit_cpu_minutes, training_seconds
from patchsvdd.detector.serialization import min_area_in_map
from patchsvdd.detector.split import require_two
from patchsvdd.images.image_set import ImageBatch, ImageSet, LoadedImage
from patchsvdd.images.loading import load_training_images
from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.scoring.anomaly_map import AnomalyMaps, image_score, zero_outside
from patchsvdd.scoring.calibration import Calibration, calibrate
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.training.hooks import TrainingHooks, TrainingRecord

PART = "baseline"
"""Part of a model folder that holds the network."""
TIMED_STEPS = 3
"""Steps that measure how many fit into the given minutes."""


class BaselineDetector(Detector):
    """A trained baseline: a network and a threshold. Create one with ``fit`` or ``load``."""

    def __init__(
        self,
        config: Config,
        network: Network,
        device: torch.device,
        calibration: Calibration | None = None,
        provenance: dict[str, Any] | None = None,
        pictures: Thumbnails | None = None,
    ) -> None:
        self.config, self.device = config, device
        self.network = network.to(device).eval().requires_grad_(False)
        self.calibration, self.provenance, self.pictures = calibration, provenance or {}, pictures
        self.identity = None

    @property
    def localizes(self) -> bool:
        """Whether the map shows where an image is abnormal: Deep SVDD scores whole images."""
        return not isinstance(self.network, DeepSvdd)

    @classmethod
    def fit(
        cls,
        images: ImageBatch,
        *,
        preset: str,
        device: str = "auto",
        hooks: TrainingHooks | None = None,
        on_stage: OnStage | None = None,
        leave_out: Collection[str] = (),
        **settings: Any,
    ) -> BaselineDetector:
        """Train a baseline on good images: a folder, a category in MVTec layout, or arrays."""
        config = limit_cpu_minutes(preset_config(preset, **settings), choose_device(device), settings)
        loaded, config = load_training_images(images, config, on_stage, leave_out)
        return cls.fit_images(loaded, config, device=device, hooks=hooks, on_stage=on_stage)

    @classmethod
    def fit_images(
        cls,
        images: ImageSet,
        config: Config,
        *,
        device: str = "auto",
        hooks: TrainingHooks | None = None,
        on_stage: OnStage | None = None,
        calibrated: bool = True,
        network: Network | None = None,
    ) -> BaselineDetector:
        """Train a baseline on loaded images; a given ``network`` is used without further training.

        A fifth of the images is held out and sets the threshold.
        """
        settings, chosen = resolved(config, images), choose_device(device)
        trained, held_out = hold_out(len(images))
        pixels, record = images.pixels[trained].to(chosen), TrainingRecord(0, 0.0, [])
        if network is None:
            hooks = hooks or TrainingHooks()
            if config.minutes is not None:
                settings = _begun(settings, hooks) or shortened(
                    settings, pixels, config.seed, training_seconds(config.minutes)
                )
            progress = stage(on_stage, "training")
            network, record = train_baseline(pixels, settings, config.seed, images.fingerprint(), hooks, progress)
        config = config.replace(baseline=settings)
        provenance = describe_training(images, config, record, None, chosen, held_out)
        detector = cls(config, network, chosen, None, provenance, Thumbnails.from_images(images.pixels))
        if calibrated:
            scores = [float(detector.anomaly_maps(images.pixels[index][None]).scores[0]) for index in held_out]
            calibration = calibrate(scores, config.false_alarm_rate, "held-out", "few-alarms", None)
            digests = provenance["data"]["digests"]
            detector.calibration = dataclasses.replace(calibration, digests=tuple(digests[index] for index in held_out))
        return detector

    def anomaly_maps(self, pixels: Tensor) -> AnomalyMaps:
        """Return maps and scores of pixels (N, 3, H, W) in 0 … 255, on the detector's device."""
        size = (int(pixels.shape[2]), int(pixels.shape[3]))
        with reproducible(), torch.inference_mode():
            images = pixels.to(self.device).float() / 255
            if isinstance(self.network, DeepSvdd):
                scores = self.network.scores(images)
                return AnomalyMaps({}, scores[:, None, None].repeat(1, *size), scores)
            maps = zero_outside(self.network.maps(images), self.config.area(size))
            return AnomalyMaps({}, maps, image_score(maps, self._min_area))

    @property
    def _min_area(self) -> int:
        return min_area_in_map(self.config, self.provenance)

    def _to_inspections(self, batch: Sequence[LoadedImage], maps: AnomalyMaps) -> list[Inspection]:
        return to_inspections(batch, maps, self.config, self.calibration, self._min_area)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model folder; an interrupted save leaves a previous model intact."""
        about: dict[str, Any] = {
            "config": self.config.to_json(),
            "calibration": self.calibration.to_json() if self.calibration is not None else None,
            "provenance": self.provenance,
            "image_names": [],
            "fusion": None,
        }
        parts = {PART: dict(self.network.state_dict())}
        if self.pictures is not None:
            parts["pictures"] = self.pictures.state()
        self.identity = write_model(Path(folder), about, parts)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> BaselineDetector:
        """Load the baseline stored in a folder; raise ModelError if the model is missing or damaged."""
        return cls.from_stored(read_model(Path(folder)), folder, device)

    @classmethod
    def from_stored(cls, stored: StoredModel, folder: str | os.PathLike[str], device: str = "auto") -> BaselineDetector:
        """Return the baseline of a stored model."""
        try:
            config = Config.from_json(stored.about["config"])
            settings = settings_of(config)
        except ConfigError as error:
            raise ModelError(f"'{folder}' cannot be read as a baseline: {error}") from None
        network = build_baseline(settings, settings.view == "crops", config.seed)
        network.load_state_dict(stored.parts[PART])
        calibration = stored.about["calibration"]
        known = Calibration.from_json(calibration) if calibration else None
        pictures = Thumbnails.from_state(stored.parts["pictures"]) if "pictures" in stored.parts else None
        detector = cls(config, network, choose_device(device), known, stored.about["provenance"], pictures)
        detector.identity = stored.identity
        return detector


def settings_of(config: Config) -> BaselineSettings:
    """Return the settings of the baseline; raise ConfigError for those of another method."""
    if config.baseline is None:
        raise ConfigError(f"preset '{config.preset}' is not a baseline")
    return config.baseline


def resolved(config: Config, images: ImageSet) -> BaselineSettings:
    """Return the settings of the baseline with its view decided, from the images it is trained on."""
    settings = settings_of(config)
    require_two(len(images))
    crops = sees_crops(settings, images.pixels[hold_out(len(images))[0]])
    return dataclasses.replace(settings, view="crops" if crops else "image")


def _begun(settings: BaselineSettings, hooks: TrainingHooks) -> BaselineSettings | None:
    """Return the settings with the length of the training that ``hooks`` continue; None if there is none."""
    stored = hooks.checkpoint.settings() if hooks.resume and hooks.checkpoint is not None else None
    if stored is None:
        return None
    length = {name: stored[name] for name in ("epochs", "views", "pretraining") if name in stored}
    return dataclasses.replace(settings, **length)


def shortened(settings: BaselineSettings, pixels: Tensor, seed: int, seconds: float) -> BaselineSettings:
    """Return settings whose training needs at most about this many seconds, measured with a few steps."""
    trial = BaselineTrainer(build_baseline(settings, settings.view == "crops", seed), pixels, settings, seed)
    trial.advance()  # the first step is slower
    start = time.monotonic()
    for _ in range(TIMED_STEPS):
        trial.advance()
    steps = max(1, int(seconds * TIMED_STEPS / (time.monotonic() - start)))
    if steps >= trial.steps:
        return settings
    share = steps / trial.steps
    pretraining = math.floor(settings.pretraining * share)
    epochs = math.floor(settings.epochs * share)
    if epochs >= 1:
        return dataclasses.replace(settings, epochs=epochs, pretraining=pretraining)
    return dataclasses.replace(settings, epochs=1, pretraining=0, views=steps * settings.batch_size)
