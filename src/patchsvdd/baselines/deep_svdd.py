"""Deep SVDD (Ruff et al. 2018): map all good images close to one centre; what lies far from it is abnormal.

The network is the paper's for CIFAR-10: three convolutions of 5 × 5 without biases, each with batch normalisation
without parameters, leaky ReLU and pooling, then one linear layer. Biases, and bounded activations, would allow the
network to map everything onto the centre. Whole images are scored: there is no map.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchsvdd.core.baseline_settings import Boundary

SIDE = 64
"""Side of the images that the network sees. The paper has 32 px; MVTec's images show little at that size."""
CHANNELS = (32, 64, 128)
SLOPE = 0.01
NEAR_ZERO = 0.1
"""Entries of the centre closer to 0 than this are moved away: weights of 0 would reach it."""


class DeepSvdd(nn.Module):
    """The network φ, the centre c and the radius R of a soft boundary."""

    center: Tensor
    radius: Tensor

    def __init__(self, latent: int, boundary: Boundary, nu: float) -> None:
        super().__init__()
        self.boundary, self.nu = boundary, nu
        layers: list[nn.Module] = []
        for before, after in zip((3, *CHANNELS[:-1]), CHANNELS, strict=True):
            layers += [nn.Conv2d(before, after, 5, padding=2, bias=False), nn.BatchNorm2d(after, 1e-4, affine=False)]
            layers += [nn.LeakyReLU(SLOPE), nn.MaxPool2d(2)]
        cells = SIDE // 2 ** len(CHANNELS)
        self.features = nn.Sequential(*layers, nn.Flatten(), nn.Linear(CHANNELS[-1] * cells**2, latent, bias=False))
        self.register_buffer("center", torch.zeros(latent))
        self.register_buffer("radius", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        """Return φ (N, latent) of images (N, 3, H, W) in 0 … 1, shrunk and with their contrast normalised."""
        shrunk = F.interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
        embedding: Tensor = self.features(normalized_contrast(shrunk))
        return embedding

    @torch.no_grad()
    def set_center(self, images: Tensor) -> None:
        """Set c to the mean of φ over the images, in one pass before training."""
        center = torch.cat([self(part) for part in torch.split(images, 64)]).mean(0)
        sign = torch.where(center < 0, -1.0, 1.0)
        self.center.copy_(torch.where(center.abs() < NEAR_ZERO, sign * NEAR_ZERO, center))

    def distances(self, images: Tensor) -> Tensor:
        """Return ‖φ(x) − c‖² (N,)."""
        embeddings: Tensor = self(images)
        return (embeddings - self.center).square().sum(1)

    def loss(self, images: Tensor) -> Tensor:
        """Return the mean distance (hard boundary), or R² plus the mean excess over it, divided by ν (soft)."""
        distances = self.distances(images)
        if self.boundary == "hard":
            return distances.mean()
        squared = self.radius.square()
        return squared + (distances - squared).clamp_min(0).mean() / self.nu

    @torch.no_grad()
    def update_radius(self, distances: Tensor) -> None:
        """Set R to the (1 − ν) quantile of the distances: the best R for the present weights."""
        self.radius.copy_(distances.sqrt().quantile(1 - self.nu))

    def scores(self, images: Tensor) -> Tensor:
        """Return the anomaly scores (N,): the distance from the centre; less R² with a soft boundary."""
        return self.distances(images) - self.radius.square()


class Decoder(nn.Module):
    """Mirror image of the network, to train it as an autoencoder first."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        cells = SIDE // 2 ** len(CHANNELS)
        self.first = nn.Linear(latent, CHANNELS[-1] * cells**2, bias=False)
        self.cells = cells
        layers: list[nn.Module] = []
        for before, after in zip(CHANNELS[::-1], (*CHANNELS[-2::-1], 3), strict=True):
            layers += [nn.LeakyReLU(SLOPE), nn.Upsample(scale_factor=2)]
            layers += [nn.ConvTranspose2d(before, after, 5, padding=2, bias=False)]
            layers += [nn.BatchNorm2d(after, 1e-4, affine=False)] if after != 3 else []
        self.layers = nn.Sequential(*layers)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return images (N, 3, SIDE, SIDE) of embeddings (N, latent)."""
        grid = self.first(embeddings).view(-1, CHANNELS[-1], self.cells, self.cells)
        images: Tensor = self.layers(grid)
        return images


def normalized_contrast(images: Tensor) -> Tensor:
    """Return images (N, 3, H, W) with mean 0 and mean absolute deviation 1 (global contrast normalisation)."""
    centred = images - images.mean((1, 2, 3), keepdim=True)
    return centred / centred.abs().mean((1, 2, 3), keepdim=True).clamp_min(1e-6)
