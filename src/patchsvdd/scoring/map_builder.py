"""From embeddings, and what the critic marked, to anomaly maps and scores."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.memory.bank import Memory
from patchsvdd.scoring.anomaly_map import AnomalyMaps, average_over_patches, image_score, multiply_scales
from patchsvdd.scoring.fusion import Fusion
from patchsvdd.scoring.position_statistics import PositionStatistics


@dataclass(frozen=True)
class MapBuilder:
    """What maps are made with: normal patches to compare with, and how to read the result."""

    memory: Memory
    positions: PositionStatistics | None = None
    """What is usual at each place of the product map; None where all places are alike."""
    fusion: Fusion | None = None
    """How the product map and the critic's become one; None without a critic."""
    min_area: int = 0
    """Pixels of the map that must lie together as high as a score; the highest alone decides where it is 0 or 1."""

    def to(self, device: torch.device) -> MapBuilder:
        """The same on another device."""
        positions = self.positions.to(device) if self.positions is not None else None
        return replace(self, memory=self.memory.to(device), positions=positions)

    def distances(
        self, queries: list[Tensor], grids: list[PatchGrid], without_image: int | None = None
    ) -> dict[int, Tensor]:
        """Patch size → map (N, H, W) of distances (Eq. 8), from embeddings (N, patches, D) on each grid."""
        found = self.patch_distances(queries, grids, without_image)
        return {grid.scale.patch_size: average_over_patches(found[grid.scale.patch_size], grid) for grid in grids}

    def patch_distances(
        self, queries: list[Tensor], grids: list[PatchGrid], without_image: int | None = None
    ) -> dict[int, Tensor]:
        """Patch size → distance (N, rows, columns) of every patch, as the memory measures it (Eq. 8)."""
        found = {}
        for grid, query in zip(grids, queries, strict=True):
            size = grid.scale.patch_size
            scaled = self.memory.scales[size].measure(query.flatten(0, 1), without_image, grid.neighbourhood)
            found[size] = grid.place(scaled)
        return found

    def combine(self, scales: dict[int, Tensor], critic_maps: Tensor | None = None) -> AnomalyMaps:
        """Maps and scores (Eq. 9 and 10) from the scales' maps and the critic's (N, H, W)."""
        product = multiply_scales(scales.values())
        if self.positions is not None:
            product = self.positions.apply(product)
        if self.fusion is None or critic_maps is None:
            return AnomalyMaps(scales, product, image_score(product, self.min_area))
        combined = self.fusion(product, critic_maps)
        scores = image_score(combined, self.min_area)
        return AnomalyMaps(scales, combined, scores, {"memory": product, "critic": critic_maps})


def embeddings_of(memory: Memory, index: int, grids: list[PatchGrid]) -> list[Tensor]:
    """Embeddings (1, patches, D), on each grid, of one of the images that a whole memory was made of."""
    found = []
    for grid in grids:
        patches = grid.count
        rows = memory.scales[grid.scale.patch_size].embeddings
        found.append(rows[index * patches : (index + 1) * patches][None])
    return found
