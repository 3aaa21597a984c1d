"""Explains an inspection by the normal patches that its peaks were compared with."""

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
from patchsvdd.images.decoding import to_uint8
from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.memory.bank import ScaleMemory
from patchsvdd.scoring.explanation import Box, Explanation, NormalPatch, Reason, ScaleReason
from patchsvdd.scoring.fusion import critic_scale, memory_scale
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.regions import Region
from patchsvdd.scoring.typical_distances import TypicalDistance

SMALLEST = 1e-12
"""Added before taking logarithms; far below any distance."""


@dataclass(frozen=True)
class Explainer:
    """The parts of a detector that are needed to explain an inspection."""

    embedder: Embedder
    map_builder: MapBuilder
    pictures: Thumbnails | None
    typical: Mapping[int, TypicalDistance]
    """Patch size → typical distance in good images; if the model has none, that of the inspected image is used."""
    frame: RoiCrop | None = None
    """The crop that the detector sees; None for whole images."""

    def __call__(self, inspection: Inspection, pixels: Tensor | None = None) -> Explanation:
        """Explain the inspection; ``pixels`` (3, H, W) must be given if ``inspection.image`` is not what was inspected.

        The whole image is embedded and searched again as in the inspection, because a search uses neighbouring patches.
        Of a large image only the surroundings of each peak are searched, with one more row and column of neighbours.
        """
        if pixels is None:
            cropped = inspection.image if self.frame is None else self.frame.cut(inspection.image)
            pixels = torch.from_numpy(np.ascontiguousarray(cropped.transpose(2, 0, 1)))
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
        shown = inspection.image
        if self.frame is None and pixels.shape[1:] != shown.shape[:2]:  # patches may lie in the mirrored part
            shown = to_uint8(pixels.permute(1, 2, 0).numpy())
        return Explanation(inspection.name, reasons, shown, self.pictures)

    def _search(self, pixels: Tensor, around: tuple[int, int] | None = None) -> list[ScaleMatches]:
        """Find the nearest normal patches of an image (3, H, W), or only around a point; one result per scale."""
        grids = self.embedder.grids((int(pixels.shape[1]), int(pixels.shape[2])))
        matches = []
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
                on_grid = [grid.place(values)[0].cpu() for values in nearest]
                matches.append(ScaleMatches(grid, scale, on_grid[0], on_grid[1], on_grid[2], self.frame))
        return matches

    def _reason(
        self, inspection: Inspection, matches: list[ScaleMatches], region: Region | None, at: tuple[int, int]
    ) -> Reason:
        typical = [
            self.typical.get(scale.grid.scale.patch_size) or TypicalDistance.from_image(scale.measured)
            for scale in matches
        ]
        values = [float(inspection.scale_maps[scale.grid.scale.patch_size][at]) for scale in matches]
        shares = shares_of(
            [value / max(expected.median, SMALLEST) for value, expected in zip(values, typical, strict=True)]
        )
        names = self.map_builder.memory.image_names
        scales = tuple(
            scale.reason(at, names, inspection, expected, share)
            for scale, expected, share in zip(matches, typical, shares, strict=True)
        )
        height, width = inspection.anomaly_map.shape
        down, across = inspection.image_size[0] / height, inspection.image_size[1] / width
        peak_at = region.peak_at if region is not None else (int((at[1] + 0.5) * across), int((at[0] + 0.5) * down))
        return Reason(region, float(inspection.anomaly_map[at]), peak_at, scales, self._parts(inspection, at))

    def _parts(self, inspection: Inspection, at: tuple[int, int]) -> dict[str, float]:
        """Return the contributions of memory and critic to the map at a point; empty without a critic."""
        fusion = self.map_builder.fusion
        if fusion is None or not inspection.part_maps:
            return {}
        product, marked = (torch.tensor([float(inspection.part_maps[name][at])]) for name in ("memory", "critic"))
        return {
            "memory": fusion.share * float(fusion.memory(memory_scale(product))),
            "critic": (1 - fusion.share) * float(fusion.critic(critic_scale(marked))),
        }


