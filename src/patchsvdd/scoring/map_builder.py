"""Build anomaly maps and scores from embeddings and the critic's maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from patchsvdd.core.streams import side_by_side
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.memory.bank import Memory
from patchsvdd.scoring.anomaly_map import AnomalyMaps, LazyMaps, average_over_patches, image_score, multiply_scales
from patchsvdd.scoring.fusion import Fusion
from patchsvdd.scoring.position_statistics import PositionStatistics


@dataclass(frozen=True)
class MapBuilder:
    """The memory, and how distances to it become anomaly maps."""

    memory: Memory
    positions: PositionStatistics | None = None
    """Typical value at each position of the product map; None to treat all positions alike."""
    fusion: Fusion | None = None
    """How the product map and the critic's map are fused; None without a critic."""
    min_area: int = 0
    """Regions of the map with fewer pixels are ignored in the score; with 0 or 1 the highest pixel decides."""

    def to(self, device: torch.device) -> MapBuilder:
        """The same map builder on another device."""
        positions = self.positions.to(device) if self.positions is not None else None
        return replace(self, memory=self.memory.to(device), positions=positions)

    def distances(
        self, queries: list[Tensor], grids: list[PatchGrid], without_image: int | None = None
    ) -> dict[int, Tensor]:
        """Patch size → map (N, H, W) of distances (Eq. 8), from embeddings (N, patches, D) on each grid."""
        distances = self.patch_distances(queries, grids, without_image)
        return {grid.scale.patch_size: average_over_patches(distances[grid.scale.patch_size], grid) for grid in grids}

    def patch_distances(
        self, queries: list[Tensor], grids: list[PatchGrid], without_image: int | None = None
    ) -> dict[int, Tensor]:
        """Patch size → distance (N, rows, columns) of every patch (Eq. 8), divided by local scale if known."""

        def measure(grid: PatchGrid, query: Tensor) -> Tensor:
            scale = self.memory.scales[grid.scale.patch_size]
            return grid.place(scale.measure(query.flatten(0, 1), without_image, grid.neighbourhood))

        works = [partial(measure, grid, query) for grid, query in zip(grids, queries, strict=True)]
        sizes = [grid.scale.patch_size for grid in grids]
        # The smallest patches are the most, so their search is the longest.
        found = side_by_side(queries[0].device, works[::-1])[::-1]
        return dict(zip(sizes, found, strict=True))

    @property
    def ignores_memory(self) -> bool:
        """Whether the memory has no weight in the combined map."""
        return self.fusion is not None and self.fusion.share == 0

    def combine(self, scales: dict[int, Tensor], critic_maps: Tensor | None = None) -> AnomalyMaps:
        """Anomaly maps and scores (Eq. 9 and 10) from the scales' maps and the critic's maps (N, H, W)."""
        product = self._product(scales)
        if self.fusion is None or critic_maps is None:
            return AnomalyMaps(scales, product, image_score(product, self.min_area))
        combined = self.fusion(product, critic_maps)
        scores = image_score(combined, self.min_area)
        return AnomalyMaps(scales, combined, scores, {"memory": product, "critic": critic_maps})

    def of_critic(self, critic_maps: Tensor) -> Tensor:
        """The combined map (N, H, W) if ``ignores_memory``."""
        assert self.fusion is not None
        return self.fusion(None, critic_maps)

    def without_search(self, find_scales: Callable[[], dict[int, Tensor]], critic_maps: Tensor) -> AnomalyMaps:
        """What ``combine`` returns if ``ignores_memory``; the scales' maps are found when one of them is asked for."""
        combined = self.of_critic(critic_maps)
        scales = cache(find_scales)
        parts = {"memory": lambda: self._product(scales()), "critic": lambda: critic_maps}
        return AnomalyMaps(
            LazyMaps(self.memory.scales, lambda size: scales()[size]),
            combined,
            image_score(combined, self.min_area),
            LazyMaps(parts, lambda name: parts[name]()),
        )

    def _product(self, scales: dict[int, Tensor]) -> Tensor:
        product = multiply_scales(scales.values())
        return product if self.positions is None else self.positions.apply(product)


def embeddings_of(memory: Memory, index: int, grids: list[PatchGrid]) -> list[Tensor]:
    """Embeddings (1, patches, D), on each grid, of one of the images of a complete memory."""
    embeddings = []
    for grid in grids:
        patches = grid.count
        rows = memory.scales[grid.scale.patch_size].embeddings
        embeddings.append(rows[index * patches : (index + 1) * patches][None])
    return embeddings
