from __future__ import annotations

import pytest
import torch
from torch import Tensor

from patchsvdd.core.memory_size import parse_memory_size
from patchsvdd.memory.bank import Memory, ScaleMemory
from patchsvdd.memory.coreset import select_coreset
from patchsvdd.memory.local_scale import LEAST, distance_to_other_images, learn_local_scale, local_scale_from

IMAGES, ROWS, COLUMNS, LENGTH = 4, 3, 5, 6


def some_memory(seed: int = 0) -> Memory:
    """Patches of four images; those of the last row scatter ten times as widely as the others."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randn(1, ROWS, COLUMNS, LENGTH, generator=generator) * 10
    scatter = torch.ones(1, ROWS, 1, 1)
    scatter[:, -1] = 10
    patches = place + scatter * torch.randn(IMAGES, ROWS, COLUMNS, LENGTH, generator=generator) * 0.1
    origins = torch.cartesian_prod(torch.arange(IMAGES), torch.arange(ROWS) * 4, torch.arange(COLUMNS) * 4).int()
    scale = ScaleMemory(patches.view(-1, LENGTH), origins)
    return Memory(tuple(f"{index}.png" for index in range(IMAGES)), {32: scale})


def by_hand(scale: ScaleMemory) -> Tensor:
    """Distance (M,) of every patch to the nearest one of another image."""
    distances = torch.cdist(scale.embeddings, scale.embeddings, compute_mode="donot_use_mm_for_euclid_dist")
    image = scale.origins[:, 0]
    distances[image[:, None] == image[None]] = torch.inf
    return distances.amin(1)


class TestReach:
    def test_other_images_alone_count(self) -> None:
        scale = some_memory().scales[32]
        torch.testing.assert_close(distance_to_other_images(scale), by_hand(scale))

    def test_a_mean_with_the_patches_around_and_the_middle_reach(self) -> None:
        distances = torch.rand(2 * ROWS * COLUMNS, generator=torch.Generator().manual_seed(1))
        found = local_scale_from(distances, (ROWS, COLUMNS)).view(2, ROWS, COLUMNS)
        maps = distances.view(2, ROWS, COLUMNS)
        steady = torch.empty_like(maps)
        for row in range(ROWS):
            for column in range(COLUMNS):
                around = maps[:, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2]
                steady[:, row, column] = around.mean((1, 2))
        torch.testing.assert_close(found, steady + steady.median())

    def test_without_a_grid_every_patch_is_by_itself(self) -> None:
        distances = torch.tensor([1.0, 2.0, 4.0])
        assert local_scale_from(distances, None).tolist() == [3.0, 4.0, 6.0]

    def test_images_that_are_all_alike(self) -> None:
        assert local_scale_from(torch.zeros(6), (2, 3)).tolist() == pytest.approx([LEAST] * 6)


class TestMemory:
    def test_scattered_patches_reach_farther(self) -> None:
        memory = learn_local_scale(some_memory())
        local_scale = memory.scales[32].local_scale
        assert local_scale is not None
        by_row = local_scale.view(IMAGES, ROWS, COLUMNS).mean((0, 2))
        assert by_row[0] < by_row[1] < by_row[2]  # the middle row lies beside the last

    def test_a_distance_is_measured_by_the_found_patch(self) -> None:
        plain, memory = some_memory().scales[32], learn_local_scale(some_memory()).scales[32]
        queries = torch.randn(7, LENGTH, generator=torch.Generator().manual_seed(2)) * 10
        distances, rows = plain.nearest(queries, without_image=1)
        assert memory.local_scale is not None
        assert torch.equal(memory.measure(queries, without_image=1), distances / memory.local_scale[rows])
        assert torch.equal(plain.measure(queries), plain.nearest(queries)[0])
        assert torch.equal(memory.nearest(queries)[0], plain.nearest(queries)[0]), "nearest is a distance as ever"

    def test_an_unusual_thread_no_longer_outdoes_a_defect_on_the_ground(self) -> None:
        plain, local = some_memory(), learn_local_scale(some_memory())
        ground = plain.scales[32].embeddings[:1] + 0.4  # far for the ground
        thread = plain.scales[32].embeddings[(ROWS - 1) * COLUMNS + 2 :][:1] + 0.6  # usual for a thread
        first, second = (memory.scales[32].measure(torch.cat((ground, thread))) for memory in (plain, local))
        assert first[0] < first[1]
        assert second[0] > second[1]

    def test_it_goes_where_its_patch_goes(self) -> None:
        whole = learn_local_scale(some_memory())
        scale = whole.scales[32]
        assert scale.local_scale is not None
        chosen = whole.of_images(torch.tensor([True, False, True, False])).scales[32]
        thinned = select_coreset(whole, parse_memory_size("20%")).scales[32]
        for part in (chosen, thinned, scale.without_graph(), scale.to(torch.device("cpu"))):
            assert part.local_scale is not None
            rows = scale.nearest(part.embeddings)[1]
            assert torch.equal(part.local_scale, scale.local_scale[rows])

    def test_progress_is_told(self) -> None:
        seen: list[tuple[int, int]] = []
        learn_local_scale(some_memory(), lambda done, total: seen.append((done, total)))
        assert seen == [(done, IMAGES) for done in range(1, IMAGES + 1)]

    def test_one_for_every_patch(self) -> None:
        scale = some_memory().scales[32]
        with pytest.raises(ValueError, match="local scales of 2"):
            scale.with_local_scale(torch.ones(2))
