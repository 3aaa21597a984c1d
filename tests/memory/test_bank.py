from __future__ import annotations

import pytest
import torch

from patchsvdd.core.config import Config
from patchsvdd.core.memory_size import parse_memory_size
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.encoder.networks import PatchEncoder, build_encoder, grids_for, rows_of
from patchsvdd.memory import bank as memory_module
from patchsvdd.memory.bank import Memory, ScaleMemory, build_memory, memory_bytes
from patchsvdd.memory.coreset import select_coreset
from patchsvdd.memory.exact_search import ExactSearch
from patchsvdd.memory.graph_search import GraphSearch, has_faiss
from patchsvdd.memory.layered_search import LayeredSearch
from patchsvdd.training.pair_sampler import cut_patches

needs_faiss = pytest.mark.skipif(not has_faiss(), reason="takes the package faiss-cpu")
SIZE = (70, 84)
NAMES = ("a.png", "b.png", "c.png")


@pytest.fixture(scope="module")
def config() -> Config:
    return preset("paper", image_size=SIZE, scales=(Scale(32, 12), Scale(64, 16)))


@pytest.fixture(scope="module")
def encoder(config: Config) -> PatchEncoder:
    return build_encoder(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, *SIZE, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def memory(config: Config, encoder: PatchEncoder, images: torch.Tensor) -> Memory:
    return build_memory(encoder, images, NAMES, grids_for(encoder, config, SIZE))


def test_holds_every_patch_of_every_image(memory: Memory, config: Config) -> None:
    assert memory.image_names == NAMES
    # 70 × 84 px: rows 0 12 24 36 38, columns 0 12 24 36 48 52; rows 0 6, columns 0 16 20.
    assert {size: tuple(scale.embeddings.shape) for size, scale in memory.scales.items()} == {
        32: (3 * 5 * 6, 64),
        64: (3 * 2 * 3, 64),
    }


@pytest.mark.parametrize("size", [32, 64])
def test_origins_say_where_each_embedding_came_from(
    memory: Memory, encoder: PatchEncoder, images: torch.Tensor, size: int
) -> None:
    scale = memory.scales[size]
    origins = scale.origins.long()
    patches = cut_patches(images, origins[:, 0], origins[:, 1:], size)
    torch.testing.assert_close(encoder.encode({size: patches})[size], scale.embeddings, rtol=0, atol=5e-6)
    assert len({tuple(origin) for origin in origins.tolist()}) == len(origins)
    assert torch.equal(origins[:, 0].sort().values, origins[:, 0]), "rows are grouped by image"


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("image", [0, 1, 2])
def test_leaving_an_image_out_excludes_exactly_its_rows(memory: Memory, size: int, image: int) -> None:
    scale = memory.scales[size]
    theirs = scale.origins[:, 0] != image
    distances, rows = scale.nearest(scale.embeddings, without_image=image)
    others = scale.embeddings[theirs].double()
    exact = torch.stack([(others - query).norm(dim=1).min() for query in scale.embeddings.double()])
    torch.testing.assert_close(distances.double(), exact, rtol=1e-5, atol=0.0)
    assert theirs[rows].all()
    assert torch.equal(distances == 0, theirs), "patches of the other images are still found"


def test_leaving_nothing_out_finds_every_stored_patch(memory: Memory) -> None:
    for scale in memory.scales.values():
        distances, rows = scale.nearest(scale.embeddings)
        assert not distances.any()
        assert torch.equal(rows, torch.arange(len(rows)))


def test_reports_progress(config: Config, encoder: PatchEncoder, images: torch.Tensor) -> None:
    seen: list[tuple[int, int]] = []
    build_memory(
        encoder, images, NAMES, grids_for(encoder, config, SIZE), lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_rows_are_in_reading_order() -> None:
    feature_map = torch.arange(2 * 3 * 2 * 4).view(2, 3, 2, 4)
    rows = rows_of(feature_map)
    assert rows.shape == (2, 8, 3)
    assert torch.equal(rows[1, 5], feature_map[1, :, 1, 1])


def test_embeddings_and_origins_must_fit() -> None:
    with pytest.raises(ValueError, match="3 embeddings but 2 origins"):
        ScaleMemory(torch.zeros(3, 4), torch.zeros(2, 3, dtype=torch.int32))


@pytest.mark.parametrize("kind", ["hierarchical", "raw"])
def test_size_is_known_beforehand(config: Config, images: torch.Tensor, kind: str) -> None:
    config = config.replace(encoder=kind)
    encoder = build_encoder(config).requires_grad_(False)
    memory = build_memory(encoder, images, NAMES, grids_for(encoder, config, SIZE))
    tensors = [tensor for scale in memory.scales.values() for tensor in (scale.embeddings, scale.origins)]
    assert sum(tensor.nbytes for tensor in tensors) == memory_bytes(config, SIZE, 3)


def test_rows_of_some_images_alone(memory: Memory) -> None:
    some = memory.of_images(torch.tensor([True, False, True]))
    assert some.image_names == NAMES
    for size, scale in memory.scales.items():
        kept = scale.origins[:, 0] != 1
        assert torch.equal(some.scales[size].origins, scale.origins[kept])
        assert torch.equal(some.scales[size].embeddings, scale.embeddings[kept])
        assert some.scales[size].grid_shape == scale.grid_shape


def test_the_grid_is_read_off_the_origins(memory: Memory) -> None:
    assert {size: scale.grid_shape for size, scale in memory.scales.items()} == {32: (5, 6), 64: (2, 3)}
    scale = memory.scales[32]
    for missing in (0, 17, 89):
        kept = torch.arange(90) != missing
        assert ScaleMemory(scale.embeddings[kept], scale.origins[kept]).grid_shape is None
    assert select_coreset(memory, parse_memory_size("50%")).scales[32].grid_shape is None


@needs_faiss
class TestGraphs:
    def test_where_they_are_worth_it(self, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory_module, "MIN_GRAPH_ROWS", 50)  # 90 rows of 32 px, 18 of 64 px
        seen: list[tuple[int, int]] = []
        quick = memory.with_graphs(lambda done, total: seen.append((done, total)))
        assert isinstance(quick.scales[32].search, GraphSearch)
        assert quick.scales[32].search.shape == (5, 6)
        assert isinstance(quick.scales[64].search, ExactSearch)
        assert seen == [(90, 90)]
        assert quick.with_graphs().scales[32].graph is quick.scales[32].graph, "built once"
        assert all(scale.graph is None for scale in quick.without_graphs().scales.values())
        assert all(scale.graph is None for scale in memory.with_graphs().without_graphs().scales.values())

    def test_progress_counts_all_scales_together(self, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory_module, "MIN_GRAPH_ROWS", 1)
        seen: list[tuple[int, int]] = []
        memory.with_graphs(lambda done, total: seen.append((done, total)))
        assert seen == [(90, 108), (108, 108)]

    @pytest.mark.parametrize("image", [0, 1, 2])
    def test_leaving_an_image_out(self, memory: Memory, image: int) -> None:
        scale = memory.scales[32].with_graph()
        own = scale.embeddings[scale.origins[:, 0] == image]
        distances, rows = scale.nearest(own, without_image=image, shape=(5, 6))
        assert (scale.origins[rows, 0] != image).all()
        exact = memory.scales[32].nearest(own, without_image=image)[0]
        assert ((distances - exact).abs() <= 2e-3).float().mean() >= 0.9

    def test_some_images_are_searched_with_the_graph_of_all(
        self, memory: Memory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory_module, "MIN_GRAPH_ROWS", 50)
        keep = torch.tensor([True, False, True])
        some, expected = memory.with_graphs().searched_for(keep), memory.of_images(keep)
        for size, scale in expected.scales.items():
            assert torch.equal(some.scales[size].embeddings, scale.embeddings)
            assert torch.equal(some.scales[size].origins, scale.origins)
            queries = memory.scales[size].embeddings  # those of the image in the middle are not stored
            distances, rows = some.scales[size].nearest(queries)
            found = (queries - scale.embeddings[rows]).norm(dim=1)
            torch.testing.assert_close(distances, found, atol=2e-3, rtol=0)
            assert ((distances - scale.nearest(queries)[0]).abs() <= 2e-3).float().mean() >= 0.9
        assert isinstance(some.scales[32].graph, LayeredSearch)
        assert some.scales[64].graph is None

    def test_a_graph_of_another_memory(self, memory: Memory) -> None:
        scale = memory.scales[32]
        with pytest.raises(ValueError, match="90 embeddings but a graph of 18"):
            ScaleMemory(scale.embeddings, scale.origins, memory.scales[64].with_graph().graph)
