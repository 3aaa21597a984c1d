"""The procedure of the authors' code, implemented naively: the baseline for speed comparisons.

Every patch is cut out and encoded, every query is searched separately, and every patch's distance is added to the
pixels it covers. ``batch`` is the number of patches encoded together: 1, as the paper describes it, or 2,048 as in the
authors' code.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.memory.bank import ScaleMemory
from patchsvdd.memory.graph_search import GraphSearch

CANDIDATES = 32
"""Candidates kept by a graph search; the authors' library finds the nearest patch about as often."""


def inspect_patch_by_patch(detector: PatchSVDD, pixels: Tensor, batch: int) -> tuple[Tensor, dict[str, float]]:
    """Anomaly map (H, W) of pixels (1, 3, H, W) in 0 … 255, and the seconds of encoding, search and map."""
    image = detector.normalization(pixels)
    seconds = {"encode": 0.0, "search": 0.0, "map": 0.0}
    product = torch.ones(image.shape[2:])
    for grid in detector.embedder.grids((image.shape[2], image.shape[3])):
        start = time.perf_counter()
        embeddings = _encode(detector, image, grid, batch)
        encoded = time.perf_counter()
        distances = _search(detector.memory.scales[grid.scale.patch_size], embeddings)
        searched = time.perf_counter()
        product *= _average_over_patches(distances, grid)
        seconds["encode"] += encoded - start
        seconds["search"] += searched - encoded
        seconds["map"] += time.perf_counter() - searched
    return product, seconds


def _encode(detector: PatchSVDD, image: Tensor, grid: PatchGrid, batch: int) -> Tensor:
    """Embeddings (patches, D)."""
    size = grid.scale.patch_size
    embeddings, waiting = [], []
    corners = [(row, column) for row in grid.rows for column in grid.columns]
    with torch.inference_mode():
        for index, (row, column) in enumerate(corners):
            waiting.append(image[0, :, row : row + size, column : column + size])
            if len(waiting) == batch or index + 1 == len(corners):
                embeddings.append(detector.encoder.encode({size: torch.stack(waiting)})[size])
                waiting = []
    return torch.cat(embeddings)


def _search(memory: ScaleMemory, embeddings: Tensor) -> list[float]:
    """Distance of each embedding to its nearest neighbour in the memory, one query at a time."""
    if not isinstance(memory.graph, GraphSearch):
        return [float(memory.nearest(query[None])[0][0]) for query in embeddings]
    distance = memory.graph.one_by_one(CANDIDATES)
    return [distance(query[None]) for query in embeddings]


def _average_over_patches(distances: list[float], grid: PatchGrid) -> Tensor:
    """Map (H, W): the mean distance of the patches that cover a pixel; 0 for uncovered pixels (odd sizes)."""
    size = grid.scale.patch_size
    total, count = np.zeros(grid.image_size), np.zeros(grid.image_size)
    corners = [(row, column) for row in grid.rows for column in grid.columns]
    for (row, column), distance in zip(corners, distances, strict=True):
        total[row : row + size, column : column + size] += distance
        count[row : row + size, column : column + size] += 1
    return torch.from_numpy((total / np.maximum(count, 1)).astype(np.float32))
