"""Fast approximate search on a CPU: a FAISS graph over half-precision vectors, with two corrections.

A graph (HNSW) finds near vectors in a few hundred comparisons, but sometimes ends in a poor local optimum. Two steps
correct that. First, neighbouring patches have neighbouring matches: every query also tries the patches next to the
matches of its neighbours. Second, poor matches are far away: the queries with the largest distances, which decide an
image's score, are searched again with a larger candidate list.

Distances are to the stored half-precision vectors, at most ``ROUNDING`` from the true ones for embeddings of 64 numbers
in −1 … 1. The index file is memory-mapped.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchsvdd.core.errors import ModelError
from patchsvdd.core.extras import require
from patchsvdd.core.progress import OnProgress
from patchsvdd.memory.exact_search import Span

LINKS = 8
"""Links per vector in the graph."""
EF_CONSTRUCTION = 80
EF_SEARCH = 8
"""Size of the candidate list of a search; larger lists find nearer vectors and take longer."""
RETRIED_SHARE, EF_SEARCH_AGAIN = 0.05, 96
"""Share of the queries, those with the largest distances, that are searched again, and their candidate list size."""
EF_SEARCH_FILTERED = 64
"""Candidate list size when vectors are excluded: those of the query's own image are nearest but not allowed."""
ROUNDING = 2e-3
"""Largest distance of a vector of 64 numbers in −1 … 1 to its half-precision copy."""
MIN_GRAPH_ROWS = 4096
"""Number of rows from which a graph is faster than comparing with all of them."""
NEIGHBOURS = ((0, 1), (1, 0), (0, -1), (-1, 0))


