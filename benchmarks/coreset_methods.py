"""Coreset methods that ``benchmarks/thinning.py`` compares with the one that ``--memory`` uses."""

from __future__ import annotations

import torch
from torch import Tensor

from patchsvdd.core.progress import OnProgress
from patchsvdd.memory.bank import ScaleMemory
from patchsvdd.memory.coreset import (
    coreset_rows,
    first_minimum,
    group_means,
    k_center,
    nearest_center,
    nearest_to_cell_means,
    squared_to_own,
)

METHODS = ("k-center", "settled", "per-place", "k-means", "random")
"""``settled`` is the method of ``--memory``."""


def choose_rows(
    scale: ScaleMemory, count: int, method: str, seed: int = 0, on_progress: OnProgress | None = None
) -> Tensor:
    """Rows (count,) int64 of one scale, in the order of the named method; all rows for a full count."""
    vectors = scale.embeddings
    if count >= len(vectors):
        return torch.arange(len(vectors), device=vectors.device)
    if method == "k-center":
        return k_center(vectors, count, on_progress)
    if method == "settled":
        return coreset_rows(vectors, count, on_progress)
    if method == "per-place":
        return per_place(vectors, scale.origins, count, on_progress)
    if method == "k-means":
        return k_means(vectors, count, seed, on_progress=on_progress)
    if method == "random":
        return random_rows(vectors, count, seed)
    raise ValueError(f"unknown coreset method '{method}'; choose one of: {', '.join(METHODS)}")


def random_rows(vectors: Tensor, count: int, seed: int = 0) -> Tensor:
    """Rows (count,) int64 of vectors (M, D) drawn without replacement; a shorter draw is the start of a longer one."""
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))
    return order[:count].to(vectors.device)


def k_means(
    vectors: Tensor,
    count: int,
    seed: int = 0,
    iterations: int = 4,
    start: Tensor | None = None,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """Ascending rows int64: for each of ``count`` cells, the row nearest its mean; none for an empty cell.

    Lloyd's iterations from the rows ``start``, or from random rows if None.
    """
    means = vectors[random_rows(vectors, count, seed) if start is None else start]
    for iteration in range(iterations - 1):
        means = group_means(vectors, nearest_center(vectors, means), means)
        if on_progress is not None:
            on_progress(count * (iteration + 1) // iterations, count)
    rows = nearest_to_cell_means(vectors, means)
    if on_progress is not None:
        on_progress(count, count)
    return rows


def per_place(vectors: Tensor, origins: Tensor, count: int, on_progress: OnProgress | None = None) -> Tensor:
    """Rows int64 of vectors (M, D), the same number at each position (top, left) of the image, from origins (M, 3).

    At each position first the row nearest the mean of the position, then greedily the farthest from those before it.
    The last round is filled with the positions whose next row is farthest. Returns fewer than ``count`` rows if all
    others are exact duplicates.
    """
    place = torch.unique(origins[:, 1:].to(vectors.device), dim=0, return_inverse=True)[1]  # (M,)
    places = int(place.max()) + 1
    means = group_means(vectors, place, vectors.new_zeros((places, vectors.shape[1])))
    chosen = first_minimum(squared_to_own(vectors, means, place), place, places)  # (places,)
    squared = squared_to_own(vectors, vectors[chosen], place)
    turns = [chosen[squared[first_minimum(-squared, place, places)].argsort(descending=True, stable=True)]]
    done = places
    while done < count:
        chosen = first_minimum(-squared, place, places)
        radius, turn = squared[chosen].sort(descending=True, stable=True)
        turn = turn[radius > 0]
        if len(turn) == 0:
            break
        turns.append(chosen[turn])
        done += len(turn)
        squared = torch.minimum(squared, squared_to_own(vectors, vectors[chosen], place))
        if on_progress is not None:
            on_progress(min(done, count), count)
    return torch.cat(turns)[:count]
