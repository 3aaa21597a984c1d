from __future__ import annotations

import pytest
import torch
from torch import Tensor

from patchsvdd.core.presets import preset
from patchsvdd.encoder.networks import build_encoder, grids_for
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.memory.bank import Memory, build_memory
from patchsvdd.scoring.anomaly_map import average_over_patches, image_score
from patchsvdd.scoring.fusion import Fusion
from patchsvdd.scoring.map_builder import MapBuilder, embeddings_of
from patchsvdd.scoring.position_statistics import PositionStatistics

SIZE = (64, 72)
CONFIG = preset("encoder", image_size=SIZE, encoder="random", embedding_dim=8)
GRIDS = grids_for(build_encoder(CONFIG), CONFIG, SIZE)


@pytest.fixture(scope="module")
def memory() -> Memory:
    images = torch.randn(3, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    return build_memory(build_encoder(CONFIG), images, ("a", "b", "c"), GRIDS)


@pytest.fixture(scope="module")
def scales(memory: Memory) -> dict[int, Tensor]:
    """Maps of two images, by scale."""
    generator = torch.Generator().manual_seed(1)
    queries = [torch.randn(2, grid.shape[0] * grid.shape[1], 8, generator=generator) for grid in GRIDS]
    return MapBuilder(memory).distances(queries, GRIDS)


@pytest.fixture(scope="module")
def marked() -> Tensor:
    """What a critic might have marked in two images."""
    return torch.rand((2, *SIZE), generator=torch.Generator().manual_seed(2))


def size_of(grid: PatchGrid) -> int:
    return grid.scale.patch_size


def test_distances_are_those_to_the_nearest_patch(memory: Memory) -> None:
    queries = [torch.randn(2, grid.shape[0] * grid.shape[1], 8) for grid in GRIDS]
    found = MapBuilder(memory).distances(queries, GRIDS)
    assert list(found) == [32, 64]
    for grid, query in zip(GRIDS, queries, strict=True):
        distances = memory.scales[size_of(grid)].nearest(query.flatten(0, 1))[0].view(2, *grid.shape)
        torch.testing.assert_close(found[size_of(grid)], average_over_patches(distances, grid))
        assert found[size_of(grid)].shape == (2, *SIZE)


def test_embeddings_of_an_image_are_its_own(memory: Memory) -> None:
    map_builder = MapBuilder(memory)
    for index in range(3):
        queries = embeddings_of(memory, index, GRIDS)
        for grid, query in zip(GRIDS, queries, strict=True):
            assert query.shape == (1, grid.shape[0] * grid.shape[1], 8)
        assert all(float(one.max()) == 0 for one in map_builder.distances(queries, GRIDS).values())
        assert all(float(one.min()) > 0 for one in map_builder.distances(queries, GRIDS, without_image=index).values())
        others = torch.arange(3) != index
        left = MapBuilder(memory.of_images(others)).distances(queries, GRIDS)
        for size, one in map_builder.distances(queries, GRIDS, without_image=index).items():
            torch.testing.assert_close(one, left[size])


def test_the_memory_alone_is_the_product_of_the_scales(memory: Memory, scales: dict[int, Tensor]) -> None:
    maps = MapBuilder(memory).combine(scales)
    torch.testing.assert_close(maps.combined, scales[32] * scales[64])
    assert torch.equal(maps.scores, image_score(maps.combined))
    assert maps.scales == scales
    assert maps.parts == {}


def test_places_come_before_the_fusion(memory: Memory, scales: dict[int, Tensor], marked: Tensor) -> None:
    positions = PositionStatistics.fit(torch.rand(4, *SIZE))
    product = positions.apply(scales[32] * scales[64])
    fusion = Fusion.fit(product, marked, share=0.25)
    maps = MapBuilder(memory, positions, fusion).combine(scales, marked)
    torch.testing.assert_close(maps.parts["memory"], product)
    assert torch.equal(maps.parts["critic"], marked)
    torch.testing.assert_close(maps.combined, fusion(product, marked))
    assert torch.equal(maps.scores, image_score(maps.combined))


def test_without_what_the_critic_marked_nothing_is_fused(
    memory: Memory, scales: dict[int, Tensor], marked: Tensor
) -> None:
    product = scales[32] * scales[64]
    maps = MapBuilder(memory, fusion=Fusion.fit(product, marked)).combine(scales)
    torch.testing.assert_close(maps.combined, product)
    assert maps.parts == {}


def test_on_a_device_it_is_the_same(memory: Memory, scales: dict[int, Tensor], marked: Tensor) -> None:
    positions = PositionStatistics.fit(torch.rand(4, *SIZE))
    map_builder = MapBuilder(memory, positions, Fusion.fit(scales[32], marked))
    moved = map_builder.to(torch.device("cpu"))
    assert moved.fusion == map_builder.fusion
    assert torch.equal(moved.combine(scales, marked).combined, map_builder.combine(scales, marked).combined)
