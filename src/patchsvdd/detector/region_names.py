"""Names the kind of confirmed defect that an image resembles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.core.config import is_large
from patchsvdd.core.roi import RoiCrop
from patchsvdd.critic.confirmed_defects import ConfirmedDefects
from patchsvdd.critic.defect_kinds import defect_cells
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.images.image_set import LoadedImage
from patchsvdd.scoring.regions import Region


@dataclass(frozen=True)
class RegionNamer:
    """Compares an image with the confirmed defects of a model."""

    critic: TrainedCritic
    defects: ConfirmedDefects
    frame: RoiCrop | None
    """The crop that the critic sees; None for whole images."""
    threshold: float

    def __call__(
        self, regions: tuple[Region, ...], loaded: LoadedImage, anomaly_map: NDArray[np.float32]
    ) -> tuple[Region, ...]:
        """Return the regions with the kind that the image resembles, given the image and its map (H, W).

        The whole image gets one name: all regions together show its kind better than any one of them.
        """
        pixels = loaded.tensor[None]
        if is_large(int(pixels.shape[2]), int(pixels.shape[3])):
            return regions
        top, left = self.frame.box[:2] if self.frame is not None else (0, 0)
        with torch.inference_mode():
            early = self.critic.with_early_features(pixels)[1][0]
            seen = torch.from_numpy(anomaly_map[top:, left:].copy()).to(early.device)
            cells = defect_cells(seen, self.threshold, (early.shape[1], early.shape[2]))
            kind = self.defects.kind_of(early, cells)
        if kind is None:
            return regions
        words = self.defects.in_words(kind)
        return tuple(replace(region, kind=kind, like=words) for region in regions)
