"""A search that repeats only what changed."""

from __future__ import annotations

import pytest
import torch

from patchsvdd.core.scales import Scale
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.memory.bank import Memory, ScaleMemory
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.repeated_search import RepeatedSearch

GRIDS = [PatchGrid((64, 64), Scale(32, 4), 4), PatchGrid((64, 64), Scale(64, 16), 4)]
IMAGES = 3


@pytest.fixture
def memory() -> Memory:
    generator = torch.Generator().manual_seed(0)
    scales = {}
    for grid in GRIDS:
        rows = torch.randn((IMAGES * grid.count, 8), generator=generator)
        origins = torch.tensor([[image, place, 0] for image in range(IMAGES) for place in range(grid.count)])
        scales[grid.scale.patch_size] = ScaleMemory(rows, origins.int())
    return Memory(tuple("abc"), scales)


def embedded(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn((1, grid.count, 8), generator=generator) for grid in GRIDS]


def changed(queries: list[torch.Tensor], patches: int) -> list[torch.Tensor]:
    """The queries with some patches of the first grid replaced."""
    new = [query.clone() for query in queries]
    new[0][0, :patches] += 1
    return new


def same(first: dict[int, torch.Tensor], second: dict[int, torch.Tensor]) -> bool:
    return all(torch.equal(first[size], second[size]) for size in (32, 64))


@pytest.mark.parametrize("without", [None, 1])
@pytest.mark.parametrize("patches", [0, 1, 20, 81])
def test_distances_are_those_of_a_whole_search(memory: Memory, patches: int, without: int | None) -> None:
    search, base = RepeatedSearch(), embedded(1)
    whole = MapBuilder(memory)
    assert same(search.patch_distances(memory, base, GRIDS, without), whole.patch_distances(base, GRIDS, without))
    for queries in (changed(base, patches), base, changed(base, patches // 2)):
        found = search.patch_distances(memory, queries, GRIDS, without)
        assert same(found, whole.patch_distances(queries, GRIDS, without))


def test_only_changed_patches_are_searched(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    measure = ScaleMemory.measure

    def counted(self: ScaleMemory, queries: torch.Tensor, *options: object) -> torch.Tensor:
        searched.append(len(queries))
        return measure(self, queries, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(ScaleMemory, "measure", counted)
    search, base = RepeatedSearch(), embedded(1)
    search.patch_distances(memory, base, GRIDS)
    search.patch_distances(memory, changed(base, 5), GRIDS)
    assert searched == [GRIDS[0].count, GRIDS[1].count, 5]


def test_another_image_or_memory_starts_again(memory: Memory) -> None:
    search, base = RepeatedSearch(), embedded(1)
    search.patch_distances(memory, base, GRIDS, 0)
    assert same(search.patch_distances(memory, base, GRIDS, 2), MapBuilder(memory).patch_distances(base, GRIDS, 2))
    other = Memory(memory.image_names, {size: scale.of_rows(torch.arange(2)) for size, scale in memory.scales.items()})
    assert same(search.patch_distances(other, base, GRIDS), MapBuilder(other).patch_distances(base, GRIDS))
