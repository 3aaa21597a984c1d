"""Large images, worked through in strips: what is found lies on grids coarser than pixels, and maps are made of that.

Embeddings of a strip are searched and dropped; their distances stay, one for each patch, and the critic's logits, one
for each fourth pixel. Rows of any map follow from these, so that of a whole image no more is ever held than its pixels,
the grids and the one map that decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from patchsvdd.critic.network import TrainedCritic, critic_rows
from patchsvdd.encoder.embedder import Embedder
from patchsvdd.encoder.patch_grid import Band, PatchGrid
from patchsvdd.scoring.anomaly_map import (
    AnomalyMaps,
    LazyMaps,
    average_on_rows,
    image_score,
    multiply_scales,
    zero_outside,
)
from patchsvdd.scoring.fusion import Fusion
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.position_statistics import PositionStatistics

STRIP_BYTES = {"cpu": 96 * 2**20, "cuda": 2 * 2**30}
"""What the pixels and embeddings of a strip take in memory, about."""
MAP_ROWS = 256
"""Rows of a map that are made at a time."""


@dataclass(frozen=True)
class TiledResult:
    """What was found in large images of one size; rows of every map follow from it."""

    grids: tuple[PatchGrid, ...]
    distances: dict[int, Tensor]
    """Patch size → (N, rows, columns): the distance of each patch of the grid."""
    logits: Tensor | None
    """(N, ⌈H/4⌉, ⌈W/4⌉) of the critic; None without one."""
    positions: PositionStatistics | None
    fusion: Fusion | None
    min_area: int = 0
    """As the ``MapBuilder``'s."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the images."""
        return self.grids[0].image_size

    def scale(self, patch_size: int, top: int, bottom: int) -> Tensor:
        """Rows (N, bottom − top, W) of a scale's map."""
        grid = next(grid for grid in self.grids if grid.scale.patch_size == patch_size)
        return average_on_rows(self.distances[patch_size], grid, top, bottom)

    def product(self, top: int, bottom: int) -> Tensor:
        """Rows (N, bottom − top, W) of the product of the scales (Eq. 9), in units of what is usual there."""
        product = multiply_scales(self.scale(size, top, bottom) for size in self.distances)
        return product if self.positions is None else self.positions.apply_to_rows(product, top, self.size)

    def marked(self, top: int, bottom: int) -> Tensor:
        """Rows (N, bottom − top, W) of the critic's map."""
        assert self.logits is not None
        return zero_outside(critic_rows(self.logits, self.size, top, bottom), self.grids[0].area, top)

    def combined(self, top: int, bottom: int) -> Tensor:
        """Rows (N, bottom − top, W) of the map that decides."""
        product = self.product(top, bottom)
        return product if self.fusion is None else self.fusion(product, self.marked(top, bottom))

    def maps(self) -> AnomalyMaps:
        """Maps and scores, on the host; all but the map that decides are made when they are asked for."""
        combined = self._whole(self.combined)
        parts = {"memory": self.product, "critic": self.marked} if self.fusion is not None else {}
        return AnomalyMaps(
            LazyMaps(self.distances, self._scale_map),
            combined,
            image_score(combined, self.min_area),
            LazyMaps(parts, self._part_map),
        )

    def _scale_map(self, patch_size: int) -> Tensor:
        return self._whole(partial(self.scale, patch_size))

    def _part_map(self, name: str) -> Tensor:
        return self._whole(self.product if name == "memory" else self.marked)

    def _whole(self, rows: Callable[[int, int], Tensor]) -> Tensor:
        """(N, H, W) on the host, from a function that makes rows."""
        height, width = self.size
        count = len(next(iter(self.distances.values())))
        with torch.inference_mode():
            whole = torch.empty((count, height, width))
            for top in range(0, height, MAP_ROWS):
                bottom = min(top + MAP_ROWS, height)
                whole[:, top:bottom] = rows(top, bottom)
        return whole