class GraphSearch:
    """Approximate search over the vectors of a FAISS index."""

    def __init__(self, index: Any, shape: tuple[int, int] | None) -> None:
        self._index = index
        self.shape = shape
        """(rows, columns) of patches per image if every patch of every image is stored, in order; else None."""
        self._vectors = _stored_vectors(index)  # (M, D) float16

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @classmethod
    def build(
        cls,
        vectors: Tensor,
        shape: tuple[int, int] | None,
        on_progress: OnProgress | None = None,
    ) -> GraphSearch:
        """Build a graph over vectors (M, D)."""
        faiss = import_faiss()
        index = faiss.IndexHNSWSQ(vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, LINKS)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        index.train(vectors[:1].cpu().numpy())  # nothing to train for half precision, but FAISS requires it
        _add(index, vectors, on_progress)
        return cls(index, shape)

    @classmethod
    def extended(cls, path: Path | None, vectors: Tensor, on_progress: OnProgress | None = None) -> GraphSearch:
        """A graph over vectors (M, D), extending the graph in the file, if given, which holds the first of them."""
        if path is None:
            return cls.build(vectors, None, on_progress)
        index = import_faiss().read_index(str(path))
        _add(index, vectors[int(index.ntotal) :], on_progress)
        return cls(index, None)

    @classmethod
    def open(cls, path: Path, shape: tuple[int, int] | None) -> GraphSearch:
        """Open a graph file, memory-mapped: pages are read on demand."""
        faiss = import_faiss()
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise ModelError(f"{path} cannot be read ({str(error).splitlines()[-1]}); run: patchsvdd prepare") from None
        return cls(index, shape)

    def to_bytes(self) -> bytes:
        """The content of an index file."""
        data: bytes = import_faiss().serialize_index(self._index).tobytes()
        return data

    def nearest(
        self, queries: Tensor, spans: Sequence[Span] | None = None, shape: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Distance (Q,) and row (Q,) of a near vector for each query (Q, D), usually the nearest."""
        allowed = None if spans is None else self._allowed(spans)
        if len(queries) == 0:
            return queries.new_empty(0), torch.empty(0, dtype=torch.long)
        rows = self._walk(queries, allowed, EF_SEARCH if allowed is None else EF_SEARCH_FILTERED)
        squares = self._squares(queries, rows, allowed)
        if shape is not None and self.shape is not None:
            rows, squares = self._look_beside(queries, rows, squares, shape, allowed)
        self._look_again(queries, rows, squares, allowed)
        return squares.sqrt(), rows

    def _walk(self, queries: Tensor, allowed: Tensor | None, ef_search: int) -> Tensor:
        """Rows (Q,) found by the plain graph search."""
        faiss = import_faiss()
        parameters = faiss.SearchParametersHNSW(efSearch=ef_search)
        if allowed is not None:
            bits = np.packbits(allowed.numpy(), bitorder="little")
            selector = faiss.IDSelectorBitmap(bits)
            parameters = faiss.SearchParametersHNSW(efSearch=ef_search, sel=selector)
        _, labels = self._index.search(queries.numpy(), 1, params=parameters)
        rows = torch.from_numpy(labels[:, 0])
        if allowed is not None:  # the graph met only excluded vectors
            rows = torch.where(rows < 0, int(allowed.long().argmax()), rows)
        return rows

    def one_by_one(self, ef_search: int) -> Callable[[Tensor], float]:
        """A function that searches the graph for one query (1, D), without corrections, for its distance."""
        parameters = import_faiss().SearchParametersHNSW(efSearch=ef_search)
        return lambda query: float(self._index.search(query.numpy(), 1, params=parameters)[0][0, 0]) ** 0.5

    def _look_again(self, queries: Tensor, rows: Tensor, squares: Tensor, allowed: Tensor | None) -> None:
        """Search the queries with the largest distances again, and keep nearer results."""
        retried = squares.topk(math.ceil(RETRIED_SHARE * len(queries))).indices
        labels = self._walk(queries[retried], allowed, EF_SEARCH_AGAIN)
        again = self._squares(queries[retried], labels, allowed)
        nearer = again < squares[retried]
        rows[retried[nearer]] = labels[nearer]
        squares[retried[nearer]] = again[nearer]

    def _look_beside(
        self, queries: Tensor, rows: Tensor, squares: Tensor, shape: tuple[int, int], allowed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Rows and squared distances after trying the patches next to the matches of neighbouring queries."""
        assert self.shape is not None
        height, width = self.shape
        images = len(queries) // (shape[0] * shape[1])
        place = torch.arange(len(queries)).view(images, *shape)
        for down, across in NEIGHBOURS:
            # The patch below the match of the query above is a candidate here, and so on for all directions.
            neighbour = _shifted(place, down, across).flatten()
            match = rows[neighbour]
            row, column = match // width % height + down, match % width + across
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            candidate = torch.where(inside, match + down * width + across, rows)
            distance = self._squares(queries, candidate, allowed)
            better = distance < squares
            rows, squares = torch.where(better, candidate, rows), torch.where(better, distance, squares)
        return rows, squares

    def _squares(self, queries: Tensor, rows: Tensor, allowed: Tensor | None) -> Tensor:
        """Squared distance (Q,) of each query to a row; infinite for an excluded row."""
        squares = (self._vectors[rows].float() - queries).square().sum(1)
        return squares if allowed is None else squares.masked_fill(~allowed[rows], torch.inf)

    def _allowed(self, spans: Sequence[Span]) -> Tensor:
        allowed = torch.zeros(len(self), dtype=torch.bool)
        for start, stop in spans:
            allowed[start:stop] = True
        if not allowed.any():
            raise ValueError("no vector to search: every span is empty")
        return allowed


def _add(index: Any, vectors: Tensor, on_progress: OnProgress | None) -> None:
    array = vectors.cpu().numpy()
    part = max(1000, len(array) // 100)
    for start in range(0, len(array), part):
        index.add(array[start : start + part])
        if on_progress is not None:
            on_progress(min(start + part, len(array)), len(array))


def has_faiss() -> bool:
    """Whether FAISS is installed."""
    return importlib.util.find_spec("faiss") is not None


def import_faiss() -> Any:
    """The module faiss; raises ConfigError if it is not installed."""
    messages = logging.getLogger("faiss")
    if messages.level == logging.NOTSET:  # unless the application has set a level
        messages.setLevel(logging.WARNING)  # INFO lists unsupported libraries at every start
    return require("faiss", "fast", "`search=graph` (unlike `search=exact`)")


def _stored_vectors(index: Any) -> Tensor:
    """The index's half-precision vectors (M, D), without copying."""
    faiss = import_faiss()
    storage = faiss.downcast_index(index.storage)
    codes = faiss.rev_swig_ptr(storage.codes.data(), index.ntotal * storage.code_size)
    return torch.from_numpy(codes.view(np.float16).reshape(index.ntotal, index.d))


def _shifted(place: Tensor, down: int, across: int) -> Tensor:
    """(N, rows, columns): the value ``down`` and ``across`` before each place; the border repeats."""
    rows = (torch.arange(place.shape[1]) - down).clamp(0, place.shape[1] - 1)
    columns = (torch.arange(place.shape[2]) - across).clamp(0, place.shape[2] - 1)
    return place[:, rows[:, None], columns]
