"""Exact nearest-neighbour search on a GPU that never stores a distance matrix.

Memory and queries are sorted into cells. A query's nearest cell gives an upper bound of its distance; every other cell
is checked only if the triangle inequality cannot exclude it for a whole tile of queries. There a matrix product, fused
with a running maximum, proposes one cell per query, and float32 differences decide within it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from patchsvdd.core import triton_support as kernels
from patchsvdd.core.split_float16 import split
from patchsvdd.memory.cells import arrange
from patchsvdd.memory.exact_search import Span

TILE = 64
"""Queries per tile."""
CELL = 64
"""Vectors per cell."""
LIST = 32
"""Cells per program."""
WARPS, STAGES = 4, 3


def fused_search_runs_on(vectors: Tensor) -> bool:
    """Whether the fused kernels support these vectors (M, D)."""
    length = vectors.shape[1]
    return vectors.is_cuda and kernels.available() and 16 <= length <= 256 and length & (length - 1) == 0


class FusedSearch:
    """Exact search over vectors (M, D) on a GPU.

    The distance is the exact distance to the returned row. Among rows whose squared distances agree to about six
    digits, relative to the size of the cell, any one may be returned.
    """

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self._mean = vectors.mean(0)
        cells = arrange(vectors, CELL)
        self._rows = cells.rows
        spare = -cells.count % CELL  # centres are processed in blocks too
        centers = torch.nn.functional.pad(cells.centers - self._mean, (0, 0, 0, spare))
        self._centers = centers  # (cells, D), relative to the mean
        within = vectors[cells.rows.clamp_min(0)].sub_(self._mean)
        within.view(cells.count, CELL, -1).sub_(centers[: cells.count, None])
        self._within = within  # (cells · CELL, D), relative to the cell's centre
        self._split = split(within)
        self._offset = (-within.square().sum(1)).masked_fill_(cells.rows < 0, -torch.inf)
        self._half_centers = centers.half()
        self._center_offset = -0.5 * self._half_centers.float().square().sum(1)
        self._center_offset[cells.count :] = -torch.inf
        rounding = (self._half_centers.float() - centers).norm(dim=1)
        # No query needs a padding cell, not even one whose bound is infinite.
        self._radii = torch.nn.functional.pad(cells.radii, (0, spare), value=-torch.inf) + rounding

    def nearest(
        self,
        queries: Tensor,
        spans: Sequence[Span] | None = None,
        shape: tuple[int, int] | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Distance (Q,) and row (Q,) of the vector nearest to each query (Q, D)."""
        if len(queries) == 0:
            return queries.new_empty(0), torch.empty(0, dtype=torch.long, device=queries.device)
        left_out = None if spans is None else _left_out(spans, len(self.vectors))
        if left_out is not None and left_out[1] - left_out[0] >= len(self.vectors):
            raise ValueError("no vector to search: every span is empty")
        offset = self._offset if left_out is None else self._offset_without(left_out)
        return self._search(queries, offset)

    def _offset_without(self, left_out: Span) -> Tensor:
        outside = (self._rows >= left_out[0]) & (self._rows < left_out[1])
        return self._offset.masked_fill(outside, -torch.inf)

    def _search(self, queries: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        from patchsvdd.memory import gpu_search_kernels as kernel

        cells, length = self._centers.shape
        tiles = kernels.blocks(len(queries), TILE)
        # 1. The nearest cell of each query, and the nearest vector in it: an upper bound.
        queries = queries - self._mean
        cell = self._nearest_center(queries.half())
        order = cell.argsort()
        queries = queries[order]
        bound, place = self._nearest_in_cell(queries, cell[order], offset)
        # 2. The cells that cannot be excluded for a tile of neighbouring queries.
        half = queries.half()
        needed = torch.empty((tiles, cells), dtype=torch.int8, device=queries.device)
        kernel.needed_cells[(tiles, cells // CELL)](
            half,
            half.float().square().sum(1),
            bound + (half.float() - queries).norm(dim=1),
            self._half_centers,
            self._center_offset,
            self._radii,
            needed,
            len(queries),
            cells,
            D=length,
            BM=TILE,
            BN=CELL,
        )
        lists = torch.empty(needed.shape, dtype=torch.int32, device=queries.device)
        counts = torch.empty(tiles, dtype=torch.int32, device=queries.device)
        kernel.list_cells[(tiles,)](needed, lists, counts, cells, BN=1024)
        # 3. The most promising of those, and the nearest vector in it.
        second_distance, second = self._nearest_in_cell(queries, self._propose(queries, offset, lists, counts), offset)
        closer = second_distance < bound
        distance = torch.empty_like(bound)
        row = torch.empty_like(order)
        distance[order] = torch.where(closer, second_distance, bound)
        row[order] = self._rows[torch.where(closer, second, place)]
        return distance, row

    def _nearest_center(self, half: Tensor) -> Tensor:
        """The cell (Q,) whose centre is nearest to each query, approximately."""
        from patchsvdd.memory import gpu_search_kernels as kernel

        cell = torch.empty(len(half), dtype=torch.int32, device=half.device)
        kernel.nearest_column[(kernels.blocks(len(half), TILE),)](
            half,
            self._half_centers,
            self._center_offset,
            cell,
            len(half),
            len(self._centers) // CELL,
            D=half.shape[1],
            BM=TILE,
            BN=CELL,
        )
        return cell

    def _propose(self, queries: Tensor, offset: Tensor, lists: Tensor, counts: Tensor) -> Tensor:
        """(Q,) int32: the listed cell that contains the vector nearest to each query."""
        from patchsvdd.memory import gpu_search_kernels as kernel

        best = torch.full((len(queries),), torch.iinfo(torch.int64).min, dtype=torch.int64, device=queries.device)
        kernel.nearest_cell[(len(counts), kernels.blocks(lists.shape[1], LIST))](
            queries,
            *self._split,
            self._centers,
            offset,
            lists,
            counts,
            best,
            len(queries),
            lists.shape[1],
            D=queries.shape[1],
            BM=TILE,
            BN=CELL,
            PART=LIST,
            num_warps=WARPS,
            num_stages=STAGES,
        )
        return best.int()  # the lower half

    def _nearest_in_cell(self, queries: Tensor, cell: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Distance and place (Q,) of the nearest vector in each query's cell (Q,), by the differences."""
        from patchsvdd.memory import gpu_search_kernels as kernel

        distance = torch.empty(len(queries), device=queries.device)
        place = torch.empty(len(queries), dtype=torch.int64, device=queries.device)
        kernel.nearest_in_cell[(len(queries),)](
            queries, self._within, self._centers, offset, cell, distance, place, D=queries.shape[1], BN=CELL
        )
        return distance, place


def _left_out(spans: Sequence[Span], total: int) -> Span:
    """The single range of rows that the spans leave out."""
    kept = [span for span in spans if span[0] < span[1]]
    if not kept:
        return (0, total)
    edges = [0, *(edge for span in kept for edge in span), total]
    gaps = [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]
    if len(gaps) > 1:
        raise ValueError(f"spans may leave out only one range of rows; these leave out {len(gaps)}")
    return gaps[0] if gaps else (0, 0)
