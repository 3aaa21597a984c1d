"""Quick approximate search on a CPU: a FAISS graph over half-precision vectors, and what lies beside the finds.

A graph (HNSW) finds near vectors in a few hundred comparisons, but now and then it ends in a wrong corner. Two things
mend that. Patches have neighbours: the patch beside a patch is near the patch beside its match, so every query also
tries the patches beside what the queries around it have found. And a wrong corner is far away: the queries that are
farthest from what they found, the ones that decide an image's score, are searched again with more care.

Distances are those to the stored half-precision vectors, at most ``ROUNDING`` from the true ones for embeddings of 64
numbers in −1 … 1. The index file is mapped into memory, not read.
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
from patchsvdd.memory.exact_search import Span

LINKS = 8
"""Neighbours that each vector keeps in the graph."""
CARE_WHEN_BUILDING = 80
CARE = 8
"""Candidates that a search keeps; more find nearer vectors and take longer."""
SUSPECTS, CARE_FOR_SUSPECTS = 0.05, 96
"""Share of the queries, those with the largest distances, that are searched again, and with how much care."""
CARE_WITHOUT = 64
"""Candidates where vectors are left out: those of the query's own image lie nearest and count for nothing."""
ROUNDING = 2e-3
"""Distance of a vector of 64 numbers in −1 … 1 to its half-precision copy, at most."""
WORTH_IT = 4096
"""Rows from which a graph beats comparing with all of them."""
BESIDE = ((0, 1), (1, 0), (0, -1), (-1, 0))


