"""Random changes of illumination on the encoder's training images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LAMP_SPACING = 64
"""Distance in pixels between independent values of the illumination gradient."""


def change_light(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Return images (B, 3, H, W) with random contrast, brightness and colour; ``strength`` 0 … 1.

    At 0.5: contrast exp(±0.225), brightness ±0.5 and colour ±0.09, in units of the normalised image.
    """
    count = len(images)

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(shape, generator=generator, device=images.device) - 1

    contrast = torch.exp(0.45 * strength * uniform(count, 1, 1, 1))
    brightness = strength * uniform(count, 1, 1, 1)
    colour = 0.18 * strength * uniform(count, 3, 1, 1)
    return images * contrast + brightness + colour


def add_illumination_gradient(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Return images (B, 3, H, W), each with its own slow random gradients of brightness and contrast.

    # Differs from the paper: a lamp lights one corner more than the other, and in a flat background only this
    # distinguishes positions. L_SSL then learns the faintest light, and any change of it looks like a defect.

    Random values at least LAMP_SPACING pixels apart, up to ±``strength`` (times a random factor of 0 … 1 per image),
    are interpolated smoothly; contrast changes by half as much. Smaller images get a part of one transition.
    """
    count, size = len(images), (int(images.shape[2]), int(images.shape[3]))
    knots = [max(2, side // LAMP_SPACING + 1) for side in size]
    amount = torch.rand((count, 2, 1, 1), generator=generator, device=images.device)
    uniform = 2 * torch.rand((count, 2, *knots), generator=generator, device=images.device) - 1
    part = strength * min(1.0, max(size) / LAMP_SPACING)
    fields = F.interpolate(part * amount * uniform, size, mode="bicubic", align_corners=True)
    brightness, contrast = fields.chunk(2, dim=1)  # (B, 1, H, W) each
    return images * torch.exp(0.5 * contrast) + brightness
