"""An inspection, looked at once more: which normal patches its peaks were compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from patchsvdd.core.config import is_large
from patchsvdd.core.roi import RoiCrop
from patchsvdd.encoder.embedder import Embedder
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.memory.bank import ScaleMemory
from patchsvdd.scoring.explanation import Box, Explanation, NormalPatch, Reason, ScaleReason
from patchsvdd.scoring.fusion import critic_scale, memory_scale
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.regions import Region
from patchsvdd.scoring.typical_distances import TypicalDistance

SMALLEST = 1e-12
"""Added before logarithms are taken; far below any distance."""


@dataclass(frozen=True)
class Explainer:
    """What made an inspection, and can say why it came out so."""

    embedder: Embedder
    map_builder: MapBuilder
    pictures: Thumbnails | None
    typical: Mapping[int, TypicalDistance]
    """Patch size → what is usual in good images; empty where the model does not say, and the image itself must do."""
    frame: RoiCrop | None = None
    """The part of images that is seen; None for all of it."""

    def __call__(self, inspection: Inspection, pixels: Tensor | None = None) -> Explanation:
        """Why the inspection came out so; ``pixels`` (3, H, W) where the image had more than 8 bits.

        The whole image is embedded and searched for again, as it was inspected: neighbours take part in a search. Of a
        large one only what lies around each peak, with a row and column of neighbours more.
        """
        if pixels is None:
            seen = inspection.image if self.frame is None else self.frame.cut(inspection.image)
            pixels = torch.from_numpy(np.ascontiguousarray(seen.transpose(2, 0, 1)))
        peaks: list[tuple[Region | None, tuple[int, int]]]
        peaks = [(region, peak_in_map(region, inspection)) for region in inspection.regions]
        if not peaks:
            y, x = divmod(int(inspection.anomaly_map.argmax()), inspection.anomaly_map.shape[1])
            peaks = [(None, (y, x))]
        large = is_large(int(pixels.shape[1]), int(pixels.shape[2]))
        whole = None if large else self._search(pixels)
        reasons = tuple(
            self._reason(inspection, self._search(pixels, at) if whole is None else whole, region, at)
            for region, at in peaks
        )
        return Explanation(inspection.name, reasons, inspection.image, self.pictures)

    def _search(self, pixels: Tensor, around: tuple[int, int] | None = None) -> list[Found]:
        """What the memory's search finds for every patch of the image (3, H, W), or those around a point, by scale."""
        grids = self.embedder.grids((int(pixels.shape[1]), int(pixels.shape[2])))
        found = []
        with torch.inference_mode():
            if around is None:
                embedded = self.embedder(pixels[None])
            else:
                down, across = self.frame.box[:2] if self.frame is not None else (0, 0)
                grids = [grid.around((around[0] - down, around[1] - across)) for grid in grids]
                embedded = self.embedder.embed_part(pixels[None], grids)
            for grid, query in zip(grids, embedded, strict=True):
                scale = self.map_builder.memory.scales[grid.scale.patch_size]
                nearest = scale.find(query.flatten(0, 1), None, grid.neighbourhood)
                on_grid = [grid.place(one)[0].cpu() for one in nearest]
                found.append(Found(grid, scale, on_grid[0], on_grid[1], on_grid[2], self.frame))
        return found

    def _reason(self, inspection: Inspection, found: list[Found], region: Region | None, at: tuple[int, int]) -> Reason:
        typical = [
            self.typical.get(one.grid.scale.patch_size) or TypicalDistance.from_image(one.measured) for one in found
        ]
        values = [float(inspection.scale_maps[one.grid.scale.patch_size][at]) for one in found]
        shares = shares_of([value / max(one.median, SMALLEST) for value, one in zip(values, typical, strict=True)])
        names = self.map_builder.memory.image_names
        scales = tuple(
            one.reason(at, names, inspection.image_size, compared, share)
            for one, compared, share in zip(found, typical, shares, strict=True)
        )
        height, width = inspection.anomaly_map.shape
        down, across = inspection.image_size[0] / height, inspection.image_size[1] / width
        peak_at = region.peak_at if region is not None else (int((at[1] + 0.5) * across), int((at[0] + 0.5) * down))
        return Reason(region, float(inspection.anomaly_map[at]), peak_at, scales, self._parts(inspection, at))

    def _parts(self, inspection: Inspection, at: tuple[int, int]) -> dict[str, float]:
        """What memory and critic bring to the map at a point; nothing without a critic."""
        fusion = self.map_builder.fusion
        if fusion is None or not inspection.part_maps:
            return {}
        product, marked = (torch.tensor([float(inspection.part_maps[name][at])]) for name in ("memory", "critic"))
        return {
            "memory": fusion.share * float(fusion.memory(memory_scale(product))),
            "critic": (1 - fusion.share) * float(fusion.critic(critic_scale(marked))),
        }


