"""Adds images to a stored model's memory: their patches, the graph over them, and their scores."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchsvdd.core.device import reproducible
from patchsvdd.core.progress import OnProgress, OnStage, stage
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.image_statistics import TRAITS, image_statistics, together
from patchsvdd.detector.leave_one_out import ScoredImage
from patchsvdd.detector.model_folder import StoredModel, write_parts
from patchsvdd.detector.recalibration import seen_without, worst_of
from patchsvdd.detector.stored_memory import stored_memory
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.memory.bank import Memory, ScaleMemory, build_memory
from patchsvdd.memory.coreset import coreset_rows
from patchsvdd.memory.graph_search import MIN_GRAPH_ROWS, GraphSearch, has_faiss
from patchsvdd.memory.local_scale import distance_to_other_images, local_scale_from
from patchsvdd.memory.segments import Segment, added_vectors, segments_of
from patchsvdd.scoring.calibration import Calibration


class Addition:
    """A stored model with one more segment, whose parts are on disk but not yet in the index."""

    def __init__(
        self,
        folder: Path,
        stored: StoredModel,
        detector: PatchSVDD,
        addition: Memory,
        images: ImageSet,
        on_stage: OnStage | None,
    ) -> None:
        self.before, self.images, self.on_stage = detector, images, on_stage
        about, segments = stored.about, segments_of(stored.about)
        segment = Segment(f"added{len(segments)}", len(images))  # segments are never dropped
        segments = [*segments, segment]
        new = {segment.part: addition.state(), segment.thumbnail_part: Thumbnails.from_images(images.pixels).state()}
        parts = {**stored.parts, **new}
        graphs = _added_graphs(stored, segments, parts, stage(on_stage, "graph"))
        written = write_parts(folder, new, {f"addedgraph{size}": data for size, data in graphs.items()})
        self.names = _new_names(about["image_names"], images.names)
        self.changes = {
            "segments": [segment.to_json() for segment in segments],
            "files": {**about["files"], **written},
            "image_names": [*about["image_names"], *self.names],
            "provenance": _provenance_with(about["provenance"], images),
        }
        added = {size: folder / written[f"addedgraph{size}"]["name"] for size in graphs}
        grown = StoredModel({**about, **self.changes}, parts, stored.graphs, {**stored.added_graphs, **added})
        self.after = copy.copy(detector)  # only its memory differs
        self.after.memory = stored_memory(grown, detector.config, folder, detector.device)

    def seen(self) -> list[ScoredImage]:
        """Score each added image against a memory without its own patches."""
        whole, first = self.after.config.memory_size.is_whole, len(self.before.memory.image_names)
        progress, scored = stage(self.on_stage, "threshold"), []
        for index, pixels in enumerate(self.images.pixels):
            # Removing an image's few patches from a coreset leaves gaps, so a coreset is used without the addition.
            detector, number = (self.after, first + index) if whole else (self.before, None)
            score, anomaly_map = seen_without(detector, pixels, number)
            scored.append(ScoredImage(score, image_statistics(pixels, anomaly_map, detector.config.frame)))
            if progress is not None:
                progress(index + 1, len(self.images))
        return scored

    def recalibrated(self, known: Calibration, seen: Sequence[ScoredImage]) -> Calibration:
        """Return the calibration extended by the scores of the added images."""
        scores = (*known.scores, *(image.score for image in seen))
        return replace(
            known.renewed(scores, worst_of([known.basis, "held-out"])),
            traits=_more_traits(known, together([image.traits for image in seen])),
            digests=(*known.digests, *self.images.digests()) if known.digests else (),
            removed_since=known.removed_since,
        )

    def above(self, threshold: float, seen: Sequence[ScoredImage]) -> tuple[str, ...]:
        """Return the names of the added images that score above the threshold."""
        return tuple(name for name, image in zip(self.names, seen, strict=True) if image.score > threshold)


def memory_of(detector: PatchSVDD, images: ImageSet, on_stage: OnStage | None) -> Memory:
    """Return the memory of new images, with the model's local scaling and coreset size."""
    grids = detector.embedder.grids(images.size)
    with reproducible(), torch.inference_mode():
        pixels = [detector.normalization(image[None].to(detector.device))[0] for image in images.pixels]
        memory = build_memory(detector.encoder, pixels, images.names, grids, stage(on_stage, "memory")).to(
            torch.device("cpu")
        )
        scales = {}
        for size, scale in memory.scales.items():
            if detector.config.local_scaling:
                scale = scale.with_local_scale(_local_scale_beside(scale, detector.memory.scales[size]))
            scales[size] = scale if detector.config.memory_size.is_whole else _coreset(scale, detector, size, images)
    return Memory(memory.image_names, scales)


def _local_scale_beside(scale: ScaleMemory, memory: ScaleMemory) -> Tensor:
    """Return the local scale (M,) of new patches, by the nearest patch of another image, old or new."""
    distances = memory.nearest(scale.embeddings.to(memory.embeddings.device), None, scale.grid_shape)[0].cpu()
    if len(torch.unique(scale.origins[:, 0])) > 1:
        distances = torch.minimum(distances, distance_to_other_images(scale))
    return local_scale_from(distances, scale.grid_shape)


def _coreset(scale: ScaleMemory, detector: PatchSVDD, size: int, images: ImageSet) -> ScaleMemory:
    """Return a coreset with the same share of rows as the model's memory."""
    patches = len(scale.embeddings) / len(images)
    share = len(detector.memory.scales[size].embeddings) / (patches * len(detector.memory.image_names))
    count = min(len(scale.embeddings), math.ceil(share * len(scale.embeddings)))
    return scale.of_rows(coreset_rows(scale.embeddings, count))


def _added_graphs(
    stored: StoredModel,
    segments: Sequence[Segment],
    parts: dict[str, dict[str, Tensor]],
    on_progress: OnProgress | None,
) -> dict[int, bytes]:
    """Return patch size → graph over all added patches, if the memory has a graph and there are enough of them."""
    graphs: dict[int, bytes] = {}
    if not has_faiss():
        return graphs
    for size in stored.graphs:
        vectors = added_vectors(segments, parts, size)
        if len(vectors) >= MIN_GRAPH_ROWS:
            earlier = stored.added_graphs.get(size)
            graphs[size] = GraphSearch.extended(earlier, vectors, on_progress).to_bytes()
    return graphs


def _new_names(taken: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, with a number appended to those already taken."""
    used, unique = set(taken), []
    for name in names:
        free, count = name, 1
        while free in used:
            count += 1
            free = f"{name} ({count})"
        used.add(free)
        unique.append(free)
    return tuple(unique)


def _provenance_with(provenance: dict[str, Any], images: ImageSet) -> dict[str, Any]:
    """Return the provenance with added images; they count as held out, because nothing was trained on them."""
    data = provenance["data"]
    count = int(data["images"])
    held_out = [*data.get("held_out", ()), *range(count, count + len(images))]
    digests = [*data["digests"], *images.digests()]
    return {**provenance, "data": {**data, "images": count + len(images), "digests": digests, "held_out": held_out}}


def _more_traits(known: Calibration, new: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the statistics of old and new images; empty if those of the old ones are unknown."""
    if set(known.traits) != set(TRAITS):
        return {}
    return {name: [*known.traits[name], *new[name]] for name in TRAITS}
