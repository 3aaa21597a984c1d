"""Distances of the critic's features to a coreset of those of good images.

# Differs from the paper, and from a plain segmentation network: the critic is trained on synthetic defects, and what
# resembles none of them can escape it. Its features show all the same that no good image looks like this. So the
# paper's rule, distance to the nearest normal patch, is applied to them too, and added to the critic's logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core import triton_support as kernels
from patchsvdd.core.progress import OnProgress
from patchsvdd.core.split_float16 import split
from patchsvdd.memory.coreset import coreset_rows

SAMPLED = 30_000
"""Features of good images that the coreset is chosen from, at random."""
WEIGHTS = (0.0, 1.0, 2.0, 4.0)
"""Changes of a logit when the distance grows by a factor of e; validation chooses one of them."""
TYPICAL = 0.99
"""Share of the patches of good images whose distance does not raise the logit."""
LEAST_TYPICAL = 0.25
"""Smallest typical distance: among images that hardly differ, every small difference would be a defect."""
STEADY = 0.1
"""Smallest standard deviation of a channel, as a share of the median of all: some are constant on good images."""
LEAST = 0.1
"""Distances below this one count as this one."""
HELD_OUT = 4
"""Every fourth image is compared with a coreset of the others, to learn which distances are typical."""
STORED = ("rows", "mean", "scale", "typical", "weight")
"""Tensors of a coreset, in the order of its fields."""
AT_ONCE = 512
"""Rows of the coreset that features are compared with at once."""
TILE = 64
"""Features, and rows, that a program on a GPU compares at once."""

Features = Callable[[Tensor], Tensor]
"""Pixels (N, 3, H, W) in 0 … 255 → features (N, C, ⌈H/8⌉, ⌈W/8⌉)."""


@dataclass(frozen=True)
class SampledFeatures:
    """Features of good images at random places."""

    rows: Tensor
    """(M, C), standardised."""
    images: Tensor
    """(M,) int64: the image of each row."""
    mean: Tensor
    """(C,): mean of each channel."""
    scale: Tensor
    """(C,): standard deviation of each channel."""
    count: int
    """Number of images."""

    @classmethod
    def draw(
        cls,
        features: Features,
        pixels: Tensor,
        seed: int,
        on_progress: OnProgress | None = None,
        count: int = SAMPLED,
    ) -> SampledFeatures:
        """Draw about ``count`` features of good images (N, 3, H, W) in 0 … 255, equally many of each."""
        generator = torch.Generator().manual_seed(seed)
        each = max(16, count // len(pixels))
        drawn = []
        for index in range(len(pixels)):
            flat = smoothed(features(pixels[index : index + 1]))[0].flatten(1).T
            drawn.append(flat[torch.randperm(len(flat), generator=generator)[:each].to(flat.device)])
            if on_progress is not None:
                on_progress(index + 1, len(pixels))
        rows = torch.cat(drawn)
        images = torch.arange(len(pixels), device=rows.device).repeat_interleave(len(drawn[0]))
        mean, scale = rows.mean(0), rows.std(0)
        scale = scale.clamp_min(max(1e-6, STEADY * float(scale.median())))
        return cls((rows - mean) / scale, images, mean, scale, len(pixels))

    def coreset(self, count: int) -> FeatureCoreset:
        """Choose ``count`` of the features, and learn which distances to them are typical of good images."""
        held_out = self.images % min(HELD_OUT, self.count) == 0
        typical = math.log(LEAST_TYPICAL)
        if not bool(held_out.all()):
            others = self.rows[~held_out]
            known = others[coreset_rows(others, count)]
            apart = nearest(self.rows[held_out].T[None, :, :, None], known).flatten().log()
            place = min(len(apart) - 1, math.floor(TYPICAL * len(apart)))
            typical = max(typical, float(apart.sort().values[place]))
        known = self.rows[coreset_rows(self.rows, count)]
        return FeatureCoreset(known, self.mean, self.scale, known.new_tensor(typical), known.new_tensor(WEIGHTS[1]))

    def distances_to_others(self, features: Features, pixels: Tensor) -> Iterator[Tensor]:
        """Yield, for each of these images, the distances (h, w) of its features to those of the other images."""
        for index in range(len(pixels)):
            own = standardised(features(pixels[index : index + 1]), self.mean, self.scale)
            yield nearest(own, self.rows[self.images != index])[0]


@dataclass(frozen=True)
class FeatureCoreset:
    """Features of good images that represent all others."""

    rows: Tensor
    """(K, C), standardised."""
    mean: Tensor
    """(C,): mean of each channel."""
    scale: Tensor
    """(C,): standard deviation of each channel."""
    typical: Tensor
    """(): logarithm of the distance from which logits rise."""
    weight: Tensor
    """(): change of a logit when the distance grows by a factor of e."""

    def to(self, device: torch.device) -> FeatureCoreset:
        """Return the coreset on another device."""
        return FeatureCoreset(*(each.to(device) for each in self.state().values()))

    def with_weight(self, weight: float) -> FeatureCoreset:
        """The same coreset with another weight."""
        return replace(self, weight=torch.full_like(self.weight, weight))

    def evidence(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Return what to add to logits (N, height, width), from features (N, C, ⌈height/2⌉, ⌈width/2⌉)."""
        distances = nearest(standardised(features, self.mean, self.scale), self.rows)[:, None]
        raised = self.weight * (distances.log() - self.typical)
        doubled = F.interpolate(raised, scale_factor=2.0, mode="bilinear", align_corners=False)
        return doubled[:, 0, : size[0], : size[1]]

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to store in a model."""
        return {f"features.{name}": getattr(self, name) for name in STORED}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor]) -> FeatureCoreset | None:
        """Return the coreset with the given ``state``; None for a critic without one."""
        if "features.rows" not in tensors:
            return None
        return cls(*(tensors[f"features.{name}"] for name in STORED))


def standardised(features: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return smoothed features (N, C, h, w) in standard deviations of each channel."""
    return (smoothed(features) - mean[:, None, None]) / scale[:, None, None]


