"""A memory in shards: each shard searches its own rows, and the nearest rows of all shards are merged.

A shard may be in this process or in another one, on this machine or elsewhere; callers see no difference. Each shard
reads its own rows from the model folder, so that no process ever holds the whole memory.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import safetensors
import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.memory_size import MemorySize
from patchsvdd.detector.model_folder import REMEDY
from patchsvdd.memory.bank import Memory, ScaleMemory
from patchsvdd.memory.coreset import k_center
from patchsvdd.memory.exact_search import ExactSearch, Span
from patchsvdd.memory.segments import BASE, Segment, joined, segments_of


def cut(rows: int, shards: int) -> list[Span]:
    """Split ``rows`` into consecutive spans, one per shard, with lengths that differ by at most one; none is empty."""
    if shards < 1:
        raise ConfigError(f"`shards` must be at least 1; got {shards}")
    shards = min(shards, rows)
    return list(itertools.pairwise(rows * number // shards for number in range(shards + 1)))


@dataclass(frozen=True)
class Neighbours:
    """Result of a search: the nearest rows of each query, nearest first."""

    distances: Tensor
    """(Q, k) float32; inf where there are fewer than k rows."""
    rows: Tensor
    """(Q, k) int64, rows of the whole memory; −1 where there are fewer than k rows."""
    local_scale: Tensor | None
    """(Q, k): the local scale of these rows; None if the memory has none."""


def merge(parts: Sequence[Neighbours], k: int) -> Neighbours:
    """The k nearest rows of several shards' results; of equally near rows, the lowest comes first."""
    distances, rows = torch.cat([part.distances for part in parts], 1), torch.cat([part.rows for part in parts], 1)
    missing = rows < 0
    order = rows.masked_fill(missing, torch.iinfo(torch.long).max).argsort(1)
    order = order.gather(1, distances.gather(1, order).sort(dim=1, stable=True).indices)[:, :k]
    local_scales = [part.local_scale for part in parts if part.local_scale is not None]
    local_scale = torch.cat(local_scales, 1).gather(1, order) if local_scales else None
    return Neighbours(distances.gather(1, order), rows.gather(1, order), local_scale)


class Shard:
    """Consecutive rows of the memory of one scale, starting at row ``first`` of the whole memory."""

    def __init__(self, memory: ScaleMemory, first: int = 0) -> None:
        self.memory = memory
        self.span: Span = (first, first + len(memory.embeddings))

    def find(self, queries: Tensor, spans: Sequence[Span] | None = None, k: int = 1) -> Neighbours:
        """The shard's k nearest rows to each query (Q, D), on the CPU; ``spans`` are rows of the whole memory."""
        first, stop = self.span
        if spans is not None:
            spans = [(max(low, first) - first, min(high, stop) - first) for low, high in spans]
            spans = [span for span in spans if span[0] < span[1]]
        if spans == [] or len(queries) == 0:
            shape = (len(queries), k)
            none = torch.full(shape, -1, dtype=torch.long)
            return Neighbours(
                torch.full(shape, torch.inf), none, None if self.memory.local_scale is None else torch.ones(shape)
            )
        queries = queries.to(self.memory.embeddings.device)
        if k == 1:
            distances, rows = (column[:, None] for column in self.memory.search.nearest(queries, spans))
        else:
            distances, rows = self._exact_search.k_nearest(queries, k, spans)
        local_scale = None if self.memory.local_scale is None else self.memory.local_scale[rows.clamp_min(0)].cpu()
        return Neighbours(distances.cpu(), torch.where(rows < 0, rows, rows + first).cpu(), local_scale)

    @property
    def _exact_search(self) -> ExactSearch:
        search = self.memory.search
        return search if isinstance(search, ExactSearch) else ExactSearch(self.memory.embeddings)

    def origin(self, row: int) -> list[int]:
        """Image, top and left of the patch in a row of the whole memory."""
        origin: list[int] = self.memory.origins[row - self.span[0]].tolist()
        return origin

    def choose(self, count: int) -> tuple[Tensor, ScaleMemory]:
        """Select a coreset of at most ``count`` rows; returns their numbers in the whole memory, ascending, and the
        rows, on the CPU."""
        rows = _k_center_rows(self.memory.embeddings, count)
        return rows.cpu() + self.span[0], self.memory.of_rows(rows).to(torch.device("cpu"))

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Return a function that calls ``method`` and returns its result."""
        return lambda: getattr(self, method)(*arguments)


class AnyShard(Protocol):
    """A shard in this process or in another one."""

    @property
    def span(self) -> Span:
        """Its rows of the whole memory."""
        ...

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Start a method of ``Shard``, if it runs elsewhere; returns a function that waits for its result."""
        ...


