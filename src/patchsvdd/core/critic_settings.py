"""Settings of the critic."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from patchsvdd.core.errors import ConfigError

EARLIER = {"muon_learning_rate": 0.0, "feature_coreset": 0, "check_steps": 0}
"""Values of settings that version 0.1 did not store."""


@dataclass(frozen=True)
class CriticSettings:
    """Settings of the critic, a DRAEM-style segmentation network trained on synthetic defects."""

    width: int = 32
    """Channels of the first layer; deeper layers have up to eight times as many."""
    steps: int = 8000
    """Optimiser steps."""
    batch_size: int = 16
    """Images per step."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    muon_learning_rate: float = 0.02
    """Peak learning rate of Muon, which trains all convolutions but the first and the last; 0: AdamW trains them."""
    warmup: int = 200
    """Steps over which the learning rate rises; then it falls to zero along a cosine."""
    share: float = 0.8
    """Share of the images with a synthetic defect."""
    photometric: float = 0.5
    """Strength of lighting changes."""
    turn: float = 0.08
    """Largest rotation of an image, in radians."""
    ema: float = 0.998
    """The final weights are an average over about 1 / (1 − ema) steps."""
    feature_coreset: int = 2048
    """Features of good images that are kept to measure distances to; 0: the network alone decides."""
    check_steps: int = 3000
    """Steps of each of the two critics that look for defects among the good images. With 0, or if the critic itself is
    trained for fewer steps, its features are compared instead."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CriticSettings:
        """Return the critic settings that ``Config.to_json`` wrote."""
        odd = sorted(set(data) - {field.name for field in dataclasses.fields(cls)})
        if odd:
            raise ConfigError(f"the stored settings of the critic do not fit this version: {', '.join(odd)}")
        return cls(**{**EARLIER, **data})


def check_critic(critic: CriticSettings) -> None:
    """Raise ConfigError for settings of the critic that cannot work."""
    if not isinstance(critic, CriticSettings):
        raise ConfigError(f"`critic` must be CriticSettings(steps=…, width=…); got {critic!r}")
    for name, least in (
        ("width", 2),
        ("steps", 1),
        ("batch_size", 1),
        ("warmup", 1),
        ("feature_coreset", 0),
        ("check_steps", 0),
    ):
        value = getattr(critic, name)
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"the critic's {name} must be a whole number of at least {least}; got {value}")
    for name, most in (("share", 1.0), ("photometric", 1.0), ("turn", math.pi + 0.01), ("ema", 0.999999)):
        value = getattr(critic, name)
        if not 0 <= value <= most:
            raise ConfigError(f"the critic's {name} must be between 0 and {most:g}; got {value}")
    if not 0 < critic.learning_rate < math.inf:
        raise ConfigError(f"the critic's learning_rate must be above 0; got {critic.learning_rate}")
    if not 0 <= critic.muon_learning_rate < math.inf:
        raise ConfigError(f"the critic's muon_learning_rate must be at least 0; got {critic.muon_learning_rate}")
