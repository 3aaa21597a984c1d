"""Some of the good images of a recalibration, to draw synthetic defects into."""

from __future__ import annotations

import math
from collections.abc import Container

import torch
from torch import Tensor

from patchsvdd.core.config import is_large
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.threshold_evidence import FEWEST_DEFECTS, GatheredEvidence, gather_evidence, images_for_evidence
from patchsvdd.scoring.anomaly_map import average_over_patches
from patchsvdd.scoring.repeated_search import RepeatedSearch


class KeptPixels:
    """Some of the good images, to draw synthetic defects into."""

    def __init__(self) -> None:
        self._pixels: list[Tensor] = []
        self._indices: list[int | None] = []
        self._digests: list[str] = []

    def add(self, pixels: Tensor, index: int | None, digest: str) -> None:
        """Keep an image (3, H, W), up to a number; images of another size than the first are left out."""
        most = images_for_evidence(pixels.shape[1] * pixels.shape[2])
        if len(self._pixels) < most and (not self._pixels or pixels.shape == self._pixels[0].shape):
            self._pixels.append(pixels)
            self._indices.append(index)
            self._digests.append(digest)

    def evidence(self, detector: PatchSVDD, median: float, distinct: Container[str]) -> GatheredEvidence:
        """Draw varied images and synthetic defects into images with ``distinct`` digests, and score them.

        The memory knows copies of its images, so their scores say nothing about new ones. If there are only copies
        among the images kept, they are used all the same.
        """
        places = [place for place, digest in enumerate(self._digests) if digest in distinct]
        places = places or list(range(len(self._pixels)))
        indices = [self._indices[place] for place in places]
        good = torch.stack([self._pixels[place] for place in places]).to(detector.device)
        config = detector.config
        search = RepeatedSearch()
        canvas = (int(good.shape[2]), int(good.shape[3]))
        height, width = detector.provenance["data"].get("original_size") or canvas
        content = config.placement((int(height), int(width))).content
        return gather_evidence(
            good,
            lambda pixels, place: _map(detector, search, pixels, indices[place]),
            median,
            defects=max(config.synthetic_defects, FEWEST_DEFECTS),
            seed=config.seed,
            min_area=detector.map_builder.min_area,
            frame=config.frame,
            pixel=math.sqrt(height * width / math.prod(content)),
        )


def _map(detector: PatchSVDD, search: RepeatedSearch, pixels: Tensor, index: int | None) -> Tensor:
    """Return the map (1, H, W) of pixels (3, H, W), against a memory without the patches of image ``index``."""
    size = (int(pixels.shape[1]), int(pixels.shape[2]))
    if is_large(*size):
        return detector.anomaly_maps(pixels[None], index).combined
    grids = detector.embedder.grids(size)
    with torch.inference_mode():
        marked = detector.marked(pixels[None])
        if marked is not None and detector.map_builder.ignores_memory:
            return detector.map_builder.of_critic(marked)
        distances = search.patch_distances(detector.memory, detector.embedder(pixels[None]), grids, index)
        scales = {grid.scale.patch_size: average_over_patches(distances[grid.scale.patch_size], grid) for grid in grids}
        return detector.map_builder.combine(scales, marked).combined
