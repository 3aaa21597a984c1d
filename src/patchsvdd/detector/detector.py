"""PatchSVDD: fit on good images, inspect new images, save and load."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchsvdd.core.config import Config, is_large
from patchsvdd.core.device import choose_device, reproducible
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.presets import DEFAULT
from patchsvdd.core.presets import preset as preset_config
from patchsvdd.core.progress import OnProgress, OnStage
from patchsvdd.core.roi import Roi
from patchsvdd.core.streams import side_by_side
from patchsvdd.critic.inference import CriticInference
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.detector.base import Detector
from patchsvdd.detector.explainer import Explainer
from patchsvdd.detector.fitting import DetectorParts, learn
from patchsvdd.detector.inspections import to_inspections
from patchsvdd.detector.large_images import find_in_strips
from patchsvdd.detector.model_folder import StoredModel, read_model, write_model
from patchsvdd.detector.recorded_inspection import RecordedInspection
from patchsvdd.detector.region_names import RegionNamer
from patchsvdd.detector.schedule import fit_schedule, limit_cpu_minutes
from patchsvdd.detector.serialization import from_store, min_area_in_map, to_store
from patchsvdd.detector.split import require_two
from patchsvdd.detector.stored_memory import Search, stored_memory, wants_graphs
from patchsvdd.detector.training_backend import LOCAL, TrainingBackend
from patchsvdd.encoder.embedder import Embedder, Engine
from patchsvdd.encoder.engines import Precision
from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.images.image_set import ImageBatch, ImageSet, LoadedImage
from patchsvdd.images.loading import good_sources, load_training_images
from patchsvdd.images.roi_input import roi_for
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.gpu_search import FusedSearch
from patchsvdd.scoring.anomaly_map import AnomalyMaps, image_score, zero_outside
from patchsvdd.scoring.area_opening import area_in_map
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.map_builder import embeddings_of
from patchsvdd.scoring.typical_distances import typical_distances_from_json
from patchsvdd.training.hooks import TrainingHooks

ENGINES = "engines"
"""Subfolder of a model folder that stores the choice of an inference engine."""


class PatchSVDD(Detector):
    """A trained detector: encoder, memory of normal patches, optional critic, and threshold.

    Create one with ``fit`` or ``load``.
    """

    def __init__(
        self,
        config: Config,
        learned: DetectorParts,
        device: torch.device,
        *,
        engine: Engine = "auto",
        precision: Precision = "float32",
        engine_cache: Path | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.encoder = learned.encoder.to(device).eval().requires_grad_(False)
        self.normalization = learned.normalization.to(device)
        self.embedder = Embedder(self.encoder, self.normalization, config, device, engine, precision, engine_cache)
        self.map_builder = learned.map_builder.to(device)
        self.critic = learned.critic.to(device) if learned.critic is not None else None
        self.critic_inference = (
            CriticInference(self.critic, device, engine, engine_cache) if self.critic is not None else None
        )
        self.calibration = learned.calibration
        self.provenance = learned.provenance
        self.pictures = learned.pictures
        self.defects = learned.defects.to(device) if learned.defects is not None else None
        self.identity = None
        self._recording: tuple[tuple[object, ...], RecordedInspection] | None = None
        """On a GPU: what was recorded, and its recordings."""

    @property
    def learned(self) -> DetectorParts:
        """All parts learned from good images."""
        parts = (self.encoder, self.normalization, self.map_builder, self.critic)
        return DetectorParts(*parts, self.calibration, self.provenance, self.pictures, self.defects)

    @property
    def memory(self) -> Memory:
        """The memory of normal patches."""
        return self.map_builder.memory

    @memory.setter
    def memory(self, memory: Memory) -> None:
        self.map_builder = dataclasses.replace(self.map_builder, memory=memory.to(self.device))

    @property
    def min_area(self) -> int:
        """Smallest connected region above the threshold that counts, in pixels of the original image; 0 for any.

        After changing it, set the threshold again; ``with_min_area`` and ``recalibrate`` take care of this.
        """
        return self.config.min_area

    @min_area.setter
    def min_area(self, pixels: int) -> None:
        config = self.config.replace(min_area=pixels)
        self.map_builder = dataclasses.replace(self.map_builder, min_area=min_area_in_map(config, self.provenance))
        self.config = config

    def with_min_area(self, pixels: int) -> PatchSVDD:
        """Return a copy that ignores regions smaller than this many pixels of the original image.

        Scores can only decrease, so the guarantee of the threshold still holds. Raise ConfigError if ``pixels`` is
        smaller than in calibration, because then it would not.
        """
        other = copy.copy(self)
        other.min_area = pixels
        other._require_room()
        if pixels < self.min_area and self.calibration is not None:
            raise ConfigError(
                f"`min_area={pixels}` is smaller than the {self.min_area} pixels that the threshold was set with: more "
                f"good images would be called anomalous than the calibration allows; recalibrate with "
                f"`min_area={pixels}` instead"
            )
        return other

    def _require_room(self) -> None:
        _require_room(self.map_builder.min_area, self.config, self.image_size)

    # Learning

    @classmethod
    def fit(
        cls,
        images: ImageBatch,
        *,
        preset: str = DEFAULT,
        device: str = "auto",
        hooks: TrainingHooks | None = None,
        on_stage: OnStage | None = None,
        search: Search = "auto",
        leave_out: Collection[str] = (),
        **settings: Any,
    ) -> PatchSVDD:
        """Train a detector on good images: a folder, a category in MVTec layout, or arrays.

        Images with a name in ``leave_out`` are not used.

        ``settings`` override fields of the preset's ``Config``, such as ``steps``, ``image_size`` or ``memory``.
        ``roi`` accepts any ``RoiLike`` and is placed on the first image. On a CPU training is limited to 40 minutes
        unless ``steps``, ``epochs``, ``critic`` or ``minutes`` is given.
        """
        if settings.get("roi") is not None:
            images = list(images) if isinstance(images, Iterator) else images  # it is read twice
            settings["roi"] = roi_for(settings["roi"], good_sources(images))
        config = preset_config(preset, **settings)
        config = limit_cpu_minutes(config, choose_device(device), settings)
        loaded, config = load_training_images(images, config, on_stage, leave_out)
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
        critic: TrainedCritic | None = None,
        calibrated: bool = True,
        search: Search = "exact",
        backend: TrainingBackend = LOCAL,
    ) -> PatchSVDD:
        """Train a detector on loaded images; a given ``encoder`` or ``critic`` is used without further training.

        ``calibrated=False`` skips the threshold, which is the slowest part with a large memory and exact ``search``;
        ``search="auto"`` builds graphs for large memories on a CPU if FAISS is installed. The ``backend`` trains and
        embeds the good images.
        """
        if config.baseline is not None:
            raise ConfigError(f"`preset={config.preset}` is a baseline, not Patch SVDD; use `BaselineDetector`")
        if config.auto_size:
            raise ConfigError("`image_size=auto` is chosen before images are loaded; use `load_training_images`")
        chosen = choose_device(device)
        area = area_in_map(config.min_area, config.content_size(images.original_size), images.original_size)
        _require_room(area, config, images.size)  # refused now, not after training
        hooks = hooks or TrainingHooks()
        if encoder is None:
            config = fit_schedule(images, config, chosen, hooks)
        learned = learn(
            images,
            config,
            chosen,
            hooks=hooks,
            on_stage=on_stage,
            encoder=encoder,
            critic=critic,
            calibrated=calibrated,
            with_graphs=wants_graphs(search, chosen),
            backend=backend,
        )
        return cls(config, learned, chosen)

    def maps_without_itself(
        self, image_size: tuple[int, int], on_progress: OnProgress | None = None
    ) -> Iterator[AnomalyMaps]:
        """Yield the maps of each image in the memory, scored against the others; the memory must not be a coreset.

        The memory holds patches, not images, so the critic does not contribute to these maps.
        """
        count = len(self.memory.image_names)
        require_two(count)
        grids = self.embedder.grids(image_size)
        for index in range(count):
            queries = embeddings_of(self.memory, index, grids)
            yield self.map_builder.combine(self.map_builder.distances(queries, grids, index))
            if on_progress is not None:
                on_progress(index + 1, count)

    def leave_one_out_scores(self, image_size: tuple[int, int], on_progress: OnProgress | None = None) -> list[float]:
        """Return the score of each image in the memory against the others; the memory must not be a coreset."""
        return [float(maps.scores[0]) for maps in self.maps_without_itself(image_size, on_progress)]

    # Inspecting

    def _to_inspections(self, batch: Sequence[LoadedImage], maps: AnomalyMaps) -> list[Inspection]:
        typical = typical_distances_from_json(self.provenance.get("usual", {}))
        explain = Explainer(self.embedder, self.map_builder, self.pictures, typical, self.config.frame)
        name = None
        if self.critic is not None and self.defects is not None:
            name = RegionNamer(self.critic, self.defects, self.config.frame, self.threshold)
        return to_inspections(batch, maps, self.config, self.calibration, self.map_builder.min_area, explain, name)

    def anomaly_maps(self, pixels: Tensor, without_image: int | None = None) -> AnomalyMaps:
        """Return maps and scores of pixels (N, 3, H, W) in 0 … 255, on the detector's device (large images: the host).

        ``without_image`` excludes one image's patches from the memory.
        """
        size = (int(pixels.shape[2]), int(pixels.shape[3]))
        with torch.inference_mode():
            if is_large(*size):
                with reproducible():
                    return find_in_strips(pixels, self.embedder, self.map_builder, self.critic, without_image).maps()
            if without_image is None and self._can_be_recorded:
                return self._recorded(pixels.to(self.device, non_blocking=True))
            marked = self.marked(pixels)
            # On a GPU lazy maps would keep the pixels of every inspection there.
            if marked is not None and self.map_builder.ignores_memory and self.device.type == "cpu":
                return self.map_builder.without_search(partial(self._scales, pixels, without_image), marked)
            return self.map_builder.combine(self._scales(pixels, without_image), marked)

    @property
    def _can_be_recorded(self) -> bool:
        # A recording keeps the memory of its computation, and a plain search fills what there is.
        return self.device.type == "cuda" and all(
            isinstance(s.search, FusedSearch) for s in self.memory.scales.values()
        )

    def _recorded(self, pixels: Tensor) -> AnomalyMaps:
        """Maps and scores of pixels on the GPU, from a recording if there is one; see ``RecordedInspection``."""
        parts = (self.embedder, self.map_builder, self.critic_inference)
        if self._recording is None or any(one is not two for one, two in zip(self._recording[0], parts, strict=True)):
            still = copy.copy(self)  # what is recorded stays as it is
            # Small regions are found on the host, so the highest pixel is recorded.
            still.map_builder = dataclasses.replace(self.map_builder, min_area=0)

            def compute(batch: Tensor) -> AnomalyMaps:
                works = (partial(still.marked, batch), partial(still._scales, batch, None))
                marked, scales = side_by_side(still.device, works)
                return still.map_builder.combine(scales, marked)

            still._recording = None
            self._recording = (parts, RecordedInspection(compute))
        maps = self._recording[1](pixels)
        if self.map_builder.min_area <= 1:
            return maps
        return dataclasses.replace(maps, scores=image_score(maps.combined, self.map_builder.min_area))

    def _scales(self, pixels: Tensor, without_image: int | None) -> dict[int, Tensor]:
        with torch.inference_mode():
            grids = self.embedder.grids((int(pixels.shape[2]), int(pixels.shape[3])))
            return self.map_builder.distances(self.embedder(pixels), grids, without_image)

    def marked(self, pixels: Tensor) -> Tensor | None:
        """Return the critic's maps (N, H, W); None without a critic."""
        if self.critic_inference is None:
            return None
        area = self.config.area((int(pixels.shape[2]), int(pixels.shape[3])))
        with reproducible():
            return zero_outside(self.critic_inference(pixels.to(self.device, non_blocking=True)), area)

    def with_roi(self, roi: Roi) -> PatchSVDD:
        """Return a detector that only searches and scores a region of every image; its maps there are unchanged."""
        config = dataclasses.replace(self.config, inspect_roi=roi)
        embedder = self.embedder
        other = PatchSVDD(
            config,
            self.learned,
            self.device,
            engine=embedder.engine,
            precision=embedder.precision,
            engine_cache=embedder.cache,
        )
        other._require_room()
        if self.identity is not None:
            other.identity = f"{self.identity}+{hashlib.sha256(roi.packed.encode()).hexdigest()[:8]}"
        return other

    # Saving and loading

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model folder; an interrupted save leaves a previous model intact."""
        self.identity = write_model(Path(folder), *to_store(self.config, self.learned))

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
        """Load the detector stored in a folder; raise ModelError if the model is missing or damaged.

        ``engine`` and ``precision`` select how a CPU computes embeddings, ``search`` how nearest patches are found.
        """
        return cls.from_stored(
            read_model(Path(folder)), folder, device, engine=engine, precision=precision, search=search
        )

    @classmethod
    def from_stored(
        cls,
        stored: StoredModel,
        folder: str | os.PathLike[str],
        device: str = "auto",
        *,
        engine: Engine = "auto",
        precision: Precision = "float32",
        search: Search = "auto",
        memory: Memory | None = None,
    ) -> PatchSVDD:
        """Return the detector of a stored model; a given ``memory`` replaces the stored one."""
        chosen = choose_device(device)
        try:
            config = Config.from_json(stored.about["config"])
        except ConfigError as error:
            raise ModelError(
                f"'{folder}' was written by patchsvdd {stored.about['provenance']['versions']['patchsvdd']}: {error}; "
                f"use that version, or train again"
            ) from None
        if config.baseline is not None:
            raise ModelError(
                f"'{folder}' holds a baseline ({config.preset}); only its inspection and evaluation are supported"
            )
        memory = memory if memory is not None else stored_memory(stored, config, folder, chosen, search)
        learned = from_store(stored, config, memory)
        cache = Path(folder) / ENGINES
        detector = cls(config, learned, chosen, engine=engine, precision=precision, engine_cache=cache)
        detector.identity = stored.identity
        return detector


def _require_room(pixels: int, config: Config, size: tuple[int, int]) -> None:
    """Raise ConfigError if ``pixels`` exceeds the number of pixels that count in an image of this size."""
    area = config.area(size)
    counting = size[0] * size[1] if area is None else int(area.mask.sum())
    if pixels > counting:
        raise ConfigError(
            f"`min_area={config.min_area}` is {pixels} pixels at the model's image size, and only {counting} pixels "
            f"count there; use a smaller area or a larger region"
        )
