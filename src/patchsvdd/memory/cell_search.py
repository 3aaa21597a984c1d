"""Exact search on a CPU that skips most of the memory.

Vectors are sorted into cells. The nearest cell of a query gives an upper bound of its distance. Two lower bounds then
exclude nearly all other cells: the distance to a cell's centre minus its radius, and the distance to the box around its
vectors, along the principal axes of the memory. FAISS compares the query with the vectors of the cells that remain.

Every bound has a margin for the rounding errors of its computation, so the result equals that of ``ExactSearch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchsvdd.memory.cells import arrange, distinct
from patchsvdd.memory.exact_search import ExactSearch, Span
from patchsvdd.memory.graph_search import has_faiss, import_faiss

CELL = 128
"""Vectors per cell."""
MIN_ROWS = 65_536
"""Number of rows from which skipping cells pays."""
PAYS_AFTER = 2_000
"""Number of queries for which comparing with every row costs as much as sorting the memory into cells."""
AT_ONCE = 2_048
"""Queries whose distances to all centres are computed at once."""
TOGETHER = 256
"""Queries that are compared by one call of FAISS, sorted by their nearest cell."""
NEAREST = 3
"""Vectors found for each query; more that are equally near make the result unsure."""
AXES_FROM = 65_536
"""Vectors from which the principal axes are estimated."""
CELLS_AT_ONCE, PAIRS_AT_ONCE = 512, 2**16
"""Cells whose vectors, and pairs of query and cell whose boxes, are copied at once."""


def cell_search_runs_on(vectors: Tensor) -> bool:
    """Whether ``CellSearch`` supports these vectors (M, D), and is worth its preparation."""
    return not vectors.is_cuda and len(vectors) >= MIN_ROWS and vectors.shape[1] <= 256 and has_faiss()


class CellSearch:
    """Exact search over vectors (M, D) on a CPU. The first queries are compared with every vector."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self._every = ExactSearch(vectors)
        self._lists: _Lists | None = None
        self._asked = 0

    def nearest(
        self, queries: Tensor, spans: Sequence[Span] | None = None, shape: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Distance (Q,) and row (Q,) of the vector nearest to each query (Q, D); ``spans`` are searched row by row."""
        self._asked += len(queries)
        if spans is not None or (self._lists is None and self._asked < PAYS_AFTER):
            return self._every.nearest(queries, spans, shape)
        if self._lists is None:
            self._lists = _Lists.build(self.vectors)
        distances = torch.empty(len(queries))
        rows = torch.empty(len(queries), dtype=torch.long)
        for first in range(0, len(queries), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            distances[part], rows[part] = self._nearest(queries[part], self._lists)
        return distances, rows

    def _nearest(self, queries: Tensor, lists: _Lists) -> tuple[Tensor, Tensor]:
        squares, candidates = lists.nearest(queries)
        row = candidates.clamp_min(0)
        # The differences decide as in ExactSearch; FAISS adds up their squares in another order.
        distances = torch.linalg.vector_norm(self.vectors[row] - queries[:, None], dim=2)
        distances = distances.masked_fill(candidates < 0, torch.inf)
        least = distances.amin(1)
        rows = row.masked_fill(distances > least[:, None], len(self.vectors)).amin(1)
        limit = least.square() * (1 + 4 * lists.rounding)
        unsure = (~(squares[:, -1] > limit)).nonzero()[:, 0]  # near ties, and queries that are not numbers
        if len(unsure):
            least[unsure], rows[unsure] = self._every.nearest(queries[unsure])
        return least, rows


@dataclass(frozen=True)
class _Lists:
    """The distinct vectors, sorted into cells."""

    index: Any
    """A FAISS index with an inverted list per cell, of the rows of the memory."""
    mean: Tensor
    """(D,) mean of all vectors; all other coordinates are relative to it."""
    centers: Tensor
    """(cells, D)."""
    radii: Tensor
    """(cells,)."""
    axes: Tensor
    """(D, D): the principal axes of the memory, as columns."""
    low: Tensor
    """(cells, D): the smallest coordinate of a cell's vectors along each axis."""
    high: Tensor
    """(cells, D): the largest."""

    @classmethod
    def build(cls, vectors: Tensor) -> _Lists:
        """Sort vectors (M, D) into cells; of equal ones only the first is kept."""
        first = distinct(vectors)
        kept = vectors[first]
        mean = kept.mean(0)
        sample = (kept[:: max(1, len(kept) // AXES_FROM)] - mean).double()
        axes = torch.linalg.eigh(sample.T @ sample).eigenvectors.float()
        cells = arrange(kept, CELL)
        places = cells.rows.view(cells.count, CELL)
        low, high = torch.empty_like(cells.centers), torch.empty_like(cells.centers)
        longest = 0.0
        for part in torch.split(torch.arange(cells.count), CELLS_AT_ONCE):
            rows = places[part]
            offset = kept[torch.where(rows < 0, rows[:, :1], rows)] - mean  # an empty place repeats the first vector
            longest = max(longest, float(offset.norm(dim=2).max()))
            rotated = offset @ axes
            low[part], high[part] = rotated.amin(1), rotated.amax(1)
        margin = _rounding(mean) * longest
        index = _index(vectors, first[places.clamp_min(0)].masked_fill(places < 0, -1), cells.centers)
        return cls(index, mean, cells.centers - mean, cells.radii, axes, low - margin, high + margin)

    @property
    def rounding(self) -> float:
        """Relative error, at most, of a sum of as many products as a vector has numbers."""
        return _rounding(self.mean)

    def nearest(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances, by FAISS, and rows (Q, NEAREST) of the vectors nearest to each query; −1 if there are
        fewer."""
        offset = queries - self.mean
        # |q − c|² − |q|², from which the nearest centre follows.
        squares = torch.addmm(self.centers.square().sum(1), offset, self.centers.T, alpha=-2)
        cell = squares.argmin(1)
        found, _ = self._compare(queries, cell[:, None], 1)
        bound = found[:, 0].sqrt() * (1 + self.rounding)
        # |q − c| <= bound + radius, with a margin: |c| is then at most |q| + bound + radius, which bounds the rounding
        # errors of the squares.
        lengths, reach = offset.square().sum(1), bound * (1 + 4 * self.rounding)
        radii = self.radii * (1 + 4 * self.rounding)
        limit = reach.square() - lengths * (1 - 8 * self.rounding)
        needed = squares.addr_(reach, radii, alpha=-2).sub_(radii.square()) <= limit[:, None]
        query, near = needed.nonzero(as_tuple=True)
        inside = self._box_distance(offset, query, near) <= bound[query] * (1 + self.rounding)
        query, near = query[inside], torch.cat((near[inside], near.new_tensor([-1])))
        count = torch.bincount(query, minlength=len(queries))
        start = count.cumsum(0) - count
        squares = torch.empty((len(queries), NEAREST))
        rows = torch.empty((len(queries), NEAREST), dtype=torch.long)
        for part in torch.split(cell.argsort(), TOGETHER):
            place = torch.arange(max(1, int(count[part].max())))
            chosen = near[(start[part, None] + place).clamp_max(len(near) - 1)]
            chosen = chosen.masked_fill(place >= count[part, None], -1)
            squares[part], rows[part] = self._compare(queries[part], chosen, NEAREST)
        return squares, rows

    def _box_distance(self, offset: Tensor, query: Tensor, cell: Tensor) -> Tensor:
        """(P,): distance, at least, of a query to all vectors of a cell, given pairs of them."""
        rotated = offset @ self.axes
        margin = self.rounding * offset.norm(dim=1)
        distances = []
        for some, cells in zip(torch.split(query, PAIRS_AT_ONCE), torch.split(cell, PAIRS_AT_ONCE), strict=True):
            at = rotated[some]
            outside = torch.maximum(self.low[cells] - at, at - self.high[cells]).sub_(margin[some, None])
            distances.append(outside.clamp_min_(0).square_().sum(1).sqrt_())
        return torch.cat(distances) if distances else offset.new_empty(0)

    def _compare(self, queries: Tensor, cells: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Squared distances and rows (Q, count) of the nearest vectors in some cells (Q, any) of each query."""
        faiss = import_faiss()
        at, chosen = np.ascontiguousarray(queries.numpy()), np.ascontiguousarray(cells.numpy())
        unused = np.zeros(chosen.shape, np.float32)
        squares = np.empty((len(at), count), np.float32)
        rows = np.empty((len(at), count), np.int64)
        # The number of cells as a parameter of this call: threads share the index.
        parameters = faiss.SearchParametersIVF(nprobe=chosen.shape[1])
        pointers = [faiss.swig_ptr(one) for one in (at, chosen, unused, squares, rows)]
        self.index.search_preassigned_c(len(at), pointers[0], count, *pointers[1:], False, parameters)
        return torch.from_numpy(squares), torch.from_numpy(rows)


def _rounding(vector: Tensor) -> float:
    """Relative error, at most, of a sum of as many products as a vector (D,) has numbers."""
    return len(vector) * torch.finfo(torch.float32).eps


def _index(vectors: Tensor, rows: Tensor, centers: Tensor) -> Any:
    """A FAISS index with an inverted list per cell of the vectors at rows (cells, CELL), −1 for none."""
    faiss = import_faiss()
    count, length = centers.shape
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(length), length, count, faiss.METRIC_L2)
    index.is_trained = True
    for part in torch.split(torch.arange(count), CELLS_AT_ONCE):
        held = rows[part] >= 0
        ids = rows[part][held].numpy()
        cells = part[:, None].expand_as(held)[held].contiguous().numpy()
        copied = vectors[rows[part][held]].numpy()
        index.add_core(len(ids), *(faiss.swig_ptr(one) for one in (copied, ids, cells)))
    return index
