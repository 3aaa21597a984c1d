"""Typical values of good images at each position of the anomaly map, to normalise the map per position.

In aligned images, good parts vary much at some positions (a printed label, an edge) and hardly at others. A map divided
by the typical value at each position reveals faint defects where good parts agree. Parts that are not aligned have no
such positions: their statistics are nearly flat, and the rest is noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.roi import PixelMask
from patchsvdd.scoring.anomaly_map import valid_mask

SIGMA = 4.0
"""Standard deviation, in pixels, of the smoothing of the statistics: few images say little about a single pixel."""
FLOOR = 0.5
"""Lower bound of the statistics, relative to their median, so that noise is not amplified where good images agree."""


@dataclass(frozen=True)
class PositionStatistics:
    """Mean and deviation of good images' maps at each pixel.

    They apply to one image size; maps of other sizes are returned unchanged.
    """

    mean: Tensor
    """(H, W), above 0."""
    deviation: Tensor
    """(H, W), above 0."""

    @classmethod
    def fit(
        cls, maps: Tensor, sigma: float = SIGMA, floor: float = FLOOR, area: PixelMask | None = None
    ) -> PositionStatistics:
        """Fit to maps (N, H, W) of good images, each scored without itself; pixels outside ``area`` are ignored."""
        if len(maps) < 2:
            raise ValueError(f"position statistics require at least 2 maps, got {len(maps)}")
        valid = None if area is None else valid_mask(area, maps.device)
        mean = _masked_smooth(maps.mean(0), sigma, valid)
        variance = _masked_smooth((maps - mean).square().mean(0), sigma, valid)
        deviation = variance.sqrt()
        return cls(_at_least(mean, floor, valid), _at_least(deviation, floor, valid))

    def apply(self, maps: Tensor) -> Tensor:
        """Maps (N, H, W) divided by the typical value at each pixel; unchanged for another size."""
        if maps.shape[1:] != self.mean.shape:
            return maps
        return maps / (self.mean + self.deviation).to(maps.device)

    def apply_to_rows(self, maps: Tensor, top: int, size: tuple[int, int]) -> Tensor:
        """``apply`` to the rows (N, h, W) from ``top`` of maps of ``size`` (height, width)."""
        if size != self.mean.shape:
            return maps
        rows = slice(top, top + maps.shape[1])
        return maps / (self.mean[rows] + self.deviation[rows]).to(maps.device)

    def to(self, device: torch.device) -> PositionStatistics:
        """The same statistics on another device."""
        return PositionStatistics(self.mean.to(device), self.deviation.to(device))


def _at_least(image: Tensor, floor: float, valid: Tensor | None) -> Tensor:
    """Clamp an image (H, W) to at least ``floor`` times its median, and above 0 even if it is 0 everywhere."""
    median = float((image if valid is None else image[valid]).median())
    return image.clamp_min(max(floor * median, torch.finfo(image.dtype).tiny))


def _masked_smooth(image: Tensor, sigma: float, valid: Tensor | None) -> Tensor:
    """``smooth`` over the valid pixels (H, W) bool only."""
    if valid is None:
        return smooth(image, sigma)
    weight = smooth(valid.to(image.dtype), sigma)
    return smooth(image * valid, sigma) / weight.clamp_min(torch.finfo(image.dtype).tiny) * valid


def smooth(image: Tensor, sigma: float) -> Tensor:
    """Smooth an image (H, W) with a Gaussian; the edges are replicated."""
    if sigma <= 0:
        return image
    radius = min(round(3 * sigma), image.shape[0] - 1, image.shape[1] - 1)
    weights = torch.exp(-torch.arange(-radius, radius + 1, device=image.device).square() / (2 * sigma**2))
    weights = (weights / weights.sum()).double()  # float64, to avoid TF32
    padded = F.pad(image.double()[None, None], (radius,) * 4, mode="replicate")
    across = F.conv2d(padded, weights.view(1, 1, 1, -1))
    return F.conv2d(across, weights.view(1, 1, -1, 1))[0, 0].to(image.dtype)
