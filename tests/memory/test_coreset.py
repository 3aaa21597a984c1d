from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thinning as study
from coreset_methods import METHODS, choose_rows, k_means, per_place, random_rows
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.memory_size import parse_memory_size
from patchsvdd.core.presets import preset
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.evaluation import metrics
from patchsvdd.memory import coreset
from patchsvdd.memory.bank import Memory, ScaleMemory
from patchsvdd.memory.coreset import coreset_rows, k_center, select_coreset, without_duplicates

every_method = pytest.mark.parametrize("method", METHODS)
SEEDS = pytest.mark.parametrize("seed", range(4))


def draw(seed: int, count: int = 400, length: int = 5) -> Tensor:
    """Vectors (count, length), some dense, some sparse, far from the origin."""
    generator = torch.Generator().manual_seed(seed)
    spread = 0.01 + torch.rand(count, 1, generator=generator) ** 4
    return 7 + spread * torch.randn(count, length, generator=generator)


def naive(vectors: Tensor, count: int) -> list[int]:
    """Greedy k-centre, one centre at a time, in float64."""
    vectors = vectors.double()
    rows = [int((vectors - vectors.mean(0)).norm(dim=1).argmax())]
    left = (vectors - vectors[rows[0]]).norm(dim=1)
    while len(rows) < count:
        rows.append(int(left.argmax()))
        left = torch.minimum(left, (vectors - vectors[rows[-1]]).norm(dim=1))
    return rows


def radius(vectors: Tensor, rows: Tensor) -> float:
    """Largest distance of any vector to the nearest of the rows."""
    return float(torch.cdist(vectors.double(), vectors[rows].double()).amin(1).max())


