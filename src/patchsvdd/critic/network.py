"""The critic: a DRAEM-style segmentation network trained on synthetic defects.

# Differs from the paper: Patch SVDD only knows how far a patch is from normal ones. The critic is trained from scratch
# on synthetic defects in the same good images (``synthetic_defects``) and finds defects that are close to normal.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from patchsvdd.core.config import Centering, is_large
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.presets import preset
from patchsvdd.critic.defect_filters import DefectFilters
from patchsvdd.critic.feature_coreset import FeatureCoreset
from patchsvdd.critic.tiles import COARSEST, STEP, tiles
from patchsvdd.images.normalization import Normalization

CENTERING: Centering = "exposure"
"""Each image by its own mean and contrast: its illumination does not show whether it has a defect."""
SMOOTHING = 3.0
"""Standard deviation, in pixels at 256 px, of the Gaussian that smooths critic maps; scales with the image."""
EARLIER_SMOOTHING = 4.0
"""The same for models of version 0.1, which do not record it."""
TILE_BYTES = {"cpu": 512 * 2**20, "cuda": 8 * 2**30}
"""Large images are processed in tiles whose layers need about this much memory."""
BYTES_PER_CHANNEL = 5
"""Memory of the layers per input pixel and channel of the first layer; measured."""
ROWS_AT_ONCE = 256
"""Rows of a large map computed at a time."""
FEATURE_STEP = 2 * STEP
"""Input pixels per feature."""


class Residual(nn.Module):
    """Two 3×3 convolutions with batch normalisation, and a 1×1 skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs or stride != 1 else None

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, outputs, H / stride, W / stride)."""
        inner = _relu(self.first_norm(self.first(images)))
        inner = self.second_norm(self.second(inner))
        return _relu(inner + (images if self.skip is None else _every_other(self.skip, images)))


def _every_other(skip: nn.Conv2d, images: Tensor) -> Tensor:
    """Apply a strided 1×1 convolution as a plain one on every ``stride``-th pixel.

    Never call ``skip`` directly. The backward pass of a strided 1×1 convolution in channels-last layout writes past the
    end of a buffer if it has fewer than 16 input channels: seen with PyTorch 2.13.0 (oneDNN 3.12.0) on x86-64 with
    AVX-512, not on ARM. ``Conv2d(4, 8, 1, 2)`` on a (3, 4, 80, 64) input aborts within 30 backward passes under
    ``LD_PRELOAD=libc_malloc_debug.so.0 MALLOC_CHECK_=3``. The result is the same, for every width.
    """
    down, across = skip.stride
    return F.conv2d(images[:, :, ::down, ::across], skip.weight)


class UpsampleBlock(nn.Module):
    """Upsamples a coarse map by two and joins it with a finer one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        """Return (N, outputs, H, W), given a coarse map (N, …, H / 2, W / 2) and a fine one (N, …, H, W)."""
        doubled = F.interpolate(coarse, scale_factor=2.0, mode="nearest")
        return _relu(self.norm(self.mix(torch.cat((doubled, fine), dim=1))))


