"""Embeddings of training images under a trained encoder, and their intrinsic dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.core.config import Config, Objective
from patchsvdd.core.device import reproducible
from patchsvdd.core.extras import require
from patchsvdd.encoder.networks import grids_for, rows_of
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.paper.study import Study
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.normalization import Normalization

LOSSES: dict[str, Objective] = {"L_SVDD": "svdd", "L_SVDD′": "svdd-prime", "L_SVDD′ + L_SSL": "patch-svdd"}
DIMENSION_POINTS = 5000
"""Number of embeddings used to estimate an intrinsic dimension."""
IMAGES = 60
"""Number of training images to embed."""
FEWEST = 20
"""With fewer distinct embeddings than this, the encoder counts as collapsed."""


@dataclass(frozen=True)
class EmbeddingSample:
    """Embeddings of every patch of training images, and the position of each patch in its image."""

    embeddings: dict[int, NDArray[np.float32]]
    """Patch size → (N, D)."""
    centers: dict[int, NDArray[np.float64]]
    """Patch size → (N, 2): row and column of the patch's centre relative to the image's centre, 1 at the corners."""

    @property
    def is_collapsed(self) -> bool:
        """Whether the embeddings of the largest patches are (nearly) all the same."""
        return len(np.unique(self.of_largest[:: max(1, len(self.of_largest) // 2000)], axis=0)) < FEWEST

    @property
    def of_largest(self) -> NDArray[np.float32]:
        """The embeddings of the largest patches."""
        return self.embeddings[max(self.embeddings)]


def remember(study: Study, category: Path, config: Config, name: str, compute: Callable[[], Any]) -> Any:
    """What ``compute`` finds in the embeddings, stored or computed now; None if the training of the encoder collapsed.

    ``name`` distinguishes everything that it depends on besides the encoder.
    """
    if study.result_of(category, config).data["training"].get("collapsed"):
        return None
    return study.store.remember(Experiment(category, config, calibrated=False), name, compute)


def intrinsic_dimensions(study: Study, category: Path, config: Config) -> dict[str, float | None]:
    """Patch size → intrinsic dimension of the embeddings; None for a collapsed encoder. Computed once."""

    def estimate() -> dict[str, float | None]:
        sample = sample_embeddings(study, category, config)
        return {str(size): intrinsic_dimension(embeddings) for size, embeddings in sample.embeddings.items()}

    name = f"intrinsic-dimension-{IMAGES}-{DIMENSION_POINTS}"
    found: dict[str, float | None] | None = remember(study, category, config, name, estimate)
    return dict.fromkeys((str(scale.patch_size) for scale in config.scales), None) if found is None else found


def sample_embeddings(study: Study, category: Path, config: Config, images: int = IMAGES) -> EmbeddingSample:
    """The embeddings of the first ``images`` training images under the trained encoder."""
    experiment = Experiment(category, config).sized()
    loaded = load_good_images(category, experiment.config)
    encoder, _ = study.store.encoder(experiment, loaded)
    encoder = encoder.eval().requires_grad_(False)
    normalization = Normalization.fit(loaded.pixels, config)
    grids = grids_for(encoder, config, loaded.size)
    count = min(images, len(loaded))
    parts: dict[int, list[torch.Tensor]] = {grid.scale.patch_size: [] for grid in grids}
    for pixels in loaded.pixels[:count]:
        with torch.inference_mode(), reproducible():
            maps = encoder.dense(normalization(pixels[None]).to(study.store.device), grids)
        for grid, one in zip(grids, maps, strict=True):
            parts[grid.scale.patch_size].append(rows_of(one)[0].cpu())
    centers = {}
    half = np.array(loaded.size) / 2
    for grid in grids:
        corner = np.stack(np.meshgrid(grid.rows, grid.columns, indexing="ij"), axis=-1).reshape(-1, 2)
        offset = corner + grid.scale.patch_size / 2 - half
        centers[grid.scale.patch_size] = np.tile(offset / np.hypot(*half), (count, 1))
    return EmbeddingSample({size: torch.cat(one).numpy() for size, one in parts.items()}, centers)


def intrinsic_dimension(embeddings: NDArray[np.float32], points: int = DIMENSION_POINTS) -> float | None:
    """TwoNN (Facco et al. 2017) of at most ``points`` of the embeddings (N, D); None if too few of them are distinct.

    The estimator of the paper's Fig. 11 and 15: it derives the dimension from the ratio of the distances to the two
    nearest neighbours.
    """
    estimator = require("skdim.id", "paper", "the intrinsic dimension").TwoNN()
    chosen = np.random.default_rng(0).permutation(len(embeddings))[:points]
    distinct = np.unique(embeddings[chosen].astype(np.float64), axis=0)  # equal points would be at distance 0
    if len(distinct) < FEWEST:
        return None
    return float(estimator.fit(distinct).dimension_)
