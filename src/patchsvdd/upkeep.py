"""A stored model's memory kept up without training: good images put in, taken out again, and every change undone.

Adding patches to a memory never makes a distance larger, so no score rises: thresholds that held before hold after.
Taking patches out may raise scores.
"""

from __future__ import annotations

import copy
import difflib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchsvdd.calibration import Calibration, calibrate
from patchsvdd.category import find_good_images
from patchsvdd.detector import PatchSVDD, stored_memory
from patchsvdd.device import reproducible
from patchsvdd.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.files import locked
from patchsvdd.graph_search import WORTH_IT, GraphSearch, has_faiss
from patchsvdd.images import ImageBatch, ImageLike, ImageSet, digest_of_pixels, each_image, load_image_set
from patchsvdd.loading import OnStage, stage
from patchsvdd.memory import Memory, ScaleMemory, build_memory
from patchsvdd.model_file import StoredModel, change_model, read_model, undo_change, write_parts
from patchsvdd.pictures import Pictures
from patchsvdd.reach import others_distance, reach_of
from patchsvdd.recalibration import map_without, worst_of
from patchsvdd.segments import Segment, added_vectors, segments_of, without_images
from patchsvdd.thinning import choose_rows
from patchsvdd.traits import TRAITS, together, traits_of


@dataclass(frozen=True)
class Change:
    """What was done to a model."""

    change: str
    """ "add", "remove" or "undo"."""
    images: tuple[str, ...]
    """Names, in the model, of the images that it is about."""
    total: int
    """Images in the memory now."""
    identity: str
    threshold: float | None
    threshold_before: float | None
    seconds: float
    known: tuple[str, ...] = ()
    """Images that were in the memory already and were not put in again."""
    skipped: tuple[ImageError, ...] = ()
    """Files that could not be used."""
    alarming: tuple[str, ...] = ()
    """Added images that the model would still call anomalous if they were not in it themselves."""
    undone: str | None = None
    """Of an undo: the change that was undone."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "change": self.change,
            "images": list(self.images),
            "total": self.total,
            "identity": self.identity,
            "threshold": self.threshold,
            "threshold_before": self.threshold_before,
            "seconds": round(self.seconds, 3),
            "known": list(self.known),
            "skipped": [str(error) for error in self.skipped],
            "alarming": list(self.alarming),
            "undone": self.undone,
        }


def add_images(
    folder: str | os.PathLike[str],
    images: ImageBatch,
    *,
    device: str = "auto",
    keep_threshold: bool = False,
    on_stage: OnStage | None = None,
) -> Change:
    """Put good images into the memory of a stored model; it is replaced in one step.

    Their scores, each without its own patches, join those that the threshold was set from, and it is set anew;
    ``keep_threshold`` leaves it alone.
    """
    start, path = time.perf_counter(), Path(folder)
    with locked(path, "adding images"):
        stored = _read(path)
        detector = PatchSVDD.of_stored(stored, path, device)
        found, known = _unknown(detector, _load(detector, images, on_stage))
        if len(found) == 0:
            raise DatasetError(f"all {len(known)} images are in the memory of '{folder}' already; nothing was changed")
        addition = _memory_of(detector, found, on_stage)
        grown = _Grown(path, stored, detector, addition, found, on_stage)
        before = detector.calibration
        after = before
        alarming: tuple[str, ...] = ()
        if before is not None and not keep_threshold:
            after, alarming = grown.recalibrated(before)
        changes = {**grown.changes, "calibration": after.to_json() if after is not None else None}
        identity = change_model(path, changes, "add", grown.names, of=detector.identity)
    return Change(
        "add",
        grown.names,
        len(grown.after.memory.image_names),
        identity,
        _threshold(after),
        _threshold(before),
        time.perf_counter() - start,
        known=known,
        skipped=found.skipped,
        alarming=alarming,
    )


def remove_images(
    folder: str | os.PathLike[str], names: Sequence[str], *, device: str = "auto", on_stage: OnStage | None = None
) -> Change:
    """Take images out of the memory of a stored model, by name; it is replaced in one step.

    Scores that the threshold was set from are measured again where the memory has all that it takes; elsewhere the
    calibration says that it is older than the change.
    """
    start, path = time.perf_counter(), Path(folder)
    with locked(path, "removing images"):
        stored = _read(path)
        numbers = _numbers_of(stored.about["image_names"], names)
        left = [number for number in range(len(stored.about["image_names"])) if number not in set(numbers)]
        if len(left) < 2:
            raise DatasetError(f"a memory takes at least 2 images, and {len(left)} would be left; nothing was changed")
        about = {
            **stored.about,
            "segments": [one.to_json() for one in without_images(segments_of(stored.about), numbers)],
            "image_names": [stored.about["image_names"][number] for number in left],
            "provenance": _provenance_of(stored.about["provenance"], left),
        }
        gone = tuple(stored.about["image_names"][number] for number in numbers)
        detector = PatchSVDD.of_stored(replace(stored, about=about), path, device)
        before = detector.calibration
        after = _without(detector, before, stored, numbers, on_stage) if before is not None else None
        changes = {key: about[key] for key in ("segments", "image_names", "provenance")}
        changes["calibration"] = after.to_json() if after is not None else None
        identity = change_model(path, changes, "remove", gone, of=stored.identity)
    seconds = time.perf_counter() - start
    return Change("remove", gone, len(left), identity, _threshold(after), _threshold(before), seconds)


def undo(folder: str | os.PathLike[str]) -> Change:
    """Go back to what a stored model was before its last change, in one step."""
    start, path = time.perf_counter(), Path(folder)
    with locked(path, "undoing a change"):
        before = read_model(path)
        entry = undo_change(path)
        after = read_model(path)
    return Change(
        "undo",
        tuple(entry["images"]),
        len(after.about["image_names"]),
        after.identity,
        _stored_threshold(after),
        _stored_threshold(before),
        time.perf_counter() - start,
        undone=entry["change"],
    )


class _Grown:
    """A stored model with one more segment: its parts are on disk, its index is not yet."""

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
        new = {segment.part: addition.state(), segment.pictures: Pictures.of(images.pixels).state()}
        parts = {**stored.parts, **new}
        graphs = _added_graphs(stored, segments, parts, stage(on_stage, "graph"))
        written = write_parts(folder, new, {f"addedgraph{size}": data for size, data in graphs.items()})
        self.names = _new_names(about["image_names"], images.names)
        self.changes = {
            "segments": [one.to_json() for one in segments],
            "files": {**about["files"], **written},
            "image_names": [*about["image_names"], *self.names],
            "provenance": _provenance_with(about["provenance"], images),
        }
        added = {size: folder / written[f"addedgraph{size}"]["name"] for size in graphs}
        grown = StoredModel({**about, **self.changes}, parts, stored.graphs, {**stored.added_graphs, **added})
        self.after = copy.copy(detector)  # the same but for its memory
        self.after.memory = stored_memory(grown, detector.config, folder, detector.device)

    def recalibrated(self, known: Calibration) -> tuple[Calibration, tuple[str, ...]]:
        """The calibration with the added images' scores, and which of these lie above the threshold."""
        whole, first = self.after.config.memory_size.is_whole, len(self.before.memory.image_names)
        progress, scores, traits = stage(self.on_stage, "threshold"), [], []
        for index, pixels in enumerate(self.images.pixels):
            # A thinned memory without the few patches it keeps of an image has holes: there the one before is asked.
            detector, number = (self.after, first + index) if whole else (self.before, None)
            anomaly_map = map_without(detector, pixels, number)
            scores.append(float(anomaly_map.max()))
            traits.append(traits_of(pixels, anomaly_map))
            if progress is not None:
                progress(index + 1, len(self.images))
        found = calibrate((*known.scores, *scores), known.false_alarm_rate, worst_of([known.basis, "held-out"]))
        found = replace(
            found,
            pixel_threshold=known.pixel_threshold,
            pixel_rate=known.pixel_rate,
            traits=_more_traits(known, together(traits)),
            digests=(*known.digests, *self.images.digests()) if known.digests else (),
            removed_since=known.removed_since,
        )
        above = [name for name, score in zip(self.names, scores, strict=True) if score > found.threshold]
        return found, tuple(above)


