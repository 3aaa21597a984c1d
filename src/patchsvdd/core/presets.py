"""Presets: named settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from patchsvdd.core.baseline_settings import BASELINES
from patchsvdd.core.config import SYNTHETIC_DEFECTS, Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.image_size import AUTO, size_settings
from patchsvdd.core.scales import Scale

_PAPER = Config(
    preset="paper",
    image_size=(256, 256),
    resize="nearest",
    centering="pixel",
    standardize=False,
    encoder="hierarchical",
    scales=(Scale(32, 4), Scale(64, 16)),
    embedding_dim=64,
    objective="patch-svdd",
    sampling="patches",
    steps=None,
    epochs=300,
    batch_size=64,
    crop_size=192,
    pairs_per_crop=256,
    learning_rate=1e-4,
    schedule="constant",
    lambda_=1e-3,
    relative_svdd=False,
    rgb_shift=0.02,
    noise=0.02,
    photometric=0.0,
    frozen_position_output=True,
    seed=0,
    false_alarm_rate=0.01,
)

_ENCODER = dataclasses.replace(
    _PAPER,
    preset="encoder",
    **size_settings({"image_size": AUTO}),
    resize="area",
    centering="channel",
    standardize=True,
    sampling="dense",
    steps=4000,
    epochs=None,
    batch_size=2,
    learning_rate=1e-3,
    schedule="cosine",
    lambda_=0.3,
    relative_svdd=True,
    photometric=0.5,
    frozen_position_output=False,
    svdd_before_tanh=True,
    warmup=100,
    clip=1.0,
    lamp=1.0,
    stop="validation",
    larger_patches="untrained",
    retries=2,
    aim="balanced",
    synthetic_defects=SYNTHETIC_DEFECTS,
)
_BEST = dataclasses.replace(_ENCODER, preset="best", critic=CriticSettings())

DEFAULT = "best"
PRESETS: dict[str, Config] = {"paper": _PAPER, "encoder": _ENCODER, "best": _BEST}
"""``paper`` follows the paper exactly. ``encoder`` trains in minutes on a CPU, where ``paper`` needs hours. ``best``
adds the critic. These two choose the image size from the good images; ``paper`` resizes them to 256x256."""
BASELINE_PRESETS: dict[str, Config] = {
    name: dataclasses.replace(_PAPER, preset=name, resize="area", baseline=settings)
    for name, settings in BASELINES.items()
}
"""Methods that the paper compares itself with, at its image size."""
OF_PATCH_SVDD = (
    *("steps", "encoder", "scales", "embedding_dim", "objective", "sampling", "lambda_", "photometric", "critic"),
    *("memory", "fusion_share", "synthetic_defects"),
)
"""Settings that a baseline does not have."""


def preset(name: str = DEFAULT, **changes: Any) -> Config:
    """Return the settings of a preset with ``changes`` applied; changes that are None are ignored."""
    presets = {**PRESETS, **BASELINE_PRESETS}
    if name not in presets:
        raise ConfigError(f"there is no preset '{name}'; choose one of: {', '.join(presets)}")
    if name in BASELINE_PRESETS:
        changes = _of_baseline(name, changes)
    return presets[name].replace(**changes)


def _of_baseline(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes with those of the training moved to the baseline's settings."""
    kept = {key: value for key, value in changes.items() if value is not None}
    foreign = [key for key in OF_PATCH_SVDD if key in kept]
    if foreign:
        raise ConfigError(f"`{foreign[0]}` is a setting of Patch SVDD; preset '{name}' has none; leave it out")
    moved: dict[str, Any] = {key: kept.pop(key) for key in ("epochs", "batch_size", "learning_rate") if key in kept}
    if moved:
        usual = kept.get("baseline", BASELINES[name])
        if "epochs" in moved:  # pretraining keeps its share of the training
            moved["pretraining"] = round(usual.pretraining * moved["epochs"] / usual.epochs)
        kept["baseline"] = dataclasses.replace(usual, **moved)
    return kept


def with_critic_steps(config: Config, steps: int | None) -> Config:
    """Return the settings with another number of critic steps; None leaves them unchanged."""
    if steps is None:
        return config
    if config.critic is None:
        raise ConfigError(f"`critic_steps`: preset '{config.preset}' has no critic; use `preset=best`")
    return config.replace(critic=dataclasses.replace(config.critic, steps=steps))
