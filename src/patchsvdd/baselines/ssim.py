"""Structural similarity (Wang et al. 2004), as a map that can be differentiated."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

RADIUS, SIGMA = 5, 1.5
"""An 11 × 11 window with Gaussian weights."""
C1, C2 = 0.01**2, 0.03**2
"""Stabilisers for images in 0 … 1."""


def ssim_map(one: Tensor, other: Tensor) -> Tensor:
    """Return the similarity (N, C, H, W), at most 1, of images (N, C, H, W) in 0 … 1 around each pixel."""
    mean_one, mean_other = _smooth(one), _smooth(other)
    squares_one, squares_other, product = _smooth(one * one), _smooth(other * other), _smooth(one * other)
    variance_one, variance_other = squares_one - mean_one.square(), squares_other - mean_other.square()
    covariance = product - mean_one * mean_other
    luminance = (2 * mean_one * mean_other + C1) / (mean_one.square() + mean_other.square() + C1)
    structure = (2 * covariance + C2) / (variance_one + variance_other + C2)
    return luminance * structure


def _smooth(images: Tensor) -> Tensor:
    """Return Gaussian means of images (N, C, H, W), mirrored beyond the edge with the edge repeated."""
    count, channels, height, width = images.shape
    rows, columns = mirrored(height, RADIUS).to(images.device), mirrored(width, RADIUS).to(images.device)
    padded = images[:, :, rows][:, :, :, columns].reshape(count * channels, 1, len(rows), len(columns))
    weights = _window().to(images)
    smooth = F.conv2d(F.conv2d(padded, weights.view(1, 1, -1, 1)), weights.view(1, 1, 1, -1))
    return smooth.view(count, channels, height, width)


@lru_cache(maxsize=1)
def _window() -> Tensor:
    offset = torch.arange(-RADIUS, RADIUS + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offset / SIGMA).square())
    return weights / weights.sum()


@lru_cache(maxsize=8)
def mirrored(length: int, margin: int) -> Tensor:
    """Return the indices of a line of this length with a mirrored margin: d c b a | a b c d | d c b a."""
    index = torch.arange(-margin, length + margin) % (2 * length)
    return torch.where(index < length, index, 2 * length - 1 - index)
