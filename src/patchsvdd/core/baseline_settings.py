"""Settings of the baselines: methods that the paper compares itself with."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from patchsvdd.core.errors import ConfigError

BaselineKind = Literal["deep-svdd", "l2-ae", "ssim-ae"]
Boundary = Literal["hard", "soft"]
View = Literal["auto", "image", "crops"]


@dataclass(frozen=True)
class BaselineSettings:
    """Settings of one baseline. Those of the other methods are ignored."""

    kind: BaselineKind
    epochs: int
    """Passes of ``views`` views each."""
    views: int | None
    """Views per epoch; None for as many as there are training images."""
    batch_size: int
    learning_rate: float
    weight_decay: float
    latent: int
    """Length of the code."""
    view: View = "image"
    """What the network sees: whole images, or crops of 128 px for textures; "auto" decides from the good images."""
    augment: bool = False
    """Shift and rotate whole images a little, as Bergmann et al. do."""
    boundary: Boundary = "hard"
    """deep-svdd: every image belongs inside ("hard"), or a share ``nu`` may lie outside ("soft")."""
    nu: float = 0.1
    """deep-svdd: share of the images outside a soft boundary."""
    pretraining: int = 0
    """deep-svdd: epochs of an autoencoder that initialises the network."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BaselineSettings:
        """Return the settings that ``Config.to_json`` wrote."""
        odd = sorted(set(data) - {field.name for field in dataclasses.fields(cls)})
        if odd:
            raise ConfigError(f"the stored settings of the baseline do not fit this version: {', '.join(odd)}")
        return cls(**data)


BASELINES: dict[str, BaselineSettings] = {
    "deep-svdd": BaselineSettings(
        kind="deep-svdd",
        epochs=150,
        views=None,
        batch_size=64,
        learning_rate=1e-4,
        weight_decay=5e-7,
        latent=128,
        pretraining=350,
    ),
    "l2-ae": BaselineSettings(
        kind="l2-ae",
        epochs=200,
        views=10_000,
        batch_size=128,
        learning_rate=2e-4,
        weight_decay=1e-5,
        latent=100,
        view="auto",
        augment=True,
    ),
}
BASELINES["ssim-ae"] = dataclasses.replace(BASELINES["l2-ae"], kind="ssim-ae")


def check_baseline(settings: BaselineSettings) -> None:
    """Raise ConfigError for settings of a baseline that cannot work."""
    for name, allowed in (("kind", BaselineKind), ("view", View), ("boundary", Boundary)):
        if getattr(settings, name) not in get_args(allowed):
            raise ConfigError(
                f"the baseline's {name} must be one of {', '.join(get_args(allowed))}; got {getattr(settings, name)!r}"
            )
    for name, least in (("epochs", 1), ("batch_size", 2), ("latent", 1), ("pretraining", 0)):
        value = getattr(settings, name)
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"the baseline's {name} must be a whole number of at least {least}; got {value}")
    if settings.views is not None and settings.views < 1:
        raise ConfigError(f"the baseline's views must be at least 1; got {settings.views}")
    if not 0 < settings.learning_rate < math.inf:
        raise ConfigError(f"the baseline's learning_rate must be above 0; got {settings.learning_rate}")
    if not 0 <= settings.weight_decay < math.inf:
        raise ConfigError(f"the baseline's weight_decay must be at least 0; got {settings.weight_decay}")
    if not 0 < settings.nu < 1:
        raise ConfigError(f"the baseline's nu must be between 0 and 1; got {settings.nu}")
