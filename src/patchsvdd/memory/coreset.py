"""Coreset selection: choose which normal patches to keep, so that fewer have to be searched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd.core.memory_size import MemorySize
from patchsvdd.core.progress import OnProgress
from patchsvdd.memory.bank import Memory

CANDIDATES = 2048
"""Rows of one round of the greedy selection, chosen from before all other rows are compared again."""
REFRESHED = 8 * CANDIDATES
"""Rows whose distances are updated at once."""
CHUNK = 32768
"""Rows compared with the centre of their group at once."""
BLOCK = 64
"""Centres among which the nearest is searched at once."""


def select_coreset(memory: Memory, size: MemorySize, on_progress: OnProgress | None = None) -> Memory:
    """The memory with ``size`` of the patches of each scale, in their order; fewer if the rest are duplicates."""
    total = sum(size.rows_of(len(scale.embeddings)) for scale in memory.scales.values())
    scales, before = {}, 0
    for patch_size, scale in memory.scales.items():
        count = size.rows_of(len(scale.embeddings))
        scales[patch_size] = scale.of_rows(coreset_rows(scale.embeddings, count, _after(before, total, on_progress)))
        before += count
        if on_progress is not None:
            on_progress(before, total)
    return Memory(memory.image_names, scales)


def coreset_rows(vectors: Tensor, count: int, on_progress: OnProgress | None = None) -> Tensor:
    """Ascending rows int64 of vectors (M, D): at most ``count``, or all M if ``count`` is at least M.

    Greedy k-centre selection; each centre is then replaced by the row nearest the mean of its cell.
    """
    if count >= len(vectors):
        return torch.arange(len(vectors), device=vectors.device)
    return nearest_to_cell_means(vectors, vectors[k_center(vectors, count, on_progress)])


def nearest_to_cell_means(vectors: Tensor, centers: Tensor) -> Tensor:
    """Ascending rows int64: for the cell of each centre (C, D), the row nearest the mean of the cell.

    The cell of a centre is the set of vectors (M, D) nearest to it. An empty cell contributes no row.
    """
    cell = nearest_center(vectors, centers)
    means = group_means(vectors, cell, centers)
    nearest = first_minimum(squared_to_own(vectors, means, cell), cell, len(means))
    return nearest[nearest < len(vectors)].sort().values


def _after(before: int, total: int, on_progress: OnProgress | None) -> OnProgress | None:
    """``on_progress`` for one part of a longer task."""
    return None if on_progress is None else lambda done, _: on_progress(before + done, total)


# Greedy k-centre


def k_center(vectors: Tensor, count: int, on_progress: OnProgress | None = None) -> Tensor:
    """Greedy k-centre: rows (count,) int64 of vectors (M, D), each the farthest from all before it.

    Starts with the row farthest from the mean. Equals plain greedy selection up to rounding ties; a shorter selection
    is a prefix of a longer one. Returns fewer rows if all others are exact duplicates of chosen ones.
    """
    distinct = without_duplicates(vectors)
    if len(distinct) < len(vectors):
        return distinct[_Greedy(vectors[distinct], min(count, len(distinct))).run(on_progress)]
    return _Greedy(vectors, min(count, len(vectors))).run(on_progress)


def without_duplicates(vectors: Tensor) -> Tensor:
    """Ascending rows int64 of vectors (M, D): the first of each set of equal vectors."""
    group = torch.unique(vectors, dim=0, return_inverse=True)[1]  # (M,)
    return first_minimum(torch.zeros_like(vectors[:, 0]), group, int(group.max()) + 1).sort().values


class _Greedy:
    """Farthest-point selection with matrix products.

    Distances to the chosen centres only shrink, so an old distance is an upper bound. Each round updates the farthest
    rows until they are known to be the farthest, makes them candidates, and selects among them, using their mutual
    distances, as long as no other row can be farther. Rows close to an early centre are hardly ever updated.
    """

    def __init__(self, vectors: Tensor, count: int) -> None:
        self.vectors = vectors
        self.mean = vectors.mean(0)  # centring keeps distances and reduces rounding errors
        parts = torch.split(vectors, CHUNK)
        self.half = torch.cat([0.5 * (part - self.mean).square().sum(1) for part in parts])  # |a|²/2 (M,)
        self.squared = torch.full_like(self.half, torch.inf)  # upper bounds; −1: chosen
        self.seen = torch.zeros(
            len(vectors), dtype=torch.long, device=vectors.device
        )  # number of centres compared with
        self.order = torch.zeros(count, dtype=torch.long, device=vectors.device)
        self.centers = vectors.new_empty((count, vectors.shape[1]))
        self.chosen = 0
        self.tile = (16384, 4096) if vectors.is_cuda else (2048, 512)  # rows and centres per product

    def run(self, on_progress: OnProgress | None = None) -> Tensor:
        """Rows (count,) int64 in the order of choice."""
        with _true_float32():
            self._choose(self.half.argmax()[None])
            self._refresh(torch.arange(len(self.vectors), device=self.order.device))
            while self.chosen < len(self.order):
                squared, rows = self._farthest()
                bound = float(squared[-1]) if len(rows) > CANDIDATES else 0.0
                self._choose(self._among(squared[:CANDIDATES], rows[:CANDIDATES], bound))
                if on_progress is not None:
                    on_progress(self.chosen, len(self.order))
        return self.order

    def _farthest(self) -> tuple[Tensor, Tensor]:
        """Squared distances and rows of the farthest CANDIDATES + 1, all updated, farthest first."""
        while True:
            squared, rows = self.squared.topk(min(REFRESHED, len(self.squared)))
            stale = (self.seen[rows] < self.chosen) & (squared >= 0)
            if not stale[: CANDIDATES + 1].any():
                return squared[: CANDIDATES + 1], rows[: CANDIDATES + 1]
            self._refresh(rows[stale])

    def _among(self, squared: Tensor, rows: Tensor, bound: float) -> Tensor:
        """Next centres among the candidates, selected greedily while the farthest is at least ``bound`` away."""
        vectors, half = self._centered(rows), self.half[rows]
        mutual = (2 * (half[:, None] + half - vectors @ vectors.T)).clamp_min_(0)
        chosen = _greedy(mutual.cpu().numpy(), squared.cpu().numpy(), bound, len(self.order) - self.chosen)
        return rows[torch.tensor(chosen, dtype=torch.long, device=rows.device)]

    def _choose(self, rows: Tensor) -> None:
        part = slice(self.chosen, self.chosen + len(rows))
        self.order[part], self.centers[part] = rows, self._centered(rows)
        self.squared[rows] = -1
        self.chosen = part.stop

    def _refresh(self, rows: Tensor) -> None:
        """Compare rows with the centres added since their last update, grouped by that update."""
        seen, order = self.seen[rows].sort()
        rows, seen = rows[order], seen.cpu()
        at_once, centers_at_once = self.tile
        offsets = -self.half[self.order[: self.chosen]]
        for low in range(0, len(rows), at_once):
            part = rows[low : low + at_once]
            vectors = self._centered(part)
            closeness = vectors.new_full((len(part),), -torch.inf)  # a·b − |b|²/2 = (|a|² − |a − b|²)/2
            for first in range(int(seen[low]), self.chosen, centers_at_once):
                last = min(first + centers_at_once, self.chosen)
                product = torch.addmm(offsets[first:last], vectors, self.centers[first:last].T)
                closeness = torch.maximum(closeness, product.amax(1))
            squared = (2 * (self.half[part] - closeness)).clamp_min_(0)
            self.squared[part] = torch.minimum(self.squared[part], squared)
        self.seen[rows] = self.chosen

    def _centered(self, rows: Tensor) -> Tensor:
        return self.vectors[rows] - self.mean


def _greedy(mutual: NDArray[np.float32], squared: NDArray[np.float32], bound: float, limit: int) -> list[int]:
    """Candidates in greedy order, from their mutual squared distances (T, T) and those to the centres so far (T,)."""
    left = squared.copy()
    chosen: list[int] = []
    while len(chosen) < limit:
        farthest = int(left.argmax())
        if left[farthest] < bound or left[farthest] < 0:
            break
        chosen.append(farthest)
        np.minimum(left, mutual[farthest], out=left)
        left[farthest] = -1
    return chosen


# Groups of vectors


def nearest_center(vectors: Tensor, centers: Tensor) -> Tensor:
    """Number (M,) int64 of the centre (C, D) nearest to each vector (M, D)."""
    mean = centers.mean(0)
    centers = centers - mean
    offsets = -0.5 * centers.square().sum(1)
    missing = -len(centers) % BLOCK
    centers, offsets = F.pad(centers, (0, 0, 0, missing)), F.pad(offsets, (0, missing), value=-torch.inf)
    at_once = max(1, (2**30 if vectors.is_cuda else 2**24) // len(centers))
    cells = []
    with _true_float32():
        for part in torch.split(vectors, at_once):
            closeness = torch.addmm(offsets, part - mean, centers.T).view(len(part), -1, BLOCK)
            block = closeness.amax(2).argmax(1)  # in two steps, because argmax is slow on a CPU
            within = closeness[torch.arange(len(part), device=part.device), block].argmax(1)
            cells.append(block * BLOCK + within)
    return torch.cat(cells)


def group_means(vectors: Tensor, group: Tensor, instead: Tensor) -> Tensor:
    """Mean (G, D) of the vectors (M, D) of each group (M,); that of an empty group is taken from ``instead``."""
    sums = torch.zeros_like(instead, dtype=torch.float64)
    for part, own in zip(torch.split(vectors, CHUNK), torch.split(group, CHUNK), strict=True):
        sums.index_add_(0, own, part.double())
    sizes = torch.bincount(group, minlength=len(instead))[:, None]
    return torch.where(sizes > 0, (sums / sizes).to(instead.dtype), instead)


def squared_to_own(vectors: Tensor, centers: Tensor, group: Tensor) -> Tensor:
    """Squared distance (M,) of each vector (M, D) to the centre (G, D) of its group (M,); 0 only where they agree."""
    parts = zip(torch.split(vectors, CHUNK), torch.split(group, CHUNK), strict=True)
    return torch.cat([(part - centers[own]).square().sum(1) for part, own in parts])


def first_minimum(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Row (groups,) int64 of the least value of each group, the first among ties; len(values) for an empty group."""
    rows = torch.arange(len(values), device=values.device)
    least = values.new_full((groups,), torch.inf).scatter_reduce_(0, group, values, "amin")
    rows = torch.where(values == least[group], rows, len(values))
    none = torch.full((groups,), len(values), device=values.device)
    return none.scatter_reduce_(0, group, rows, "amin")


@contextmanager
def _true_float32() -> Iterator[None]:
    """Disable TF32 on CUDA: its error exceeds the differences between near neighbours."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
