"""What a picture is like as a whole: light, contrast, colour, focus, and how far it is from normal throughout.

A defect is small and changes none of these; another lamp, lens or batch of material does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

TRAITS = {
    "light": "how bright images are",
    "contrast": "how much brightness varies within an image",
    "colour": "the balance of red against blue",
    "focus": "how sharp images are",
    "distance": "how far images are from normal ones throughout",
}
"""Name → what it is."""


def traits_of(pixels: Tensor, anomaly_map: NDArray[np.float32] | Tensor) -> dict[str, float]:
    """TRAITS of an image (3, H, W) in 0 … 255 and its anomaly map (H, W).

    Medians and other ranks, where they serve: a defect of a tenth of the image must not show.
    """
    image = pixels.float()
    grey = image.mean(0)
    low, middle, high = torch.quantile(_some(grey), torch.tensor([0.1, 0.5, 0.9], device=grey.device)).tolist()
    found = {
        "light": middle,
        "contrast": high - low,
        "colour": float((image[0] - image[2]).mean()),
        "focus": _focus(grey),
        "distance": float(np.median(np.asarray(anomaly_map))),
    }
    return {name: float(f"{value:.6g}") for name, value in found.items()}


def together(images: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Trait → its value in each image."""
    return {name: [image[name] for image in images] for name in TRAITS} if images else {}


def _focus(grey: Tensor) -> float:
    """Logarithm of how much neighbouring pixels differ, against how much their means in twos do.

    A picture out of focus varies less from pixel to pixel, and about as much on a coarser grid.
    """

    def steps(picture: Tensor) -> Tensor:
        return picture.diff(dim=0).abs().mean() + picture.diff(dim=1).abs().mean()

    coarse = F.avg_pool2d(grey[None, None], 2)[0, 0]
    return float(torch.log((steps(grey) + 1e-3) / (steps(coarse) + 1e-3)))


def _some(grey: Tensor) -> Tensor:
    """At most a million values, evenly taken: torch ranks no more than 16 million."""
    flat = grey.flatten()
    return flat[:: max(1, len(flat) // 1_000_000)]
