"""Pixels → embeddings on the patch grids, with the fastest available engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.device import reproducible
from patchsvdd.core.errors import ConfigError
from patchsvdd.encoder.engines import EngineName, Precision, fastest_known, open_engine
from patchsvdd.encoder.gpu_features import FusedFeatures, fused_features_run_on
from patchsvdd.encoder.networks import Features, PatchEncoder, grids_for
from patchsvdd.encoder.onnx_features import EncoderFeatures
from patchsvdd.encoder.patch_grid import PatchGrid, aligned, trim
from patchsvdd.images.normalization import Normalization

Engine = Literal["auto", "torch", "openvino", "onnxruntime"]
TRUSTED_ERROR = 1e-3
"""Fused convolutions that deviate more from PyTorch (weights too large for half precision) are not used."""

PROBE_SIDE = 128
"""Side of the image on which they are compared, in pixels of the shrunk image."""


class Embedder:
    """Embeds every patch of images on one device.

    With ``engine="auto"``, a GPU uses the fused convolutions if they are supported. A CPU uses the fastest engine that
    ``choose_engine`` has measured on this machine and stored in ``cache``, otherwise PyTorch.
    """

    def __init__(
        self,
        encoder: PatchEncoder,
        normalization: Normalization,
        config: Config,
        device: torch.device,
        engine: Engine = "auto",
        precision: Precision = "float32",
        cache: Path | None = None,
    ) -> None:
        if engine not in get_args(Engine):
            raise ConfigError(f"`engine` must be one of {', '.join(get_args(Engine))}; got '{engine}'")
        if device.type == "cuda" and engine not in ("auto", "torch"):
            raise ConfigError(f"`engine={engine}` runs on the CPU; use `device=cpu` or `engine=auto`")
        if precision not in get_args(Precision):
            raise ConfigError(f"`precision` must be one of {', '.join(get_args(Precision))}; got '{precision}'")
        if precision == "float16" and (device.type == "cuda" or engine not in ("auto", "openvino")):
            raise ConfigError("`precision=float16` requires `engine=openvino` on a CPU; use `precision=float32`")
        self.encoder, self.normalization, self.config, self.device = encoder, normalization, config, device
        self.engine, self.precision, self.cache = engine, precision, cache
        self._features: dict[tuple[tuple[int, ...], tuple[int, int]], tuple[Features, ...]] = {}

    def __call__(self, pixels: Tensor) -> list[Tensor]:
        """Embeddings (N, patches, D) on each grid, on the device, of pixels (N, 3, H, W) in 0 … 255."""
        size = (int(pixels.shape[2]), int(pixels.shape[3]))
        with torch.inference_mode(), reproducible():
            images = self.normalization(pixels.to(self.device, non_blocking=True))
            grids = self.grids(size)
            if any(grid.kept is not None for grid in grids):
                grids, down, across = trim(grids)
                images = images[:, :, down, across].contiguous()
            return self.embed(images, grids)

    def embed_part(self, pixels: Tensor, grids: Sequence[PatchGrid]) -> list[Tensor]:
        """Embeddings (N, patches, D) on bands of each grid of large images (N, 3, H, W); reads only their pixels."""
        down, across = (
            slice(
                aligned(min(one[0] for one in places), grids),
                max(one[-1] + size for one, size in zip(places, sizes, strict=True)),
            )
            for places in ([grid.rows for grid in grids], [grid.columns for grid in grids])
            for sizes in ([grid.scale.patch_size for grid in grids],)
        )
        seen = [
            replace(grid, band=grid.band.counted_from(down.start), across=grid.across.counted_from(across.start))
            for grid in grids
            if grid.band is not None and grid.across is not None
        ]
        with torch.inference_mode(), reproducible():
            normalization = self.normalization.resolved_for(pixels).to(self.device).for_rows(down.start, down.stop)
            strip = normalization(pixels[:, :, down].contiguous().to(self.device))
            return self.embed(strip[:, :, :, across].contiguous(), seen)

    def embed(self, images: Tensor, grids: Sequence[PatchGrid]) -> list[Tensor]:
        """Embeddings (N, patches, D) on each grid of normalised images, or of the strip that the grids are bands of."""
        return self.encoder.embed(images, grids, self.features(grids[0].image_size))

    def grids(self, size: tuple[int, int]) -> list[PatchGrid]:
        """One grid per scale for images of (height, width)."""
        return grids_for(self.encoder, self.config, size)

    def features(self, size: tuple[int, int]) -> tuple[Features, ...] | None:
        """The engines that compute features of images of this size, one for each of the encoder's parts.

        None for the encoder itself.
        """
        if self.encoder.parts[0].stack() is None:
            if self.engine not in ("auto", "torch"):
                raise ConfigError(f"`engine={self.engine}`: raw patches have no network to run; use `engine=torch`")
            return None
        grids = self.grids(size)
        steps = tuple(part.feature_step(grids) for part in self.encoder.parts)
        key = (steps, size)
        if key not in self._features:
            self._features[key] = self._open(steps, size)
        return self._features[key]

    def engine_for(self, size: tuple[int, int]) -> str:
        """Name and precision of the engine for images of this size."""
        features = self.features(size)
        return "torch float32" if features is None else f"{features[0].name} {features[0].precision}"  # type: ignore[attr-defined]

    def _open(self, steps: Sequence[int], size: tuple[int, int]) -> tuple[Features, ...]:
        networks = [EncoderFeatures(part, step) for part, step in zip(self.encoder.parts, steps, strict=True)]
        if self.device.type == "cuda":
            return tuple(self._open_on_gpu(network) for network in networks)
        name: EngineName = "torch"
        if self.engine != "auto":
            name = self.engine
        elif self.precision == "float16":
            name = "openvino"  # the only engine that supports it
        else:
            name = fastest_known(networks[0], size, self.cache)[0]
        return tuple(open_engine(name, self.precision, network) for network in networks)

    def _open_on_gpu(self, network: EncoderFeatures) -> Features:
        part = network.encoder
        torch_features = open_engine("torch", "float32", network)
        if self.engine == "torch" or not fused_features_run_on(part, self.device):
            return torch_features
        fused = FusedFeatures(part, network.step)
        generator = torch.Generator(self.device).manual_seed(0)
        side = PROBE_SIDE * part.shrink
        probe = torch.randn((1, 3, side, side), generator=generator, device=self.device)
        error = (fused(probe) - torch_features(probe)).abs().amax()
        return fused if float(error) <= TRUSTED_ERROR else torch_features  # False for NaN
