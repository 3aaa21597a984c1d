"""A memory in segments: training images, images added later, and images that were removed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.memory.bank import Memory, ScaleMemory
from patchsvdd.memory.exact_search import ExactSearch, NeighborSearch
from patchsvdd.memory.graph_search import GraphSearch
from patchsvdd.memory.layered_search import LayeredSearch, SearchLayer

BASE = "memory"
"""Part that holds the images the model was trained with."""


@dataclass(frozen=True)
class Segment:
    """One part of a memory on disk. Parts never change; removed images are ignored."""

    part: str
    """ "memory", or "added1" and so on."""
    images: int
    """Number of images in the part."""
    removed: tuple[int, ...] = ()
    """Indices, within the part, of removed images; ascending."""

    @property
    def kept(self) -> list[int]:
        """Indices of the images that were not removed."""
        return [number for number in range(self.images) if number not in set(self.removed)]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"part": self.part, "images": self.images, "removed": list(self.removed)}

    @property
    def thumbnail_part(self) -> str:
        """The part that holds the thumbnails of its images."""
        return "pictures" if self.part == BASE else f"pictures{self.part.removeprefix('added')}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Segment:
        """The segment that ``to_json`` wrote."""
        return cls(data["part"], data["images"], tuple(data["removed"]))


def is_memory(part: str) -> bool:
    """Whether a part of a model holds normal patches."""
    return part == BASE or part.removeprefix("added").isdecimal()


def segments_of(about: Mapping[str, Any]) -> list[Segment]:
    """The segments of a model's memory."""
    stored = about.get("segments")
    return [Segment.from_json(entry) for entry in stored] if stored else [Segment(BASE, len(about["image_names"]))]


def without_images(segments: Sequence[Segment], numbers: Sequence[int]) -> list[Segment]:
    """The segments without some images, given by their indices among the remaining images."""
    places = [(index, number) for index, segment in enumerate(segments) for number in segment.kept]
    removed_by_segment: dict[int, set[int]] = {}
    for number in numbers:
        index, within = places[number]
        removed_by_segment.setdefault(index, set()).add(within)
    return [
        replace(segment, removed=tuple(sorted({*segment.removed, *removed_by_segment.get(index, set())})))
        for index, segment in enumerate(segments)
    ]


def join(
    names: Sequence[str],
    segments: Sequence[Segment],
    parts: Mapping[str, Mapping[str, Tensor]],
    sizes: Sequence[int],
    local_scaling: bool,
) -> Memory:
    """The memory of all remaining images, renumbered in the order of their names."""
    scales = {}
    for size in sizes:
        pieces, before = [], 0
        for segment in segments:
            stored = parts[segment.part]
            local_scale = stored[f"{size}.reach"] if local_scaling else None
            piece = ScaleMemory(stored[f"{size}.embeddings"], stored[f"{size}.origins"], None, local_scale)
            pieces.append(_renumbered(piece, segment, before))
            before += len(segment.kept)
        scales[size] = joined(pieces)
    return Memory(tuple(names), scales)


def join_thumbnails(segments: Sequence[Segment], parts: Mapping[str, Mapping[str, Tensor]]) -> Thumbnails | None:
    """The thumbnails of all remaining images; None if a segment has none."""
    files: list[bytes] = []
    for segment in segments:
        if segment.thumbnail_part not in parts:
            return None
        stored = Thumbnails.from_state(parts[segment.thumbnail_part]).files
        files += [stored[number] for number in segment.kept]
    return Thumbnails(tuple(files))


def with_graphs(
    memory: Memory,
    segments: Sequence[Segment],
    parts: Mapping[str, Mapping[str, Tensor]],
    graphs: Mapping[int, Path],
    added: Mapping[int, Path],
) -> Memory:
    """The memory with the graphs of a model folder: one for the base, one for everything added."""
    scales = dict(memory.scales)
    for size, path in graphs.items():
        scale = memory.scales[size]
        pieces = [(segment, parts[segment.part][f"{size}.origins"]) for segment in segments]
        first = ScaleMemory(parts[BASE][f"{size}.embeddings"], parts[BASE][f"{size}.origins"])
        graph = GraphSearch.open(path, first.grid_shape)
        if len(segments) == 1 and not segments[0].removed:
            scales[size] = replace(scale, graph=graph)
            continue
        counted = _memory_rows(pieces)
        layers = [SearchLayer(graph, counted[0])]
        if len(segments) > 1:
            later = _vectors(segments[1:], parts, size)
            search: NeighborSearch = ExactSearch(later)
            if size in added:
                origins = torch.cat([_shifted_images(origin, index) for index, (_, origin) in enumerate(pieces[1:])])
                search = GraphSearch.open(added[size], ScaleMemory(later, origins).grid_shape)
            layers.append(SearchLayer(search, torch.cat(counted[1:])))
        scales[size] = replace(scale, graph=LayeredSearch(layers))
    return Memory(memory.image_names, scales)


def added_vectors(segments: Sequence[Segment], parts: Mapping[str, Mapping[str, Tensor]], size: int) -> Tensor:
    """(rows, D): every patch that was ever added, including those of removed images."""
    return _vectors([segment for segment in segments if segment.part != BASE], parts, size)


def _vectors(segments: Sequence[Segment], parts: Mapping[str, Mapping[str, Tensor]], size: int) -> Tensor:
    return torch.cat([parts[segment.part][f"{size}.embeddings"] for segment in segments])


def _renumbered(piece: ScaleMemory, segment: Segment, before: int) -> ScaleMemory:
    """The rows of the remaining images, numbered from ``before``."""
    if before == 0 and not segment.removed:
        return piece
    kept = torch.zeros(segment.images, dtype=torch.bool)
    kept[segment.kept] = True
    numbers = (kept.cumsum(0) - 1 + before).int()
    rows = piece if bool(kept.all()) else piece.of_images(kept)
    origins = torch.cat((numbers[rows.origins[:, 0].long()][:, None], rows.origins[:, 1:]), 1)
    return replace(rows, origins=origins)


def joined(pieces: Sequence[ScaleMemory]) -> ScaleMemory:
    """The rows of all pieces, concatenated."""
    if len(pieces) == 1:
        return pieces[0]
    local_scales = [piece.local_scale for piece in pieces if piece.local_scale is not None]
    return ScaleMemory(
        torch.cat([piece.embeddings for piece in pieces]),
        torch.cat([piece.origins for piece in pieces]),
        None,
        torch.cat(local_scales) if local_scales else None,
    )


def _memory_rows(pieces: Sequence[tuple[Segment, Tensor]]) -> list[Tensor]:
    """For each piece, the row in the memory of each of its patches; −1 for a removed image."""
    rows_by_piece, before = [], 0
    for segment, origins in pieces:
        kept = torch.zeros(segment.images, dtype=torch.bool)
        kept[segment.kept] = True
        counts = kept[origins[:, 0].long()]
        rows = torch.where(counts, counts.cumsum(0) - 1 + before, -1)
        rows_by_piece.append(rows)
        before += int(counts.sum())
    return rows_by_piece


def _shifted_images(origins: Tensor, index: int) -> Tensor:
    """Origins with image numbers that no other piece has."""
    shift = torch.tensor([index * 1_000_000, 0, 0], dtype=origins.dtype)
    return origins + shift