class ShardedSearch:
    """One exact search over the rows of several shards."""

    def __init__(self, shards: Sequence[AnyShard]) -> None:
        self.shards = tuple(shards)

    def __len__(self) -> int:
        return self.shards[-1].span[1]

    def find(self, queries: Tensor, spans: Sequence[Span] | None = None, k: int = 1) -> Neighbours:
        """The k nearest rows of each query (Q, D), on the CPU."""
        if spans is not None and not any(start < stop for start, stop in spans):
            raise ValueError("no vectors to search: every span is empty")
        queries = queries.cpu()
        waiting = [shard.begin("find", queries, spans, k) for shard in self.shards if _touches(shard.span, spans)]
        return merge([wait() for wait in waiting], k)

    def nearest(
        self,
        queries: Tensor,
        spans: Sequence[Span] | None = None,
        shape: tuple[int, int] | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Distance (Q,) and row (Q,) of the nearest vector of each query (Q, D)."""
        result = self.find(queries, spans)
        return result.distances[:, 0].to(queries.device), result.rows[:, 0].to(queries.device)


def _touches(rows: Span, spans: Sequence[Span] | None) -> bool:
    return spans is None or any(max(rows[0], low) < min(rows[1], high) for low, high in spans)


class ShardedScale(ScaleMemory):
    """The memory of one scale in shards: it can be searched like any other, but its rows cannot be accessed."""

    def __init__(self, shards: Sequence[AnyShard], length: int) -> None:
        vars(self).update(search=ShardedSearch(shards), length=length)

    @property
    def shards(self) -> tuple[AnyShard, ...]:
        """The shards that hold its rows."""
        assert isinstance(self.search, ShardedSearch)
        return self.search.shards

    def find(
        self,
        queries: Tensor,
        without_image: int | None = None,
        shape: tuple[int, int] | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Distance, measured distance and row (Q,) of the nearest normal patch of each query (Q, D)."""
        if without_image is not None:
            raise _elsewhere()
        assert isinstance(self.search, ShardedSearch)
        result = self.search.find(queries)
        measured = result.distances if result.local_scale is None else result.distances / result.local_scale
        device = queries.device
        return result.distances[:, 0].to(device), measured[:, 0].to(device), result.rows[:, 0].to(device)

    def origin(self, row: int) -> list[int]:
        """Image, top and left of the patch in a row."""
        (shard,) = (shard for shard in self.shards if shard.span[0] <= row < shard.span[1])
        origin: list[int] = shard.begin("origin", row)()
        return origin

    def to(self, device: torch.device) -> ScaleMemory:  # noqa: ARG002
        """Return this memory: shards stay where they are, and results go to the device of the queries."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name in ("embeddings", "origins"):
            raise _elsewhere()
        raise AttributeError(name)


def _elsewhere() -> ConfigError:
    return ConfigError("this requires a detector that holds all of its memory; load it without `shards`")


def select_coreset_sharded(memory: Memory, size: MemorySize) -> Memory:
    """Select a coreset of a sharded memory for one process: first within each shard, then among the selected rows.
    No process ever holds more than its shard, or shards × selected rows."""
    scales = {}
    for patch_size, scale in memory.scales.items():
        assert isinstance(scale, ShardedScale)
        count = size.rows_of(scale.shards[-1].span[1])
        waiting = [shard.begin("choose", count) for shard in scale.shards]
        chosen = [wait()[1] for wait in waiting]
        union = joined(chosen)
        scales[patch_size] = union.of_rows(_k_center_rows(union.embeddings, count))
    return Memory(memory.image_names, scales)


def _k_center_rows(vectors: Tensor, count: int) -> Tensor:
    """Rows (int64, ascending) of a coreset of vectors (M, D); all rows if ``count`` is at least M."""
    if count >= len(vectors):
        return torch.arange(len(vectors), device=vectors.device)
    return k_center(vectors, count).sort().values


# Reading rows of a model folder


def count_rows(folder: Path, about: Mapping[str, Any], size: int) -> int:
    """Number of rows in the memory of a patch size, without those of removed images."""
    return sum(_Piece.open(folder, about, segment, size).count for segment in segments_of(about))


def plan(folder: Path, about: Mapping[str, Any], shards: int) -> list[dict[int, Span]]:
    """Patch size → rows, for each shard; a scale with few rows is split into fewer shards."""
    shard_spans: list[dict[int, Span]] = [{} for _ in range(shards)]
    for scale in Config.from_json(about["config"]).scales:
        size = scale.patch_size
        for number, span in enumerate(cut(count_rows(folder, about, size), shards)):
            shard_spans[number][size] = span
    return [spans for spans in shard_spans if spans]


def sharded_memory(folder: Path, about: Mapping[str, Any], shards: Sequence[Mapping[int, AnyShard]]) -> Memory:
    """A memory of ``shards``, each of which maps patch sizes to its shard of that scale."""
    scales: dict[int, ScaleMemory] = {}
    for size in shards[0]:
        own = [scales_of_shard[size] for scales_of_shard in shards if size in scales_of_shard]
        scales[size] = ShardedScale(own, embedding_length(folder, about, size))
    return Memory(tuple(about["image_names"]), scales)


def embedding_length(folder: Path, about: Mapping[str, Any], size: int) -> int:
    """Numbers per embedding of a patch size."""
    with _opened(folder / about["files"][BASE]["name"]) as file:
        return int(file.get_slice(f"{size}.embeddings").get_shape()[1])


def read_shard(folder: Path, about: Mapping[str, Any], size: int, span: Span, device: torch.device) -> Shard:
    """The rows ``span`` of the memory of a patch size, read from the model folder that ``about`` describes."""
    pieces, before, images = [], 0, 0
    for segment in segments_of(about):
        piece = _Piece.open(folder, about, segment, size)
        low, high = max(span[0] - before, 0), min(span[1] - before, piece.count)
        if low < high:
            pieces.append(piece.read((low, high), images, bool(about["config"].get("local_scaling"))))
        before, images = before + piece.count, images + len(segment.kept)
    return Shard(joined(pieces).to(device), span[0])


def read_shards(
    folder: Path, about: Mapping[str, Any], spans: Mapping[int, Span], device: torch.device
) -> dict[int, Shard]:
    """Read one shard per patch size, with the rows of ``spans``."""
    return {size: read_shard(folder, about, size, span, device) for size, span in spans.items()}


@dataclass(frozen=True)
class _Piece:
    """The rows of one part of a memory on disk."""

    path: Path
    segment: Segment
    size: int
    count: int
    """Rows of images that were not removed."""
    kept: Tensor | None
    """(count,) int64: their row numbers; None if no image was removed."""

    @classmethod
    def open(cls, folder: Path, about: Mapping[str, Any], segment: Segment, size: int) -> _Piece:
        entry = about["files"][segment.part]
        path = folder / entry["name"]
        if not os.path.isfile(path) or path.stat().st_size != entry["bytes"]:
            raise ModelError(
                f"{path} is missing or truncated on this machine; every machine needs the whole model folder; {REMEDY}"
            )
        with _opened(path) as file:
            count, kept = file.get_slice(f"{size}.origins").get_shape()[0], None
            if segment.removed:
                images = file.get_slice(f"{size}.origins")[:, 0].long()
                kept = (~torch.isin(images, torch.tensor(segment.removed))).nonzero()[:, 0]
                count = len(kept)
        return cls(path, segment, size, count, kept)

    def read(self, span: Span, images: int, local_scaling: bool) -> ScaleMemory:
        """Read the rows ``span``, without removed images; ``images`` is the number of images in earlier parts."""
        kept = torch.arange(*span) if self.kept is None else self.kept[span[0] : span[1]]
        low, high = int(kept[0]), int(kept[-1]) + 1
        with _opened(self.path) as file:
            parts = [
                file.get_slice(f"{self.size}.{name}")[low:high].clone()  # not a view of the mapped file
                for name in ("embeddings", "origins", *(["reach"] if local_scaling else []))
            ]
        if high - low > len(kept):
            parts = [part[kept - low] for part in parts]
        numbers = torch.full((self.segment.images,), -1, dtype=torch.int32)
        numbers[self.segment.kept] = torch.arange(images, images + len(self.segment.kept), dtype=torch.int32)
        origins = torch.cat((numbers[parts[1][:, 0].long()][:, None], parts[1][:, 1:]), 1)
        return ScaleMemory(parts[0], origins, None, parts[2] if local_scaling else None)


def _opened(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, "pt")
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(f"{path} cannot be read ({error}); {REMEDY}") from None
