"""A search that skips cells finds what comparing with every vector finds, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.memory import cell_search
from patchsvdd.memory.bank import exact_search
from patchsvdd.memory.cell_search import CellSearch, cell_search_runs_on
from patchsvdd.memory.exact_search import ExactSearch

pytest.importorskip("faiss")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def clusters(count: int, length: int, spread: float, seed: int) -> Tensor:
    """Vectors (count, length) in tight clusters, some of them equal."""
    generator = torch.Generator().manual_seed(seed)
    middle = torch.randn(20, length, generator=generator).tanh()
    which = torch.randint(0, 20, (count,), generator=generator)
    vectors = middle[which] + spread * torch.randn(count, length, generator=generator)
    vectors[::7] = vectors[0].clone()
    return vectors


def assert_same(vectors: Tensor, queries: Tensor) -> CellSearch:
    search = CellSearch(vectors)
    search._asked = cell_search.PAYS_AFTER
    distances, rows = search.nearest(queries)
    expected, expected_rows = ExactSearch(vectors).nearest(queries)
    assert torch.equal(distances, expected)
    assert torch.equal(rows, expected_rows)
    return search


@given(
    rows=st.integers(1, 2000),
    queries=st.integers(0, 40),
    length=st.sampled_from([1, 2, 7, 16, 64]),
    spread=st.sampled_from([0.0, 1e-6, 0.01, 1.0]),
    offset=st.sampled_from([0.0, 100.0]),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 1000),
)
def test_equals_comparing_with_every_vector(
    rows: int, queries: int, length: int, spread: float, offset: float, size: float, seed: int
) -> None:
    vectors = size * clusters(rows, length, spread, seed) + offset
    known = vectors[torch.randint(0, rows, (queries,), generator=torch.Generator().manual_seed(seed))]
    assert_same(vectors, known + size * 0.1 * random(queries, length, seed=seed + 1))
    assert_same(vectors, known)  # at distance 0
    assert_same(vectors, size * random(queries, length, seed=seed + 2) + offset)


def test_most_cells_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    compare = cell_search._Lists._compare

    def counted(lists: Any, queries: Tensor, cells: Tensor, count: int) -> tuple[Tensor, Tensor]:
        nonlocal compared
        compared += int((cells >= 0).sum())
        return compare(lists, queries, cells, count)

    monkeypatch.setattr(cell_search._Lists, "_compare", counted)
    vectors = clusters(50_000, 32, 0.05, 0)
    queries = vectors[::500] + 0.01 * random(100, 32)
    assert_same(vectors, queries)
    assert compared < 0.1 * len(queries) * len(vectors) / cell_search.CELL


def test_many_queries_are_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_search, "AT_ONCE", 100)
    monkeypatch.setattr(cell_search, "TOGETHER", 7)
    assert_same(clusters(3000, 16, 0.1, 1), random(333, 16))


def test_more_equally_near_vectors_than_are_found() -> None:
    """Their squares differ by less than FAISS can tell, so all vectors decide."""
    around = torch.eye(16)
    assert_same(torch.cat((around, -around, random(500, 16) + 5)), torch.zeros((3, 16)))


def test_queries_that_are_no_numbers_do_not_disturb_the_others() -> None:
    vectors, queries = clusters(2000, 16, 0.1, 2), random(5, 16)
    search = assert_same(vectors, queries)
    broken = queries.clone()
    broken[1] = torch.nan
    distances, rows = search.nearest(broken)
    good = torch.tensor([0, 2, 3, 4])
    assert torch.equal(distances[good], ExactSearch(vectors).nearest(queries)[0][good])
    assert bool(distances[1].isnan())
    assert 0 <= int(rows[1]) < len(vectors)


def test_the_first_queries_do_without_cells() -> None:
    search = CellSearch(clusters(2000, 16, 0.1, 3))
    search.nearest(random(cell_search.PAYS_AFTER - 1, 16))
    assert search._lists is None
    search.nearest(random(1, 16))
    assert search._lists is not None


def test_spans_are_searched_as_ever() -> None:
    vectors, queries = clusters(2000, 16, 0.1, 4), random(9, 16)
    search = assert_same(vectors, queries)
    spans = [(0, 100), (1500, 2000)]
    for found, expected in zip(
        search.nearest(queries, spans), ExactSearch(vectors).nearest(queries, spans), strict=True
    ):
        assert torch.equal(found, expected)


def test_a_large_memory_is_searched_so(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = random(2000, 16)
    assert isinstance(exact_search(vectors), ExactSearch)
    monkeypatch.setattr(cell_search, "MIN_ROWS", 2000)
    assert cell_search_runs_on(vectors)
    assert isinstance(exact_search(vectors), CellSearch)
    assert not cell_search_runs_on(random(2000, 300))
    monkeypatch.setattr(cell_search, "has_faiss", lambda: False)
    assert isinstance(exact_search(vectors), ExactSearch)
