"""The critic's maps, computed with the fastest available engine."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from patchsvdd.core.config import is_large
from patchsvdd.critic.gpu_network import fastest_network
from patchsvdd.critic.network import TrainedCritic, critic_map
from patchsvdd.critic.onnx_logits import CriticLogits
from patchsvdd.encoder.embedder import Engine as EngineOption
from patchsvdd.encoder.engines import Engine, LayerPrecision, fastest_known, open_engine, sample_size

KEPT_SIZES = 4
"""Image sizes whose engines are kept open."""


class CriticInference:
    """Computes a critic's maps on one device.

    With ``engine="auto"``, a CPU uses the fastest engine that was measured on this machine and stored in ``cache``,
    otherwise PyTorch. GPUs use fused layers if they are supported. Large images are processed in tiles, by PyTorch on a
    CPU. ``precision`` is that of
    a named engine; with "auto" it is stored with the engine.
    """

    def __init__(
        self,
        critic: TrainedCritic,
        device: torch.device,
        engine: EngineOption,
        cache: Path | None,
        precision: LayerPrecision = "float32",
    ) -> None:
        self.critic = critic if device.type == "cpu" else critic.computed_by(fastest_network(critic.folded))
        self._precision = precision
        self._on_cpu = device.type == "cpu"
        self._engine = engine
        self._cache = cache
        self.engine = lru_cache(maxsize=KEPT_SIZES)(self._open)
        """The engine for images of (height, width) on a CPU."""

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return maps (N, H, W) in 0 … 1 of pixels (N, 3, H, W) in 0 … 255."""
        size = (int(pixels.shape[2]), int(pixels.shape[3]))
        if not self._on_cpu or is_large(*size):
            return self.critic(pixels)
        logits = self.engine(size)(self.critic.normalization(pixels))
        return critic_map(logits, size, self.critic.smoothing)

    def _open(self, size: tuple[int, int]) -> Engine:
        name, precision = self._engine, self._precision
        if name == "auto":
            name, precision = fastest_known(CriticLogits(self.critic, sample_size(size)), size, self._cache)
        return open_engine(name, precision, CriticLogits(self.critic, size))
