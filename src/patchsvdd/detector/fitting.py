"""Learns all parts of a detector from good images."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.device import reproducible
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.progress import OnProgress, OnStage, stage
from patchsvdd.critic.network import TrainedCritic, critic_normalization
from patchsvdd.critic.validation import ValidationResult, ValidationSet
from patchsvdd.detector.cross_fitting import CrossFitter
from patchsvdd.detector.image_statistics import image_statistics, together
from patchsvdd.detector.provenance import describe_training
from patchsvdd.detector.split import Split, require_two
from patchsvdd.detector.stored_memory import wants_graphs
from patchsvdd.detector.training_backend import LOCAL, TrainingBackend
from patchsvdd.encoder.networks import PatchEncoder, build_encoder, grids_for
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.normalization import Normalization
from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.coreset import select_coreset
from patchsvdd.memory.local_scale import learn_local_scale
from patchsvdd.scoring.anomaly_map import average_over_patches, image_score, multiply_scales, zero_outside
from patchsvdd.scoring.area_opening import area_in_map
from patchsvdd.scoring.calibration import Basis, Calibration, calibrate
from patchsvdd.scoring.fusion import SHARES, Fusion, best_share
from patchsvdd.scoring.map_builder import MapBuilder, embeddings_of
from patchsvdd.scoring.position_statistics import PositionStatistics
from patchsvdd.scoring.ranking import MARGIN
from patchsvdd.scoring.typical_distances import TypicalDistances
from patchsvdd.training.hooks import TrainingHooks, TrainingRecord

JUDGED = 96
"""Minimum number of validation images, half of them with synthetic defects."""
FOLDS = 3
"""Folds of the training images; each is scored against a coreset of the others."""


@dataclass(frozen=True)
class DetectorParts:
    """The parts of a detector, learned from good images."""

    encoder: PatchEncoder
    normalization: Normalization
    map_builder: MapBuilder
    critic: TrainedCritic | None = None
    calibration: Calibration | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    pictures: Thumbnails | None = None
    """Thumbnails of the good images; models of earlier versions have none."""


@dataclass(frozen=True)
class ScoredImage:
    """Score and statistics of a good image, as if it were new to the detector."""

    score: float
    traits: dict[str, float]


def learn_encoder(
    images: ImageSet,
    config: Config,
    device: torch.device,
    hooks: TrainingHooks,
    on_stage: OnStage | None = None,
    backend: TrainingBackend = LOCAL,
) -> tuple[PatchEncoder, TrainingRecord]:
    """Train an encoder on the training part of the images."""
    encoder = build_encoder(config).to(device)
    if not encoder.trainable:
        return encoder, TrainingRecord(0, 0.0, [])
    chosen = images.pixels[Split.of(config, len(images)).trained]
    normalization = Normalization.fit(images.pixels, config)
    record = backend.train_encoder(encoder, chosen, normalization, config, images.fingerprint(), hooks)
    return encoder, revert_if_not_better(encoder, record, images, config, on_stage)


def revert_if_not_better(
    encoder: PatchEncoder, record: TrainingRecord, images: ImageSet, config: Config, on_stage: OnStage | None = None
) -> TrainingRecord:
    """Undo the training of ``encoder`` unless it finds more synthetic defects in held-out images.

    # Differs from the paper, which always keeps the trained encoder: training improves position accuracy, but not
    # defect detection if parts are not aligned or training is short.
    """
    split = Split.of(config, len(images))
    if config.stop == "end" or not split.held_out or record.steps == 0:
        return record
    device = next(encoder.parameters()).device
    untrained = build_encoder(config).to(device)
    normalization = Normalization.fit(images.pixels, config).to(device)
    validation = ValidationSet.draw(images.pixels[split.held_out].to(device), config.seed, JUDGED, config.frame)
    plain = dataclasses.replace(
        config, critic=None, memory="100%", position_normalization=False, local_scaling=False, stop="end"
    )
    known, progress = images.subset(split.trained), stage(on_stage, "validation")
    scores = {}
    for turn, (name, candidate) in enumerate({"untrained": untrained, "trained": encoder}.items()):
        half = _part_of(progress, turn, 2)
        scores[name] = validate_encoder(candidate, known, validation, plain, normalization, half).criterion
    not_better = scores["trained"] <= scores["untrained"] + MARGIN
    if not_better:
        encoder.load_state_dict(untrained.state_dict())
    return dataclasses.replace(record, validation=scores, kept_untrained=not_better)


def validate_encoder(
    encoder: PatchEncoder,
    known: ImageSet,
    validation: ValidationSet,
    config: Config,
    normalization: Normalization,
    on_progress: OnProgress | None = None,
) -> ValidationResult:
    """Measure how well synthetic defects are found with a memory of the known images."""
    with_graphs = wants_graphs("auto", normalization.mean.device)
    encoder = copy.deepcopy(encoder).eval().requires_grad_(False)
    with reproducible(), torch.inference_mode():
        good = LeaveOneOutScorer(known, config, encoder, normalization, with_graphs, on_stage=None)
        map_builder, _ = good.learn_maps(None, calibrated=False)
        maps = map_images(validation.images, encoder, normalization, good.grids, map_builder, on_progress)
    return validation.score(maps, image_score(maps))


def _part_of(on_progress: OnProgress | None, turn: int, turns: int) -> OnProgress | None:
    """Return a callback that reports the progress of one of several equal parts as that of the whole."""
    if on_progress is None:
        return None
    return lambda done, total: on_progress(turn * total + done, turns * total)


def learn_critic(
    images: ImageSet,
    config: Config,
    device: torch.device,
    hooks: TrainingHooks,
    on_stage: OnStage | None = None,
    backend: TrainingBackend = LOCAL,
) -> tuple[TrainedCritic, TrainingRecord]:
    """Train a critic on the training part of the images."""
    assert config.critic is not None
    pixels = images.pixels[Split.of(config, len(images)).trained].to(device)
    normalization = critic_normalization(pixels)
    fingerprint, progress = images.fingerprint(), stage(on_stage, "critic")
    critic, record = backend.train_critic(
        pixels, normalization, config.critic, config.seed, fingerprint, hooks, progress, config.frame
    )
    return TrainedCritic(critic, normalization), record


def learn(
    images: ImageSet,
    config: Config,
    device: torch.device,
    *,
    hooks: TrainingHooks | None = None,
    on_stage: OnStage | None = None,
    encoder: PatchEncoder | None = None,
    critic: TrainedCritic | None = None,
    calibrated: bool = True,
    with_graphs: bool = False,
    backend: TrainingBackend = LOCAL,
) -> DetectorParts:
    """Train, build the memory and calibrate; a given ``encoder`` or ``critic`` is not trained further.

    The ``backend`` trains and embeds; the rest runs in this process.
    """
    hooks = hooks or TrainingHooks()
    record, critic_record = TrainingRecord(0, 0.0, []), None
    if critic is not None and config.critic is None:
        raise ConfigError(
            "a critic was given, and settings without one; give its settings too: critic=CriticSettings(…)"
        )
    if encoder is None:
        encoder, record = learn_encoder(images, config, device, hooks, on_stage, backend)
    if critic is None and config.critic is not None:
        critic, critic_record = learn_critic(images, config, device, hooks, on_stage, backend)
    encoder = encoder.to(device).eval().requires_grad_(False)
    critic = critic.to(device) if critic is not None else None
    normalization = Normalization.fit(images.pixels, config).to(device)
    with reproducible(), torch.inference_mode():
        good = LeaveOneOutScorer(images, config, encoder, normalization, with_graphs, on_stage, backend)
        map_builder, scored = good.learn_maps(critic, calibrated)
        map_builder = dataclasses.replace(map_builder, min_area=good.min_area)
    calibration = None
    if calibrated:
        basis: Basis = "learned" if critic is None else "held-out" if len(good.split.held_out) > 1 else "tuned"
        calibration = calibrate([image.score for image in scored], config.false_alarm_rate, basis)
        calibration = dataclasses.replace(calibration, traits=together([image.traits for image in scored]))
    provenance = describe_training(images, config, record, critic_record, device, good.split.held_out)
    if calibration is not None:
        indices = good.split.held_out if critic is not None else range(len(images))
        digests = provenance["data"]["digests"]
        calibration = dataclasses.replace(calibration, digests=tuple(digests[index] for index in indices))
    if map_builder.fusion is not None:
        tried = {f"{share:g}": round(quality, 5) for share, quality in sorted(good.shares.items())}
        provenance["fusion"] = {"share": map_builder.fusion.share, "tried": tried}
    if good.typical.is_known:
        provenance["usual"] = good.typical.to_json()
    pictures = Thumbnails.from_images(images.pixels)
    return DetectorParts(encoder, normalization, map_builder, critic, calibration, provenance, pictures)


class LeaveOneOutScorer:
    """Scores each good image against a memory built without it, as a detector would score a new image."""

    def __init__(
        self,
        images: ImageSet,
        config: Config,
        encoder: PatchEncoder,
        normalization: Normalization,
        with_graphs: bool,
        on_stage: OnStage | None,
        backend: TrainingBackend = LOCAL,
    ) -> None:
        self.images, self.config, self.encoder, self.normalization = images, config, encoder, normalization
        self.with_graphs, self.on_stage = with_graphs, on_stage
        self.grids = grids_for(encoder, config, images.size)
        self.area = config.area(images.size)
        self.min_area = area_in_map(config.min_area, config.image_size, images.original_size)
        self.split = Split.of(config, len(images))
        every_patch = backend.build_memory(
            encoder, images.pixels, normalization, images.names, self.grids, stage(on_stage, "memory")
        )
        if config.local_scaling:
            require_two(len(images))
            searched = every_patch.with_graphs(stage(on_stage, "graph")) if with_graphs else every_patch
            every_patch = learn_local_scale(searched, stage(on_stage, "reach"))
        self.every_patch = every_patch
        self.memory = self._kept(every_patch)
        self.shares: dict[float, float] = {}
        """Memory share tried in fusion → validation score on synthetic defects."""
        self.typical = TypicalDistances()

    def learn_maps(self, critic: TrainedCritic | None, calibrated: bool) -> tuple[MapBuilder, list[ScoredImage]]:
        """Return the map builder and, if ``calibrated``, the scored calibration images."""
        by_place = self.config.position_normalization
        if not (calibrated or by_place or critic is not None):
            return MapBuilder(self.memory), []
        chosen = self.split.held_out if critic is not None else list(range(len(self.images)))
        if critic is None and not by_place:
            return MapBuilder(self.memory), self._scored(chosen, self.products(chosen))
        numbers = list(range(len(self.images))) if by_place else chosen
        products = torch.cat(list(self.products(numbers)))
        critic_maps = None
        if critic is not None:
            critic_maps = torch.cat([zero_outside(critic(self._pixels([index])), self.area) for index in chosen])
        places = [numbers.index(index) for index in chosen]
        cross_fitter = CrossFitter(products, critic_maps, places, by_place, self.area)
        map_builder = cross_fitter.fit(self.memory, self.config.fusion_share or 0.0)
        if map_builder.fusion is not None and self.config.fusion_share is None:
            assert critic is not None
            share = self._best_share(map_builder.fusion, map_builder.positions, critic)
            map_builder = dataclasses.replace(map_builder, fusion=map_builder.fusion.with_share(share))
        return map_builder, self._scored(chosen, cross_fitter.cross_fitted(map_builder)[:, None])

    def _scored(self, indices: list[int], maps: Iterable[Tensor]) -> list[ScoredImage]:
        """Return scores and image statistics, given maps (1, H, W)."""
        return [
            ScoredImage(
                float(image_score(image_map, self.min_area)[0]),
                image_statistics(self.images.pixels[index], image_map[0].cpu(), self.config.frame),
            )
            for index, image_map in zip(indices, maps, strict=True)
        ]

    def products(self, indices: Iterable[int]) -> Iterator[Tensor]:
        """Yield the product map (1, H, W) of each of these images against a memory built without it."""
        indices = list(indices)
        require_two(len(self.images))
        folds: dict[int, MapBuilder] = {}
        for done, index in enumerate(indices):
            queries = embeddings_of(self.every_patch, index, self.grids)
            if self.config.memory_size.is_whole:
                distances = MapBuilder(self.memory).patch_distances(queries, self.grids, index)
            else:
                # A coreset holds few patches of any image, and removing those would leave gaps that a coreset of the
                # other images would not have. So coresets of the others are built, for one fold at a time.
                fold = index % min(FOLDS, len(self.images))
                if fold not in folds:
                    others = torch.arange(len(self.images)) % min(FOLDS, len(self.images)) != fold
                    folds[fold] = MapBuilder(self._kept(self.every_patch.of_images(others)))
                distances = folds[fold].patch_distances(queries, self.grids)
            self.typical.add(distances)
            yield multiply_scales(average_over_patches(distances[grid.scale.patch_size], grid) for grid in self.grids)
            if self.on_stage is not None:
                self.on_stage("threshold", done + 1, len(indices))

    def _best_share(self, fusion: Fusion, positions: PositionStatistics | None, critic: TrainedCritic) -> float:
        """Return the memory share that finds synthetic defects in held-out images best.

        Neither the critic nor the memory has seen these images, and the critic was not trained on these kinds of
        defects. They are still synthetic, which favours the critic; so among shares that are about equally good the
        most even one is chosen.
        """
        held_out = self._pixels(self.split.held_out)
        validation = ValidationSet.draw(held_out, self.config.seed, frame=self.config.frame)
        known = torch.zeros(len(self.images), dtype=torch.bool)
        known[self.split.trained] = True
        map_builder = MapBuilder(self._kept(self.every_patch.of_images(known)), positions)
        progress = stage(self.on_stage, "fusion")
        product = map_images(validation.images, self.encoder, self.normalization, self.grids, map_builder, progress)
        mark = torch.cat([zero_outside(critic(image[None]), self.area) for image in validation.images])

        def quality(share: float) -> float:
            maps = fusion.with_share(share)(product, mark)
            return validation.score(maps, image_score(maps)).criterion

        self.shares = {share: quality(share) for share in SHARES}
        return best_share(self.shares)

    def _pixels(self, indices: list[int]) -> Tensor:
        return self.images.pixels[indices].to(self.normalization.mean.device)

    def _kept(self, every_patch: Memory) -> Memory:
        """Return the memory as configured: perhaps a coreset, perhaps with graphs."""
        memory = every_patch
        if not self.config.memory_size.is_whole:
            progress = stage(self.on_stage, "thinning")
            memory = select_coreset(memory, self.config.memory_size, progress)
        return memory.with_graphs(stage(self.on_stage, "graph")) if self.with_graphs else memory


def map_images(
    images: Iterable[Tensor],
    encoder: PatchEncoder,
    normalization: Normalization,
    grids: list[PatchGrid],
    map_builder: MapBuilder,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """Return maps (N, H, W) of images (3, H, W) in 0 … 255 by the memory only, computed one by one."""
    images, maps = list(images), list[Tensor]()
    for image in images:
        embedded = encoder.embed(normalization(image[None]), grids)
        maps.append(map_builder.combine(map_builder.distances(embedded, grids)).combined)
        if on_progress is not None:
            on_progress(len(maps), len(images))
    return torch.cat(maps)
