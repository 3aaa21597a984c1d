"""Position statistics and fusion fitted on good images; each image is scored with statistics of the others."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from patchsvdd.core.roi import PixelMask
from patchsvdd.memory.bank import Memory
from patchsvdd.scoring.anomaly_map import valid_mask
from patchsvdd.scoring.fusion import Fusion
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.position_statistics import PositionStatistics

FOLDS = 10
"""Folds of the calibration images; each is scored with statistics fitted on the others."""


class CrossFitter:
    """Fits position statistics and fusion on the maps of good images.

    An image that contributes to its own statistics scores too low, and a threshold set from such scores is exceeded
    too often (``benchmarks/threshold_bias.py``). So each image is scored with statistics fitted on the others.
    """

    def __init__(
        self,
        products: Tensor,
        critic_maps: Tensor | None,
        calibration: list[int],
        by_position: bool,
        area: PixelMask | None,
    ) -> None:
        """``products`` (N, H, W); ``calibration``: indices of the images that set the threshold.

        ``critic_maps`` cover the calibration images only. With ``by_position`` the statistics of each position use
        all products.
        """
        self.products, self.critic_maps, self.calibration = products, critic_maps, calibration
        self.by_position, self.area = by_position, area

    @property
    def can_cross_fit(self) -> bool:
        """Whether there are enough images to fit statistics without some of them."""
        return len(self.calibration) > 1 and (not self.by_position or len(self.products) > 2)

    def fit(self, memory: Memory, share: float, without: Collection[int] = ()) -> MapBuilder:
        """Fit on all images except those at the places ``without`` in ``calibration``."""
        positions, fusion = None, None
        if self.by_position:
            left_out = {self.calibration[place] for place in without}
            kept = [index for index in range(len(self.products)) if index not in left_out]
            positions = PositionStatistics.fit(self.products[kept], area=self.area)
        if self.critic_maps is not None:
            kept = [place for place in range(len(self.calibration)) if place not in without]
            products = self._normalized(positions, kept)
            fusion = Fusion.fit(self._counting(products), self._counting(self.critic_maps[kept]), share)
        return MapBuilder(memory, positions, fusion)

    def folds(self, map_builder: MapBuilder) -> list[MapBuilder]:
        """Return map builders, each fitted without one fold; the image at a place is in fold ``place % len(folds)``."""
        if not self.can_cross_fit:
            return [map_builder]
        share = map_builder.fusion.share if map_builder.fusion is not None else 0.0
        count = len(self.calibration)
        return [self.fit(map_builder.memory, share, range(first, count, FOLDS)) for first in range(min(FOLDS, count))]

    def cross_fitted(self, map_builder: MapBuilder) -> Tensor:
        """Return maps (calibration images, H, W), each with statistics of the others; of all if there are too few."""
        count, folds = len(self.calibration), self.folds(map_builder)
        maps = torch.empty((count, *self.products.shape[1:]), device=self.products.device)
        for first, fitted in enumerate(folds):
            fold = list(range(first, count, len(folds)))
            maps[fold] = self._maps(fitted, fold)
        return maps

    def _maps(self, map_builder: MapBuilder, places: list[int]) -> Tensor:
        products = self._normalized(map_builder.positions, places)
        if map_builder.fusion is None or self.critic_maps is None:
            return products
        return map_builder.fusion(products, self.critic_maps[places])

    def _normalized(self, positions: PositionStatistics | None, places: list[int]) -> Tensor:
        products = self.products[[self.calibration[place] for place in places]]
        return products if positions is None else positions.apply(products)

    def _counting(self, maps: Tensor) -> Tensor:
        """Return the pixels (N, P) of maps (N, H, W) that count; the maps themselves if all do."""
        return maps if self.area is None else maps[:, valid_mask(self.area, maps.device)]
