"""Matched filters that find defects like those that were confirmed.

# Differs from the paper, which knows good parts only. The early features of a kind of defect differ from those of good
# parts in a direction: the difference of the means, whitened by the covariance of good patches. That is the linear
# discriminant of two Gaussians, and its projection is high where a patch is nearer to the defect than to normal ones.
# A nearest neighbour among the few confirmed patches was tried first: it hardly found other defects of the same kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.critic.feature_coreset import STEADY, smoothed

SHRINKAGE = 0.1
"""Share of the mean variance that is added to every direction: the covariance is estimated."""
STORED = ("weights", "offsets", "levels")
"""Tensors of the filters, in the order of their fields."""
LEAST_SPREAD = 1e-3
"""Smallest standard deviation of the peaks of good images, in units of a filter."""


@dataclass(frozen=True)
class NormalFeatures:
    """Mean and covariance of the early features of good patches, smoothed."""

    mean: Tensor
    """(C,)."""
    scale: Tensor
    """(C,): standard deviation of each channel, none much smaller than the others."""
    whitening: Tensor
    """(C, C): inverse covariance of the standardised features."""

    @classmethod
    def fit(cls, features: Sequence[Tensor]) -> NormalFeatures:
        """Fit to smoothed features (C, h, w) of good images."""
        count = sum(one.shape[1] * one.shape[2] for one in features)
        mean = sum((one.double().sum((1, 2)) for one in features), torch.zeros(())) / count
        channels = len(mean)
        squares = torch.zeros((channels, channels), dtype=torch.float64, device=mean.device)
        for one in features:
            rows = one.double().flatten(1) - mean[:, None]
            squares += rows @ rows.T
        covariance = squares / count
        deviation = covariance.diagonal().sqrt()
        scale = deviation.clamp_min(max(1e-6, STEADY * float(deviation.median())))
        standard = covariance / (scale[:, None] * scale)
        added = max(SHRINKAGE * float(standard.diagonal().mean()), 1e-6)
        standard += added * torch.eye(channels, dtype=torch.float64, device=mean.device)
        return cls(mean.float(), scale.float(), torch.linalg.inv(standard).float())


@dataclass(frozen=True)
class DefectFilters:
    """One filter for each kind of confirmed defect."""

    weights: Tensor
    """(K, C): filters of smoothed early features."""
    offsets: Tensor
    """(K,): added to their output, so that 0 is an ordinary peak of a good image and 1 a standard deviation above."""
    levels: Tensor
    """(K,): logits of an ordinary peak of a good image."""

    @classmethod
    def fit(cls, patches: Sequence[Tensor], normal: NormalFeatures, good: Sequence[Tensor]) -> DefectFilters:
        """Fit one filter to each kind's patches (J, C), in units of the peaks of good images.

        ``good`` are smoothed features (C, h, w) of good images that the critic was trained on.
        """
        means = torch.stack([rows.mean(0) for rows in patches])
        raw = (((means - normal.mean) / normal.scale) @ normal.whitening) / normal.scale
        peaks = torch.stack([torch.einsum("kc,chw->khw", raw, one).flatten(1).amax(1) for one in good])  # (N, K)
        typical, spread = peaks.median(0).values, peaks.std(0, correction=0).clamp_min(LEAST_SPREAD)
        return cls(raw / spread[:, None], -typical / spread, torch.zeros_like(typical))

    def to(self, device: torch.device) -> DefectFilters:
        """Return the filters on another device."""
        return DefectFilters(*(each.to(device) for each in self.state().values()))

    def with_levels(self, levels: Tensor | float) -> DefectFilters:
        """Return the same filters with other logits of an ordinary peak of a good image, (K,) or one for all."""
        each = torch.as_tensor(levels, dtype=self.levels.dtype, device=self.levels.device)
        return DefectFilters(self.weights, self.offsets, each.expand_as(self.levels).clone())

    def of_kind(self, number: int) -> DefectFilters:
        """Return the filter of one kind alone."""
        kind = slice(number, number + 1)
        return DefectFilters(self.weights[kind], self.offsets[kind], self.levels[kind])

    def outputs(self, early: Tensor) -> Tensor:
        """Return the output (N, K, h, w) of every filter, from early features (N, C, h, w)."""
        return F.conv2d(smoothed(early), self.weights[:, :, None, None], self.offsets)

    def logits(self, early: Tensor, size: tuple[int, int]) -> Tensor:
        """Return logits (N, height, width) from early features (N, C, ⌈height/2⌉, ⌈width/2⌉)."""
        highest = (self.outputs(early) + self.levels[:, None, None]).amax(1, keepdim=True)
        doubled = F.interpolate(highest, scale_factor=2.0, mode="bilinear", align_corners=False)
        return doubled[:, 0, : size[0], : size[1]]

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to store in a model."""
        return {f"filters.{name}": getattr(self, name) for name in STORED}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor]) -> DefectFilters:
        """Return the filters with the given ``state``."""
        return cls(*(tensors[f"filters.{name}"] for name in STORED))
