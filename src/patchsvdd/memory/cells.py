"""Sort a memory into cells: blocks of equal size that hold nearby vectors.

Every cell has a centre and a radius, so a search can skip cells that cannot contain the nearest vector: no vector of a
cell is nearer to a query than the query's distance to the centre minus the radius.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

POWER_STEPS = 2
"""Power iterations to estimate the longest direction of a group of vectors."""


@dataclass(frozen=True)
class Cells:
    """``count`` cells of ``size`` rows each; the last cell of a group may hold fewer."""

    size: int
    rows: Tensor
    """(count · size,) int64: row of the memory at each place, −1 if the place is empty."""
    centers: Tensor
    """(count, D) float32: mean of each cell's vectors."""
    radii: Tensor
    """(count,) float32: largest distance of a cell's vectors from its centre."""

    @property
    def count(self) -> int:
        """Number of cells."""
        return len(self.centers)


def arrange(vectors: Tensor, size: int, group: Tensor | None = None) -> Cells:
    """Sort vectors (M, D) into cells: groups are halved along their longest direction until each fits a cell.

    All vectors are one group, unless ``group`` (M,) numbers their groups. The cells of a group follow one another.
    """
    order, bounds = _halve(vectors, size, group)
    count = len(bounds) - 1
    starts, filled = bounds[:-1], bounds[1:] - bounds[:-1]
    place = torch.arange(size, device=vectors.device)
    rows = torch.full((count, size), -1, dtype=torch.long, device=vectors.device)
    inside = place[None] < filled[:, None]
    rows[inside] = order[(starts[:, None] + place[None])[inside]]
    centers, radii = [], []
    for part in torch.split(rows, max(1, 2**22 // size)):  # limits the memory for gathered vectors
        held = vectors[part.clamp_min(0)]  # (cells, size, D)
        empty = (part < 0)[..., None]
        center = held.masked_fill(empty, 0).sum(1) / (part >= 0).sum(1, keepdim=True)
        centers.append(center)
        radii.append((held - center[:, None]).norm(dim=2).masked_fill(empty[..., 0], 0).amax(1))
    return Cells(size, rows.flatten(), torch.cat(centers), torch.cat(radii))


def distinct(vectors: Tensor) -> Tensor:
    """Rows (R,), ascending, of the first of equal vectors (M, D)."""
    rows = np.ascontiguousarray(vectors.cpu().numpy())
    whole = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    return torch.from_numpy(np.sort(np.unique(whole, return_index=True)[1]))


def _halve(vectors: Tensor, size: int, group: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows (M,) in cell order, and the start of each cell (count + 1,)."""
    device = vectors.device
    order = torch.arange(len(vectors), device=device)
    bounds = torch.tensor([0, len(vectors)], device=device)
    if group is not None:
        order = group.argsort(stable=True)
        sizes = torch.bincount(group)
        bounds = torch.cat((bounds[:1], sizes[sizes > 0].cumsum(0)))
    cells = -(-(bounds[1:] - bounds[:-1]) // size)  # cells per group
    for _ in range(int(cells.max() - 1).bit_length()):
        sizes = bounds[1:] - bounds[:-1]
        group = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)
        along = _along_longest_direction(vectors[order], group, sizes)
        # Sorts each group along its direction; the second, stable sort keeps that order and the groups together.
        first = along.argsort(stable=True)
        order = order[first[group[first].argsort(stable=True)]]
        left = cells // 2
        middle = bounds[:-1] + left * size
        halves = torch.stack((left, cells - left), 1).flatten()
        edges = torch.stack((bounds[:-1], middle), 1).flatten()
        bounds = torch.cat((edges[halves > 0], bounds[-1:]))
        cells = halves[halves > 0]
    return order, bounds


def _along_longest_direction(vectors: Tensor, group: Tensor, sizes: Tensor) -> Tensor:
    """(M,): position of each vector (M, D) along the longest axis of its group (M,), relative to the group's mean."""

    def total(values: Tensor) -> Tensor:
        return values.new_zeros((len(sizes), values.shape[1])).index_add_(0, group, values)

    offset = vectors - (total(vectors) / sizes[:, None])[group]
    # Any start works that is not orthogonal to the longest axis; this one depends on each group's own signs.
    direction = total(offset * offset.sum(1, keepdim=True)) + 1e-12
    for _ in range(POWER_STEPS):
        along = (offset * direction[group]).sum(1, keepdim=True)
        direction = torch.nn.functional.normalize(total(offset * along), dim=1)
    return (offset * direction[group]).sum(1)
