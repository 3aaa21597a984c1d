from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.memory.exact_search import ExactSearch, Span


def assert_nearest(
    vectors: Tensor, queries: Tensor, spans: Sequence[Span] | None = None, budget: int = 256 * 2**20
) -> None:
    """The search finds what float64 arithmetic over all pairs finds."""
    distances, rows = ExactSearch(vectors, budget).nearest(queries, spans)
    assert distances.dtype == torch.float32
    assert distances.shape == rows.shape == (len(queries),)
    allowed = torch.zeros(len(vectors), dtype=torch.bool)
    for start, stop in spans or [(0, len(vectors))]:
        allowed[start:stop] = True
    assert allowed[rows].all(), "a row outside the spans was returned"
    for query, distance, row in zip(queries.double(), distances.double(), rows, strict=True):
        exact = (vectors.double() - query).norm(dim=1)
        best = exact.masked_fill(~allowed, torch.inf).min()
        torch.testing.assert_close(exact[row], best, rtol=1e-5, atol=0.0)
        torch.testing.assert_close(distance, best, rtol=1e-5, atol=0.0)


def clusters(count: int, centers: int, spread: float, seed: int = 0, length: int = 64) -> Tensor:
    """Vectors (count, length) in a few tight clusters: many near ties."""
    generator = torch.Generator().manual_seed(seed)
    middle = torch.randn(centers, length, generator=generator).tanh()
    which = torch.randint(0, centers, (count,), generator=generator)
    return middle[which] + spread * torch.randn(count, length, generator=generator)


@given(
    rows=st.integers(1, 700),
    queries=st.integers(1, 9),
    length=st.integers(1, 70),
    seed=st.integers(0, 10_000),
    offset=st.sampled_from([0.0, 1000.0]),
    size=st.sampled_from([0.01, 1.0]),
)
@example(rows=1, queries=1, length=1, seed=0, offset=0.0, size=1.0)
@example(rows=64, queries=3, length=64, seed=0, offset=0.0, size=1.0)
@example(rows=65, queries=3, length=64, seed=0, offset=1000.0, size=1.0)
def test_equals_brute_force(rows: int, queries: int, length: int, seed: int, offset: float, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = size * torch.randn(rows, length, generator=generator) + offset
    assert_nearest(vectors, size * torch.randn(queries, length, generator=generator) + offset)


@given(
    spans=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=4).filter(
        lambda spans: any(start < stop for start, stop in spans)
    ),
    seed=st.integers(0, 100),
)
def test_spans_are_honoured(spans: list[Span], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(300, 8, generator=generator)
    assert_nearest(vectors, vectors[::30] + 0.01, spans)


def test_empty_spans_are_an_error() -> None:
    with pytest.raises(ValueError, match="no vector"):
        ExactSearch(torch.randn(3, 2)).nearest(torch.randn(1, 2), [(1, 1), (3, 2)])


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_a_stored_vector_is_at_distance_zero(offset: float) -> None:
    vectors = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0)) + offset
    distances, rows = ExactSearch(vectors).nearest(vectors[::7])
    assert not distances.any()
    assert torch.equal(rows, torch.arange(0, 1000, 7))


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4, 1e-5])
def test_a_stored_vector_is_at_distance_zero_among_near_ties(spread: float) -> None:
    # Plain background gives thousands of nearly equal embeddings; float32's |a|² + |b|² − 2ab cannot order them.
    vectors = clusters(3000, 4, spread)
    distances, _ = ExactSearch(vectors).nearest(vectors[::31])
    assert not distances.any(), f"{float((distances > 0).float().mean()):.0%} of the stored vectors were not found"


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4, 1e-5])
def test_near_ties_are_told_apart(spread: float) -> None:
    vectors = clusters(3000, 4, spread)
    queries = vectors[::101] + spread * torch.randn(30, 64, generator=torch.Generator().manual_seed(1))
    assert_nearest(vectors, queries)


def test_duplicates_are_at_distance_zero() -> None:
    vectors = clusters(20, 4, 1.0).repeat(50, 1)
    distances, _ = ExactSearch(vectors).nearest(vectors)
    assert not distances.any()


@pytest.mark.parametrize("budget", [1, 10_000, 100_000])
def test_a_tiny_memory_budget_changes_nothing(budget: int) -> None:
    vectors = torch.randn(700, 16, generator=torch.Generator().manual_seed(0))
    queries = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    plenty, scarce = ExactSearch(vectors).nearest(queries), ExactSearch(vectors, budget).nearest(queries)
    assert torch.equal(plenty[0], scarce[0])
    assert torch.equal(plenty[1], scarce[1])
    assert_nearest(vectors, queries, [(3, 70), (200, 431)], budget)


def test_no_query_gives_no_answer() -> None:
    distances, rows = ExactSearch(torch.randn(10, 4)).nearest(torch.empty(0, 4))
    assert len(distances) == len(rows) == 0


def by_differences(
    vectors: Tensor, queries: Tensor, k: int, spans: Sequence[Span] | None = None
) -> tuple[Tensor, Tensor]:
    """The k least distances (Q, k) as float32 computes them, and their rows: of equally near ones the lowest first."""
    allowed = torch.zeros(len(vectors), dtype=torch.bool)
    for start, stop in spans or [(0, len(vectors))]:
        allowed[start:stop] = True
    distances = torch.linalg.vector_norm(vectors[None] - queries[:, None], dim=2).masked_fill(~allowed, torch.inf)
    nearest, rows = distances.sort(dim=1, stable=True)
    rows = rows.masked_fill(nearest.isinf(), -1)
    short = max(0, k - len(vectors))
    pad = torch.nn.functional.pad
    return pad(nearest[:, :k], (0, short), value=torch.inf), pad(rows[:, :k], (0, short), value=-1)


@given(
    distinct=st.integers(1, 40),
    copies=st.integers(1, 60),
    k=st.integers(1, 9),
    spread=st.sampled_from([0.0, 1e-6, 1e-3, 1.0]),
    seed=st.integers(0, 1000),
    spans=st.none() | st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=3),
)
def test_of_equally_near_rows_the_lowest_is_found(
    distinct: int, copies: int, k: int, spread: float, seed: int, spans: list[Span] | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = clusters(distinct, 4, spread, seed, 8).repeat(copies, 1)
    vectors = vectors[torch.randperm(len(vectors), generator=generator)]
    spans = None if spans is None else sorted(spans)
    if spans is not None:
        edges = sorted({min(edge, len(vectors)) for span in spans for edge in span})
        spans = list(zip(edges[::2], edges[1::2], strict=False))
        assume(any(start < stop for start, stop in spans))
    queries = torch.cat((vectors[:5], vectors[:5] + spread, torch.zeros(1, 8)))
    expected, expected_rows = by_differences(vectors, queries, k, spans)
    search = ExactSearch(vectors, 50_000)
    distances, rows = search.nearest(queries, spans)
    assert torch.equal(distances, expected[:, 0])
    assert torch.equal(rows, expected_rows[:, 0])
    distances, rows = search.k_nearest(queries, k, spans)
    assert torch.equal(distances, expected)
    assert torch.equal(rows, expected_rows)


def test_no_query_has_no_k_nearest() -> None:
    distances, rows = ExactSearch(torch.randn(10, 4)).k_nearest(torch.empty(0, 4), 3)
    assert distances.shape == rows.shape == (0, 3)
