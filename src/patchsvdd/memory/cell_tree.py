"""Sort a memory into two levels of cells, and round its rows, for a search that visits a few hundred rows per query.

k-means makes clusters, and each cluster is halved into cells of ``CELL`` rows. A query visits the cells of its nearest
clusters, and the rows of the nearest of these cells. Clusters of equal size, as ``cells.arrange`` makes them, would be
faster to build, but a query's nearest row is then ten times as often in a cluster that is not visited.

Rows are rounded to int8, relative to the centre of their cell and in steps of the range of the cell's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd.memory.cells import arrange, distinct

CELL = 32
"""Rows per cell."""
CLUSTER = 512
"""Mean number of rows per cluster."""
WINDOW = 32
"""Cells per cluster, at most."""
SAMPLE = 48
"""Rows per cluster that k-means is fitted on."""
ITERATIONS = 8
ROWS_AT_ONCE, CELLS_AT_ONCE = 8192, 4096
LARGEST = 127
"""Largest rounded number."""


@dataclass(frozen=True)
class CellTree:
    """The rows of a memory in cells, and the cells in clusters."""

    clusters: NDArray[np.float32]
    """(clusters, D): centres of the clusters."""
    first: NDArray[np.int64]
    """(clusters,): the first cell of each cluster; its cells, ``WINDOW`` at most, follow one another."""
    centers: NDArray[np.float16]
    """(cells, D): centres of the cells."""
    steps: NDArray[np.float16]
    """(cells, D): steps of the rounded rows."""
    rows: NDArray[np.int8]
    """(cells, CELL, D): rows relative to the centre of their cell, in steps; empty places repeat the first row."""

    @property
    def offsets(self) -> NDArray[np.float32]:
        """(cells, CELL, D): rows relative to the centre of their cell."""
        return self.rows.astype(np.float32) * self.steps.astype(np.float32)[:, None]


def build_tree(vectors: Tensor, seed: int = 0) -> CellTree:
    """Sort the distinct vectors of (M, D) into clusters and cells; equal vectors and seeds give equal trees."""
    vectors = vectors[distinct(vectors)]
    group = nearest_center(vectors, kmeans(vectors, max(1, len(vectors) // CLUSTER), seed))
    cells = arrange(vectors, CELL, group)
    places = cells.rows.view(cells.count, CELL)
    places = torch.where(places < 0, places[:, :1], places)
    cluster = _in_runs(group[places[:, 0]])
    sizes = torch.bincount(cluster)
    means = torch.zeros((len(sizes), vectors.shape[1])).index_add_(0, cluster, cells.centers) / sizes[:, None]
    centers, steps = cells.centers.half(), torch.empty(cells.centers.shape, dtype=torch.float16)
    rows = torch.empty((cells.count, CELL, vectors.shape[1]), dtype=torch.int8)
    for part in torch.split(torch.arange(cells.count), CELLS_AT_ONCE):
        offset = vectors[places[part]] - centers[part, None].float()
        # The step is rounded up, so that no number exceeds LARGEST; a step of 0 would divide by 0.
        step = (offset.abs().amax(1) / LARGEST * (1 + 2**-10) + 2**-24).half()
        steps[part] = step
        rows[part] = (offset / step[:, None].float()).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    first = sizes.cumsum(0) - sizes
    return CellTree(means.numpy(), first.numpy(), centers.numpy(), steps.numpy(), rows.numpy())


def _in_runs(group: Tensor) -> Tensor:
    """(cells,): the groups (cells,) of consecutive cells, in runs of ``WINDOW`` cells at most, numbered from 0."""
    _, sizes = torch.unique_consecutive(group, return_counts=True)
    within = torch.arange(len(group)) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    return (within % WINDOW == 0).cumsum(0) - 1


def kmeans(vectors: Tensor, count: int, seed: int) -> Tensor:
    """(count, D): centres of clusters of vectors (M, D), fitted on a random sample."""
    generator = torch.Generator().manual_seed(seed)
    sample = vectors[torch.randperm(len(vectors), generator=generator)[: SAMPLE * count]]
    centers = sample[:count].clone()
    for _ in range(ITERATIONS):
        nearest = nearest_center(sample, centers)
        held = torch.bincount(nearest, minlength=count)
        total = torch.zeros_like(centers).index_add_(0, nearest, sample)
        centers = torch.where(held[:, None] > 0, total / held.clamp_min(1)[:, None], centers)
    return centers


def nearest_center(vectors: Tensor, centers: Tensor) -> Tensor:
    """(M,): the index of the centre (K, D) nearest to each vector (M, D)."""
    halves = centers.square().sum(1) / 2
    return torch.cat([(part @ centers.T).sub_(halves).argmax(1) for part in torch.split(vectors, ROWS_AT_ONCE)])