class Critic(nn.Module):
    """Normalised images (N, 3, H, W) → defect logits (N, ⌈H/4⌉, ⌈W/4⌉)."""

    def __init__(self, settings: CriticSettings) -> None:
        super().__init__()
        w = settings.width
        self.stem = nn.Conv2d(3, w, 5, 2, 2, bias=False)
        self.stem_norm = nn.BatchNorm2d(w)
        self.quarter = nn.Sequential(Residual(w, 2 * w, 2), Residual(2 * w, 2 * w))
        self.eighth = nn.Sequential(Residual(2 * w, 4 * w, 2), Residual(4 * w, 4 * w))
        self.sixteenth = nn.Sequential(Residual(4 * w, 8 * w, 2), Residual(8 * w, 8 * w))
        self.deepest = Residual(8 * w, 8 * w, 2)
        self.to_sixteenth = UpsampleBlock(16 * w, 4 * w)
        self.to_eighth = UpsampleBlock(8 * w, 2 * w)
        self.to_quarter = UpsampleBlock(4 * w, 2 * w)
        self.head = nn.Conv2d(2 * w, 1, 3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits at every fourth pixel; images are padded to multiples of COARSEST."""
        return self.with_features(images)[0]

    def features(self, images: Tensor) -> Tensor:
        """Return features (N, 4 · width, ⌈H/8⌉, ⌈W/8⌉)."""
        height, width = images.shape[2:]
        return self._encode(padded_images(images))[1][:, :, : -(-height // FEATURE_STEP), : -(-width // FEATURE_STEP)]

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (N, ⌈H/4⌉, ⌈W/4⌉) and ``features``."""
        logits, features, _ = self.with_all_features(images)
        return logits, features

    def with_all_features(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (N, ⌈H/4⌉, ⌈W/4⌉), ``features``, and those of two stages (N, 6 · width, ⌈H/8⌉, ⌈W/8⌉)."""
        height, width = images.shape[2:]
        quarter, eighth = self._encode(padded_images(images))
        sixteenth = self.sixteenth(eighth)
        joined = self.to_sixteenth(self.deepest(sixteenth), sixteenth)
        joined = self.to_quarter(self.to_eighth(joined, eighth), quarter)
        logits: Tensor = self.head(joined)[:, 0]
        return (
            logits[:, : -(-height // STEP), : -(-width // STEP)],
            eighth[:, :, : -(-height // FEATURE_STEP), : -(-width // FEATURE_STEP)],
            early_features(images, quarter, eighth),
        )

    def inner_convolutions(self) -> list[nn.Parameter]:
        """Return the weights of all convolutions but the first and the last."""
        outer = (self.stem.weight, self.head.weight)
        return [one for one in self.parameters() if one.ndim == 4 and not any(one is weight for weight in outer)]

    def _encode(self, padded: Tensor) -> tuple[Tensor, Tensor]:
        quarter = self.quarter(_relu(self.stem_norm(self.stem(padded))))
        return quarter, self.eighth(quarter)


def early_features(images: Tensor, quarter: Tensor, eighth: Tensor) -> Tensor:
    """Return (N, 6 · width, ⌈H/8⌉, ⌈W/8⌉) of the images, from the layers of the padded ones."""
    height, width = images.shape[2:]
    joined = torch.cat((F.avg_pool2d(quarter, 2), eighth), dim=1)
    return joined[:, :, : -(-height // FEATURE_STEP), : -(-width // FEATURE_STEP)]


def padded_images(images: Tensor) -> Tensor:
    """Return the images with their edges repeated, so that their sides are multiples of COARSEST."""
    missing = (-images.shape[2] % COARSEST, -images.shape[3] % COARSEST)
    return F.pad(images, (0, missing[1], 0, missing[0]), mode="replicate") if any(missing) else images


def _relu(values: Tensor) -> Tensor:
    """ReLU; in place without gradients, so that large images need not hold their largest layer twice."""
    return F.relu(values, inplace=not torch.is_grad_enabled())


def build_critic(settings: CriticSettings, seed: int = 0) -> Critic:
    """Return a newly initialised critic; its weights depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Critic(settings)


class CriticNetwork(Protocol):
    """Computes what ``Critic`` computes, without gradients."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return logits at every fourth pixel of normalised images (N, 3, H, W)."""

    def features(self, images: Tensor) -> Tensor:
        """Return features (N, 4 · width, ⌈H/8⌉, ⌈W/8⌉)."""

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (N, ⌈H/4⌉, ⌈W/4⌉) and ``features``."""

    def with_all_features(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, ``features``, and those of two stages (N, 6 · width, ⌈H/8⌉, ⌈W/8⌉)."""


class TrainedCritic:
    """A trained critic and the normalisation of its images."""

    def __init__(
        self,
        critic: Critic,
        normalization: Normalization,
        feature_coreset: FeatureCoreset | None = None,
        smoothing: float = SMOOTHING,
        filters: DefectFilters | None = None,
    ) -> None:
        """Without a ``feature_coreset`` the network alone decides; ``smoothing`` is in pixels at 256 px.

        ``filters`` find defects like those that were confirmed.
        """
        self.critic = critic.eval().requires_grad_(False)
        self.normalization = normalization
        self.feature_coreset = feature_coreset
        self.smoothing = smoothing
        self.filters = filters
        self.folded = without_norms(self.critic)
        """The network without batch normalisation."""
        self.network: CriticNetwork = self.folded
        """What computes it."""
        self.measures_features = feature_coreset is not None and float(feature_coreset.weight) != 0
        """Whether the distances of its features contribute to the logits."""

    def to(self, device: torch.device) -> TrainedCritic:
        """Return the critic moved to a device."""
        known = self.feature_coreset.to(device) if self.feature_coreset is not None else None
        filters = self.filters.to(device) if self.filters is not None else None
        return TrainedCritic(self.critic.to(device), self.normalization.to(device), known, self.smoothing, filters)

    def with_filters(self, filters: DefectFilters | None) -> TrainedCritic:
        """Return the critic with filters that find defects like confirmed ones, or without any."""
        return TrainedCritic(self.critic, self.normalization, self.feature_coreset, self.smoothing, filters)

    def computed_by(self, network: CriticNetwork) -> TrainedCritic:
        """Return the same critic with another implementation of its network."""
        other = copy.copy(self)
        other.network = network
        return other

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return maps (N, H, W) in 0 … 1 of pixels (N, 3, H, W) in 0 … 255, on the critic's device."""
        return critic_map(self.logits(pixels), (int(pixels.shape[2]), int(pixels.shape[3])), self.smoothing)

    def logits(self, pixels: Tensor) -> Tensor:
        """Return logits (N, ⌈H/4⌉, ⌈W/4⌉) of pixels (N, 3, H, W) in 0 … 255; large images are processed in tiles."""
        count, _, height, width = pixels.shape
        if not is_large(height, width):
            return self.logits_of(self.normalization(pixels.to(self._device, non_blocking=True)))
        normalization = self.normalization.resolved_for(pixels).to(self._device)
        whole = torch.empty((count, -(-height // STEP), -(-width // STEP)), device=self._device)
        bytes_per_pixel = count * BYTES_PER_CHANNEL * self.critic.stem.out_channels
        for down, across in tiles((height, width), TILE_BYTES[self._device.type] // bytes_per_pixel):
            seen = pixels[:, :, down.seen, across.seen].contiguous()
            logits = self.logits_of(normalization(seen.to(self._device, non_blocking=True)))
            whole[:, down.cells, across.cells] = logits[:, down.within, across.within]
        return whole

    def logits_of(self, images: Tensor) -> Tensor:
        """Return logits (N, ⌈H/4⌉, ⌈W/4⌉) of normalised images (N, 3, H, W)."""
        if self.filters is None and not self.measures_features:
            logits: Tensor = self.network(images)
            return logits
        logits, early = self._logits_and_early(images)
        if self.filters is None:
            return logits
        return torch.maximum(logits, self.filters.logits(early, (int(logits.shape[1]), int(logits.shape[2]))))

    def _logits_and_early(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits, features, stages = self.network.with_all_features(images)
        if self.feature_coreset is not None and self.measures_features:
            logits = logits + self.feature_coreset.evidence(features, (int(logits.shape[1]), int(logits.shape[2])))
        highest = F.max_pool2d(logits[:, None], FEATURE_STEP // STEP, ceil_mode=True)
        return logits, torch.cat((stages, highest), dim=1)

    def features(self, pixels: Tensor) -> Tensor:
        """Return features (N, C, ⌈H/8⌉, ⌈W/8⌉) of pixels (N, 3, H, W) in 0 … 255, which are not large."""
        return self.network.features(self.normalization(pixels.to(self._device, non_blocking=True)))

    def with_features(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the network's own logits (N, ⌈H/4⌉, ⌈W/4⌉) and ``features``, from one pass."""
        return self.network.with_features(self.normalization(pixels.to(self._device, non_blocking=True)))

    def with_early_features(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits without filters (N, ⌈H/4⌉, ⌈W/4⌉) and early features (N, C, ⌈H/8⌉, ⌈W/8⌉).

        Those are the features of the first two stages and, as the last channel, the highest logit of each cell. The
        pixels (N, 3, H, W) must not be large.
        """
        return self._logits_and_early(self.normalization(pixels.to(self._device, non_blocking=True)))

    @property
    def _device(self) -> torch.device:
        return self.normalization.mean.device

    def state(self) -> dict[str, Tensor]:
        """Return all tensors to store in a model."""
        weights = {f"critic.{name}": value for name, value in self.critic.state_dict().items()}
        known = self.feature_coreset.state() if self.feature_coreset is not None else {}
        normalization = {"mean": self.normalization.mean, "scale": self.normalization.scale}
        return {**weights, **normalization, "smoothing": torch.tensor(self.smoothing), **known}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], settings: CriticSettings) -> TrainedCritic:
        """Return the critic with the given ``state``."""
        critic = build_critic(settings)
        prefix = "critic."
        critic.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        normalization = Normalization(tensors["mean"], tensors["scale"], CENTERING)
        smoothing = float(tensors["smoothing"]) if "smoothing" in tensors else EARLIER_SMOOTHING
        return cls(critic, normalization, FeatureCoreset.from_state(tensors), smoothing)


def without_norms(critic: Critic) -> Critic:
    """Return a copy of a trained critic with batch normalisation folded into the convolutions."""
    folded = copy.deepcopy(critic).eval()
    pairs: list[tuple[nn.Module, str, str]] = [(folded, "stem", "stem_norm")]
    for module in folded.modules():
        if isinstance(module, Residual):
            pairs += [(module, "first", "first_norm"), (module, "second", "second_norm")]
        elif isinstance(module, UpsampleBlock):
            pairs.append((module, "mix", "norm"))
    for owner, convolution, norm in pairs:
        setattr(owner, convolution, fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm)))
        setattr(owner, norm, nn.Identity())
    return folded


def critic_normalization(pixels: Tensor) -> Normalization:
    """Return the critic's input normalisation, fitted on good images (N, 3, H, W) in 0 … 255."""
    return Normalization.fit(pixels.cpu(), preset("encoder", centering=CENTERING, standardize=True))


def critic_map(logits: Tensor, size: tuple[int, int], smoothing: float = SMOOTHING) -> Tensor:
    """Return probabilities (N, height, width) from logits, upsampled to ``size`` and smoothed."""
    if is_large(*size):
        bands = range(0, size[0], ROWS_AT_ONCE)
        rows = [critic_rows(logits, size, top, min(top + ROWS_AT_ONCE, size[0]), smoothing) for top in bands]
        return torch.cat(rows, dim=1)
    sigma = smoothing * min(size) / 256
    down, across = (
        _whole_axis(cells, length, sigma, _reach(sigma, size), logits.device)
        for cells, length in zip(logits.shape[1:], size, strict=True)
    )
    return down @ torch.sigmoid(logits.float()) @ across.T  # much faster than convolutions


def gaussian_kernel(sigma: float, size: tuple[int, int], like: Tensor | None = None) -> Tensor:
    """Return weights (2 · reach + 1,) that sum to 1, for maps of (height, width), in ``like``'s dtype and device."""
    reach = _reach(sigma, size)
    device, dtype = (like.device, like.dtype) if like is not None else (None, torch.float32)
    return _weights(torch.arange(-reach, reach + 1, device=device, dtype=dtype), sigma)


def _weights(places: Tensor, sigma: float) -> Tensor:
    kernel = torch.exp(-0.5 * (places / sigma).square())
    return kernel / kernel.sum()


def critic_rows(logits: Tensor, size: tuple[int, int], top: int, bottom: int, smoothing: float = SMOOTHING) -> Tensor:
    """Return rows ``top`` … ``bottom`` of ``critic_map`` (N, bottom − top, width).

    Upsampling and smoothing are linear and separable: one matrix per axis does both.
    """
    sigma = smoothing * min(size) / 256
    reach = _reach(sigma, size)
    down = _stretched(int(logits.shape[1]), size[0], top, bottom, sigma, reach)
    near = down.any(0).nonzero()  # only a few cells contribute to these rows
    first, stop = int(near[0]), int(near[-1]) + 1
    across = _whole_axis(int(logits.shape[2]), size[1], sigma, reach, logits.device)
    probabilities = torch.sigmoid(logits[:, first:stop].float())
    return down[:, first:stop].to(logits.device) @ probabilities @ across.T


def _reach(sigma: float, size: tuple[int, int]) -> int:
    """Return the radius of the Gaussian in pixels, for a map of (height, width)."""
    return min(max(1, round(3 * sigma)), min(size) - 1)


@lru_cache(maxsize=8)
def _whole_axis(cells: int, length: int, sigma: float, reach: int, device: torch.device) -> Tensor:
    """Return ``_stretched`` of a whole axis; cached, because every image or strip uses it."""
    return _stretched(cells, length, 0, length, sigma, reach).to(device)


def _stretched(cells: int, length: int, first: int, stop: int, sigma: float, reach: int) -> Tensor:
    """Return (stop − first, cells): weight of each cell in each pixel, upsampled to ``length`` and then smoothed."""
    place = torch.arange(first - reach, stop + reach).clamp(0, length - 1)  # repeats the edge
    source = ((place + 0.5) * (cells / length) - 0.5).clamp_min(0)
    lower = source.long().clamp_max(cells - 1)
    part = source - lower
    kernel = _weights(torch.arange(-reach, reach + 1), sigma)
    shares = torch.zeros((stop - first, cells))
    for cell, share in ((lower, 1 - part), ((lower + 1).clamp_max(cells - 1), part)):
        taps = 2 * reach + 1
        shares.scatter_add_(1, cell.unfold(0, taps, 1), kernel * share.unfold(0, taps, 1))
    return shares
