"""Autoencoders (Bergmann et al. 2019): what cannot be reconstructed is abnormal.

The network of Table 1 there: nine convolutions down to a code of ``latent`` numbers, and the same way back. Trained
with the squared error (L2) or with structural similarity (SSIM); the residual map is made with the same measure.
Textures are seen in crops of 128 px, objects as whole images of 256 px, for which the MVTec AD paper adds a layer.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchsvdd.baselines.ssim import ssim_map

CROP, IMAGE = 128, 256
"""Side of a crop, and of a whole image."""
STRIDE = 30
"""Pixels between the crops that a map is made of."""
SLOPE = 0.2
"""Of the leaky ReLU."""
DOWN = ((32, 4, 2), (32, 4, 2), (32, 3, 1), (64, 4, 2), (64, 3, 1), (128, 4, 2), (64, 3, 1), (32, 3, 1))
"""Channels, kernel and stride of each convolution but the last, for crops of 128 px: 8 × 8 × 32 are left."""
AT_ONCE = 64
"""Crops that are reconstructed at once."""
Loss = Literal["l2", "ssim"]


class Autoencoder(nn.Module):
    """Encoder and decoder of Bergmann et al., for views (N, 3, side, side) in 0 … 1."""

    def __init__(self, loss: Loss, latent: int, side: int) -> None:
        super().__init__()
        self.loss_kind, self.side = loss, side
        layers = DOWN if side == CROP else ((32, 4, 2), *DOWN)
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        channels = 3
        for width, kernel, stride in layers:
            down += [nn.Conv2d(channels, width, kernel, stride, 1), nn.LeakyReLU(SLOPE)]
            back = nn.ConvTranspose2d(width, channels, kernel, stride, 1)
            up[:0] = [back, nn.LeakyReLU(SLOPE)]
            channels = width
        self.encoder = nn.Sequential(*down, nn.Conv2d(channels, latent, 8))
        # The last layer has no activation: its output is an image.
        self.decoder = nn.Sequential(nn.ConvTranspose2d(latent, channels, 8), nn.LeakyReLU(SLOPE), *up[:-1])

    def forward(self, views: Tensor) -> Tensor:
        """Return the reconstruction of views."""
        reconstruction: Tensor = self.decoder(self.encoder(views))
        return reconstruction

    def loss(self, views: Tensor, *, half: bool = False) -> Tensor:
        """Return the mean residual of views; ``half`` reconstructs them in bfloat16, but compares in full precision."""
        with torch.autocast(views.device.type, torch.bfloat16, enabled=half):
            reconstruction = self(views)
        return self.residual(views, reconstruction.to(views)).mean()

    def residual(self, views: Tensor, reconstruction: Tensor) -> Tensor:
        """Return (N, side, side): the squared error summed over channels, or 1 − SSIM, averaged over channels."""
        if self.loss_kind == "l2":
            return (views - reconstruction).square().sum(1)
        return 1 - ssim_map(views, reconstruction).mean(1)

    def maps(self, images: Tensor) -> Tensor:
        """Return residual maps (N, H, W) of images (N, 3, H, W) in 0 … 1."""
        if self.side == IMAGE:
            size = (int(images.shape[2]), int(images.shape[3]))
            views = F.interpolate(images, (IMAGE, IMAGE), mode="bilinear", antialias=True, align_corners=False)
            residual = self.residual(views, self(views))[:, None]
            return F.interpolate(residual, size, mode="bilinear", align_corners=False)[:, 0]
        return torch.cat([self._map_of_crops(image) for image in images])

    def _map_of_crops(self, image: Tensor) -> Tensor:
        """Return (1, H, W): the mean residual of all crops that show a pixel, for an image (3, H, W)."""
        height, width = int(image.shape[1]), int(image.shape[2])
        corners = [(top, left) for top in starts(height) for left in starts(width)]
        total, seen = image.new_zeros(height, width), image.new_zeros(height, width)
        for first in range(0, len(corners), AT_ONCE):
            some = corners[first : first + AT_ONCE]
            views = torch.stack([image[:, top : top + CROP, left : left + CROP] for top, left in some])
            for (top, left), residual in zip(some, self.residual(views, self(views)), strict=True):
                total[top : top + CROP, left : left + CROP] += residual
                seen[top : top + CROP, left : left + CROP] += 1
        return (total / seen)[None]


def starts(length: int) -> list[int]:
    """Return where crops start along a side: every STRIDE pixels, and at the end."""
    return sorted({*range(0, length - CROP, STRIDE), length - CROP})
