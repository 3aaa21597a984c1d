"""Patch distances → anomaly map → score (Eq. 9 and 10)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import TypeVar

import torch
from torch import Tensor

from patchsvdd.core.roi import PixelMask
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.scoring.area_opening import area_opening_max

Key = TypeVar("Key", int, str)
Value = TypeVar("Value")


class LazyMaps(Mapping[Key, Value]):
    """Maps that are computed on every access: for a large image, all of them together would need too much memory."""

    def __init__(self, keys: Iterable[Key], make: Callable[[Key], Value]) -> None:
        self._keys: tuple[Key, ...] = tuple(keys)
        self._make: Callable[[Key], Value] = make

    def __getitem__(self, key: Key) -> Value:
        if key not in self._keys:
            raise KeyError(key)
        return self._make(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(frozen=True)
class AnomalyMaps:
    """Anomaly maps and scores of a batch of images of one size."""

    scales: Mapping[int, Tensor]
    """Patch size → (N, H, W); computed on access for large images."""
    combined: Tensor
    """(N, H, W), which gives the score: the product of the scales (Eq. 9), or its fusion with the critic's map."""
    scores: Tensor
    """(N,)."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """The maps that were fused: "memory" and "critic" → (N, H, W); empty without a critic."""


def average_over_patches(distances: Tensor, grid: PatchGrid) -> Tensor:
    """Map (N, H, W) of the mean distance of the patches that cover each pixel, from (N, rows, columns).

    Patches form a grid, so it is a mean over rows of a mean over columns: two small matrix products and no loop.
    """
    down, across = memberships(grid, distances.device)
    return zero_outside(down @ distances @ across.T, grid.area)


def average_on_rows(distances: Tensor, grid: PatchGrid, top: int, bottom: int) -> Tensor:
    """Rows ``top`` … ``bottom`` of ``average_over_patches``: (N, bottom − top, W)."""
    rows, size = grid.rows, grid.scale.patch_size
    first = min(bisect_right(rows, top - size), len(rows) - 1)  # the first patch that overlaps the rows
    stop = max(bisect_right(rows, bottom - 1), first + 1)
    down = _membership(rows[first:stop], size, top, bottom).to(distances.device)
    averaged = down @ distances[:, first:stop] @ _across(grid, distances.device).T
    return zero_outside(averaged, grid.area, top)


def zero_outside(maps: Tensor, area: PixelMask | None, top: int = 0) -> Tensor:
    """Set maps (N, h, W), or their rows from ``top`` on, to 0 where pixels are not valid."""
    if area is None:
        return maps
    return maps.where(valid_mask(area, maps.device)[top : top + maps.shape[1]], maps.new_zeros(()))


@lru_cache(maxsize=4)
def valid_mask(area: PixelMask, device: torch.device) -> Tensor:
    """(H, W) bool: the valid pixels; cached, so that a GPU does not wait for the transfer."""
    return torch.from_numpy(area.mask).to(device)


def multiply_scales(maps: Iterable[Tensor]) -> Tensor:
    """M_multi (Eq. 9): element-wise product of the maps of all scales."""
    return reduce(torch.mul, maps)


def image_score(anomaly_map: Tensor, min_area: int = 0) -> Tensor:
    """A^image (Eq. 10): maximum (N,) of maps (N, H, W), ignoring regions smaller than ``min_area`` pixels."""
    if min_area <= 1:
        return anomaly_map.flatten(1).amax(1)
    # Differs from the paper, where one pixel is enough.
    return anomaly_map.new_tensor([area_opening_max(image_map, min_area) for image_map in anomaly_map.cpu().numpy()])


@lru_cache(maxsize=16)
def memberships(grid: PatchGrid, device: torch.device) -> tuple[Tensor, Tensor]:
    """``_membership`` of rows and of columns; cached, so that a GPU does not wait for the transfer."""
    height, width = grid.image_size
    down = _membership(grid.rows, grid.scale.patch_size, 0, height)
    across = _membership(grid.columns, grid.scale.patch_size, 0, width)
    return down.to(device), across.to(device)


@lru_cache(maxsize=4)
def _across(grid: PatchGrid, device: torch.device) -> Tensor:
    """``_membership`` of columns only: for a large image, the matrix of rows is larger than the image."""
    return _membership(grid.columns, grid.scale.patch_size, 0, grid.image_size[1]).to(device)


def _membership(positions: list[int], patch_size: int, first: int, stop: int) -> Tensor:
    """Weights (stop − first, len(positions)) of the patches in the mean at each pixel along one axis; rows sum to 1."""
    pixel = torch.arange(first, stop)[:, None]
    start = torch.tensor(positions)[None]
    covered = (pixel >= start) & (pixel < start + patch_size)
    # A few pixels (fewer than the encoder's alignment) may be beyond the last patch: they get its distance.
    covered[max(0, positions[-1] + patch_size - first) :, -1] = True
    return covered / covered.sum(1, keepdim=True)