def find_in_strips(
    pixels: Tensor,
    embedder: Embedder,
    map_builder: MapBuilder,
    critic: TrainedCritic | None = None,
    without_image: int | None = None,
) -> TiledResult:
    """What is found in pixels (N, 3, H, W) in 0 … 255; ``without_image`` leaves out the patches of one image."""
    grids = embedder.grids((int(pixels.shape[2]), int(pixels.shape[3])))
    fusion = map_builder.fusion if critic is not None else None
    return TiledResult(
        tuple(grids),
        _measure(pixels, grids, embedder, map_builder, without_image),
        critic.logits(pixels) if critic is not None and fusion is not None else None,
        map_builder.positions,
        fusion,
        map_builder.min_area,
    )


def _measure(
    pixels: Tensor, grids: Sequence[PatchGrid], embedder: Embedder, map_builder: MapBuilder, without_image: int | None
) -> dict[int, Tensor]:
    """Patch size → distance (N, rows, columns) of each patch."""
    normalization = embedder.normalization.resolved_for(pixels).to(embedder.device)
    sizes = [grid.scale.patch_size for grid in grids]
    found = {
        size: torch.zeros((len(pixels), *grid.shape), device=embedder.device)
        for size, grid in zip(sizes, grids, strict=True)
    }
    lengths = [map_builder.memory.scales[size].length for size in sizes]
    bytes_per_row = (
        4
        * len(pixels)
        * sum(
            3 * grid.image_size[1] + length * grid.shape[1] // grid.scale.stride
            for grid, length in zip(grids, lengths, strict=True)
        )
    )
    for bands in _strips(grids, max(1, STRIP_BYTES[embedder.device.type] // bytes_per_row)):
        if not any(band.count for band in bands):
            continue  # nothing here counts
        # With a row above and below: a graph also tries what the patches around have found.
        wide = [_widened(grid) for grid in bands]
        top = min(band.rows[0] for band in wide)
        bottom = max(band.rows[-1] + band.scale.patch_size for band in wide)
        strip = pixels[:, :, top:bottom].contiguous().to(embedder.device, non_blocking=True)
        seen = [_from_row(band, top) for band in wide]
        embedded = embedder.embed(normalization.for_rows(top, bottom)(strip), seen)
        for band, grid, queries in zip(bands, seen, embedded, strict=True):
            wanted, above = _rows_of(band), _rows_of(grid).first
            size = band.scale.patch_size
            if grid.count == 0:
                continue
            distances = map_builder.memory.scales[size].measure(
                queries.flatten(0, 1), without_image, grid.neighbourhood
            )
            rows = grid.place(distances)[:, wanted.first - above : wanted.stop - above]
            found[size][:, wanted.first : wanted.stop] = rows
    return found


def _strips(grids: Sequence[PatchGrid], height: int) -> Iterator[list[PatchGrid]]:
    """The grids in bands, those whose patches begin in the same ``height`` pixels together; some may be empty."""
    rows = [grid.rows for grid in grids]
    for top in range(0, max(row[-1] for row in rows) + 1, height):
        cuts = [(bisect_left(row, top), bisect_left(row, top + height)) for row in rows]
        if any(first < stop for first, stop in cuts):
            yield [replace(grid, band=Band(*cut, 0)) for grid, cut in zip(grids, cuts, strict=True)]


def _widened(grid: PatchGrid) -> PatchGrid:
    """A band with one more row above and below, where there is one."""
    band = _rows_of(grid)
    first, stop = max(0, band.first - 1), min(len(grid.whole.rows), band.stop + 1)
    return replace(grid, band=Band(first, stop, 0))


def _from_row(grid: PatchGrid, origin: int) -> PatchGrid:
    """A band of which nothing above the pixel row ``origin`` is there."""
    return replace(grid, band=replace(_rows_of(grid), origin=origin))


def _rows_of(grid: PatchGrid) -> Band:
    assert grid.band is not None
    return grid.band
