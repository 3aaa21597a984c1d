"""The fused GPU search, run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from patchsvdd.core import triton_support as kernels
from patchsvdd.memory import gpu_search
from patchsvdd.memory.bank import exact_search
from patchsvdd.memory.cells import arrange
from patchsvdd.memory.exact_search import ExactSearch
from patchsvdd.memory.gpu_search import FusedSearch, fused_search_runs_on

pytestmark = pytest.mark.interpreter

needs_triton = pytest.mark.skipif(not kernels.available(), reason="Triton is not installed")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def clustered(seed: int, count: int, length: int = 16) -> Tensor:
    """Vectors around a few centres, as embeddings of an image's parts are."""
    generator = torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn((12, length), generator=generator)
    which = torch.randint(12, (count,), generator=generator)
    return (centers[which] + 0.2 * torch.randn((count, length), generator=generator)).to(DEVICE)


class TestCells:
    @pytest.mark.parametrize("count", [1, 7, 64, 65, 300, 1000])
    def test_every_row_lies_in_one_cell(self, count: int) -> None:
        cells = arrange(clustered(0, count), 64)
        rows = cells.rows[cells.rows >= 0]
        assert sorted(rows.tolist()) == list(range(count))
        assert cells.count == -(-count // 64)

    def test_radii_reach_every_vector(self) -> None:
        vectors = clustered(1, 500)
        cells = arrange(vectors, 32)
        for number, rows in enumerate(cells.rows.view(-1, 32)):
            held = vectors[rows[rows >= 0]]
            farthest = (held - cells.centers[number]).norm(dim=1).amax()
            assert farthest <= cells.radii[number] * (1 + 1e-5)
            torch.testing.assert_close(cells.centers[number], held.mean(0))

    def test_cells_are_tighter_than_chance(self) -> None:
        vectors = clustered(2, 2000)
        spread = (vectors - vectors.mean(0)).norm(dim=1).mean()
        assert arrange(vectors, 32).radii.median() < 0.4 * spread

    def test_equal_vectors_make_cells_of_radius_zero(self) -> None:
        assert arrange(torch.ones((100, 8)), 16).radii.amax() == 0


@needs_triton
class TestFusedSearch:
    @pytest.mark.parametrize("count", [3, 64, 700])
    def test_equals_exact_search(self, count: int) -> None:
        vectors, queries = clustered(0, count), clustered(1, 90)
        distance, row = FusedSearch(vectors).nearest(queries)
        expected, expected_row = ExactSearch(vectors).nearest(queries)
        torch.testing.assert_close(distance, expected, rtol=1e-5, atol=1e-6)
        tied = (distance - expected).abs() <= 1e-6 * (1 + expected)
        assert bool(((row == expected_row) | tied).all())

    def test_a_stored_vector_is_at_distance_zero(self) -> None:
        vectors = clustered(3, 400)
        distance, row = FusedSearch(vectors).nearest(vectors[::7])
        assert distance.max() == 0
        assert torch.equal(vectors[row], vectors[::7])

    def test_duplicates_and_far_queries(self) -> None:
        vectors = clustered(4, 300)
        vectors[50:150] = vectors[0]
        queries = torch.cat((vectors[40:60], 30 * clustered(5, 10)))
        expected = ExactSearch(vectors).nearest(queries)[0]
        torch.testing.assert_close(FusedSearch(vectors).nearest(queries)[0], expected, rtol=1e-5, atol=1e-5)

    def test_rows_left_out_are_never_found(self) -> None:
        vectors = clustered(6, 600)
        spans = [(0, 200), (320, 600)]
        queries = vectors[200:320:3]
        distance, row = FusedSearch(vectors).nearest(queries, spans)
        assert not bool(((row >= 200) & (row < 320)).any())
        torch.testing.assert_close(distance, ExactSearch(vectors).nearest(queries, spans)[0], rtol=1e-5, atol=1e-6)

    def test_a_query_whose_whole_cell_is_left_out(self) -> None:
        own = 50 + 0.01 * clustered(7, 200)  # far from all others: their cells hold nothing else
        vectors = torch.cat((clustered(8, 300), own))
        spans = [(0, 300)]
        distance, row = FusedSearch(vectors).nearest(own[:20], spans)
        assert int(row.max()) < 300
        torch.testing.assert_close(distance, ExactSearch(vectors).nearest(own[:20], spans)[0], rtol=1e-5, atol=1e-5)

    def test_no_query_and_no_vector(self) -> None:
        search = FusedSearch(clustered(9, 100))
        distance, row = search.nearest(torch.empty((0, 16), device=DEVICE))
        assert len(distance) == len(row) == 0
        with pytest.raises(ValueError, match="no vector to search"):
            search.nearest(clustered(9, 2), [(5, 5)])

    def test_one_range_may_be_left_out(self) -> None:
        with pytest.raises(ValueError, match="leave out 2"):
            FusedSearch(clustered(9, 100)).nearest(clustered(9, 2), [(0, 10), (20, 30), (40, 100)])

    def test_tiles_do_not_matter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vectors, queries = clustered(10, 500), clustered(11, 70)
        before = FusedSearch(vectors).nearest(queries)[0]
        monkeypatch.setattr(gpu_search, "FEWEST", 2)
        monkeypatch.setattr(gpu_search, "EVEN_PROGRAMS", 1)
        monkeypatch.setattr(gpu_search, "TILE", 16)
        assert torch.equal(FusedSearch(vectors).nearest(queries)[0], before)


def test_a_cpu_searches_plainly() -> None:
    vectors = torch.rand((10, 16))
    assert not fused_search_runs_on(vectors)
    assert isinstance(exact_search(vectors), ExactSearch)
