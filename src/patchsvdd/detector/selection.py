"""Settings chosen for a set of images without labels, by synthetic defects in held-out good images."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from patchsvdd.core.config import Config
from patchsvdd.core.errors import TrainingCollapsed
from patchsvdd.core.progress import OnStage
from patchsvdd.critic.validation import ValidationResult, ValidationSet, hold_out
from patchsvdd.detector.fitting import learn_encoder, validate_encoder
from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.images.image_set import ImageBatch, ImageSet
from patchsvdd.images.loading import load_again
from patchsvdd.images.normalization import Normalization
from patchsvdd.scoring.ranking import MARGIN
from patchsvdd.training.hooks import TrainingHooks

Reload = Callable[[Config], ImageSet]
"""The same good images as other settings want them: another resize filter makes other pixels."""
TRAINED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("λ 0.1", {"lambda_": 0.1}),
    ("λ 1", {"lambda_": 1.0}),
    ("half the steps", {"steps": 0.5}),
    ("twice the steps", {"steps": 2.0}),
    ("stronger light", {"photometric": 1.0}),
    ("each image centred", {"centering": "image"}),
    ("each image's exposure undone", {"centering": "exposure"}),
    ("mean image removed", {"centering": "pixel"}),
    ("not standardised", {"standardize": False}),
    ("nearest resize", {"resize": "nearest"}),
)
"""Changes that require a training each. Numbers of steps are factors."""
APPLIED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("position normalisation", {"position_normalization": True}),
    ("local scaling", {"local_scaling": True}),
    ("a tenth of the memory", {"memory": "10%"}),
)
"""Changes to how a trained encoder is used."""


def reload_from(images: ImageBatch, loaded: ImageSet) -> Reload | None:
    """A function that loads the same images for other settings; None unless ``images`` is a path.

    Other sources may be exhausted once they have been read.
    """
    return partial(load_again, images, loaded.names) if isinstance(images, str | os.PathLike) else None


@dataclass(frozen=True)
class Trial:
    """One setting and how it did."""

    name: str
    config: Config
    result: ValidationResult | None
    """None for a training that collapsed."""
    kept: bool

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready row."""
        return {"setting": self.name, "kept": self.kept, **(self.result.to_json() if self.result else {})}


@dataclass(frozen=True)
class Selection:
    """The settings chosen, and what was tried."""

    config: Config
    images: ImageSet
    """The good images as these settings want them."""
    trials: tuple[Trial, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """Rows for a model's provenance."""
        return [trial.to_json() for trial in self.trials]


def select(
    images: ImageSet,
    config: Config,
    device: torch.device,
    *,
    reload: Reload | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_stage: OnStage | None = None,
) -> Selection:
    """Try one change after the other and keep it if synthetic defects are found better with it.

    On a CPU only changes that need no training are tried; with a time limit, none that would change the length of
    training; another resize filter only if the images can be loaded again. With two images one would be left to train
    on, which shows nothing of how good images differ, so nothing is tried.
    """
    if len(images) < 3:
        return Selection(dataclasses.replace(config, selection=False), images, ())
    return _Search(images, config, device, reload, should_stop, on_stage).run()


class _Search:
    def __init__(
        self,
        images: ImageSet,
        config: Config,
        device: torch.device,
        reload: Reload | None,
        should_stop: Callable[[], bool],
        on_stage: OnStage | None,
    ) -> None:
        self.images, self.device, self.should_stop, self.on_stage = images, device, should_stop, on_stage
        self.reload = reload
        self.start = config
        self.trained, self.held_out = hold_out(len(images))
        # Chosen for the encoder and its memory: the critic is trained once, when they are settled.
        self.config = dataclasses.replace(config, critic=None, selection=False, stop="end")
        self.trials: list[Trial] = []
        self.encoder: PatchEncoder | None = None

    def run(self) -> Selection:
        best = self._try("as the preset has it", self.config, train=True)
        changes = [(*one, False) for one in APPLIED]
        if self.device.type == "cuda":  # a training takes seconds there, elsewhere minutes
            timeless = [one for one in TRAINED if self.start.minutes is None or "steps" not in one[1]]
            changes = [*((*one, True) for one in timeless), *changes]
        for done, (name, change, train) in enumerate(changes):
            self._say(done, len(changes))
            candidate = self._changed(change)
            if candidate != self.config and (self.reload is not None or "resize" not in change):
                best = max(best, self._try(name, candidate, train, best))
        self._say(len(changes), len(changes))
        kept = {name: getattr(self.start, name) for name in ("critic", "preset", "stop")}
        chosen = dataclasses.replace(self.config, **kept)
        return Selection(chosen, self.images, tuple(self.trials))

    def _changed(self, change: dict[str, Any]) -> Config:
        if "steps" in change:
            steps = self.config.total_steps(len(self.trained))
            return self.config.replace(steps=max(1, round(steps * change["steps"])))
        return self.config.replace(**change)

    def _try(self, name: str, config: Config, train: bool, best: float | None = None) -> float:
        """The criterion of a candidate; it becomes the choice if it beats ``best`` clearly."""
        images = self.images
        if config.resize != self.config.resize and self.reload is not None:
            images = self.reload(config)
        part = images.subset(self.trained)
        encoder = self.encoder
        if train or encoder is None:
            try:
                encoder, _ = learn_encoder(part, config, self.device, TrainingHooks(should_stop=self.should_stop))
            except TrainingCollapsed:
                self.trials.append(Trial(name, config, None, False))
                return 0.0
        normalization = Normalization.fit(part.pixels, config).to(self.device)
        held_out = images.subset(self.held_out).pixels.to(self.device)
        validation = ValidationSet.draw(held_out, seed=0, frame=config.frame)
        result = validate_encoder(encoder, part, validation, config, normalization)
        kept = best is None or result.criterion > best + MARGIN
        self.trials.append(Trial(name, config, result, kept))
        if kept:
            self.config, self.encoder, self.images = config, encoder, images
        return result.criterion if kept else 0.0

    def _say(self, done: int, total: int) -> None:
        if self.on_stage is not None:
            self.on_stage("selection", done, total)
