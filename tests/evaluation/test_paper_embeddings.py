"""Embeddings of training patches: where they lie, their intrinsic dimension, and what is claimed of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from patchsvdd.core.config import Config
from patchsvdd.core.errors import ConfigError
from patchsvdd.evaluation.paper import embeddings, tsne
from patchsvdd.evaluation.paper.embeddings import EmbeddingSample, intrinsic_dimension, sample_embeddings
from patchsvdd.evaluation.paper.intrinsic_dimension import run_intrinsic_dimension
from patchsvdd.evaluation.paper.items import write_item
from patchsvdd.evaluation.paper.study import Study
from patchsvdd.evaluation.paper.tsne import run_tsne
from support.command_line import draw_parts
from support.paper_study import CONFIG, made_up, pictures, read_page, small_category
from support.parts import save_picture

pytestmark = pytest.mark.slow

LARGER = CONFIG.replace(image_size=96)
"""Nine patches of 64 px in each image."""
PLACES = np.stack(np.meshgrid(np.linspace(-0.7, 0.7, 6), np.linspace(-0.7, 0.7, 6)), axis=-1).reshape(-1, 2)
"""(36, 2) of the patches of an image."""

DIMENSIONS = {"svdd": 5, "svdd-prime": 3, "patch-svdd": 2}
"""As the paper would have them."""

Points = NDArray[np.float32]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So few points are slower to share among threads."""
    with threadpool_limits(1):
        yield


def gaussian(dimension: int, count: int = 1000) -> Points:
    """(count, 16) points in a ``dimension``-dimensional plane through 16 dimensions."""
    rng = np.random.default_rng(0)
    turned: NDArray[np.float64] = rng.normal(size=(count, dimension)) @ rng.normal(size=(dimension, 16))
    return turned.astype(np.float32)


def study(root: Path, *names: str, config: Config = CONFIG) -> Study:
    """A study of encoders that were never trained, or of none."""
    return replace(made_up(root, names, lambda *_: {}), config=config)


