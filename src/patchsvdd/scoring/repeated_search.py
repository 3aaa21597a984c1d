"""Search for similar images in turn, as for one image with different defects."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.memory.bank import Memory

MOST_CHANGED = 0.5
"""If a larger share of the patches differ, all are searched."""


@dataclass(frozen=True)
class _Known:
    """Embeddings (patches, D) of an image on each grid, and their distances (patches,)."""

    memory: Memory
    without_image: int | None
    queries: list[Tensor]
    distances: list[Tensor]


class RepeatedSearch:
    """Distances of the patches of one image after another.

    Patches whose embeddings equal those of an earlier image are not searched again: a defect changes few patches, and
    searching requires most of the time.
    """

    def __init__(self) -> None:
        self._known: _Known | None = None

    def patch_distances(
        self, memory: Memory, queries: list[Tensor], grids: list[PatchGrid], without_image: int | None = None
    ) -> dict[int, Tensor]:
        """Patch size → distance (1, rows, columns) of every patch, as ``MapBuilder.patch_distances`` returns."""
        flat = [query.flatten(0, 1) for query in queries]
        found = self._changed(memory, flat, grids, without_image)
        if found is None:
            found = [
                memory.scales[grid.scale.patch_size].measure(query, without_image, grid.neighbourhood)
                for grid, query in zip(grids, flat, strict=True)
            ]
            self._known = _Known(memory, without_image, flat, found)
        return {grid.scale.patch_size: grid.place(one) for grid, one in zip(grids, found, strict=True)}

    def _changed(
        self, memory: Memory, queries: list[Tensor], grids: list[PatchGrid], without_image: int | None
    ) -> list[Tensor] | None:
        """Return distances that reuse known ones; None if most patches are new."""
        known = self._known
        if known is None or known.memory is not memory or known.without_image != without_image:
            return None
        if any(new.shape != old.shape for new, old in zip(queries, known.queries, strict=True)):
            return None
        differ = [(new != old).any(1) for new, old in zip(queries, known.queries, strict=True)]
        if torch.cat(differ).float().mean() > MOST_CHANGED:
            return None
        found = []
        for grid, query, changed, old in zip(grids, queries, differ, known.distances, strict=True):
            distances = old.clone()
            if bool(changed.any()):
                distances[changed] = memory.scales[grid.scale.patch_size].measure(query[changed], without_image)
            found.append(distances)
        return found