def _read(folder: Path) -> StoredModel:
    """A stored model that knows its images."""
    stored = read_model(folder)
    if "digests" not in stored.about["provenance"].get("data", {}):
        raise ModelError(f"'{folder}' does not tell which images it holds; train it again to change its memory")
    return stored


def _load(detector: PatchSVDD, images: ImageBatch, on_stage: OnStage | None) -> ImageSet:
    """The images, decoded and resized as the model's; those of another size are set aside."""
    broken: tuple[ImageError, ...] = ()
    sources: list[tuple[str, ImageLike]]
    if isinstance(images, str | os.PathLike) and Path(images).is_dir():
        good = find_good_images(Path(images))
        sources, broken = list(good.named()), good.broken
    else:
        sources = list(each_image(images))
    if not sources:
        raise DatasetError("there is no image to add; give a folder of good images, or files")
    found = load_image_set(sources, detector.config, stage(on_stage, "images"))
    height, width = detector.provenance["data"]["image_size"]
    if found.size != (height, width):
        raise DatasetError(
            f"the images are {found.size[1]}x{found.size[0]} and the model's memory is of images of {width}x{height}; "
            f"give images of that size, or train a model for this one"
        )
    return ImageSet(found.names, found.pixels, (*broken, *found.skipped))


def _unknown(detector: PatchSVDD, images: ImageSet) -> tuple[ImageSet, tuple[str, ...]]:
    """The images that the model does not hold, each once, and the names of the others."""
    seen = set(detector.provenance["data"]["digests"])
    new: list[int] = []
    known: list[str] = []
    for index, pixels in enumerate(images.pixels):
        digest = digest_of_pixels(pixels)
        if digest in seen:
            known.append(images.names[index])
        else:
            new.append(index)
            seen.add(digest)
    return images.subset(new), tuple(known)


