"""A memory in shards finds what the whole memory finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.apps.cluster.shards import (
    Neighbours,
    Shard,
    ShardedScale,
    ShardedSearch,
    cut,
    merge,
    read_shard,
    select_coreset_sharded,
)
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.memory_size import parse_memory_size
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.memory_update import add_images, remove_images
from patchsvdd.detector.model_folder import read_index
from patchsvdd.memory.bank import ScaleMemory
from patchsvdd.memory.coreset import k_center
from patchsvdd.memory.exact_search import ExactSearch, Span
from support.parts import TINY, TINY_CRITIC, draw_part, save_picture
from support.shards import shard_the

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SHARDS = st.integers(1, 9)


def few_values(rows: int, length: int, seed: int) -> Tensor:
    """Vectors (rows, length) of which many are alike and many more equally far."""
    return torch.randint(-1, 2, (rows, length), generator=torch.Generator().manual_seed(seed)).float()


def scale_of(vectors: Tensor, local_scale: Tensor | None = None) -> ScaleMemory:
    origins = torch.zeros((len(vectors), 3), dtype=torch.int32)
    origins[:, 1] = torch.arange(len(vectors))
    return ScaleMemory(vectors, origins, None, local_scale)


def shards_of(scale: ScaleMemory, count: int) -> list[Shard]:
    spans = cut(len(scale.embeddings), count)
    return [Shard(scale.of_rows(torch.arange(*span)), span[0]) for span in spans]


@given(rows=st.integers(1, 10_000), shards=st.integers(1, 40))
def test_shards_are_consecutive_and_alike(rows: int, shards: int) -> None:
    spans = cut(rows, shards)
    assert [row for span in spans for row in range(*span)] == list(range(rows))
    sizes = [stop - start for start, stop in spans]
    assert len(sizes) == min(rows, shards)
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


def test_no_shard_is_refused() -> None:
    with pytest.raises(ConfigError, match="`shards` must be at least 1; got 0"):
        cut(10, 0)


@given(rows=st.integers(1, 400), shards=SHARDS, length=st.integers(1, 6), seed=st.integers(0, 500))
def test_the_nearest_of_shards_is_the_nearest_of_all(rows: int, shards: int, length: int, seed: int) -> None:
    vectors, queries = few_values(rows, length, seed), few_values(20, length, seed + 1) * 1.25
    search = ShardedSearch(shards_of(scale_of(vectors), shards))
    assert len(search) == rows
    for found, expected in zip(search.nearest(queries), ExactSearch(vectors).nearest(queries), strict=True):
        assert torch.equal(found, expected)
    least, lowest = torch.cdist(queries, vectors, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    torch.testing.assert_close(search.nearest(queries)[0], least)
    assert bool((search.nearest(queries)[1] <= lowest).all())


@given(
    spans=st.lists(st.integers(0, 300), min_size=2, max_size=6, unique=True).map(sorted),
    shards=SHARDS,
    k=st.integers(1, 12),
    seed=st.integers(0, 500),
)
def test_spans_and_more_than_one_neighbour(spans: list[int], shards: int, k: int, seed: int) -> None:
    vectors, queries = few_values(300, 5, seed), few_values(9, 5, seed + 1) * 1.25
    within: list[Span] = list(zip(spans[::2], spans[1::2], strict=False))
    found = ShardedSearch(shards_of(scale_of(vectors), shards)).find(queries, within, k)
    expected = ExactSearch(vectors).k_nearest(queries, k, within)
    assert torch.equal(found.distances, expected[0])
    assert torch.equal(found.rows, expected[1])


@given(
    answers=st.lists(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.5]), st.integers(0, 99)), max_size=4), min_size=1),
    k=st.integers(1, 5),
)
def test_merging_is_sorting_by_distance_then_row(answers: list[list[tuple[float, int]]], k: int) -> None:
    def found(pairs: Sequence[tuple[float, int]]) -> Neighbours:
        filled = [*sorted(pairs), *[(float("inf"), -1)] * (k + 4 - len(pairs))]
        rows = torch.tensor([[row for _, row in filled]])
        return Neighbours(torch.tensor([[distance for distance, _ in filled]]), rows, rows * 10.0)

    merged = merge([found(pairs) for pairs in answers], k)
    expected = sorted(pair for pairs in answers for pair in pairs)[:k]
    told = list(zip(merged.distances[0].tolist(), merged.rows[0].tolist(), strict=True))
    assert told == [*expected, *[(float("inf"), -1)] * (k - len(expected))]
    assert merged.local_scale is not None
    assert merged.local_scale[0].tolist() == [row * 10.0 for _, row in told]


def test_empty_spans_are_an_error_and_no_query_is_none() -> None:
    search = ShardedSearch(shards_of(scale_of(torch.randn(10, 3)), 3))
    with pytest.raises(ValueError, match="no vector"):
        search.nearest(torch.randn(2, 3), [(4, 4)])
    assert [len(one) for one in search.nearest(torch.empty(0, 3))] == [0, 0]


def test_a_reach_is_that_of_the_row_found() -> None:
    vectors, local_scale = few_values(200, 4, 0), torch.rand(200) + 0.5
    whole = scale_of(vectors, local_scale)
    scale = ShardedScale(shards_of(whole, 4), 4)
    queries = few_values(50, 4, 1) * 1.25
    for one, other in zip(scale.find(queries), whole.find(queries), strict=True):
        assert torch.equal(one, other)
    assert [scale.origin(row) for row in (0, 57, 199)] == [whole.origin(row) for row in (0, 57, 199)]


# The coreset


def covering_radius(vectors: Tensor, kept: Tensor) -> float:
    return float(ExactSearch(kept).nearest(vectors)[0].max())


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_a_coreset_of_coresets_covers_nearly_as_well(shards: int) -> None:
    vectors = torch.randn(900, 6, generator=torch.Generator().manual_seed(0))
    whole = scale_of(vectors, torch.arange(900).float() + 1)
    memory = sharded(whole, shards)
    thinned = select_coreset_sharded(memory, parse_memory_size("60")).scales[32]
    assert thinned.embeddings.shape == (60, 6)
    rows = thinned.origins[:, 1].long()
    assert torch.equal(thinned.embeddings, vectors[rows])
    assert thinned.local_scale is not None
    assert torch.equal(thinned.local_scale, rows + 1.0)
    at_once = covering_radius(vectors, vectors[k_center(vectors, 60)])
    assert at_once <= 1.2 * covering_radius(vectors, thinned.embeddings) <= 1.2 * 2 * at_once


def sharded(whole: ScaleMemory, shards: int) -> Any:
    from patchsvdd.memory.bank import Memory

    return Memory(("a",), {32: ShardedScale(shards_of(whole, shards), whole.length)})


def test_no_place_holds_more_than_its_shard_or_what_all_chose() -> None:
    whole = scale_of(torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)))
    for shard in shards_of(whole, 4):
        rows, chosen = shard.choose(30)
        assert len(rows) == len(chosen.embeddings) == 30
        assert torch.equal(whole.embeddings[rows], chosen.embeddings)
        assert bool(((rows >= shard.span[0]) & (rows < shard.span[1])).all())


# A model folder


@pytest.fixture(scope="module")
def kept_up(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a model of three segments, of which images of two were taken out."""

    def make(preset: str, **settings: Any) -> Path:
        root = tmp_path_factory.mktemp("model")
        for first, name in ((0, "good"), (4, "more"), (7, "last")):
            for seed in range(first, first + 4 if first == 0 else first + 3):
                save_picture(root / name / f"{seed:03}.png", draw_part(seed))
        PatchSVDD.fit(root / "good", preset=preset, device="cpu", **TINY, **settings).save(root / "part")
        add_images(root / "part", root / "more", device="cpu")
        add_images(root / "part", root / "last", device="cpu")
        remove_images(root / "part", ["001.png", "005.png"], device="cpu")
        return root / "part"

    return make


