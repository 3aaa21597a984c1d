"""Inspection of large images in strips.

Embeddings of a strip are searched and discarded. Only the distance of each patch is kept, and the critic's logit of
every fourth pixel. Rows of any map are computed from these, so only the pixels, these grids and the combined map of a
whole image are ever in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from patchsvdd.critic.network import SMOOTHING, TrainedCritic, critic_rows
from patchsvdd.encoder.embedder import Embedder
from patchsvdd.encoder.patch_grid import Band, PatchGrid, aligned
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
"""Approximate memory for the pixels and embeddings of a strip."""
MAP_ROWS = 256
"""Rows of a map computed at a time."""


@dataclass(frozen=True)
class TiledResult:
    """Distances and logits of large images of one size, from which rows of every map are computed."""

    grids: tuple[PatchGrid, ...]
    distances: dict[int, Tensor]
    """Patch size → (N, rows, columns): the distance of each patch."""
    logits: Tensor | None
    """(N, ⌈H/4⌉, ⌈W/4⌉): the critic's logits; None without a critic."""
    positions: PositionStatistics | None
    fusion: Fusion | None
    min_area: int = 0
    """``MapBuilder.min_area``."""
    smoothing: float = SMOOTHING
    """``TrainedCritic.smoothing``."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the images."""
        return self.grids[0].image_size

    def scale(self, patch_size: int, top: int, bottom: int) -> Tensor:
        """Return rows (N, bottom − top, W) of a scale's map."""
        grid = next(grid for grid in self.grids if grid.scale.patch_size == patch_size)
        return average_on_rows(self.distances[patch_size], grid, top, bottom)

    def product(self, top: int, bottom: int) -> Tensor:
        """Return rows (N, bottom − top, W) of the product of scales (Eq. 9), normalised by position if configured."""
        product = multiply_scales(self.scale(size, top, bottom) for size in self.distances)
        return product if self.positions is None else self.positions.apply_to_rows(product, top, self.size)

    def marked(self, top: int, bottom: int) -> Tensor:
        """Return rows (N, bottom − top, W) of the critic's map."""
        assert self.logits is not None
        rows = critic_rows(self.logits, self.size, top, bottom, self.smoothing)
        return zero_outside(rows, self.grids[0].area, top)

    def combined(self, top: int, bottom: int) -> Tensor:
        """Return rows (N, bottom − top, W) of the combined map."""
        product = self.product(top, bottom)
        return product if self.fusion is None else self.fusion(product, self.marked(top, bottom))

    def maps(self) -> AnomalyMaps:
        """Return maps and scores, on the host; all maps except the combined one are computed on access."""
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
        """Return (N, H, W) on the host, given a function that computes rows."""
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
    """Search pixels (N, 3, H, W) in 0 … 255 in strips; ``without_image`` excludes one image's patches."""
    grids = embedder.grids((int(pixels.shape[2]), int(pixels.shape[3])))
    fusion = map_builder.fusion if critic is not None else None
    return TiledResult(
        tuple(grids),
        _measure(pixels, grids, embedder, map_builder, without_image),
        critic.logits(pixels) if critic is not None and fusion is not None else None,
        map_builder.positions,
        fusion,
        map_builder.min_area,
        critic.smoothing if critic is not None else SMOOTHING,
    )


def _measure(
    pixels: Tensor, grids: Sequence[PatchGrid], embedder: Embedder, map_builder: MapBuilder, without_image: int | None
) -> dict[int, Tensor]:
    """Return patch size → distance (N, rows, columns) of each patch."""
    normalization = embedder.normalization.resolved_for(pixels).to(embedder.device)
    sizes = [grid.scale.patch_size for grid in grids]
    distances = {
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
            continue  # no patch in this strip counts
        # With a row above and below: a graph search also tries the results of neighbouring patches.
        wide = [_widened(grid) for grid in bands]
        top = aligned(min(band.rows[0] for band in wide), grids)
        bottom = max(band.rows[-1] + band.scale.patch_size for band in wide)
        strip = pixels[:, :, top:bottom].contiguous().to(embedder.device, non_blocking=True)
        local = [_from_row(band, top) for band in wide]
        embedded = embedder.embed(normalization.for_rows(top, bottom)(strip), local)
        for band, grid, queries in zip(bands, local, embedded, strict=True):
            kept, above = _rows_of(band), _rows_of(grid).first
            size = band.scale.patch_size
            if grid.count == 0:
                continue
            measured = map_builder.memory.scales[size].measure(queries.flatten(0, 1), without_image, grid.neighbourhood)
            rows = grid.place(measured)[:, kept.first - above : kept.stop - above]
            distances[size][:, kept.first : kept.stop] = rows
    return distances


def _strips(grids: Sequence[PatchGrid], height: int) -> Iterator[list[PatchGrid]]:
    """Yield bands of the grids, one strip of ``height`` pixels at a time; some may be empty."""
    rows = [grid.rows for grid in grids]
    for top in range(0, max(row[-1] for row in rows) + 1, height):
        cuts = [(bisect_left(row, top), bisect_left(row, top + height)) for row in rows]
        if any(first < stop for first, stop in cuts):
            yield [replace(grid, band=Band(*cut, 0)) for grid, cut in zip(grids, cuts, strict=True)]


def _widened(grid: PatchGrid) -> PatchGrid:
    """Return a band with one more row above and below, where they exist."""
    band = _rows_of(grid)
    first, stop = max(0, band.first - 1), min(len(grid.whole.rows), band.stop + 1)
    return replace(grid, band=Band(first, stop, 0))


def _from_row(grid: PatchGrid, origin: int) -> PatchGrid:
    """Return a band relative to the pixel row ``origin``."""
    return replace(grid, band=replace(_rows_of(grid), origin=origin))


def _rows_of(grid: PatchGrid) -> Band:
    assert grid.band is not None
    return grid.band
