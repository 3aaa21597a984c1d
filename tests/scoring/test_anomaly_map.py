from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.core.scales import Scale
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.scoring.anomaly_map import average_over_patches, image_score, multiply_scales


@st.composite
def grids(draw: st.DrawFn) -> PatchGrid:
    alignment = draw(st.sampled_from([2, 8]))
    patch_size = draw(st.sampled_from([8, 16, 24]))
    stride = draw(st.integers(1, patch_size // alignment)) * alignment
    return PatchGrid((draw(st.integers(24, 50)), draw(st.integers(24, 50))), Scale(patch_size, stride), alignment)


def spread_by_loop(distances: Tensor, grid: PatchGrid) -> Tensor:
    """(H, W): the mean over patches, one by one, in float64."""
    size = grid.scale.patch_size
    total = torch.zeros(grid.image_size, dtype=torch.float64)
    count = torch.zeros(grid.image_size)
    for row, top in enumerate(grid.rows):
        for column, left in enumerate(grid.columns):
            total[top : top + size, left : left + size] += distances[row, column]
            count[top : top + size, left : left + size] += 1
    spread = total / count
    # The few pixels beyond the last patch (less than the alignment) take their neighbours' value.
    bottom, right = grid.rows[-1] + size, grid.columns[-1] + size
    spread[bottom:] = spread_edge(distances[-1:], grid, bottom)
    spread[:, right:] = spread_edge(distances[:, -1:].T, transposed(grid), right).T
    if bottom < grid.image_size[0] and right < grid.image_size[1]:
        spread[bottom:, right:] = float(distances[-1, -1])
    return spread


def spread_edge(distances: Tensor, grid: PatchGrid, bottom: int) -> Tensor:
    """(H − bottom, W): along the edge only the last row of patches counts."""
    size = grid.scale.patch_size
    total, count = torch.zeros(grid.image_size[1], dtype=torch.float64), torch.zeros(grid.image_size[1])
    for column, left in enumerate(grid.columns):
        total[left : left + size] += distances[0, column]
        count[left : left + size] += 1
    total[grid.columns[-1] + size :], count[grid.columns[-1] + size :] = float(distances[0, -1]), 1
    return (total / count).expand(grid.image_size[0] - bottom, -1)


def transposed(grid: PatchGrid) -> PatchGrid:
    return PatchGrid((grid.image_size[1], grid.image_size[0]), grid.scale, grid.alignment)


@given(grids(), st.floats(0, 100, width=32))
def test_the_average_of_a_constant_is_that_constant(grid: PatchGrid, value: float) -> None:
    spread = average_over_patches(torch.full((1, *grid.shape), value), grid)
    assert spread.shape == (1, *grid.image_size)
    torch.testing.assert_close(spread, torch.full_like(spread, value), rtol=1e-5, atol=1e-6)


@given(grids(), st.integers(0, 1000))
def test_equals_a_loop_over_patches(grid: PatchGrid, seed: int) -> None:
    distances = torch.rand(2, *grid.shape, generator=torch.Generator().manual_seed(seed))
    spread = average_over_patches(distances, grid)
    for one, expected in zip(spread, distances, strict=True):
        torch.testing.assert_close(one.double(), spread_by_loop(expected, grid), rtol=1e-5, atol=1e-6)


def test_a_single_hot_patch_lights_its_own_pixels() -> None:
    grid = PatchGrid((96, 96), Scale(32, 32), 2)
    distances = torch.zeros(1, 3, 3)
    distances[0, 1, 2] = 5.0
    expected = torch.zeros(96, 96)
    expected[32:64, 64:96] = 5.0
    torch.testing.assert_close(average_over_patches(distances, grid)[0], expected)


@given(st.integers(1, 4), st.integers(0, 100))
def test_scales_are_multiplied(scales: int, seed: int) -> None:
    maps = torch.rand(scales, 2, 5, 7, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(multiply_scales(maps), maps.prod(0))


def test_the_score_is_the_maximum() -> None:
    maps = torch.zeros(2, 4, 5)
    maps[0, 3, 1], maps[1, 0, 4] = 2.0, 7.0
    assert image_score(maps).tolist() == [2.0, 7.0]


def test_a_map_of_one_patch() -> None:
    grid = PatchGrid((33, 33), Scale(32, 4), 2)
    torch.testing.assert_close(average_over_patches(torch.full((1, 1, 1), 3.0), grid), torch.full((1, 33, 33), 3.0))
