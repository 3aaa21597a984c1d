"""Normalise pixel values for the encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from patchsvdd.core.config import Centering, Config

PER_IMAGE = ("image", "exposure")
"""Centerings that use statistics of each image."""
LEAST_CONTRAST = 1e-3
"""Lower bound of an image's contrast in normalised units, so that the noise of an empty image is not amplified."""
ROWS_AT_ONCE = 64
"""Rows of a large image to process at a time."""


@dataclass(frozen=True)
class Normalization:
    """Subtract a mean (of the training images or of each image) and divide by a scale."""

    mean: Tensor
    """(3, H, W) mean training image or (3, 1, 1) channel means, in 0 … 255."""
    scale: Tensor
    """(3, 1, 1) divisor per channel."""
    centering: Centering = "channel"
    """ "image" subtracts each image's own channel means, which removes differences in brightness; "exposure" also
    divides by the image's own contrast, which removes differences in exposure."""

    @classmethod
    def fit(cls, pixels: Tensor, config: Config) -> Normalization:
        """Compute mean and scale of training pixels (N, 3, H, W) in 0 … 255."""
        mean_image = torch.zeros(pixels.shape[1:], dtype=torch.float64)
        squares = torch.zeros(3, dtype=torch.float64)
        squared_means = torch.zeros(3, dtype=torch.float64)  # of each image
        for image in pixels:  # one by one, to avoid a second copy of the training set
            image = image.double()
            mean_image += image
            squares += image.square().mean((1, 2))
            squared_means += image.mean((1, 2)).square()
        mean_image /= len(pixels)
        channel_mean = mean_image.mean((1, 2), keepdim=True)
        per_image = config.centering in PER_IMAGE
        scale = torch.full((3, 1, 1), 255.0)
        if config.standardize:
            squared_mean = squared_means[:, None, None] / len(pixels) if per_image else channel_mean.square()
            variance = squares[:, None, None] / len(pixels) - squared_mean
            # A constant channel (synthetic or masked images) keeps the default scale.
            scale = torch.where(variance > 1e-3, variance.clamp_min(1e-3).sqrt(), 255.0).float()
        mean = mean_image if config.centering == "pixel" else channel_mean
        return cls(mean.float(), scale, config.centering)

    def to(self, device: torch.device) -> Normalization:
        """The same normalisation on another device."""
        return Normalization(self.mean.to(device), self.scale.to(device), self.centering)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalise pixels (N, 3, H, W) in 0 … 255, uint8 or float, to float32 on the same device."""
        if self.centering in PER_IMAGE:
            values = pixels.float()
            centred = (values - values.mean((2, 3), keepdim=True)) / self.scale.to(pixels.device)
            if self.centering == "image":
                return centred
            contrast = centred.square().mean((1, 2, 3), keepdim=True).sqrt()
            return centred / contrast.clamp_min(LEAST_CONTRAST)
        mean = self._mean_for((int(pixels.shape[2]), int(pixels.shape[3])))
        return (pixels.float() - mean.to(pixels.device)) / self.scale.to(pixels.device)

    def resolved_for(self, pixels: Tensor) -> Normalization:
        """Fixed mean and scale for images (N, 3, H, W) that will be processed in parts."""
        if self.centering not in PER_IMAGE:
            return replace(self, mean=self._mean_for((int(pixels.shape[2]), int(pixels.shape[3]))))
        mean, variance = _moments(pixels)
        scale = self.scale.to(pixels.device, torch.float64)
        if self.centering == "exposure":
            contrast = (variance / scale.square()).mean(1, keepdim=True).sqrt()
            scale = scale * contrast.clamp_min(LEAST_CONTRAST)
        return Normalization(mean.float(), scale.float(), "channel")

    def for_rows(self, top: int, bottom: int) -> Normalization:
        """The resolved normalisation for rows ``top`` … ``bottom`` only."""
        return self if self.mean.shape[-2] == 1 else replace(self, mean=self.mean[..., top:bottom, :])

    def _mean_for(self, size: tuple[int, int]) -> Tensor:
        """The mean to subtract: a mean image applies to one size only; other sizes use its channel means."""
        if self.mean.shape[-2:] in ((1, 1), size):
            return self.mean
        return self.mean.mean((-2, -1), keepdim=True)


def _moments(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (N, 3, 1, 1) float64 per channel of images (N, 3, H, W), a few rows at a time."""
    total = torch.zeros((*pixels.shape[:2], 1, 1), dtype=torch.float64, device=pixels.device)
    squares = torch.zeros_like(total)
    for strip in torch.split(pixels, ROWS_AT_ONCE, dim=2):
        values = strip.double()
        total += values.sum((2, 3), keepdim=True)
        squares += values.square().sum((2, 3), keepdim=True)
    count = pixels.shape[2] * pixels.shape[3]
    mean = total / count
    return mean, (squares / count - mean.square()).clamp_min(0)
