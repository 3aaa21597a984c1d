"""PatchSVDD: fit on good images, inspect new ones, save and load."""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from patchsvdd.anomaly_map import AnomalyMaps, image_score, multiply_scales, spread_on_pixels
from patchsvdd.calibration import Calibration, calibrate
from patchsvdd.category import find_good_images
from patchsvdd.config import Config
from patchsvdd.config import preset as preset_config
from patchsvdd.device import choose_device, describe_device, reproducible
from patchsvdd.embedder import Embedder, Engine
from patchsvdd.encoder import PatchEncoder, build_encoder, grids_for
from patchsvdd.engines import Precision
from patchsvdd.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.graph_search import GraphSearch, has_faiss, import_faiss
from patchsvdd.images import ImageBatch, ImageLike, ImageSet, LoadedImage, each_image, load_image, load_image_set
from patchsvdd.inspection import Inspection
from patchsvdd.memory import Memory, ScaleMemory, build_memory
from patchsvdd.model_file import read_model, write_model
from patchsvdd.normalization import Normalization
from patchsvdd.patches import PatchGrid
from patchsvdd.pipeline import keep_busy
from patchsvdd.regions import find_regions
from patchsvdd.thinning import thin
from patchsvdd.training import TrainingHooks, TrainingRecord, train

OnStage = Callable[[str, int, int], None]
"""Called with a stage ("images", "memory", "graph", "threshold"), the items done and their total."""
Search = Literal["auto", "exact", "graph"]
"""How the nearest patch is found: by comparing with all or through a graph; "auto" takes a graph where there is one."""
FOLDS = 3
"""Parts of the training images that are scored in turn against a thinned memory of the others."""
ENGINES = "engines"
"""Folder of a model in which the choice of an engine is kept."""