def give(monkeypatch: pytest.MonkeyPatch, module: Any, points: Callable[[str, str], Points]) -> None:
    """From now on (category, objective) have those embeddings of both patch sizes, in images of 36 patches."""

    def sample(_study: Study, category: Path, config: Config, _images: int = 0) -> EmbeddingSample:
        found = points(category.name, config.objective)
        centers = np.tile(PLACES, (len(found) // len(PLACES), 1))
        return EmbeddingSample({32: found, 64: found}, {64: centers})

    monkeypatch.setattr(module, "sample_embeddings", sample)


class TestSample:
    def test_holds_every_patch_of_some_training_images(self, tmp_path: Path) -> None:
        small_category(tmp_path / "bottle")
        asked = study(tmp_path, "bottle", config=LARGER)
        sample = sample_embeddings(asked, tmp_path / "bottle", LARGER, images=2)
        assert sample.embeddings[64].shape == (2 * 9, 64)
        assert sample.embeddings[32].shape == (2 * 17 * 17, 64)
        whole = sample_embeddings(asked, tmp_path / "bottle", LARGER, images=60)
        assert whole.of_largest.shape == (3 * 9, 64)
        np.testing.assert_array_equal(whole.of_largest[:18], sample.of_largest)
        assert not whole.is_collapsed

    def test_says_where_each_patch_lies(self, tmp_path: Path) -> None:
        small_category(tmp_path / "bottle")
        centers = sample_embeddings(study(tmp_path), tmp_path / "bottle", LARGER, images=2).centers[64]
        half = np.hypot(48, 48)
        expected = [(y / half, x / half) for y in (-16, 0, 16) for x in (-16, 0, 16)]
        np.testing.assert_allclose(centers, expected * 2)

    def test_of_equal_patches_is_collapsed(self, tmp_path: Path) -> None:
        grey_category(tmp_path / "bottle")
        sample = sample_embeddings(study(tmp_path), tmp_path / "bottle", LARGER)
        assert len(sample.of_largest) == 27
        assert sample.is_collapsed


def grey_category(folder: Path) -> Path:
    """A category whose training images are all grey, so that every encoder maps every patch to one point."""
    for index in range(3):
        save_picture(folder / "train" / "good" / f"{index}.png", np.full((96, 96, 3), 128, np.uint8))
    draw_parts(folder / "test" / "good", 1)
    return folder


class TestIntrinsicDimension:
    @pytest.mark.parametrize("dimension", [1, 2, 5])
    def test_is_that_of_the_plane_the_points_lie_in(self, dimension: int) -> None:
        assert intrinsic_dimension(gaussian(dimension)) == pytest.approx(dimension, rel=0.15)

    def test_does_not_depend_on_where_the_points_lie_nor_on_their_scale(self) -> None:
        points = gaussian(3)
        assert intrinsic_dimension(1e-4 * points) == pytest.approx(intrinsic_dimension(points), rel=1e-3)

    def test_counts_equal_points_once(self) -> None:
        points = gaussian(2)
        assert intrinsic_dimension(np.tile(points, (3, 1))) == pytest.approx(intrinsic_dimension(points))

    def test_is_estimated_from_some_of_many_points(self) -> None:
        assert intrinsic_dimension(gaussian(2, 8000), points=500) == pytest.approx(2, rel=0.2)

    @pytest.mark.parametrize("points", [np.ones((500, 16)), np.zeros((0, 16)), np.eye(16), gaussian(2, 19)])
    def test_of_one_point_or_a_few_is_unknown(self, points: NDArray[Any]) -> None:
        assert intrinsic_dimension(points.astype(np.float32)) is None

    def test_needs_a_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "skdim.id", None)
        with pytest.raises(ConfigError, match=r'skdim .* pip install "patchsvdd\[paper\]"'):
            intrinsic_dimension(gaussian(2))


class TestDimensionByLoss:
    def test_the_lowest_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        give(monkeypatch, embeddings, lambda _, objective: gaussian(DIMENSIONS[objective]))
        report = run_intrinsic_dimension(study(tmp_path, "bottle"))
        assert [one.holds for one in report.section.verdicts] == [True, True]
        assert "the lowest is L_SVDD′ + L_SSL." in report.section.verdicts[0].words
        found = report.data["categories"]["bottle"]
        assert [round(row["64"]) for row in found.values()] == [5, 3, 2]
        assert report.data["means"]["64"] == {name: row["64"] for name, row in found.items()}

    def test_another_lowest_refutes_the_paper(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        give(monkeypatch, embeddings, lambda _, objective: gaussian(7 - DIMENSIONS[objective]))
        verdicts = run_intrinsic_dimension(study(tmp_path, "bottle")).section.verdicts
        assert [one.holds for one in verdicts] == [False, False]
        assert "the lowest is L_SVDD." in verdicts[0].words

    def test_collapsed_encoders_are_named_and_not_compared(self, tmp_path: Path) -> None:
        grey_category(tmp_path / "bottle")
        asked = study(tmp_path, "bottle", config=LARGER)
        report = run_intrinsic_dimension(asked)
        page = read_page(write_item(asked, report))
        assert [one.holds for one in report.section.verdicts] == [None, None]
        assert "bottle, L_SVDD′ + L_SSL: the encoder has collapsed" in page.text
        assert pictures(page) == ["intrinsic-dimension/dimension.svg"]

    def test_means_are_over_the_same_categories(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With L_SSL the dimension is the lowest in bottle; in wood there is nothing to compare it with."""

        def points(name: str, objective: str) -> Points:
            if name == "wood":
                return gaussian(12) if objective == "patch-svdd" else np.ones((500, 16), np.float32)
            return gaussian(DIMENSIONS[objective])

        give(monkeypatch, embeddings, points)
        assert run_intrinsic_dimension(study(tmp_path, "bottle", "wood")).section.verdicts[0].holds


def ordered(noise: float) -> Points:
    """(72, 16) embeddings of two images that tell where a patch lies, and by how little they differ otherwise."""
    rng = np.random.default_rng(0)
    place = np.tile(PLACES, (2, 1)) @ rng.normal(size=(2, 16))
    return np.asarray(place + noise * rng.normal(size=place.shape), np.float32)


class TestTsne:
    """Of neighbours in the picture: their distance in the image, 0 for the same place and 1 for any."""

    def test_embeddings_ordered_by_position_confirm_the_paper(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        points = {"svdd": np.ones((72, 16), np.float32), "svdd-prime": ordered(100)}
        points["patch-svdd"] = 1 + np.float32(1e-5) * ordered(0.01)  # nearly collapsed, and ordered all the same
        give(monkeypatch, tsne, lambda _, objective: points[objective])
        small_category(tmp_path / "bottle")
        asked = study(tmp_path, "bottle")
        report = run_tsne(asked)
        collapsed, random, near = report.data["neighbour_distance"]["bottle"].values()
        assert collapsed is None
        assert random == pytest.approx(1, abs=0.3)
        assert near < 0.3
        (verdict,) = report.section.verdicts
        assert verdict.holds
        assert verdict.words.startswith("bottle: L_SVDD collapsed, L_SVDD′ ")
        assert verdict.words.endswith("; most ordered by position: L_SVDD′ + L_SSL.")
        page = read_page(write_item(asked, report))
        assert f"bottlecollapsed{random:.2f}{near:.2f}" in page.text
        assert pictures(page) == ["tsne/bottle.png"]

    def test_only_collapsed_panels_are_titled_collapsed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        points = {"svdd": np.ones((72, 16), np.float32), "svdd-prime": ordered(100), "patch-svdd": ordered(0.01)}
        give(monkeypatch, tsne, lambda _, objective: points[objective])
        small_category(tmp_path / "bottle")
        drawn: dict[str, NDArray[np.float64]] = {}

        def draw(path: Path, panels: dict[str, NDArray[np.float64]], *_: object, **__: object) -> Path:
            drawn.update(panels)
            return path

        monkeypatch.setattr(tsne, "embedding_scatter", draw)
        run_tsne(study(tmp_path, "bottle"))
        assert list(drawn) == ["L_SVDD (collapsed)", "L_SVDD′", "L_SVDD′ + L_SSL"]
        assert [bool(panel.any()) for panel in drawn.values()] == [False, True, True]

    def test_another_order_refutes_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        small_category(tmp_path / "bottle")
        give(monkeypatch, tsne, lambda _, objective: ordered(100 if objective == "patch-svdd" else 0.01))
        (verdict,) = run_tsne(study(tmp_path, "bottle")).section.verdicts
        assert verdict.holds is False

    def test_collapsed_embeddings_are_drawn_as_one_point_and_said_to_be(self, tmp_path: Path) -> None:
        grey_category(tmp_path / "bottle")
        asked = study(tmp_path, "bottle", config=LARGER)
        report = run_tsne(asked)
        page = read_page(write_item(asked, report))
        assert report.data["neighbour_distance"]["bottle"] == dict.fromkeys(("L_SVDD", "L_SVDD′", "L_SVDD′ + L_SSL"))
        assert report.section.verdicts[0].holds is None
        assert "bottlecollapsedcollapsedcollapsed" in page.text
        assert pictures(page) == ["tsne/bottle.png"]

    def test_needs_a_library(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        give(monkeypatch, tsne, lambda *_: ordered(1))
        monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
        with pytest.raises(ConfigError, match=r'sklearn .* pip install "patchsvdd\[paper\]"'):
            run_tsne(study(tmp_path, "bottle"))