@dataclass(frozen=True)
class ScaleMatches:
    """The nearest normal patches of one image's patches, on the grid of one scale."""

    grid: PatchGrid
    scale: ScaleMemory
    distances: Tensor
    """(rows, columns)."""
    measured: Tensor
    """(rows, columns): distances as used in the map, after local scaling."""
    rows: Tensor
    """(rows, columns) int64: row of the nearest patch in the memory."""
    frame: RoiCrop | None

    def reason(
        self,
        at: tuple[int, int],
        names: tuple[str, ...],
        inspection: Inspection,
        typical: TypicalDistance,
        share: float,
    ) -> ScaleReason:
        """Return this scale's reason at the point (y, x)."""
        down, across = self.frame.box[:2] if self.frame is not None else (0, 0)
        row, column = self.farthest_over((at[0] - down, at[1] - across))
        index, top, left = self.scale.origin(int(self.rows[row, column]))
        box = self._box(self.grid.rows[row] + down, self.grid.columns[column] + across)
        return ScaleReason(
            patch_size=self.grid.scale.patch_size,
            box=_enlarged(box, inspection),
            working_box=box,
            nearest=NormalPatch(names[index], index, self._box(top, left)),
            distance=float(self.distances[row, column]),
            measured=float(self.measured[row, column]),
            typical=typical,
            share=share,
        )

    def farthest_over(self, at: tuple[int, int]) -> tuple[int, int]:
        """Return (row, column) of the patch farthest from normal among those that cover the point (y, x)."""
        size = self.grid.scale.patch_size
        rows, columns = _covering(self.grid.rows, size, at[0]), _covering(self.grid.columns, size, at[1])
        over = self.measured[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        down, across = divmod(int(over.argmax()), over.shape[1])
        return rows[0] + down, columns[0] + across

    def _box(self, top: int, left: int) -> Box:
        size = self.grid.scale.patch_size
        return left, top, left + size, top + size


def shares_of(ratios: list[float]) -> list[float]:
    """Return the shares, summing to 1, of the factors of a product, each given as a multiple of its typical value.

    Shares are proportional to the logarithms; factors below their typical value have no share.
    """
    excess = [max(0.0, math.log(ratio + SMALLEST)) for ratio in ratios]
    total = sum(excess)
    return [part / total if total > 0 else 1 / len(excess) for part in excess]


def peak_in_map(region: Region, inspection: Inspection) -> tuple[int, int]:
    """Return (y, x) of a region's peak in the anomaly map, given its position in the original image."""
    height, width = inspection.anomaly_map.shape
    down, across = inspection.image_size[0] / height, inspection.image_size[1] / width
    x, y = region.peak_at
    # If the original is smaller than the map, several map pixels fall into one original pixel: take the highest.
    rows = [row for row in range(height) if int((row + 0.5) * down) == y]
    columns = [column for column in range(width) if int((column + 0.5) * across) == x]
    return max(((row, column) for row in rows for column in columns), key=lambda at: float(inspection.anomaly_map[at]))


def _covering(starts: list[int], size: int, at: int) -> list[int]:
    """Return the indices of the patches that cover a pixel; the last patch if none does."""
    return [index for index, start in enumerate(starts) if start <= at < start + size] or [len(starts) - 1]


def _enlarged(box: Box, inspection: Inspection) -> Box:
    """Convert a box in the resized image to pixels of the original, rounded outwards but within the image."""
    (height, width), size = inspection.image_size, inspection.anomaly_map.shape
    left, top, right, bottom = box
    return (
        min(left * width // size[1], width - 1),
        min(top * height // size[0], height - 1),
        min(-(-right * width // size[1]), width),
        min(-(-bottom * height // size[0]), height),
    )
