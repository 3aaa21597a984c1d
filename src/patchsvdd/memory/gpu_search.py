"""Exact nearest-neighbour search on a GPU that never stores a distance matrix.

Memory and queries are sorted into cells. A query's nearest cell gives an upper bound of its distance; every other cell
is checked only if the triangle inequality cannot exclude it for a whole tile of queries: first with half-precision
numbers, which exclude nearly all of them, then with products of float32 accuracy, whose running maximum proposes one
cell per query. Within it float32 differences decide.
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
PROGRAMS, EVEN_PROGRAMS = 1024, 16_384
"""Programs that keep a GPU busy, and of which none works much longer than the others."""
FEWEST, MOST = 8, 64
"""Programs that share the list of a tile."""
NONE = -(2**63)
"""Key of no cell."""
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
        whole = vectors[cells.rows.clamp_min(0)].sub_(self._mean)
        self._half = whole.half()  # (cells · CELL, D), relative to the mean
        lost = whole.sub_(self._half.float()).norm(dim=1).masked_fill_(cells.rows < 0, 0)
        self._lost = lost.view(cells.count, CELL).amax(1)
        self._half_offset = (-0.5 * self._half.float().square().sum(1)).masked_fill_(cells.rows < 0, -torch.inf)
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
        offsets = self._offset, self._half_offset
        if left_out is not None:
            outside = (self._rows >= left_out[0]) & (self._rows < left_out[1])
            offsets = offsets[0].masked_fill(outside, -torch.inf), offsets[1].masked_fill(outside, -torch.inf)
        return self._search(queries, *offsets)

    def _search(self, queries: Tensor, offset: Tensor, half_offset: Tensor) -> tuple[Tensor, Tensor]:
        from patchsvdd.memory import gpu_search_kernels as kernel

        queries = queries.contiguous()
        count, length = queries.shape
        tiles, blocks = kernels.blocks(count, TILE), len(self._centers) // CELL
        sizes = {"D": length, "BM": TILE, "BN": CELL}
        vectors = (self._within, self._centers, offset)
        # 1. The nearest cell of each query, and the nearest vector in it: an upper bound.
        part = _part(tiles, blocks)
        near = torch.full((count,), NONE, dtype=torch.int64, device=queries.device)
        kernel.nearest_column[(tiles, kernels.blocks(blocks, part))](
            queries, self._mean, self._half_centers, self._center_offset, near, count, blocks, **sizes, PART=part
        )
        order = near.int().argsort()  # the lower half
        ordered, half = torch.empty_like(queries), torch.empty_like(queries, dtype=torch.float16)
        squares, rounding, bound, distance = (queries.new_empty(count) for _ in range(4))
        kernel.sort_queries[(tiles,)](
            queries, self._mean, order, ordered, half, squares, rounding, count, D=length, BM=TILE
        )
        place, row = torch.empty_like(order), torch.empty_like(order)
        kernel.nearest_in_cell[(count,)](ordered, *vectors, near, order, bound, place, D=length, BN=CELL)
        # 2. The cells that cannot be excluded for a tile of neighbouring queries.
        needed = torch.empty((tiles, len(self._centers)), dtype=torch.int8, device=queries.device)
        kernel.needed_cells[(tiles, kernels.blocks(blocks, part))](
            half,
            squares,
            bound,
            rounding,
            self._half_centers,
            self._center_offset,
            self._radii,
            needed,
            count,
            needed.shape[1],
            blocks,
            **sizes,
            PART=part,
        )
        lists = torch.empty(needed.shape, dtype=torch.int32, device=queries.device)
        counts = torch.empty(tiles, dtype=torch.int32, device=queries.device)
        kernel.list_cells[(tiles,)](needed, lists, counts, needed.shape[1], BN=1024)
        # 3. Those of them with a vector that may be nearer, the most promising one, and the nearest vector in it.
        grid = tiles, _shares(tiles)
        kernel.promising_cells[grid](
            half,
            squares,
            bound,
            rounding,
            near,
            order,
            self._half,
            half_offset,
            self._lost,
            lists,
            counts,
            needed,
            count,
            lists.shape[1],
            **sizes,
        )
        keys = torch.full_like(near, NONE)
        kernel.nearest_cell[grid](
            ordered,
            *self._split,
            self._centers,
            offset,
            bound,
            lists,
            counts,
            needed,
            keys,
            count,
            lists.shape[1],
            **sizes,
            num_warps=WARPS,
            num_stages=STAGES,
        )
        kernel.nearer_row[(count,)](
            ordered, *vectors, keys, order, self._rows, bound, place, distance, row, NONE=NONE, D=length, BN=CELL
        )
        return distance, row


def _part(tiles: int, blocks: int) -> int:
    """Blocks of centres per program: all of them, unless too few programs would share a GPU; a power of two."""
    part = 1
    while part < blocks and tiles * kernels.blocks(blocks, 2 * part) >= PROGRAMS:
        part *= 2
    return part


def _shares(tiles: int) -> int:
    """Programs that share the list of a tile; a power of two."""
    shares = FEWEST
    while shares < MOST and tiles * shares < EVEN_PROGRAMS:
        shares *= 2
    return shares


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