@dataclass(frozen=True)
class Found:
    """The nearest normal patches of one image's patches, on the grid of one scale."""

    grid: PatchGrid
    scale: ScaleMemory
    distances: Tensor
    """(rows, columns)."""
    measured: Tensor
    """(rows, columns): the same, as they enter the map."""
    rows: Tensor
    """(rows, columns) int64: of the memory."""
    frame: RoiCrop | None

    def reason(
        self,
        at: tuple[int, int],
        names: tuple[str, ...],
        original: tuple[int, int],
        typical: TypicalDistance,
        share: float,
    ) -> ScaleReason:
        """What this scale says of the point (y, x)."""
        down, across = self.frame.box[:2] if self.frame is not None else (0, 0)
        full = self.frame.full if self.frame is not None else self.grid.image_size
        row, column = self.farthest_over((at[0] - down, at[1] - across))
        index, top, left = self.scale.origin(int(self.rows[row, column]))
        box = self._box(self.grid.rows[row] + down, self.grid.columns[column] + across)
        return ScaleReason(
            patch_size=self.grid.scale.patch_size,
            box=_enlarged(box, full, original),
            working_box=box,
            nearest=NormalPatch(names[index], index, self._box(top, left)),
            distance=float(self.distances[row, column]),
            measured=float(self.measured[row, column]),
            typical=typical,
            share=share,
        )

    def farthest_over(self, at: tuple[int, int]) -> tuple[int, int]:
        """(row, column) of the patch that is farthest from normal, of those that cover the point (y, x)."""
        size = self.grid.scale.patch_size
        rows, columns = _covering(self.grid.rows, size, at[0]), _covering(self.grid.columns, size, at[1])
        over = self.measured[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        down, across = divmod(int(over.argmax()), over.shape[1])
        return rows[0] + down, columns[0] + across

    def _box(self, top: int, left: int) -> Box:
        size = self.grid.scale.patch_size
        return left, top, left + size, top + size


def shares_of(ratios: list[float]) -> list[float]:
    """Shares, which sum to 1, of factors of a product, each given as a multiple of its usual value.

    By logarithms, for these add up where factors multiply; what is below the usual has no share.
    """
    excess = [max(0.0, math.log(ratio + SMALLEST)) for ratio in ratios]
    total = sum(excess)
    return [one / total if total > 0 else 1 / len(excess) for one in excess]


def peak_in_map(region: Region, inspection: Inspection) -> tuple[int, int]:
    """(y, x) of a region's peak in the anomaly map, from its place in the original image."""
    height, width = inspection.anomaly_map.shape
    down, across = inspection.image_size[0] / height, inspection.image_size[1] / width
    x, y = region.peak_at
    # An original smaller than the map has several pixels of the map in one of its own: the peak is the highest.
    rows = [row for row in range(height) if int((row + 0.5) * down) == y]
    columns = [column for column in range(width) if int((column + 0.5) * across) == x]
    return max(((row, column) for row in rows for column in columns), key=lambda at: float(inspection.anomaly_map[at]))


def _covering(starts: list[int], size: int, at: int) -> list[int]:
    """Which of the patches that start there cover a pixel; beyond the last patch that one stands in."""
    return [index for index, start in enumerate(starts) if start <= at < start + size] or [len(starts) - 1]


def _enlarged(box: Box, size: tuple[int, int], original: tuple[int, int]) -> Box:
    """A box of an image of ``size`` (height, width) in pixels of the original, rounded outwards."""
    left, top, right, bottom = box
    return (
        left * original[1] // size[1],
        top * original[0] // size[0],
        -(-right * original[1] // size[1]),
        -(-bottom * original[0] // size[0]),
    )
