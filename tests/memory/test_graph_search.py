"""The approximate search through a FAISS graph, and what mends it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.memory import graph_search
from patchsvdd.memory.exact_search import ExactSearch
from patchsvdd.memory.graph_search import ROUNDING, GraphSearch, has_faiss, import_faiss

needs_faiss = pytest.mark.skipif(not has_faiss(), reason="takes the package faiss-cpu")
SHAPE = (24, 20)


def clustered(seed: int, count: int, length: int = 64) -> Tensor:
    """Embeddings in −1 … 1 around a few centres, each cluster of few dimensions as those of an image's parts are."""
    fixed, generator = torch.Generator().manual_seed(99), torch.Generator().manual_seed(seed)
    centers = torch.randn((30, length), generator=fixed)
    directions = torch.randn((6, length), generator=fixed)
    which = torch.randint(30, (count,), generator=generator)
    return (centers[which] + 0.1 * torch.randn((count, 6), generator=generator) @ directions).tanh()


def embedded_images(seed: int, count: int) -> Tensor:
    """Embeddings of ``count`` images of SHAPE patches that are alike, and change slowly from patch to patch."""
    fixed, generator = torch.Generator().manual_seed(5), torch.Generator().manual_seed(seed)
    coarse = (SHAPE[0] // 3, SHAPE[1] // 3)
    common = torch.randn((1, 64, *coarse), generator=fixed)
    own = 0.3 * torch.randn((count, 64, *coarse), generator=generator)
    maps: Tensor = torch.nn.functional.interpolate(common + own, size=SHAPE, mode="bilinear").tanh()
    return maps.flatten(2).transpose(1, 2).flatten(0, 1).contiguous()


def true_distances(vectors: Tensor, queries: Tensor, rows: Tensor) -> Tensor:
    distances: Tensor = torch.linalg.vector_norm(vectors[rows].double() - queries.double(), dim=1)
    return distances.float()


@pytest.fixture(scope="module")
def vectors() -> Tensor:
    return clustered(0, 5000)


@pytest.fixture(scope="module")
def graph(vectors: Tensor) -> GraphSearch:
    return GraphSearch.build(vectors, None)


@pytest.fixture(scope="module")
def stored() -> Tensor:
    return embedded_images(0, 8)


@pytest.fixture(scope="module")
def of_images(stored: Tensor) -> GraphSearch:
    return GraphSearch.build(stored, SHAPE)


@needs_faiss
class TestNearest:
    def test_finds_the_nearest_nearly_always(self, graph: GraphSearch, vectors: Tensor) -> None:
        queries = clustered(1, 1000)
        distances, rows = graph.nearest(queries)
        exact, nearest = ExactSearch(vectors).nearest(queries)
        assert float((rows == nearest).float().mean()) >= 0.95
        assert (distances - true_distances(vectors, queries, rows)).abs().max() <= ROUNDING
        assert (distances - exact).min() >= -ROUNDING

    def test_stored_vectors_find_themselves(self, graph: GraphSearch, vectors: Tensor) -> None:
        distances, rows = graph.nearest(vectors[::5])
        assert float((rows == torch.arange(0, 5000, 5)).float().mean()) >= 0.95
        assert distances.median() <= ROUNDING

    def test_the_farthest_queries_are_searched_with_more_care(
        self, graph: GraphSearch, vectors: Tensor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(graph_search, "EF_SEARCH", 1)
        queries = clustered(2, 400)
        careful = graph.nearest(queries)[0]
        monkeypatch.setattr(graph_search, "EF_SEARCH_AGAIN", 1)
        careless = graph.nearest(queries)[0]
        exact = ExactSearch(vectors).nearest(queries)[0]
        assert (careful <= careless).all()
        assert careful.amax() < careless.amax(), "a wrong corner would have decided the score"
        assert abs(float(careful.amax() - exact.amax())) < 0.2 * float(careless.amax() - exact.amax())

    @settings(max_examples=25)
    @given(seed=st.integers(0, 1000), count=st.integers(1, 300), queries=st.integers(0, 40), data=st.data())
    def test_distances_are_those_of_the_rows(self, seed: int, count: int, queries: int, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, count))
        stop = data.draw(st.integers(start, count if start > 0 else count - 1))  # something is left to search
        stored, asked = clustered(seed, count), clustered(seed + 1, queries)
        spans = [(0, start), (stop, count)]
        distances, rows = GraphSearch.build(stored, None).nearest(asked, spans)
        assert distances.shape == rows.shape == (queries,)
        if queries:
            assert not bool(((rows >= start) & (rows < stop)).any())
            assert (distances - true_distances(stored, asked, rows)).abs().max() <= ROUNDING
            assert (distances - ExactSearch(stored).nearest(asked, spans)[0]).min() >= -ROUNDING

    def test_rows_left_out_are_never_found(self, graph: GraphSearch, vectors: Tensor) -> None:
        queries, spans = vectors[2000:2600], [(0, 2000), (2600, 5000)]
        distances, rows = graph.nearest(queries, spans)
        exact, nearest = ExactSearch(vectors).nearest(queries, spans)
        assert not bool(((rows >= 2000) & (rows < 2600)).any())
        assert float((rows == nearest).float().mean()) >= 0.95
        assert (distances - exact).min() >= -ROUNDING

    def test_a_single_row_that_is_far_from_the_query(self, graph: GraphSearch, vectors: Tensor) -> None:
        far = int((vectors - vectors[0]).norm(dim=1).argmax())
        distances, rows = graph.nearest(vectors[:1], [(far, far + 1)])
        assert rows.tolist() == [far]
        torch.testing.assert_close(distances, true_distances(vectors, vectors[:1], rows), rtol=0, atol=ROUNDING)

    def test_no_query_and_no_vector(self, graph: GraphSearch) -> None:
        distances, rows = graph.nearest(torch.empty((0, 64)))
        assert len(distances) == len(rows) == 0
        with pytest.raises(ValueError, match="no vector to search"):
            graph.nearest(clustered(1, 2), [(3, 3), (7, 7)])

    def test_one_by_one_is_the_plain_walk(self, graph: GraphSearch, vectors: Tensor) -> None:
        queries = clustered(3, 60)
        distance = graph.one_by_one(ef_search=64)
        walked = torch.tensor([distance(query[None]) for query in queries])
        exact = ExactSearch(vectors).nearest(queries)[0]
        assert (walked - exact).min() >= -ROUNDING
        assert float(((walked - exact).abs() <= ROUNDING).float().mean()) >= 0.95

    def test_progress_is_told(self) -> None:
        seen: list[tuple[int, int]] = []
        graph = GraphSearch.build(clustered(0, 2500), None, lambda done, total: seen.append((done, total)))
        assert seen == [(1000, 2500), (2000, 2500), (2500, 2500)]
        assert len(graph) == 2500


@needs_faiss
class TestLookingBeside:
    def test_mends_a_bad_start(self, of_images: GraphSearch, stored: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(graph_search, "EF_SEARCH", 1)
        queries = embedded_images(1, 2)
        nearest = ExactSearch(stored).nearest(queries)[1]
        alone, together = of_images.nearest(queries), of_images.nearest(queries, shape=SHAPE)
        found = [float((rows == nearest).float().mean()) for _, rows in (alone, together)]
        assert found[1] > found[0] + 0.05
        assert together[0].mean() < alone[0].mean()
        true = true_distances(stored, queries, together[1])
        torch.testing.assert_close(together[0], true, rtol=0, atol=ROUNDING)

    def test_rows_left_out_are_not_found_beside_either(
        self, of_images: GraphSearch, stored: Tensor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(graph_search, "EF_SEARCH_FILTERED", 1)
        patches = SHAPE[0] * SHAPE[1]
        for image in (0, 3, 7):
            own = range(image * patches, (image + 1) * patches)
            spans = [(0, own.start), (own.stop, len(stored))]
            distances, rows = of_images.nearest(stored[own.start : own.stop], spans, SHAPE)
            assert not bool(((rows >= own.start) & (rows < own.stop)).any())
            assert distances.isfinite().all()

    def test_a_start_in_the_corners_leads_nowhere_else(
        self, of_images: GraphSearch, stored: Tensor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Candidates at borders: whatever the walk finds, every row is one of the memory and no distance grows."""
        queries = embedded_images(1, 2)
        generator = torch.Generator().manual_seed(0)
        corners = torch.tensor([0, SHAPE[1] - 1, len(of_images) - 1])
        start = corners[torch.randint(3, (len(queries),), generator=generator)]
        monkeypatch.setattr(of_images, "_walk", lambda asked, *_: start[: len(asked)].clone())
        distances, rows = of_images.nearest(queries, shape=SHAPE)
        assert 0 <= int(rows.min()) <= int(rows.max()) < len(of_images)
        assert (distances <= true_distances(stored, queries, start) + ROUNDING).all()
        torch.testing.assert_close(distances, true_distances(stored, queries, rows), rtol=0, atol=ROUNDING)


@needs_faiss
class TestFile:
    def test_opened_is_built(self, graph: GraphSearch, tmp_path: Path) -> None:
        path, queries = tmp_path / "graph.faiss", clustered(4, 300)
        path.write_bytes(graph.to_bytes())
        opened = GraphSearch.open(path, None)
        assert len(opened) == len(graph)
        for spans in (None, [(0, 1000), (1500, 5000)]):
            for got, expected in zip(opened.nearest(queries, spans), graph.nearest(queries, spans), strict=True):
                assert torch.equal(got, expected)
        assert opened.to_bytes() == graph.to_bytes()
        maps = Path("/proc/self/maps")
        assert not maps.exists() or str(path) in maps.read_text(), "mapped into memory, not read"

    @pytest.mark.parametrize("damage", ["missing", "empty", "text", "header", "links", "half", "last byte"])
    def test_a_damaged_file_says_what_to_do(self, graph: GraphSearch, tmp_path: Path, damage: str) -> None:
        path, content = tmp_path / "graph.faiss", graph.to_bytes()
        damaged = {
            "empty": b"",
            "text": b"this is no graph\n" * 100,
            "header": b"XXXX" + content[4:],
            "links": content[:60_000] + b"\xff" * 1000 + content[61_000:],
            "half": content[: len(content) // 2],
            "last byte": content[:-1],
        }
        if damage != "missing":
            path.write_bytes(damaged[damage])
        with pytest.raises(ModelError, match=r"graph\.faiss cannot be read .*patchsvdd prepare"):
            GraphSearch.open(path, None)


def test_without_faiss_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert not has_faiss()
    for use in (
        import_faiss,
        lambda: GraphSearch.build(torch.rand((10, 4)), None),
        lambda: GraphSearch.open(tmp_path / "graph.faiss", None),
    ):
        with pytest.raises(ConfigError) as error:
            use()
        assert "which `search=graph`" in str(error.value)
        assert 'pip install "patchsvdd[fast]"' in str(error.value)
        assert "`search=exact`" in str(error.value)
