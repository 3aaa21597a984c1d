"""Statistics of a whole image: light, contrast, colour, focus, and typical distance from normal.

A defect is small and changes none of these; another lamp, lens or batch of material does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd.core.roi import RoiCrop

TRAITS = {
    "light": "how bright images are",
    "contrast": "how much brightness varies within an image",
    "colour": "the balance of red against blue",
    "focus": "how sharp images are",
    "distance": "how far images are from normal ones throughout",
}
"""Image statistic → its meaning."""
STRIP_PIXELS = 1_000_000
"""Pixels measured at a time."""


def image_statistics(
    pixels: Tensor, anomaly_map: NDArray[np.float32] | Tensor, frame: RoiCrop | None = None
) -> dict[str, float]:
    """Return TRAITS of an image (3, H, W) in 0 … 255 and its anomaly map (H, W), both cropped to ``frame``.

    Uses medians and other quantiles where possible: a defect of a tenth of the image must not show. Quantiles are
    over the pixels that count.
    """
    area = frame.area if frame is not None else None
    counting = pixels.flatten(1) if area is None else pixels[:, torch.from_numpy(area.mask).to(pixels.device)]
    values = np.asarray(anomaly_map) if area is None else np.asarray(anomaly_map)[area.mask]
    sample = _some(counting).float().mean(0)
    low, middle, high = torch.quantile(sample, torch.tensor([0.1, 0.5, 0.9], device=sample.device)).tolist()
    statistics = {
        "light": middle,
        "contrast": high - low,
        "colour": _in_strips(pixels, _colour),
        "focus": _focus(pixels),
        "distance": float(np.median(values)),
    }
    return {name: float(f"{value:.6g}") for name, value in statistics.items()}


def together(images: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return image statistic → its value in each image."""
    return {name: [image[name] for image in images] for name in TRAITS} if images else {}


def _colour(pixels: Tensor) -> Tensor:
    return (pixels[0].float() - pixels[2].float()).mean()


def _focus(pixels: Tensor) -> float:
    """Return the log ratio of differences between neighbouring pixels to those between 2 × 2 means.

    An image out of focus varies less from pixel to pixel, and about as much on a coarser grid.
    """

    def steps(image: Tensor) -> Tensor:
        return image.diff(dim=0).abs().mean() + image.diff(dim=1).abs().mean()

    def fine(part: Tensor) -> Tensor:
        return steps(part.float().mean(0))

    def coarse(part: Tensor) -> Tensor:
        return steps(F.avg_pool2d(part.float().mean(0)[None, None], 2)[0, 0])

    return math.log((_in_strips(pixels, fine) + 1e-3) / (_in_strips(pixels, coarse) + 1e-3))


def _in_strips(pixels: Tensor, mean: Callable[[Tensor], Tensor]) -> float:
    """Average ``mean`` over strips of an image (3, H, W), so that a large one is never converted as a whole."""
    height, width = pixels.shape[1:]
    rows = max(2, STRIP_PIXELS // width // 2 * 2)
    if height <= 2 * rows:
        return float(mean(pixels))
    strips = [pixels[:, top : top + rows] for top in range(0, height - 3, rows)]
    total = sum(strip.shape[1] for strip in strips)
    return sum(float(mean(strip)) * strip.shape[1] / total for strip in strips)


def _some(pixels: Tensor) -> Tensor:
    """Return at most about a million evenly spaced pixels (3, P): torch.quantile is limited to 16 million."""
    return pixels[:, :: max(1, pixels.shape[1] // 1_000_000)]
