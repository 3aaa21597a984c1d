"""One search over the vectors of several searches, some of whose vectors are no longer valid.

A graph cannot delete a vector, and rebuilding it takes minutes. So vectors that were added later have their own search,
and removed vectors stay in theirs but are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from patchsvdd.memory.exact_search import NeighborSearch, Span


@dataclass(frozen=True)
class SearchLayer:
    """A search, and the row of each of its vectors in the combined memory."""

    search: NeighborSearch
    rows: Tensor
    """(vectors,) int64, ascending; −1 for a removed vector."""

    def spans(self, allowed: Tensor | None) -> list[Span] | None:
        """Ranges (start, stop) of the valid vectors whose row is ``allowed`` (rows,) bool; None for all."""
        is_valid = self.rows >= 0
        if allowed is not None:
            is_valid = is_valid & allowed[self.rows.clamp_min(0)]
        if bool(is_valid.all()):
            return None
        edges = torch.diff(is_valid.to(torch.int8), prepend=torch.zeros(1, dtype=torch.int8))
        starts = (edges == 1).nonzero()[:, 0].tolist()
        stops = (edges == -1).nonzero()[:, 0].tolist()
        return list(zip(starts, [*stops, len(is_valid)][: len(starts)], strict=True))


class LayeredSearch:
    """The nearest result of all layers."""

    def __init__(self, layers: Sequence[SearchLayer]) -> None:
        self.layers = tuple(layers)
        self._rows = sum(int((layer.rows >= 0).sum()) for layer in layers)

    def __len__(self) -> int:
        return self._rows

    def nearest(
        self, queries: Tensor, spans: Sequence[Span] | None = None, shape: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Distance (Q,) and row (Q,) of a near vector for each query (Q, D)."""
        allowed = None
        if spans is not None:
            allowed = torch.zeros(self._rows, dtype=torch.bool)
            for start, stop in spans:
                allowed[start:stop] = True
        distances, rows = queries.new_full((len(queries),), torch.inf), torch.zeros(len(queries), dtype=torch.long)
        for layer in self.layers:
            within = layer.spans(allowed)
            if within == []:
                continue
            layer_distances, indices = layer.search.nearest(queries, within, shape)
            nearer = layer_distances < distances
            distances = torch.where(nearer, layer_distances, distances)
            rows = torch.where(nearer, layer.rows[indices], rows)
        if len(queries) and bool(distances.isinf().all()):
            raise ValueError("no vector to search: every span is empty")
        return distances, rows