@pytest.mark.parametrize(
    ("preset", "settings"),
    [("encoder", {}), ("encoder", {"local_scaling": True}), ("best", {**TINY_CRITIC, "memory": "60%"})],
    ids=["plain", "local scaling", "critic"],
)
def test_a_sharded_detector_says_what_the_plain_one_says(
    kept_up: Callable[..., Path], preset: str, settings: dict[str, Any]
) -> None:
    folder = kept_up(preset, **settings)
    plain = PatchSVDD.load(folder, "cpu", search="exact")
    for shards in (1, 3, 4):
        other = shard_the(folder, shards)
        assert other.identity == plain.identity
        for picture in (draw_part(2), draw_part(30), draw_part(31, defect=True)):
            one, two = plain.inspect(picture), other.inspect(picture)
            assert one.score == two.score
            assert (one.anomaly_map == two.anomaly_map).all()
            assert one.explain().to_json() == two.explain().to_json()
        for size, scale in other.memory.scales.items():
            assert isinstance(scale, ShardedScale)
            assert scale.shards[-1].span[1] == len(plain.memory.scales[size].embeddings)


def test_what_takes_the_memory_itself_is_refused(stored: Path, tmp_path: Path) -> None:
    sharded = shard_the(stored, 2)
    with pytest.raises(ConfigError, match=r"holds all of its memory; load it without `shards`"):
        sharded.save(tmp_path / "copy")
    with pytest.raises(ConfigError, match="holds all of its memory"):
        sharded.leave_one_out_scores((64, 64))


def test_a_shard_of_a_folder_that_is_not_whole(stored: Path, tmp_path: Path) -> None:
    about = read_index(stored)
    (tmp_path / about["files"]["memory"]["name"]).write_bytes(b"short")
    with pytest.raises(ModelError, match="truncated on this machine; every machine needs the whole model folder"):
        read_shard(tmp_path, about, 32, (0, 4), CPU)
