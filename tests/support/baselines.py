"""Images and settings for short trainings of baselines."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from patchsvdd.core.baseline_settings import BASELINES, BaselineSettings
from support.parts import draw_part


def parts(count: int = 8, size: int = 64) -> torch.Tensor:
    """Good parts (N, 3, size, size) in 0 … 255."""
    return torch.from_numpy(np.stack([draw_part(seed, (size, size)) for seed in range(count)])).permute(0, 3, 1, 2)


def short(kind: str, **changes: Any) -> BaselineSettings:
    """Settings of a training of a second."""
    settings = dataclasses.replace(BASELINES[kind], epochs=2, views=4, batch_size=2, latent=8, pretraining=1)
    return dataclasses.replace(settings, **changes)
