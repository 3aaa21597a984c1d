"""Grids of patches in an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from patchsvdd.core.roi import PixelMask
from patchsvdd.core.scales import Scale


@dataclass(frozen=True)
class Band:
    """A range of rows or columns of a grid."""

    first: int
    stop: int
    """Rows of patches first … stop − 1."""
    origin: int
    """First available pixel; positions are counted from it."""

    def counted_from(self, origin: int) -> Band:
        """The same band with positions counted from ``origin``."""
        return replace(self, origin=origin)

    def of(self, positions: list[int]) -> list[int]:
        """Positions of the band, from those of all rows."""
        return [position - self.origin for position in positions[self.first : self.stop]]


@dataclass(frozen=True)
class PatchGrid:
    """Patches of one scale over an image: every ``stride`` pixels, plus one at the far edges."""

    image_size: tuple[int, int]
    """(height, width)."""
    scale: Scale
    alignment: int
    """Positions are multiples of the encoder's own stride."""
    band: Band | None = None
    """Rows of a strip of the image; None for all rows."""
    across: Band | None = None
    """The same for columns."""
    area: PixelMask | None = None
    """Valid pixels: patches without any are left out; None if all pixels are valid."""

    @property
    def rows(self) -> list[int]:
        """Top edges of the patches, in pixels."""
        rows = self._positions(self.image_size[0])
        return rows if self.band is None else self.band.of(rows)

    @property
    def whole(self) -> PatchGrid:
        """The grid without bands."""
        return self if self.band is None and self.across is None else replace(self, band=None, across=None)

    @property
    def columns(self) -> list[int]:
        """Left edges of the patches, in pixels."""
        columns = self._positions(self.image_size[1])
        return columns if self.across is None else self.across.of(columns)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return len(self.rows), len(self.columns)

    @property
    def kept(self) -> Tensor | None:
        """(P,) int64: row-major indices of the patches with valid pixels; None for all."""
        return None if self.area is None else _kept(self)

    @property
    def count(self) -> int:
        """Number of patches with valid pixels."""
        kept = self.kept
        return self.shape[0] * self.shape[1] if kept is None else len(kept)

    @property
    def neighbourhood(self) -> tuple[int, int] | None:
        """(rows, columns) of patches if none is left out, so that neighbours are known; otherwise None."""
        return self.shape if self.kept is None else None

    def around(self, at: tuple[int, int]) -> PatchGrid:
        """The patches of a whole grid that cover a point (y, x), and one more on each side."""
        bands = []
        for positions, place in ((self.rows, at[0]), (self.columns, at[1])):
            over = [number for number, start in enumerate(positions) if start <= place < start + self.scale.patch_size]
            over = over or [len(positions) - 1]
            bands.append(Band(max(0, over[0] - 1), min(len(positions), over[-1] + 2), 0))
        return replace(self, band=bands[0], across=bands[1])

    def pick(self, values: Tensor) -> Tensor:
        """Select the kept patches (N, P, …) from all patches (N, rows · columns, …)."""
        kept = self.kept
        return values if kept is None else values[:, kept.to(values.device)]

    def place(self, values: Tensor) -> Tensor:
        """Arrange values of the kept patches (N · P,) or (N, P) as (N, rows, columns), with 0 for the others."""
        kept = self.kept
        if kept is None:
            return values.view(-1, *self.shape)
        placed = values.new_zeros((values.numel() // max(1, len(kept)), self.shape[0] * self.shape[1]))
        placed[:, kept.to(values.device)] = values.view(len(placed), -1)
        return placed.view(-1, *self.shape)

    def _positions(self, length: int) -> list[int]:
        last = (length - self.scale.patch_size) // self.alignment * self.alignment
        positions = list(range(0, last + 1, self.scale.stride))
        # Differs from the paper: where the stride does not divide the image (it does at 256 × 256), one more
        # patch is placed at the edge, so that defects at the border are detected too.
        if positions[-1] != last:
            positions.append(last)
        return positions


def trim(grids: Sequence[PatchGrid]) -> tuple[list[PatchGrid], slice, slice]:
    """Cut whole grids down to the rows and columns with kept patches; also return the slices of pixels they cover.

    Positions in the trimmed grids are counted from the start of the slices, which is aligned for all of them.
    """
    cuts = []
    for grid in grids:
        kept, columns = grid.kept, grid.shape[1]
        numbers = torch.arange(grid.shape[0] * columns) if kept is None else kept
        rows, across = numbers // columns, numbers % columns
        cuts.append([(int(indices.min()), int(indices.max()) + 1) for indices in (rows, across)])
    down, right = (
        slice(
            aligned(min(places[cut[axis][0]] for places, cut in zip(positions, cuts, strict=True)), grids),
            max(
                places[cut[axis][1] - 1] + grid.scale.patch_size
                for grid, places, cut in zip(grids, positions, cuts, strict=True)
            ),
        )
        for axis, positions in enumerate(([grid.rows for grid in grids], [grid.columns for grid in grids]))
    )
    trimmed = [
        replace(grid, band=Band(*cut[0], down.start), across=Band(*cut[1], right.start))
        for grid, cut in zip(grids, cuts, strict=True)
    ]
    return trimmed, down, right


def aligned(start: int, grids: Sequence[PatchGrid]) -> int:
    """The last pixel up to ``start`` that all encoders may count positions from."""
    every = math.lcm(*(grid.alignment for grid in grids))
    return start // every * every


@lru_cache(maxsize=64)
def _kept(grid: PatchGrid) -> Tensor | None:
    assert grid.area is not None
    whole = grid.whole
    touching = torch.from_numpy(grid.area.touching(whole.rows, whole.columns, grid.scale.patch_size))
    if grid.band is not None:
        touching = touching[grid.band.first : grid.band.stop]
    if grid.across is not None:
        touching = touching[:, grid.across.first : grid.across.stop]
    return None if bool(touching.all()) else touching.flatten().nonzero()[:, 0]