class PatchSVDD:
    """A trained detector: encoder, memory of normal patches, threshold."""

    def __init__(
        self,
        config: Config,
        encoder: PatchEncoder,
        normalization: Normalization,
        memory: Memory,
        calibration: Calibration | None,
        provenance: dict[str, Any],
        device: torch.device,
        *,
        engine: Engine = "auto",
        precision: Precision = "float32",
        engine_cache: Path | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.encoder = encoder.to(device).eval().requires_grad_(False)
        self.normalization = normalization.to(device)
        self.embedder = Embedder(self.encoder, self.normalization, config, device, engine, precision, engine_cache)
        self.memory = memory.to(device)
        self.calibration = calibration
        self.provenance = provenance
        self.identity: str | None = None
        """Short hash of the stored model; None before it is saved."""

    @property
    def threshold(self) -> float:
        """Scores above it are anomalous; infinite for a detector without calibration."""
        return self.calibration.threshold if self.calibration is not None else float("inf")

    # Learning

    @classmethod
    def fit(
        cls,
        images: ImageBatch,
        *,
        preset: str = "encoder",
        device: str = "auto",
        hooks: TrainingHooks | None = None,
        on_stage: OnStage | None = None,
        search: Search = "auto",
        **settings: Any,
    ) -> PatchSVDD:
        """A detector trained on good images: a folder, a category in MVTec layout, or arrays.

        ``settings`` change the preset: steps, image_size, seed, lambda_, memory and every other field of ``Config``.
        """
        config = preset_config(preset, **settings)
        loaded = load_good_images(images, config, on_stage)
        return cls.fit_images(loaded, config, device=device, hooks=hooks, on_stage=on_stage, search=search)

    @classmethod
    def fit_images(
        cls,
        images: ImageSet,
        config: Config,
        *,
        device: str = "auto",
        hooks: TrainingHooks | None = None,
        on_stage: OnStage | None = None,
        encoder: PatchEncoder | None = None,
        calibrated: bool = True,
        search: Search = "exact",
    ) -> PatchSVDD:
        """A detector trained on loaded images; an ``encoder`` given is taken as it is and not trained.

        Without ``calibrated`` it has no threshold, which takes the longest to find where the memory is large and every
        ``search`` exact; "auto" makes graphs for large memories on a CPU if FAISS is there.
        """
        chosen = choose_device(device)
        with_graphs = _wants_graphs(search, chosen)
        normalization = Normalization.fit(images.pixels, config)
        normalized = normalization(images.pixels).to(chosen)  # (N, 3, H, W)
        fingerprint = images.fingerprint()
        record = TrainingRecord(0, 0.0, [])
        if encoder is None:
            encoder = build_encoder(config).to(chosen)
            if encoder.trainable:
                record = train(encoder, normalized, config, fingerprint, hooks or TrainingHooks())
        encoder = encoder.to(chosen).eval().requires_grad_(False)
        grids = grids_for(encoder, config, images.size)
        with reproducible():
            every_patch = build_memory(encoder, normalized, images.names, grids, stage(on_stage, "memory"))
        memory = _kept(every_patch, config, with_graphs, on_stage)
        provenance = _provenance(images, fingerprint, config, record, chosen)
        detector = cls(config, encoder, normalization, memory, None, provenance, chosen)
        if calibrated:
            scores = detector._scores_of_good_images(every_patch, images.size, with_graphs, on_stage)
            detector.calibration = calibrate(scores, config.false_alarm_rate)
        return detector

    def _scores_of_good_images(
        self, every_patch: Memory, image_size: tuple[int, int], with_graphs: bool, on_stage: OnStage | None
    ) -> list[float]:
        """Score of each training image against a memory made without it."""
        if self.config.memory_size.is_whole:
            return self.score_without_itself(image_size, stage(on_stage, "threshold"))
        # A thinned memory holds few patches of any image, and taking those out would leave holes that a memory of
        # the other images would not have. So memories of the others are made, for a third of the images at a time.
        count = len(every_patch.image_names)
        _require_two(count)
        scores = [0.0] * count
        fold_of = torch.arange(count) % min(FOLDS, count)
        done = 0
        for fold in range(min(FOLDS, count)):
            others = _kept(every_patch.of_images(fold_of != fold), self.config, with_graphs, on_stage)
            for index in (fold_of == fold).nonzero()[:, 0].tolist():
                scores[index] = self._score_of(every_patch, index, image_size, others, None)
                done += 1
                if on_stage is not None:
                    on_stage("threshold", done, count)
        return scores

    def score_without_itself(
        self, image_size: tuple[int, int], on_progress: Callable[[int, int], None] | None = None
    ) -> list[float]:
        """Score of each image of the memory, which must be whole, against the memory of all the others."""
        count = len(self.memory.image_names)
        _require_two(count)
        scores = []
        for index in range(count):
            scores.append(self._score_of(self.memory, index, image_size, self.memory, index))
            if on_progress is not None:
                on_progress(index + 1, count)
        return scores

    def _score_of(
        self, source: Memory, index: int, image_size: tuple[int, int], memory: Memory, without_image: int | None
    ) -> float:
        """Score of the image ``index``, whose patches ``source`` holds, against ``memory``."""
        grids = grids_for(self.encoder, self.config, image_size)
        queries = []
        for grid in grids:
            patches = grid.shape[0] * grid.shape[1]
            queries.append(source.scales[grid.scale.patch_size].embeddings[index * patches : (index + 1) * patches])
        maps = self._maps_of([query[None] for query in queries], grids, memory, without_image)
        return float(maps.scores[0])

    # Inspecting

    def inspect(self, image: ImageLike) -> Inspection:
        """Score, verdict and map of one image: a file, a PIL image, an array (H, W, C) or a tensor (C, H, W)."""
        loaded = load_image(image, self.config)
        return self._inspections([loaded], self.anomaly_maps(loaded.tensor[None]))[0]

    def inspect_many(
        self,
        images: ImageBatch,
        *,
        batch_size: int | None = None,
        on_error: Callable[[ImageError], None] | None = None,
    ) -> Iterator[Inspection]:
        """Inspections one after another, in order; holds no more than a few batches in memory.

        An image that cannot be used raises ImageError, or is handed to ``on_error`` and left out.
        """
        batch_size = batch_size or (64 if self.device.type == "cuda" else 1)
        waiting: deque[list[LoadedImage]] = deque()  # handed to the pipeline, their maps not yet out

        def pixels() -> Iterator[Tensor]:
            for batch in self._batches(images, batch_size, on_error):
                waiting.append(batch)
                yield torch.stack([loaded.tensor for loaded in batch])

        for maps in self.map_batches(pixels()):
            yield from self._inspections(waiting.popleft(), maps)

    def map_batches(self, batches: Iterable[Tensor]) -> Iterator[AnomalyMaps]:
        """Maps and scores, in host memory, of batches of pixels (N, 3, H, W) in 0 … 255 there.

        On a GPU a batch is uploaded and the maps of another come back while a third is computed.
        """
        return keep_busy(self.anomaly_maps, batches, self.device)

    def _batches(
        self, images: ImageBatch, batch_size: int, on_error: Callable[[ImageError], None] | None
    ) -> Iterator[list[LoadedImage]]:
        """Decoded images in order, in batches of one size."""
        batch: list[LoadedImage] = []
        for loaded in self._load_ahead(each_image(images), 2 * batch_size):
            if isinstance(loaded, ImageError):
                if on_error is None:
                    raise loaded
                on_error(loaded)
                continue
            if batch and batch[0].pixels.shape != loaded.pixels.shape:
                yield batch
                batch = []
            batch.append(loaded)
            if len(batch) == batch_size:
                yield batch
                batch = []
        if batch:
            yield batch

    def anomaly_maps(self, pixels: Tensor) -> AnomalyMaps:
        """Maps and scores of pixels (N, 3, H, W) in 0 … 255, on the detector's device."""
        size = (int(pixels.shape[2]), int(pixels.shape[3]))
        with torch.inference_mode():
            return self._maps_of(self.embedder(pixels), self.embedder.grids(size), self.memory)

    def _maps_of(
        self, queries: list[Tensor], grids: list[PatchGrid], memory: Memory, without_image: int | None = None
    ) -> AnomalyMaps:
        """Maps from embeddings (N, patches, D) on each grid: Eq. 8, 9 and 10."""
        scales = {}
        for grid, query in zip(grids, queries, strict=True):
            size = grid.scale.patch_size
            distances, _ = memory.scales[size].nearest(query.flatten(0, 1), without_image, grid.shape)
            scales[size] = spread_on_pixels(distances.view(len(query), *grid.shape), grid)
        product = multiply_scales(scales.values())
        return AnomalyMaps(scales, product, image_score(product))

    def _inspections(self, batch: list[LoadedImage], maps: AnomalyMaps) -> list[Inspection]:
        """Inspections of images of one size from their maps."""
        product = maps.product.cpu().numpy()
        scales = {size: one.cpu().numpy() for size, one in maps.scales.items()}
        scores = maps.scores.tolist()
        return [
            Inspection(
                name=loaded.name,
                score=scores[index],
                threshold=self.threshold,
                anomaly_map=product[index],
                scale_maps={size: one[index] for size, one in scales.items()},
                image=loaded.picture,
                image_size=loaded.original_size,
                regions=find_regions(product[index], self.threshold, loaded.original_size),
            )
            for index, loaded in enumerate(batch)
        ]

    def _load_ahead(self, images: Iterable[tuple[str, ImageLike]], ahead: int) -> Iterator[LoadedImage | ImageError]:
        """Images in order, decoded while earlier ones are inspected; at most ``ahead`` wait in memory."""

        def load(name: str, image: ImageLike) -> LoadedImage | ImageError:
            try:
                return load_image(image, self.config, name)
            except ImageError as error:
                return error

        waiting: deque[Future[LoadedImage | ImageError]] = deque()
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            for name, image in images:
                waiting.append(pool.submit(load, name, image))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    # Keeping

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model folder; an interrupted save leaves the older model, if there was one."""
        about = {
            "config": self.config.to_json(),
            "calibration": self.calibration.to_json() if self.calibration is not None else None,
            "provenance": self.provenance,
            "image_names": list(self.memory.image_names),
        }
        weights = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        weights["normalization.mean"] = self.normalization.mean
        weights["normalization.scale"] = self.normalization.scale
        memory = {}
        for size, scale in self.memory.scales.items():
            memory[f"{size}.embeddings"] = scale.embeddings
            memory[f"{size}.origins"] = scale.origins
        graphs = {size: scale.graph.to_bytes() for size, scale in self.memory.scales.items() if scale.graph is not None}
        self.identity = write_model(Path(folder), about, {"encoder": weights, "memory": memory}, graphs)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        device: str = "auto",
        *,
        engine: Engine = "auto",
        precision: Precision = "float32",
        search: Search = "auto",
    ) -> PatchSVDD:
        """The detector a folder holds; ModelError says what is wrong with the folder.

        ``engine`` computes the embeddings on a CPU, in ``precision``; ``search`` finds the nearest patches.
        """
        chosen = choose_device(device)
        stored = read_model(Path(folder))
        try:
            config = Config.from_json(stored.about["config"])
        except ConfigError as error:
            raise ModelError(
                f"'{folder}' was written by patchsvdd {stored.about['provenance']['versions']['patchsvdd']}: {error}; "
                f"use that version, or train again"
            ) from None
        encoder = build_encoder(config)
        weights = stored.parts["encoder"]
        encoder.load_state_dict(
            {name.removeprefix("encoder."): v for name, v in weights.items() if name.startswith("encoder.")}
        )
        normalization = Normalization(weights["normalization.mean"], weights["normalization.scale"])
        parts = stored.parts["memory"]
        scales = {
            scale.patch_size: ScaleMemory(parts[f"{scale.patch_size}.embeddings"], parts[f"{scale.patch_size}.origins"])
            for scale in config.scales
        }
        memory = Memory(tuple(stored.about["image_names"]), scales)
        if _wants_graphs(search, chosen) and (stored.graphs or search == "graph"):
            memory = _with_stored_graphs(memory, stored.graphs, Path(folder), required=search == "graph")
        calibration = stored.about["calibration"]
        detector = cls(
            config,
            encoder,
            normalization,
            memory,
            Calibration.from_json(calibration) if calibration else None,
            stored.about["provenance"],
            chosen,
            engine=engine,
            precision=precision,
            engine_cache=Path(folder) / ENGINES,
        )
        detector.identity = stored.identity
        return detector


def _kept(every_patch: Memory, config: Config, with_graphs: bool, on_stage: OnStage | None) -> Memory:
    """The memory as ``config`` wants it: thinned, and with graphs."""
    memory = every_patch
    if not config.memory_size.is_whole:
        memory = thin(memory, config.memory_size, seed=config.seed, on_progress=stage(on_stage, "thinning"))
    return memory.with_graphs(stage(on_stage, "graph")) if with_graphs else memory


def _require_two(count: int) -> None:
    if count < 2:
        raise DatasetError(f"a threshold takes at least 2 good images; got {count}")


def as_search(text: str, device: torch.device) -> Search:
    """The kind of search that ``text`` names; ConfigError where there is none such, or not on this device."""
    if text not in get_args(Search):
        raise ConfigError(f"--search must be one of {', '.join(get_args(Search))}; got '{text}'")
    if text == "graph" and device.type == "cuda":
        raise ConfigError("--search graph is for CPUs; on a GPU the exact search is faster: use --search exact")
    if text == "graph":
        import_faiss()
    return cast(Search, text)


def _wants_graphs(search: Search, device: torch.device) -> bool:
    """Whether graphs may serve."""
    search = as_search(search, device)
    return search == "graph" or (search == "auto" and device.type == "cpu" and has_faiss())


def _with_stored_graphs(memory: Memory, graphs: dict[int, Path], folder: Path, required: bool) -> Memory:
    scales = dict(memory.scales)
    for size, scale in memory.scales.items():
        if size in graphs:
            graph = GraphSearch.open(graphs[size], scale.grid_shape)
            scales[size] = ScaleMemory(scale.embeddings, scale.origins, graph)
        elif required and scale.is_worth_a_graph:
            raise ModelError(f"'{folder}' holds no graph to search; make one: patchsvdd prepare '{folder}'")
    return Memory(memory.image_names, scales)


def load_good_images(images: ImageBatch, config: Config, on_stage: OnStage | None = None) -> ImageSet:
    """The good images of a folder, a category or arrays, decoded and resized; broken ones are set aside."""
    broken: tuple[ImageError, ...] = ()
    where = ""
    if isinstance(images, str | os.PathLike):
        where = f" in '{os.fspath(images)}'"
        good = find_good_images(Path(images))
        sources: list[tuple[str, ImageLike]] = list(good.named())
        broken = good.broken
    else:
        sources = list(each_image(images))
    if not sources:
        raise DatasetError("there is no image to learn from; give at least 2 good images")
    loaded = load_image_set(sources, config, stage(on_stage, "images"))
    if len(loaded) < 2:
        raise DatasetError(
            f"learning takes at least 2 good images, better 60 or more; "
            f"got {len(loaded)} usable of {len(sources)}{where}"
        )
    return ImageSet(loaded.names, loaded.pixels, (*broken, *loaded.skipped))


def stage(on_stage: OnStage | None, name: str) -> Callable[[int, int], None] | None:
    """``on_stage`` for one stage."""
    return None if on_stage is None else lambda done, total: on_stage(name, done, total)


def _provenance(
    images: ImageSet, fingerprint: str, config: Config, record: TrainingRecord, device: torch.device
) -> dict[str, Any]:
    """How the model came about, readable in years."""
    from patchsvdd import __version__

    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "patchsvdd": __version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "device": describe_device(device),
        "seed": config.seed,
        "data": {
            "images": len(images),
            "image_size": list(images.size),
            "fingerprint": fingerprint,
            "skipped": [str(error) for error in images.skipped],
        },
        "training": {
            "steps": record.steps,
            "seconds": round(record.seconds, 3),
            "history": record.history,
        },
    }
