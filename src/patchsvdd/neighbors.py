"""Nearest-neighbour search."""

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
        """Distance (Q,) float32 and row (Q,) int64 of the nearest stored vector of each query (Q, D).

        ``spans`` restricts the search to ranges of rows; None searches all. ``shape`` says that the queries are those
        of images of so many rows and columns of patches, one image after another; a search may make use of it.
        """
        ...


class ExactSearch:
    """Compares every query with every vector, in chunks within a memory budget, on the vectors' device.

    A matrix product in float32 proposes the most promising blocks of rows (its |a|² + |b|² − 2ab loses digits
    exactly where distances are small); the differences themselves then decide, so that a stored vector is at
    distance 0. Where rounding may have hidden the nearest block among near ties, float64 proposes again.

    Raw patches are too long for that care: from ``LONG`` numbers on, a GPU proposes in TF32 and nothing is proposed
    twice, so that a found distance, itself exact, may belong to a near tie of the nearest vector.
    """

    BLOCK = 64
    """Rows per proposed block."""
    PROPOSALS = 4
    """Blocks looked at closely for each query."""
    AT_ONCE = 16384
    """Queries that a CPU compares at a time: with more, the budget leaves too few rows for a quick product."""
    LONG = 1024
    """Numbers per vector from which speed matters more than the last near tie."""

    def __init__(self, vectors: Tensor, memory_budget: int | None = None) -> None:
        self.vectors = vectors
        self.memory_budget = memory_budget or (4 * 2**30 if vectors.is_cuda else 256 * 2**20)
        self._center = vectors.mean(0)  # distances do not change, rounding errors shrink

    def nearest(
        self,
        queries: Tensor,
        spans: Sequence[Span] | None = None,
        shape: tuple[int, int] | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Distance (Q,) and row (Q,) of the nearest vector of each query (Q, D)."""
        spans = [(0, len(self.vectors))] if spans is None else [span for span in spans if span[0] < span[1]]
        if not spans:
            raise ValueError("there is no vector to search: every span is empty")
        if len(queries) == 0:
            return queries.new_empty(0), torch.empty(0, dtype=torch.long, device=queries.device)
        if len(queries) > self.AT_ONCE and not queries.is_cuda:
            found = [self.nearest(part, spans) for part in torch.split(queries, self.AT_ONCE)]
            return torch.cat([distances for distances, _ in found]), torch.cat([rows for _, rows in found])
        with self._precision():
            first, last, elsewhere = self._propose(queries, spans, torch.float32)
        distances, rows = self._decide(queries, first, last)
        if self._is_long:
            return distances, rows
        # A vector nearer than the one found has |b − c| < |a − c| + distance, so its product was rounded by no more.
        reach = 2 * (queries - self._center).norm(dim=1) + distances
        rounding = queries.shape[1] ** 0.5 * torch.finfo(torch.float32).eps * reach.square()
        unsure = (distances > 0) & (distances.square() > elsewhere - rounding)
        if unsure.any():
            first, last, _ = self._propose(queries[unsure], spans, torch.float64)
            distances[unsure], rows[unsure] = self._decide(queries[unsure], first, last)
        return distances, rows

    @property
    def _is_long(self) -> bool:
        return self.vectors.shape[1] >= self.LONG

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """TF32 products for long vectors, true float32 for all others."""
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self._is_long
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _propose(self, queries: Tensor, spans: Sequence[Span], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """First and last + 1 row (Q, P) of the blocks nearest to each query, and the squared distance (Q,) of the
        farthest of them, as ``dtype`` computes it: every other block lies beyond."""
        center = self._center.to(dtype)
        centered = queries.to(dtype) - center
        count = len(queries)
        rows = max(1, self.memory_budget // (2 * dtype.itemsize * count * self.BLOCK)) * self.BLOCK
        best = centered.new_full((count, self.PROPOSALS), -torch.inf)
        first = torch.zeros((count, self.PROPOSALS), dtype=torch.long, device=queries.device)
        last = torch.zeros_like(first)
        for start, stop in spans:
            for low in range(start, stop, rows):
                high = min(low + rows, stop)
                vectors = self.vectors[low:high].to(dtype) - center
                # (a − c)·(b − c) − |b − c|²/2 differs from −|a − b|²/2 by a constant of the query alone.
                closeness = torch.addmm(-0.5 * vectors.square().sum(1), centered, vectors.T)
                missing = -(high - low) % self.BLOCK
                if missing:
                    closeness = torch.nn.functional.pad(closeness, (0, missing), value=-torch.inf)
                blocks = closeness.view(count, -1, self.BLOCK).amax(2)  # (Q, blocks)
                score, block = blocks.topk(min(self.PROPOSALS, blocks.shape[1]), dim=1)
                block_first = low + block * self.BLOCK
                best, pick = torch.cat((best, score), 1).topk(self.PROPOSALS, dim=1)
                first = torch.cat((first, block_first), 1).gather(1, pick)
                last = torch.cat((last, (block_first + self.BLOCK).clamp_max(high)), 1).gather(1, pick)
        return first, last, centered.square().sum(1) - 2 * best[:, -1]

    def _decide(self, queries: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest row of each query among its proposed blocks, by the differences themselves."""
        within = torch.arange(self.BLOCK, device=queries.device)
        candidates_per_query = self.PROPOSALS * self.BLOCK
        at_once = max(1, self.memory_budget // (2 * 4 * candidates_per_query * queries.shape[1]))
        distances, rows = [], []
        for low in range(0, len(queries), at_once):
            part = slice(low, low + at_once)
            row = first[part, :, None] + within  # (q, P, BLOCK)
            outside = (row >= last[part, :, None]).flatten(1)
            row = row.clamp_max(len(self.vectors) - 1).flatten(1)  # (q, P · BLOCK)
            difference = self.vectors[row] - queries[part, None, :]
            distance = torch.linalg.vector_norm(difference, dim=2).masked_fill(outside, torch.inf)
            nearest, column = distance.min(1)
            distances.append(nearest)
            rows.append(row.gather(1, column[:, None])[:, 0])
        return torch.cat(distances), torch.cat(rows)