class GraphSearch:
    """Approximate search over vectors that a FAISS index holds."""

    def __init__(self, index: Any, shape: tuple[int, int] | None) -> None:
        self._index = index
        self.shape = shape
        """(rows, columns) of patches per image when every patch of every image is stored, in order; else None."""
        self._vectors = _stored_vectors(index)  # (M, D) float16

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @classmethod
    def build(
        cls,
        vectors: Tensor,
        shape: tuple[int, int] | None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> GraphSearch:
        """A graph over vectors (M, D)."""
        faiss = import_faiss()
        index = faiss.IndexHNSWSQ(vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, LINKS)
        index.hnsw.efConstruction = CARE_WHEN_BUILDING
        index.train(vectors[:1].cpu().numpy())  # half precision has nothing to learn; FAISS insists
        _add(index, vectors, on_progress)
        return cls(index, shape)

    @classmethod
    def extended(
        cls, path: Path | None, vectors: Tensor, on_progress: Callable[[int, int], None] | None = None
    ) -> GraphSearch:
        """A graph over vectors (M, D), of which the file's graph, if one is given, holds the first."""
        if path is None:
            return cls.build(vectors, None, on_progress)
        index = import_faiss().read_index(str(path))
        _add(index, vectors[int(index.ntotal) :], on_progress)
        return cls(index, None)

    @classmethod
    def open(cls, path: Path, shape: tuple[int, int] | None) -> GraphSearch:
        """The graph of a file, mapped into memory: pages are read when they are needed."""
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
        """Distance (Q,) and row (Q,) of a near vector of each query (Q, D), usually the nearest."""
        allowed = None if spans is None else self._allowed(spans)
        if len(queries) == 0:
            return queries.new_empty(0), torch.empty(0, dtype=torch.long)
        rows = self._walk(queries, allowed, CARE if allowed is None else CARE_WITHOUT)
        squares = self._squares(queries, rows, allowed)
        if shape is not None and self.shape is not None:
            rows, squares = self._look_beside(queries, rows, squares, shape, allowed)
        self._look_again(queries, rows, squares, allowed)
        return squares.sqrt(), rows

    def _walk(self, queries: Tensor, allowed: Tensor | None, care: int) -> Tensor:
        """Rows (Q,) where the graph leads."""
        faiss = import_faiss()
        parameters = faiss.SearchParametersHNSW(efSearch=care)
        if allowed is not None:
            bits = np.packbits(allowed.numpy(), bitorder="little")
            selector = faiss.IDSelectorBitmap(bits)
            parameters = faiss.SearchParametersHNSW(efSearch=care, sel=selector)
        _, found = self._index.search(queries.numpy(), 1, params=parameters)
        rows = torch.from_numpy(found[:, 0])
        if allowed is not None:  # where the graph met left-out vectors only
            rows = torch.where(rows < 0, int(allowed.long().argmax()), rows)
        return rows

    def one_by_one(self, care: int) -> Callable[[Tensor], float]:
        """A function that walks the graph for a single query (1, D) and returns the distance, with nothing mended."""
        parameters = import_faiss().SearchParametersHNSW(efSearch=care)
        return lambda query: float(self._index.search(query.numpy(), 1, params=parameters)[0][0, 0]) ** 0.5

    def _look_again(self, queries: Tensor, rows: Tensor, squares: Tensor, allowed: Tensor | None) -> None:
        """Search the queries with the largest distances once more, and keep what is nearer."""
        suspects = squares.topk(math.ceil(SUSPECTS * len(queries))).indices
        found = self._walk(queries[suspects], allowed, CARE_FOR_SUSPECTS)
        again = self._squares(queries[suspects], found, allowed)
        nearer = again < squares[suspects]
        rows[suspects[nearer]] = found[nearer]
        squares[suspects[nearer]] = again[nearer]

    def _look_beside(
        self, queries: Tensor, rows: Tensor, squares: Tensor, shape: tuple[int, int], allowed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Rows and squared distances after trying the patches beside those that the queries around have found."""
        assert self.shape is not None
        height, width = self.shape
        images = len(queries) // (shape[0] * shape[1])
        place = torch.arange(len(queries)).view(images, *shape)
        for down, across in BESIDE:
            # The query above found a patch: the one below that patch is a candidate here, and so on.
            giver = _shifted(place, down, across).flatten()
            match = rows[giver]
            row, column = match // width % height + down, match % width + across
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            candidate = torch.where(inside, match + down * width + across, rows)
            distance = self._squares(queries, candidate, allowed)
            better = distance < squares
            rows, squares = torch.where(better, candidate, rows), torch.where(better, distance, squares)
        return rows, squares

    def _squares(self, queries: Tensor, rows: Tensor, allowed: Tensor | None) -> Tensor:
        """Squared distance (Q,) of each query to a row; infinite for a row left out."""
        squares = (self._vectors[rows].float() - queries).square().sum(1)
        return squares if allowed is None else squares.masked_fill(~allowed[rows], torch.inf)

    def _allowed(self, spans: Sequence[Span]) -> Tensor:
        allowed = torch.zeros(len(self), dtype=torch.bool)
        for start, stop in spans:
            allowed[start:stop] = True
        if not allowed.any():
            raise ValueError("there is no vector to search: every span is empty")
        return allowed


def _add(index: Any, vectors: Tensor, on_progress: Callable[[int, int], None] | None) -> None:
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
    if messages.level == logging.NOTSET:  # an application that wants them sets a level
        messages.setLevel(logging.WARNING)  # INFO tells, at every start, which of its libraries do not fit this CPU
    return require("faiss", "fast", "--search graph (unlike --search exact)")


def _stored_vectors(index: Any) -> Tensor:
    """The index's own half-precision vectors (M, D), not copied."""
    faiss = import_faiss()
    storage = faiss.downcast_index(index.storage)
    codes = faiss.rev_swig_ptr(storage.codes.data(), index.ntotal * storage.code_size)
    return torch.from_numpy(codes.view(np.float16).reshape(index.ntotal, index.d))


def _shifted(place: Tensor, down: int, across: int) -> Tensor:
    """(N, rows, columns): what lies ``down`` and ``across`` before each place; the border repeats."""
    rows = (torch.arange(place.shape[1]) - down).clamp(0, place.shape[1] - 1)
    columns = (torch.arange(place.shape[2]) - across).clamp(0, place.shape[2] - 1)
    return place[:, rows[:, None], columns]
