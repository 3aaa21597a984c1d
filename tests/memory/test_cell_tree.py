"""A tree of cells holds every distinct vector, rounded finely."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.memory import cell_tree
from patchsvdd.memory.cell_tree import CELL, LARGEST, WINDOW, build_tree, kmeans, nearest_center
from patchsvdd.memory.cells import arrange


def clusters(count: int, length: int, spread: float, seed: int) -> Tensor:
    """Vectors (count, length) in tight clusters, some of them equal."""
    generator = torch.Generator().manual_seed(seed)
    middle = torch.randn(20, length, generator=generator)
    which = torch.randint(0, 20, (count,), generator=generator)
    vectors = middle[which] + spread * torch.randn(count, length, generator=generator)
    vectors[::7] = vectors[0].clone()
    return vectors


@settings(max_examples=20)
@given(rows=st.integers(1, 3000), length=st.sampled_from([1, 7, 64]), spread=st.sampled_from([0.0, 1e-4, 0.1]))
def test_every_vector_is_near_a_row(rows: int, length: int, spread: float) -> None:
    vectors = clusters(rows, length, spread, rows)
    tree = build_tree(vectors)
    stored = torch.from_numpy(tree.offsets) + torch.from_numpy(tree.centers).float()[:, None]
    steps = torch.from_numpy(tree.steps).float()
    flat = stored.flatten(0, 1)
    nearest = torch.cdist(vectors.double(), flat.double()).amin(1)
    # Half a step in every number, and the rounding of float32.
    assert nearest.max() <= steps.norm(dim=1).max() * 0.51 + 1e-5
    assert np.abs(tree.rows.astype(int)).max() <= LARGEST
    assert len(tree.first) == len(tree.clusters)
    sizes = np.diff(np.append(tree.first, len(tree.centers)))
    assert sizes.min() >= 1
    assert sizes.max() <= WINDOW


def test_copies_are_kept_once() -> None:
    vectors = torch.randn((100, 8), generator=torch.Generator().manual_seed(0)).repeat(50, 1)
    assert build_tree(vectors).rows.shape[0] <= 100 // CELL + 1


def test_a_tree_is_the_same_again() -> None:
    vectors = clusters(3000, 16, 0.1, 0)
    first, again = build_tree(vectors), build_tree(vectors)
    for name in ("clusters", "first", "centers", "steps", "rows"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))


def test_a_large_cluster_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_tree, "CLUSTER", 100_000)
    tree = build_tree(torch.randn((5000, 4), generator=torch.Generator().manual_seed(0)))
    assert len(tree.first) == -(-5000 // (CELL * WINDOW))


def test_kmeans_finds_separate_clusters() -> None:
    generator = torch.Generator().manual_seed(1)
    middle = 10 * torch.randn((5, 8), generator=generator)
    vectors = (middle[:, None] + 0.1 * torch.randn((5, 200, 8), generator=generator)).flatten(0, 1)
    centers = kmeans(vectors, 40, seed=0)
    distance = (vectors - centers[nearest_center(vectors, centers)]).norm(dim=1)
    assert distance.max() < 1


def test_cells_do_not_cross_groups() -> None:
    vectors = clusters(2000, 8, 0.5, 3)
    group = torch.randint(0, 9, (2000,), generator=torch.Generator().manual_seed(3)) * 2  # some groups are empty
    cells = arrange(vectors, 32, group)
    places = cells.rows.view(-1, 32)
    owner = torch.where(places < 0, places[:, :1], places)
    assert (group[owner] == group[owner[:, :1]]).all()
    assert sorted(cells.rows[cells.rows >= 0].tolist()) == list(range(2000))
    assert (group[owner[:, 0]].diff() >= 0).all()
