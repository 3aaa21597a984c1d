from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.errors import DatasetError
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.unusual_images import UnusualImage, list_unusual, peak, unusual_images, unusual_in_words
from patchsvdd.images.loading import load_training_images
from patchsvdd.report.unusual_sheet import save_unusual_sheet, unusual_pictures, with_ring
from support.parts import TINY, draw_part

NAMES = [f"{index:03}.png" for index in range(40)]


def ranked(values: list[float]) -> list[tuple[float, tuple[float, float]]]:
    return [(value, (0.25, 0.75)) for value in values]


class TestList:
    def test_the_first_tenth_the_least_usual_first(self) -> None:
        values = [1 + 0.01 * (index % 7) for index in range(40)]
        values[5], values[30] = 9.0, 4.0
        found = list_unusual(ranked(values), NAMES)
        assert [one.name for one in found[:2]] == ["005.png", "030.png"]
        assert [one.stands_out for one in found] == [True, True, False, False]
        assert found[0].ratio == pytest.approx(9 / 1.03)

    def test_at_least_three_and_never_more_than_there_are(self) -> None:
        assert len(list_unusual(ranked([1.0] * 10), NAMES)) == 3
        assert len(list_unusual(ranked([1.0] * 2), NAMES)) == 2

    def test_nothing_stands_out_among_equals(self) -> None:
        assert not any(one.stands_out for one in list_unusual(ranked([2.0] * 40), NAMES))
        assert not any(one.stands_out for one in list_unusual(ranked([0.0] * 40), NAMES))

    def test_survives_storing(self) -> None:
        stored = [one.to_json() for one in list_unusual(ranked([1.0, 1.1, 7.0]), NAMES)]
        again = unusual_images({"unusual": stored})
        assert [one.to_json() for one in again] == stored
        assert again[0] == UnusualImage(2, "002.png", 6.364, True, (0.25, 0.75))

    def test_models_of_version_0_1_have_none(self) -> None:
        assert unusual_images({}) == []

    def test_in_words(self) -> None:
        found = list_unusual(ranked([1.0] * 39 + [8.0]), NAMES)
        assert unusual_in_words(found, 40) == "1 of 40 good images is unlike the others: 039.png. Check for defects"
        assert unusual_in_words(found[1:], 40) is None

    def test_peak(self) -> None:
        one = torch.zeros(4, 8)
        one[3, 6] = 5
        assert peak(one) == (5.0, (3.5 / 4, 6.5 / 8))


def parts(count: int) -> dict[str, NDArray[np.uint8]]:
    images = {f"{index:03}.png": draw_part(index, (64, 64)) for index in range(count)}
    images["005.png"] = images["005.png"].copy()
    images["005.png"][20:40, 16:36] = (255, 0, 255)  # a defect among the good images
    return images


@pytest.fixture(scope="module")
def images() -> list[NDArray[np.uint8]]:
    return list(parts(16).values())


@pytest.fixture(scope="module", params=["best", "encoder"])
def config(request: pytest.FixtureRequest) -> Config:
    settings = dict(TINY)
    if request.param == "best":
        settings["critic"] = CriticSettings(width=4, steps=2, batch_size=2, warmup=1)
    return preset(request.param, **settings)


class TestTraining:
    def test_a_defect_among_the_good_images_comes_first(self, images: list[NDArray[np.uint8]], config: Config) -> None:
        loaded, sized = load_training_images(images, config)
        detector = PatchSVDD.fit_images(loaded, sized, device="cpu")
        first = unusual_images(detector.provenance)[0]
        assert first.image == 5
        assert first.stands_out
        if config.critic is not None:  # the place of a product map is where its patches overlap
            assert math.dist(first.at, (30 / 64, 26 / 64)) < 0.35
        pictures = list(unusual_pictures(detector))
        assert pictures[0].image == first
        assert "stands out" in pictures[0].words
        assert max(pictures[0].picture.size) == 200

    def test_images_can_be_left_out(self, images: list[NDArray[np.uint8]], config: Config) -> None:
        loaded, _ = load_training_images(images, config)
        fewer, _ = load_training_images(images, config, leave_out=[loaded.names[5]])
        assert set(loaded.names) - set(fewer.names) == {loaded.names[5]}
        assert fewer.left_out == (loaded.names[5],)

    def test_an_unknown_name_is_an_error(self, images: list[NDArray[np.uint8]], config: Config) -> None:
        with pytest.raises(DatasetError, match=r"no good image named 'x\.png'"):
            load_training_images(images, config, leave_out=["x.png"])


def test_a_model_without_the_list_has_no_sheet(tmp_path: Path) -> None:
    class Old:
        pictures, provenance = None, dict[str, object]()

    with pytest.raises(DatasetError, match="train it again"):
        save_unusual_sheet(Old(), tmp_path)  # type: ignore[arg-type]


def test_the_ring_is_where_it_should_be() -> None:
    shown = np.asarray(with_ring(np.zeros((100, 200, 3), np.uint8), (0.5, 0.25), 200))
    rows, columns = np.nonzero(shown.any(2))
    assert abs(rows.mean() - 50) < 1
    assert abs(columns.mean() - 50) < 1
