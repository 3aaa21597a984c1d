"""Scores each good image as if it were new to the detector."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.progress import OnProgress, OnStage, stage
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.critic.validation import ValidationSet
from patchsvdd.detector.cross_fitting import CrossFitter
from patchsvdd.detector.image_statistics import image_statistics
from patchsvdd.detector.split import Split, require_two
from patchsvdd.detector.threshold_evidence import GatheredEvidence, gather_evidence
from patchsvdd.detector.training_backend import LOCAL, TrainingBackend
from patchsvdd.detector.unusual_images import peak
from patchsvdd.encoder.networks import PatchEncoder, grids_for
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.coreset import select_coreset
from patchsvdd.memory.local_scale import learn_local_scale
from patchsvdd.scoring.anomaly_map import average_over_patches, image_score, multiply_scales, zero_outside
from patchsvdd.scoring.area_opening import area_in_map
from patchsvdd.scoring.fusion import SHARES, Fusion, best_share
from patchsvdd.scoring.map_builder import MapBuilder, embeddings_of
from patchsvdd.scoring.position_statistics import PositionStatistics
from patchsvdd.scoring.repeated_search import RepeatedSearch
from patchsvdd.scoring.typical_distances import TypicalDistances

FOLDS = 3
"""Folds of the training images; each is scored against a coreset of the others."""


@dataclass(frozen=True)
class ScoredImage:
    """Score and statistics of a good image, as if it were new to the detector."""

    score: float
    traits: dict[str, float]
    at: tuple[float, float] = (0.5, 0.5)
    """Where its map is highest: (down, across) as shares of height and width."""


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
        self.min_area = area_in_map(config.min_area, config.content_size(images.original_size), images.original_size)
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
        self.evidence: GatheredEvidence | None = None
        """Scores of varied images and synthetic defects, if some are drawn."""
        self._fold_memories: dict[int, Memory] = {}
        self._search = RepeatedSearch()

    def learn_maps(self, critic: TrainedCritic | None, calibrated: bool) -> tuple[MapBuilder, list[ScoredImage]]:
        """Return the map builder and, if ``calibrated``, the scored calibration images."""
        by_place = self.config.position_normalization
        if not (calibrated or by_place or critic is not None):
            return MapBuilder(self.memory), []
        chosen = self.split.held_out if critic is not None else list(range(len(self.images)))
        if critic is None and not by_place:
            map_builder = MapBuilder(self.memory)
            scored = self._scored(chosen, self.products(chosen))
            self._gather(scored, chosen, [map_builder], None, calibrated)
            return map_builder, scored
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
        scored = self._scored(chosen, cross_fitter.cross_fitted(map_builder)[:, None])
        self._gather(scored, chosen, cross_fitter.folds(map_builder), critic, calibrated)
        return map_builder, scored

    def _gather(
        self,
        scored: list[ScoredImage],
        chosen: list[int],
        folds: list[MapBuilder],
        critic: TrainedCritic | None,
        calibrated: bool,
    ) -> None:
        """Score synthetic defects, if some are to be drawn."""
        if not calibrated or self.config.synthetic_defects == 0:
            return

        def as_new(pixels: Tensor, place: int) -> Tensor:
            map_builder = folds[place % len(folds)]
            marked = None if critic is None else zero_outside(critic(pixels[None]), self.area)
            if marked is not None and map_builder.ignores_memory:
                return map_builder.of_critic(marked)
            product = self._product_as_new(pixels, chosen[place])
            if map_builder.positions is not None:
                product = map_builder.positions.apply(product)
            if map_builder.fusion is None or marked is None:
                return product
            return map_builder.fusion(product, marked)

        original = self.images.original_size or self.images.size
        content = self.config.placement(original).content
        self.evidence = gather_evidence(
            self._pixels(chosen),
            as_new,
            statistics.median(image.score for image in scored),
            defects=self.config.synthetic_defects,
            seed=self.config.seed,
            min_area=self.min_area,
            frame=self.config.frame,
            pixel=math.sqrt(math.prod(original) / math.prod(content)),
            on_progress=stage(self.on_stage, "evidence"),
        )

    def _scored(self, indices: list[int], maps: Iterable[Tensor]) -> list[ScoredImage]:
        """Return scores and image statistics, given maps (1, H, W)."""
        return [
            ScoredImage(
                float(image_score(image_map, self.min_area)[0]),
                image_statistics(self.images.pixels[index], image_map[0].cpu(), self.config.frame),
                peak(image_map[0])[1],
            )
            for index, image_map in zip(indices, maps, strict=True)
        ]

    def products(self, indices: Iterable[int]) -> Iterator[Tensor]:
        """Yield the product map (1, H, W) of each of these images against a memory built without it."""
        indices = list(indices)
        require_two(len(self.images))
        for done, index in enumerate(indices):
            memory, left_out = self._memory_without(index)
            queries = embeddings_of(self.every_patch, index, self.grids)
            distances = MapBuilder(memory).patch_distances(queries, self.grids, left_out)
            self.typical.add(distances)
            yield multiply_scales(average_over_patches(distances[grid.scale.patch_size], grid) for grid in self.grids)
            if self.on_stage is not None:
                self.on_stage("threshold", done + 1, len(indices))

    def _memory_without(self, index: int) -> tuple[Memory, int | None]:
        """Return a memory built without the image ``index``, or the memory of all and the index to leave out."""
        if self.config.memory_size.is_whole:
            return self.memory, index
        # A coreset holds few patches of any image, and removing those would leave gaps that a coreset of the other
        # images would not have. So coresets of the others are built, for one fold at a time.
        fold = index % min(FOLDS, len(self.images))
        if fold not in self._fold_memories:
            others = torch.arange(len(self.images)) % min(FOLDS, len(self.images)) != fold
            self._fold_memories[fold] = self._kept(self.every_patch.of_images(others))
        return self._fold_memories[fold], None

    def _product_as_new(self, pixels: Tensor, index: int) -> Tensor:
        """Return the product map (1, H, W) of pixels (3, H, W) that show the image ``index``."""
        queries = self.encoder.embed(self.normalization(pixels[None]), self.grids)
        memory, left_out = self._memory_without(index)
        distances = self._search.patch_distances(memory, queries, self.grids, left_out)
        return multiply_scales(average_over_patches(distances[grid.scale.patch_size], grid) for grid in self.grids)

    def _best_share(self, fusion: Fusion, positions: PositionStatistics | None, critic: TrainedCritic) -> float:
        """Return the memory share that finds synthetic defects in held-out images best.

        Neither the critic nor the memory has seen these images, and the critic was not trained on these kinds of
        defects.
        """
        held_out = self._pixels(self.split.held_out)
        validation = ValidationSet.draw(held_out, self.config.seed, frame=self.config.frame)
        if not validation.has_defects:
            return best_share(dict.fromkeys(SHARES, 1.0))  # nothing to compare: the most even one
        known = torch.zeros(len(self.images), dtype=torch.bool)
        known[self.split.trained] = True
        whole = self.config.memory_size.is_whole
        memory = self.memory.searched_for(known) if whole else self._kept(self.every_patch.of_images(known))
        map_builder, progress = MapBuilder(memory, positions), stage(self.on_stage, "fusion")
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