def _memory_of(detector: PatchSVDD, images: ImageSet, on_stage: OnStage | None) -> Memory:
    """The patches of new images, as the model's memory keeps those it has."""
    grids = detector.embedder.grids(images.size)
    with reproducible(), torch.inference_mode():
        pixels = [detector.normalization(one[None].to(detector.device))[0] for one in images.pixels]
        memory = build_memory(detector.encoder, pixels, images.names, grids, stage(on_stage, "memory")).to(
            torch.device("cpu")
        )
        scales = {}
        for size, scale in memory.scales.items():
            if detector.config.local_scaling:
                scale = scale.with_reach(_reach_beside(scale, detector.memory.scales[size]))
            scales[size] = scale if detector.config.memory_size.is_whole else _thinned(scale, detector, size, images)
    return Memory(memory.image_names, scales)


def _reach_beside(scale: ScaleMemory, memory: ScaleMemory) -> Tensor:
    """The reach (M,) of new patches: how far each is from the nearest of another image, old or new."""
    distances = memory.nearest(scale.embeddings.to(memory.embeddings.device), None, scale.grid_shape)[0].cpu()
    if len(torch.unique(scale.origins[:, 0])) > 1:
        distances = torch.minimum(distances, others_distance(scale))
    return reach_of(distances, scale.grid_shape)


def _thinned(scale: ScaleMemory, detector: PatchSVDD, size: int, images: ImageSet) -> ScaleMemory:
    """The share of the rows that the memory has kept of its own images."""
    patches = len(scale.embeddings) / len(images)
    share = len(detector.memory.scales[size].embeddings) / (patches * len(detector.memory.image_names))
    count = min(len(scale.embeddings), math.ceil(share * len(scale.embeddings)))
    return scale.of_rows(choose_rows(scale, count, "settled").sort().values)


def _added_graphs(
    stored: StoredModel,
    segments: Sequence[Segment],
    parts: dict[str, dict[str, Tensor]],
    on_progress: Callable[[int, int], None] | None,
) -> dict[int, bytes]:
    """Patch size → graph over all that was ever added, where the memory has a graph and it is worth one."""
    graphs: dict[int, bytes] = {}
    if not has_faiss():
        return graphs
    for size in stored.graphs:
        vectors = added_vectors(segments, parts, size)
        if len(vectors) >= WORTH_IT:
            earlier = stored.added_graphs.get(size)
            graphs[size] = GraphSearch.extended(earlier, vectors, on_progress).to_bytes()
    return graphs


