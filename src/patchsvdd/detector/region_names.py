"""Names the kind of confirmed defect that each region of an image resembles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.core.config import is_large
from patchsvdd.core.roi import RoiCrop
from patchsvdd.critic.confirmed_defects import ConfirmedDefects
from patchsvdd.critic.network import FEATURE_STEP, TrainedCritic
from patchsvdd.images.image_set import LoadedImage
from patchsvdd.scoring.regions import Region

NAMED = 16
"""Regions of an image that are named, highest score first."""


@dataclass(frozen=True)
class RegionNamer:
    """Compares the regions of an image with the confirmed defects of a model."""

    critic: TrainedCritic
    defects: ConfirmedDefects
    frame: RoiCrop | None
    """The crop that the critic sees; None for whole images."""

    def __call__(
        self, regions: tuple[Region, ...], loaded: LoadedImage, anomaly_map: NDArray[np.float32]
    ) -> tuple[Region, ...]:
        """Return the regions with the kinds they resemble, given the image and its map (H, W)."""
        pixels = loaded.tensor[None]
        if is_large(int(pixels.shape[2]), int(pixels.shape[3])):
            return regions
        with torch.inference_mode():
            early = self.critic.with_early_features(pixels)[1][0]
        top, left = self.frame.box[:2] if self.frame is not None else (0, 0)
        height, width = anomaly_map.shape
        down, across = height / loaded.original_size[0], width / loaded.original_size[1]
        named = []
        for region in regions[:NAMED]:
            x0, y0, x1, y1 = region.box
            rows = _cells(y0 * down - top, y1 * down - top, early.shape[1])
            columns = _cells(x0 * across - left, x1 * across - left, early.shape[2])
            inside = torch.zeros(early.shape[1:], dtype=torch.bool, device=early.device)
            inside[rows.start : rows.stop, columns.start : columns.stop] = True
            kind = self.defects.kind_of(early, inside)
            words = None if kind is None else self.defects.in_words(kind)
            named.append(replace(region, kind=kind, like=words))
        return (*named, *regions[NAMED:])


def _cells(first: float, last: float, count: int) -> range:
    """Return the cells that the pixels from ``first`` to ``last`` lie in; at least one."""
    start = min(max(0, int(first // FEATURE_STEP)), count - 1)
    return range(start, min(max(start + 1, int(-(-last // FEATURE_STEP))), count))
