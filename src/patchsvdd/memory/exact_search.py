"""Exact nearest-neighbour search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

Span = tuple[int, int]
"""A range of rows (start, stop) of the searched vectors."""


class NeighborSearch(Protocol):
    """Finds the stored vector nearest to each query."""

    def nearest(
        self, queries: Tensor, spans: Sequence[Span] | None = None, shape: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Distance (Q,) float32 and row (Q,) int64 of the stored vector nearest to each query (Q, D).

        ``spans`` restricts the search to ranges of rows; None searches all. ``shape``: the queries are consecutive
        images of this many rows and columns of patches, which a search may use as a hint.
        """
        ...


class ExactSearch:
    """Compares every query with every vector, in chunks within a memory budget, on the vectors' device.

    A float32 matrix product proposes the most promising blocks of rows. Its |a|² + |b|² − 2ab is inaccurate for small
    distances, so the differences themselves then decide, and a stored vector is at distance 0. If rounding may have
    hidden the nearest block among near ties, every block that may contain an equally near vector by float64 is checked.

    So the result does not depend on how the vectors are split: it is the smallest distance computed from float32
    differences, and the lowest row among equally near ones.

    Raw patches are too long for this: from ``LONG`` numbers on, a GPU proposes in TF32 without a second check. The
    distance returned is still exact, but it may belong to a near tie of the nearest vector.
    """

    BLOCK = 64
    """Rows per proposed block."""
    PROPOSALS = 4
    """Blocks per query whose differences are computed."""
    AT_ONCE = 16384
    """Queries per batch on a CPU: with more, the budget leaves too few rows for an efficient product."""
    LONG = 1024
    """Vector length from which speed matters more than the last near tie."""

    def __init__(self, vectors: Tensor, memory_budget: int | None = None) -> None:
        self.vectors = vectors
        self.memory_budget = memory_budget or (4 * 2**30 if vectors.is_cuda else 256 * 2**20)
        self._center = vectors.mean(0)  # centring keeps distances and reduces rounding errors

    def nearest(
        self,
        queries: Tensor,
        spans: Sequence[Span] | None = None,
        shape: tuple[int, int] | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Distance (Q,) and row (Q,) of the vector nearest to each query (Q, D)."""
        spans = [(0, len(self.vectors))] if spans is None else [span for span in spans if span[0] < span[1]]
        if not spans:
            raise ValueError("no vector to search: every span is empty")
        if len(queries) == 0:
            return queries.new_empty(0), torch.empty(0, dtype=torch.long, device=queries.device)
        if len(queries) > self.AT_ONCE and not queries.is_cuda:
            results = [self.nearest(part, spans) for part in torch.split(queries, self.AT_ONCE)]
            return torch.cat([distances for distances, _ in results]), torch.cat([rows for _, rows in results])
        with self._precision():
            first, last, elsewhere = self._propose(queries, spans, torch.float32)
        distances, rows = self._compare(queries, first, last)
        if self._is_long:
            return distances, rows
        unsure = (self._bound(queries, distances, torch.float32) >= elsewhere).nonzero()[:, 0]
        if len(unsure):
            distances[unsure], rows[unsure] = self._resolve(queries[unsure], spans, distances[unsure], rows[unsure])
        return distances, rows

    def k_nearest(self, queries: Tensor, k: int, spans: Sequence[Span] | None = None) -> tuple[Tensor, Tensor]:
        """Distances and rows (Q, k) of the k nearest vectors, nearest first, then lowest row; else inf and −1."""
        spans = [(0, len(self.vectors))] if spans is None else [span for span in spans if span[0] < span[1]]
        results = [self._k_nearest(part, k, spans) for part in torch.split(queries, self.AT_ONCE) if len(part)]
        if not results:
            return queries.new_empty((0, k)), torch.empty((0, k), dtype=torch.long, device=queries.device)
        return torch.cat([distances for distances, _ in results]), torch.cat([rows for _, rows in results])

    def _k_nearest(self, queries: Tensor, k: int, spans: Sequence[Span]) -> tuple[Tensor, Tensor]:
        # Each block has at least one row, so k blocks hold k rows; the k-th nearest of these bounds the result.
        first, last, _ = self._propose(queries, spans, torch.float64, max(k, self.PROPOSALS))
        distances, _ = self._compare(queries, first, last, k)
        limit = distances[:, -1].contiguous()
        pieces: list[tuple[Tensor, Tensor, Tensor]] = []
        for which, low, end in self._blocks_within(queries, spans, limit):
            block_distances, block_rows = self._compare(queries[which], low[:, None], end[:, None], min(k, self.BLOCK))
            near = (block_distances <= limit[which, None]) & (block_rows >= 0)
            pieces.append((which[:, None].expand_as(block_distances)[near], block_distances[near], block_rows[near]))
            joined = [torch.cat(parts) for parts in zip(*pieces, strict=True)]
            pieces = [_least(joined[0], joined[1], joined[2], k)]
        nearest = queries.new_full((len(queries), k), torch.inf)
        rows = torch.full((len(queries), k), -1, dtype=torch.long, device=queries.device)
        for which, block_distances, block_rows in pieces:
            rank = torch.arange(len(which), device=which.device) - torch.searchsorted(which, which)
            nearest[which, rank], rows[which, rank] = block_distances, block_rows
        return nearest, rows

    def _bound(self, queries: Tensor, distances: Tensor, dtype: torch.dtype) -> Tensor:
        """Upper bound (Q,) of the squared distance by a product in ``dtype`` of a row as near as ``distances``."""
        # Such a vector has |b − c| <= |a − c| + distance, which bounds the rounding error of its product.
        norm_bound = (2 * (queries - self._center).norm(dim=1) + distances).to(dtype)
        root = 2 * queries.shape[1] ** 0.5
        decided = distances.to(dtype).square() * (1 + root * torch.finfo(torch.float32).eps)
        bound: Tensor = decided + root * torch.finfo(dtype).eps * norm_bound.square()
        return bound

    def _resolve(
        self, queries: Tensor, spans: Sequence[Span], distances: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Distance and row (Q,) of the nearest vector, from all blocks that may contain one as near."""
        beyond = len(self.vectors)
        for which, first, last in self._blocks_within(queries, spans, distances):
            block_distances, block_rows = self._compare(queries[which], first[:, None], last[:, None])
            least = distances.scatter_reduce(0, which, block_distances, "amin")
            rows = rows.masked_fill(least < distances, beyond)
            rows = rows.scatter_reduce(0, which, block_rows.masked_fill(block_distances > least[which], beyond), "amin")
            distances = least
        return distances, rows

    def _blocks_within(
        self, queries: Tensor, spans: Sequence[Span], distances: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Query, first and last + 1 row (B,) of every block that may contain a row as near as ``distances`` (Q,)."""
        limit = self._bound(queries, distances, torch.float64)
        length = (queries.double() - self._center.double()).square().sum(1)
        for low, high, blocks in self._closeness(queries, spans, torch.float64):
            which, block = (length[:, None] - 2 * blocks <= limit[:, None]).nonzero(as_tuple=True)
            if len(which):
                first = low + block * self.BLOCK
                yield which, first, (first + self.BLOCK).clamp_max(high)

    @property
    def _is_long(self) -> bool:
        return self.vectors.shape[1] >= self.LONG

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Use TF32 products for long vectors, true float32 for all others."""
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self._is_long
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _propose(
        self, queries: Tensor, spans: Sequence[Span], dtype: torch.dtype, proposals: int = PROPOSALS
    ) -> tuple[Tensor, Tensor, Tensor]:
        """First and last + 1 row (Q, P) of the blocks nearest to each query, and the squared distance (Q,) of the
        farthest of them as ``dtype`` computes it: every other block is farther."""
        best = queries.new_full((len(queries), proposals), -torch.inf, dtype=dtype)
        first = torch.zeros((len(queries), proposals), dtype=torch.long, device=queries.device)
        last = torch.zeros_like(first)
        for low, high, blocks in self._closeness(queries, spans, dtype):
            score, block = blocks.topk(min(proposals, blocks.shape[1]), dim=1)
            block_first = low + block * self.BLOCK
            best, pick = torch.cat((best, score), 1).topk(proposals, dim=1)
            first = torch.cat((first, block_first), 1).gather(1, pick)
            last = torch.cat((last, (block_first + self.BLOCK).clamp_max(high)), 1).gather(1, pick)
        return first, last, (queries.to(dtype) - self._center.to(dtype)).square().sum(1) - 2 * best[:, -1]

    def _closeness(
        self, queries: Tensor, spans: Sequence[Span], dtype: torch.dtype
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Ranges of rows, with the largest (a − c)·(b − c) − |b − c|²/2 (Q, blocks) of each of their blocks."""
        center = self._center.to(dtype)
        centered = queries.to(dtype) - center
        count = len(queries)
        rows = max(1, self.memory_budget // (2 * dtype.itemsize * count * self.BLOCK)) * self.BLOCK
        for start, stop in spans:
            for low in range(start, stop, rows):
                high = min(low + rows, stop)
                vectors = self.vectors[low:high].to(dtype) - center
                # Differs from −|a − b|²/2 by a constant that depends only on the query.
                closeness = torch.addmm(-0.5 * vectors.square().sum(1), centered, vectors.T)
                missing = -(high - low) % self.BLOCK
                if missing:
                    closeness = torch.nn.functional.pad(closeness, (0, missing), value=-torch.inf)
                yield low, high, closeness.view(count, -1, self.BLOCK).amax(2)

    def _compare(self, queries: Tensor, first: Tensor, last: Tensor, k: int | None = None) -> tuple[Tensor, Tensor]:
        """Nearest row (Q,) of each query in its proposed blocks (Q, P), by the differences themselves, lowest row
        first; the nearest k (Q, k) if k is given, inf and −1 if the blocks have fewer rows."""
        within = torch.arange(self.BLOCK, device=queries.device)
        candidates_per_query = first.shape[1] * self.BLOCK
        at_once = max(1, self.memory_budget // (2 * 4 * candidates_per_query * queries.shape[1]))
        distances, rows = [], []
        for low in range(0, len(queries), at_once):
            part = slice(low, low + at_once)
            row = first[part, :, None] + within  # (q, P, BLOCK)
            outside = (row >= last[part, :, None]).flatten(1)
            row = row.clamp_max(len(self.vectors) - 1).flatten(1)  # (q, P · BLOCK)
            difference = self.vectors[row] - queries[part, None, :]
            distance = torch.linalg.vector_norm(difference, dim=2).masked_fill(outside, torch.inf)
            if k is None:
                nearest = distance.amin(1)
                row = row.masked_fill(outside | (distance > nearest[:, None]), len(self.vectors)).amin(1)
                row = row.clamp_max(len(self.vectors) - 1)  # NaN queries have no nearest row
            else:
                row = row.masked_fill(outside, len(self.vectors))
                row, order = row.sort(1)
                nearest, order = distance.gather(1, order).sort(dim=1, stable=True)
                nearest, row = nearest[:, :k], row.gather(1, order)[:, :k]
                row = row.masked_fill(row == len(self.vectors), -1)
            distances.append(nearest)
            rows.append(row)
        return torch.cat(distances), torch.cat(rows)


def _least(which: Tensor, distances: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """From (query, distance, row), the k per query with the smallest distance, then lowest row, in that order."""
    order = rows.argsort()
    order = order[distances[order].argsort(stable=True)]
    order = order[which[order].argsort(stable=True)]
    which, distances, rows = which[order], distances[order], rows[order]
    kept = torch.arange(len(which), device=which.device) - torch.searchsorted(which, which) < k
    return which[kept], distances[kept], rows[kept]