def _new_names(taken: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The names, with a number where one is taken."""
    used, found = set(taken), []
    for name in names:
        free, count = name, 1
        while free in used:
            count += 1
            free = f"{name} ({count})"
        used.add(free)
        found.append(free)
    return tuple(found)


def _numbers_of(known: Sequence[str], names: Sequence[str]) -> list[int]:
    """The numbers of images by name, or by file name where only one has it."""
    if not names:
        raise ConfigError("--remove takes the name of an image of the memory; patchsvdd info MODEL --json lists them")
    numbers = []
    for name in dict.fromkeys(names):
        found = [index for index, one in enumerate(known) if one == name]
        found = found or [index for index, one in enumerate(known) if Path(one).name == name]
        if len(found) != 1:
            like = [known[index] for index in found] or difflib.get_close_matches(name, known, 3)
            hint = f"; did you mean {' or '.join(like)}" if like else ""
            many = f"{len(found)} images" if found else "no image"
            raise DatasetError(f"the memory has {many} named '{name}'{hint}; nothing was changed")
        numbers += found
    return sorted(numbers)


def _without(
    detector: PatchSVDD, known: Calibration, stored: StoredModel, gone: Sequence[int], on_stage: OnStage | None
) -> Calibration:
    """The calibration of a detector that some images were taken out of."""
    data = stored.about["provenance"]["data"]
    lost = {data["digests"][number] for number in gone}
    kept = [index for index, digest in enumerate(known.digests) if digest not in lost]
    if not known.digests or not kept:
        return replace(known, removed_since=known.removed_since + len(gone))
    scores, digests = [known.scores[index] for index in kept], [known.digests[index] for index in kept]
    numbers = {digest: number for number, digest in enumerate(detector.provenance["data"]["digests"])}
    outdated = known.removed_since + len(gone)
    in_memory = detector.config.memory_size.is_whole and all(digest in numbers for digest in digests)
    if in_memory and detector.critic is None:
        height, width = data["image_size"]
        anew = detector.score_without_itself((height, width), stage(on_stage, "threshold"))
        scores, outdated = [anew[numbers[digest]] for digest in digests], 0
    found = calibrate(scores, known.false_alarm_rate, known.basis)
    traits = {name: [values[index] for index in kept] for name, values in known.traits.items()}
    return replace(
        found,
        pixel_threshold=known.pixel_threshold,
        pixel_rate=known.pixel_rate,
        traits=traits,
        digests=tuple(digests),
        removed_since=outdated,
    )


def _provenance_with(provenance: dict[str, Any], images: ImageSet) -> dict[str, Any]:
    """How a model came about, with images that nothing was trained on: they are held out, as far as it can tell."""
    data = provenance["data"]
    count = int(data["images"])
    held_out = [*data.get("held_out", ()), *range(count, count + len(images))]
    digests = [*data["digests"], *images.digests()]
    return {**provenance, "data": {**data, "images": count + len(images), "digests": digests, "held_out": held_out}}


def _provenance_of(provenance: dict[str, Any], left: Sequence[int]) -> dict[str, Any]:
    """How a model came about, of the images that are left, numbered anew."""
    data = provenance["data"]
    held_out = set(data.get("held_out", ()))
    return {
        **provenance,
        "data": {
            **data,
            "images": len(left),
            "digests": [data["digests"][number] for number in left],
            "held_out": [new for new, old in enumerate(left) if old in held_out],
        },
    }


def _more_traits(known: Calibration, new: dict[str, list[float]]) -> dict[str, list[float]]:
    """Traits of the images before and the new ones; none where those before are not known."""
    if set(known.traits) != set(TRAITS):
        return {}
    return {name: [*known.traits[name], *new[name]] for name in TRAITS}


def _threshold(calibration: Calibration | None) -> float | None:
    return calibration.threshold if calibration is not None else None


def _stored_threshold(stored: StoredModel) -> float | None:
    calibration = stored.about["calibration"]
    return calibration["threshold"] if calibration else None