def smoothed(features: Tensor) -> Tensor:
    """Return the mean of each feature (N, C, h, w) and its neighbours: small shifts then change less."""
    return F.avg_pool2d(features, 3, 1, 1, count_include_pad=False)


def nearest(features: Tensor, rows: Tensor) -> Tensor:
    """Return the root mean square difference (N, h, w) of standardised features (N, C, h, w) to the nearest row."""
    least = _fused_least(features, rows) if _fused_runs_on(features) else _least(features, rows)
    squared = (least + features.square().sum(1)) / features.shape[1]
    return squared.clamp_min(LEAST**2).sqrt()


def _least(features: Tensor, rows: Tensor) -> Tensor:
    """Return the squared difference (N, h, w) to the nearest row, less the feature's own square."""
    least = None
    for part in torch.split(rows, AT_ONCE):
        beyond = F.conv2d(features, -2 * part[:, :, None, None], part.square().sum(1)).amin(1)
        least = beyond if least is None else torch.minimum(least, beyond)
    assert least is not None
    return least


def _fused_runs_on(features: Tensor) -> bool:
    channels = features.shape[1]
    return features.is_cuda and kernels.available() and 16 <= channels <= 256 and channels & (channels - 1) == 0


def _fused_least(features: Tensor, rows: Tensor) -> Tensor:
    """Return ``_least`` without storing all differences, from half-precision products of float32 accuracy."""
    from patchsvdd.critic import gpu_network_kernels as kernel

    count, channels, height, width = features.shape
    queries = features.permute(0, 2, 3, 1).contiguous()
    least = features.new_empty((count, height, width))
    kernel.least_row[(kernels.blocks(least.numel(), TILE),)](
        queries,
        *split(rows.contiguous()),
        rows.square().sum(1),
        least,
        least.numel(),
        len(rows),
        D=channels,
        BM=TILE,
        BN=TILE,
    )
    return least
