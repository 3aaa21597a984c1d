"""Structural similarity (Wang et al. 2004), as a map that can be differentiated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

RADIUS, SIGMA = 5, 1.5
"""An 11 × 11 window with Gaussian weights."""
_BELL = [math.exp(-0.5 * (offset / SIGMA) ** 2) for offset in range(-RADIUS, RADIUS + 1)]
WEIGHTS = tuple(weight / sum(_BELL) for weight in _BELL)
"""Of a row or column of the window."""
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
    """Return Gaussian means of images (N, C, H, W), mirrored beyond the edge with the edge repeated.

    Added up one weight at a time: convolutions of a single channel are six times slower, on CPUs and on GPUs.
    """
    for axis in (2, 3):
        padded, length = mirrored(images, axis), int(images.shape[axis])
        images = WEIGHTS[0] * padded.narrow(axis, 0, length)
        for offset in range(1, len(WEIGHTS)):
            images = torch.add(images, padded.narrow(axis, offset, length), alpha=WEIGHTS[offset])
    return images


def mirrored(images: Tensor, axis: int) -> Tensor:
    """Return images with a mirrored margin of RADIUS along an axis: d c b a | a b c d | d c b a.

    Flipped slices instead of an index: the gradient of an index is slow on a GPU.
    """
    length = int(images.shape[axis])
    if length < RADIUS:
        raise ValueError(f"a side of {length} px is too short for a window of {2 * RADIUS + 1} px")
    before, after = images.narrow(axis, 0, RADIUS), images.narrow(axis, length - RADIUS, RADIUS)
    return torch.cat((before.flip(axis), images, after.flip(axis)), axis)
