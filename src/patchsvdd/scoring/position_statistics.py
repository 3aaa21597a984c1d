"""What good images show at each place of the anomaly map, so that a defect is measured against its own place.

Parts that lie alike in every image have places where even good ones differ much (a printed label, an edge) and others
where they hardly do. A map divided by what is usual at each place finds a faint defect where good parts agree. Parts
that lie anyhow have no such places: their statistics are nearly flat, and what is left of them is chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.roi import PixelMask
from patchsvdd.scoring.anomaly_map import inside

SIGMA = 4.0
"""Standard deviation in pixels of the smoothing of the statistics: few images tell little about a single pixel."""
FLOOR = 0.5
"""Least unit of a place, as a share of the middle one: where good images hardly differ, noise must not explode."""


@dataclass(frozen=True)
class PositionStatistics:
    """The usual value of good images' maps at each pixel, and how far they stray from it.

    They belong to one image size; maps of other sizes are left as they are.
    """

    mean: Tensor
    """(H, W), above 0."""
    deviation: Tensor
    """(H, W), above 0."""

    @classmethod
    def fit(
        cls, maps: Tensor, sigma: float = SIGMA, floor: float = FLOOR, area: PixelMask | None = None
    ) -> PositionStatistics:
        """Statistics of anomaly maps (N, H, W) of good images, each made without knowing the image itself.

        Pixels that do not count have no part in them.
        """
        if len(maps) < 2:
            raise ValueError(f"statistics of places take at least 2 maps, got {len(maps)}")
        counts = None if area is None else inside(area, maps.device)
        mean = _smooth_within(maps.mean(0), sigma, counts)
        variance = _smooth_within((maps - mean).square().mean(0), sigma, counts)
        deviation = variance.sqrt()
        return cls(_at_least(mean, floor, counts), _at_least(deviation, floor, counts))

    def apply(self, maps: Tensor) -> Tensor:
        """Maps (N, H, W) as multiples of what is usual at each pixel; of another size: unchanged."""
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
        """The same on another device."""
        return PositionStatistics(self.mean.to(device), self.deviation.to(device))


def _at_least(image: Tensor, floor: float, counts: Tensor | None) -> Tensor:
    """An image (H, W) with no value below ``floor`` of the middle one; above 0 even where it is 0 throughout."""
    middle = float((image if counts is None else image[counts]).median())
    return image.clamp_min(max(floor * middle, torch.finfo(image.dtype).tiny))


def _smooth_within(image: Tensor, sigma: float, counts: Tensor | None) -> Tensor:
    """``smooth``, with the pixels (H, W) bool alone that count."""
    if counts is None:
        return smooth(image, sigma)
    weight = smooth(counts.to(image.dtype), sigma)
    return smooth(image * counts, sigma) / weight.clamp_min(torch.finfo(image.dtype).tiny) * counts


def smooth(image: Tensor, sigma: float) -> Tensor:
    """An image (H, W) smoothed by a gaussian; the edges are repeated outwards."""
    if sigma <= 0:
        return image
    reach = min(round(3 * sigma), image.shape[0] - 1, image.shape[1] - 1)
    weights = torch.exp(-torch.arange(-reach, reach + 1, device=image.device).square() / (2 * sigma**2))
    weights = (weights / weights.sum()).double()  # in which no GPU rounds to TF32
    padded = F.pad(image.double()[None, None], (reach,) * 4, mode="replicate")
    across = F.conv2d(padded, weights.view(1, 1, 1, -1))
    return F.conv2d(across, weights.view(1, 1, -1, 1))[0, 0].to(image.dtype)