def grid_memory(images: int = 6, places: int = 20, length: int = 5) -> Memory:
    """Two scales, rows grouped by image."""
    scales = {}
    for seed, size in enumerate((32, 64)):
        columns = torch.arange(0, 4 * places, 4)
        origins = torch.cartesian_prod(torch.arange(images), torch.tensor([0, 8]), columns).int()
        scales[size] = ScaleMemory(draw(seed, len(origins), length), origins)
    return Memory(tuple(map(str, range(images))), scales)


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rounds even on few vectors."""
    monkeypatch.setattr(coreset, "CANDIDATES", 8)
    monkeypatch.setattr(coreset, "REFRESHED", 20)


# k-centre


@SEEDS
@pytest.mark.usefixtures("few_candidates")
def test_rounds_give_the_order_of_the_plain_greedy_choice(seed: int) -> None:
    vectors = draw(seed)
    assert k_center(vectors, 150).tolist() == naive(vectors, 150)


@SEEDS
def test_one_round_gives_the_order_of_the_plain_greedy_choice(seed: int) -> None:
    vectors = draw(seed)
    assert k_center(vectors, 150).tolist() == naive(vectors, 150)


def test_more_vectors_than_candidates() -> None:
    vectors = draw(0, 3 * coreset.CANDIDATES, 3)
    chosen = k_center(vectors, 300)
    assert len(torch.unique(chosen)) == 300
    assert radius(vectors, chosen) <= radius(vectors, torch.tensor(naive(vectors, 300))) * (1 + 1e-4)


@SEEDS
@pytest.mark.usefixtures("few_candidates")
def test_a_shorter_choice_starts_a_longer_one(seed: int) -> None:
    vectors = draw(seed)
    longest = k_center(vectors, 200)
    for count in (1, 2, 30, 121):
        assert torch.equal(k_center(vectors, count), longest[:count])


@pytest.mark.usefixtures("few_candidates")
def test_the_radius_never_grows() -> None:
    vectors = draw(1)
    chosen = k_center(vectors, 120)
    radii = [radius(vectors, chosen[:count]) for count in range(1, 121)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(radii))
    assert radii[-1] < radius(vectors, random_rows(vectors, 120))


@pytest.mark.usefixtures("few_candidates")
def test_all_rows_are_chosen_once() -> None:
    vectors = draw(2, 90)
    assert k_center(vectors, 90).sort().values.tolist() == list(range(90))
    assert k_center(vectors, 1000).sort().values.tolist() == list(range(90))


def test_duplicates_are_chosen_once() -> None:
    vectors = draw(3, 50).repeat(4, 1)
    chosen = k_center(vectors, 120)
    assert len(chosen) == 50
    assert radius(vectors, chosen) == 0
    assert len(k_center(torch.ones(30, 4), 5)) == 1


def test_k_center_reports_progress() -> None:
    seen: list[tuple[int, int]] = []
    k_center(draw(0), 100, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (100, 100)


def test_vectors_are_left_as_they_are() -> None:
    vectors = draw(0)
    before = vectors.clone()
    for method in METHODS:
        choose_rows(ScaleMemory(vectors, torch.zeros(len(vectors), 3, dtype=torch.int32)), 40, method)
    assert torch.equal(vectors, before)


# Duplicates


def test_without_duplicates_keeps_the_first_of_each() -> None:
    vectors = torch.tensor([[1.0, 2], [3, 4], [1, 2], [0, 0], [-0.0, 0], [3, 4]])
    assert without_duplicates(vectors).tolist() == [0, 1, 3]


# Other choices


def test_random_rows_depend_on_the_seed_alone() -> None:
    vectors = draw(0)
    assert torch.equal(random_rows(vectors, 30, 1), random_rows(vectors, 90, 1)[:30])
    assert not torch.equal(random_rows(vectors, 30, 1), random_rows(vectors, 30, 2))
    assert len(torch.unique(random_rows(vectors, 400, 1))) == 400


@SEEDS
def test_k_means_keeps_one_row_of_each_cell(seed: int) -> None:
    vectors = draw(seed)
    rows = k_means(vectors, 70, seed)
    assert 60 < len(rows) <= 70
    assert torch.equal(rows, torch.unique(rows)), "ascending, no row twice"

    def error(kept: Tensor) -> float:
        return float(torch.cdist(vectors, vectors[kept]).amin(1).square().mean())

    assert error(rows) < error(random_rows(vectors, 70, seed))


def test_k_means_finds_the_middles_of_heaps() -> None:
    middles = torch.tensor([[0.0, 0], [10, 0], [0, 10]])
    around = torch.tensor([[0.0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
    vectors = (middles[:, None] + around).flatten(0, 1)
    assert k_means(vectors, 3, start=torch.tensor([1, 7, 14])).tolist() == [0, 5, 10]


@SEEDS
def test_settled_centres_lie_nearer_to_the_rest(seed: int) -> None:
    vectors = draw(seed)
    rows, centers = coreset_rows(vectors, 60), k_center(vectors, 60)
    assert len(rows) == len(torch.unique(rows)) == 60

    def mean_distance(kept: Tensor) -> float:
        return float(torch.cdist(vectors, vectors[kept]).amin(1).mean())

    assert mean_distance(rows) < mean_distance(centers)


def test_every_place_gets_equally_many() -> None:
    scale = grid_memory().scales[32]  # 40 places, 6 images
    rows = per_place(scale.embeddings, scale.origins, 100)
    assert len(torch.unique(rows)) == 100
    _, found = torch.unique(scale.origins[rows, 1:], dim=0, return_counts=True)
    assert found.tolist().count(2) == 20
    assert found.tolist().count(3) == 20
    assert torch.equal(per_place(scale.embeddings, scale.origins, 55), rows[:55])
    assert len(per_place(scale.embeddings, scale.origins, 1000)) == 240


def test_within_a_place_the_farthest_follows() -> None:
    vectors = torch.tensor([[0.0], [1], [9], [2], [50], [50], [50], [60]])
    origins = torch.zeros(8, 3, dtype=torch.int32)
    origins[4:, 1] = 4
    # Place one has its mean at 3, then 9 and 0 are the farthest; place two has two different vectors.
    assert per_place(vectors, origins, 8).tolist() == [4, 3, 7, 2, 0, 1]


# Size


@pytest.mark.parametrize(
    ("text", "rows"), [("100%", 1200), ("10%", 120), ("0.1%", 1), ("12.5 %", 150), ("5000", 1200), ("7", 7)]
)
def test_sizes_are_shares_or_numbers(text: str, rows: int) -> None:
    size = parse_memory_size(text)
    assert size.rows_of(1200) == rows
    assert str(size) == text.replace(" ", "")
    assert parse_memory_size(str(size)) == size


def test_a_share_keeps_at_least_one() -> None:
    assert parse_memory_size("0.001%").rows_of(10) == 1


@pytest.mark.parametrize("text", ["0%", "-5", "abc", "101%", "0", "", "%", "1e3", "nan%", "10.5", "-10%", "10%%"])
def test_bad_sizes_name_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="`memory"):
        parse_memory_size(text)


# The memory


@every_method
def test_every_method_chooses_different_rows_and_repeats_itself(method: str) -> None:
    scale = grid_memory().scales[32]
    rows, again = (choose_rows(scale, 60, method, seed=5) for _ in range(2))
    assert 50 <= len(rows) <= 60
    assert len(torch.unique(rows)) == len(rows)
    assert torch.equal(rows, again)
    assert choose_rows(scale, 1000, method).tolist() == list(range(240))


def test_a_coreset_keeps_origins_and_order() -> None:
    memory = grid_memory()
    selected = select_coreset(memory, parse_memory_size("25%"))
    assert selected.image_names == memory.image_names
    for size, scale in selected.scales.items():
        whole = memory.scales[size]
        assert 50 <= len(scale.embeddings) <= 60
        # Every vector is different, so that its row can be found again.
        rows = torch.stack([(whole.embeddings == one).all(1).nonzero()[0, 0] for one in scale.embeddings])
        assert torch.equal(rows, torch.unique(rows)), "ascending, no row twice"
        assert torch.equal(scale.origins, whole.origins[rows])
        assert scale.origins.dtype == torch.int32


def test_a_coreset_of_all_rows_changes_nothing() -> None:
    memory = grid_memory()
    for text in ("100%", "100000"):
        for size, scale in select_coreset(memory, parse_memory_size(text)).scales.items():
            assert torch.equal(scale.embeddings, memory.scales[size].embeddings)
            assert torch.equal(scale.origins, memory.scales[size].origins)


def test_a_coreset_leaves_images_out() -> None:
    scale = select_coreset(grid_memory(), parse_memory_size("40%")).scales[32]
    for image in range(6):
        distances, rows = scale.nearest(scale.embeddings, without_image=image)
        theirs = scale.origins[:, 0] == image
        assert not theirs[rows].any()
        assert torch.equal(distances == 0, ~theirs)


def test_coreset_selection_reports_progress() -> None:
    seen: list[tuple[int, int]] = []
    select_coreset(grid_memory(), parse_memory_size("25%"), lambda done, total: seen.append((done, total)))
    assert seen[-1] == (120, 120)
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {120}


# The study


@pytest.mark.parametrize("digits", [1, 6])
def test_auroc_on_the_device_is_that_of_the_metrics(digits: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.random(5000) < 0.1
    scores = np.round(rng.random(5000) + 0.2 * labels, digits).astype(np.float32)
    found = study.auroc(torch.from_numpy(labels), torch.from_numpy(scores))
    assert found == pytest.approx(metrics.auroc(labels, scores), abs=1e-12)


def test_searching_part_by_part_is_searching_the_whole(category: Path, tmp_path: Path) -> None:
    config = preset("paper", image_size=64, encoder="random")
    device = torch.device("cpu")
    encoder = build_encoder(config).eval().requires_grad_(False)
    subject = study.Subject.load(category, encoder, config, device, study.Limit(None, None))
    sizes = [parse_memory_size(text) for text in ("50%", "100%", "20%")]

    def rows_of(run: Callable[[study.Study], object]) -> list[dict[str, Any]]:
        made = study.Study(tmp_path / "result.json", study.Clock(device, float("inf")), {})
        run(made)
        return made.rows

    nested = rows_of(lambda made: made.nested(subject, "k-center", 0, sizes))
    whole = [rows_of(lambda made, size=size: made.other(subject, "k-center", size))[0] for size in sizes]  # type: ignore[misc]
    assert [row["size"] for row in nested] == ["20%", "50%", "100%"]
    assert nested[-1]["method"] == "all"
    for row in nested:
        same = next(one for one in whole if one["size"] == row["size"])
        for name in ("rows", "bytes", "detection_auroc", "segmentation_auroc"):
            assert row[name] == same[name]


def test_the_study_stops_in_time(category: Path, tmp_path: Path) -> None:
    config = preset("paper", image_size=64, encoder="random")
    encoder = build_encoder(config).eval().requires_grad_(False)
    device = torch.device("cpu")
    subject = study.Subject.load(category, encoder, config, device, study.Limit(2, None))
    late = study.Study(tmp_path / "result.json", study.Clock(device, 0.0), {})
    with pytest.raises(study.TimeIsUp):
        late.nested(subject, "random", 0, [parse_memory_size("50%")])
