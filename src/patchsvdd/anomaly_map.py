"""Patch distances → anomaly map → score (Eq. 9 and 10)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache, reduce

import torch
from torch import Tensor

from patchsvdd.patches import PatchGrid


@dataclass(frozen=True)
class AnomalyMaps:
    """Maps of a batch of images of one size."""

    scales: dict[int, Tensor]
    """Patch size → (N, H, W)."""
    combined: Tensor
    """(N, H, W): the map that decides. The product of the scales (Eq. 9), or with a critic its fusion with that."""
    scores: Tensor
    """(N,)."""
    parts: dict[str, Tensor] = field(default_factory=dict)
    """What was fused: "memory" and "critic" → (N, H, W); empty without a critic."""


def spread_on_pixels(distances: Tensor, grid: PatchGrid) -> Tensor:
    """Map (N, H, W): every pixel gets the mean distance of the patches it belongs to, from (N, rows, columns).

    Patches form a grid, so the mean over patches is a mean over rows of a mean over columns: two small
    matrix products instead of a loop over patches.
    """
    down, across = memberships(grid, distances.device)
    return down @ distances @ across.T


def multiply_scales(maps: Iterable[Tensor]) -> Tensor:
    """M_multi (Eq. 9): element-wise product of the maps of all scales."""
    return reduce(torch.mul, maps)


def image_score(anomaly_map: Tensor) -> Tensor:
    """A^image (Eq. 10): maximum (N,) of maps (N, H, W)."""
    return anomaly_map.flatten(1).amax(1)


@lru_cache(maxsize=16)
def memberships(grid: PatchGrid, device: torch.device) -> tuple[Tensor, Tensor]:
    """``_membership`` of rows and of columns; kept, so that a GPU need not wait for them."""
    height, width = grid.image_size
    down = _membership(grid.rows, grid.scale.patch_size, height)
    across = _membership(grid.columns, grid.scale.patch_size, width)
    return down.to(device), across.to(device)


def _membership(positions: list[int], patch_size: int, length: int) -> Tensor:
    """(length, len(positions)): share of each patch in the mean of each pixel along one axis; rows sum to 1."""
    pixel = torch.arange(length)[:, None]
    start = torch.tensor(positions)[None]
    covered = (pixel >= start) & (pixel < start + patch_size)
    # Fewer pixels than the encoder's alignment may lie beyond the last patch: they take its distance.
    covered[positions[-1] + patch_size :, -1] = True
    return covered / covered.sum(1, keepdim=True)
