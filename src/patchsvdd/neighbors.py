"""Nearest-neighbour search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

Span = tuple[int, int]
"""A range of rows (start, stop) of the searched vectors."""


class NeighborSearch(Protocol):
    """Finds the stored vector nearest to each query."""

    def nearest(self, queries: Tensor, spans: Sequence[Span] | None = None) -> tuple[Tensor, Tensor]:
        """Distance (Q,) float32 and row (Q,) int64 of the nearest stored vector of each query (Q, D).

        ``spans`` restricts the search to ranges of rows; None searches all.
        """
        ...


class ExactSearch:
    """Compares every query with every vector, in chunks within a memory budget, on the vectors' device.

    A matrix product in float32 proposes the most promising blocks of rows (its |a|² + |b|² − 2ab loses digits
    exactly where distances are small); the differences themselves then decide, so that a stored vector is at
    distance 0 and near ties are told apart.
    """

    BLOCK = 64
    """Rows per proposed block."""
    PROPOSALS = 4
    """Blocks looked at closely for each query."""

    def __init__(self, vectors: Tensor, memory_budget: int = 256 * 2**20) -> None:
        self.vectors = vectors
        self.memory_budget = memory_budget
        self._center = vectors.mean(0)  # distances do not change, rounding errors shrink
        self._half_norms = 0.5 * (vectors - self._center).square().sum(1)

    def nearest(self, queries: Tensor, spans: Sequence[Span] | None = None) -> tuple[Tensor, Tensor]:
        """Distance (Q,) and row (Q,) of the nearest vector of each query (Q, D)."""
        spans = [(0, len(self.vectors))] if spans is None else [span for span in spans if span[0] < span[1]]
        if not spans:
            raise ValueError("there is no vector to search: every span is empty")
        return self._decide(queries, *self._propose(queries, spans))

    def _propose(self, queries: Tensor, spans: Sequence[Span]) -> tuple[Tensor, Tensor]:
        """First and last + 1 row (Q, P) of the blocks with the largest a·b − |b|²/2 for each query."""
        centered = queries - self._center
        count = len(queries)
        rows = max(1, self.memory_budget // (2 * 4 * max(count, 1) * self.BLOCK)) * self.BLOCK
        best = queries.new_full((count, self.PROPOSALS), -torch.inf)
        first = torch.zeros((count, self.PROPOSALS), dtype=torch.long, device=queries.device)
        last = torch.zeros_like(first)
        for start, stop in spans:
            for low in range(start, stop, rows):
                high = min(low + rows, stop)
                # (a − c)·b − |b − c|²/2 differs from −|a − b|²/2 by a constant of the query alone.
                closeness = torch.addmm(-self._half_norms[low:high], centered, self.vectors[low:high].T)
                missing = -(high - low) % self.BLOCK
                if missing:
                    closeness = torch.nn.functional.pad(closeness, (0, missing), value=-torch.inf)
                blocks = closeness.view(count, -1, self.BLOCK).amax(2)  # (Q, blocks)
                score, block = blocks.topk(min(self.PROPOSALS, blocks.shape[1]), dim=1)
                block_first = low + block * self.BLOCK
                best, pick = torch.cat((best, score), 1).topk(self.PROPOSALS, dim=1)
                first = torch.cat((first, block_first), 1).gather(1, pick)
                last = torch.cat((last, (block_first + self.BLOCK).clamp_max(high)), 1).gather(1, pick)
        return first, last

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
