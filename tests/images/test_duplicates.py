"""Images that show the same count once, wherever good images are counted."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from patchsvdd.core.errors import DatasetError
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.images.duplicates import find_duplicates
from patchsvdd.images.loading import load_distinct_images, load_good_images
from support.command_line import NO_ESTIMATE, run
from support.parts import TINY, TINY_CRITIC, draw_part, save_picture

pytestmark = pytest.mark.slow

Picture = NDArray[np.uint8]
SIZE = (160, 160)
CONFIG = preset("encoder", image_size=64, aim="few-alarms")


def part(seed: int) -> Picture:
    """A part with scratches of its own, as no two are alike."""
    rng = np.random.default_rng(1000 + seed)
    picture = draw_part(seed, SIZE).astype(np.float64)
    for _ in range(40):
        top, left = rng.integers(0, SIZE[0] - 12, 2)
        picture[top : top + rng.integers(2, 12), left : left + rng.integers(2, 12)] += rng.normal(0, 25)
    return picture.clip(0, 255).astype(np.uint8)


def stacked(pictures: list[Picture]) -> Tensor:
    return torch.stack([torch.from_numpy(np.ascontiguousarray(one.transpose(2, 0, 1))) for one in pictures])


def saved_again(picture: Picture) -> Picture:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=60)
    return np.asarray(Image.open(file).convert("RGB"))


def smaller(picture: Picture) -> Picture:
    less = Image.fromarray(picture).resize((120, 120), Image.Resampling.BICUBIC)
    return np.asarray(less.resize(SIZE, Image.Resampling.BICUBIC))


def next_shot(picture: Picture) -> Picture:
    """The same part again: a pixel to the side, a little brighter, with noise of its own."""
    moved = np.roll(picture, (1, -1), (0, 1)).astype(np.float64) * 1.02
    return (moved + np.random.default_rng(0).normal(0, 3, picture.shape)).clip(0, 255).astype(np.uint8)


class TestFinding:
    @pytest.mark.parametrize("again", [np.copy, saved_again, smaller, next_shot])
    def test_a_copy_is_found(self, again: Any) -> None:
        pictures = [part(seed) for seed in range(12)]
        found = find_duplicates(stacked([*pictures, again(pictures[3]), again(pictures[7])]))
        assert found == [*range(12), 3, 7]

    def test_so_are_all_shots_of_a_burst(self) -> None:
        pictures = [part(seed) for seed in range(12)]
        burst = [np.roll(saved_again(pictures[5]), step, 1) for step in range(3)]
        assert find_duplicates(stacked([*pictures, *burst])) == [*range(12), 5, 5, 5]

    def test_parts_that_lie_alike_are_none(self) -> None:
        assert find_duplicates(stacked([part(seed) for seed in range(20)])) == list(range(20))
        assert find_duplicates(stacked([draw_part(seed) for seed in range(20)])) == list(range(20))

    def test_every_image_may_be_there_twice(self) -> None:
        pictures = [part(seed) for seed in range(10)]
        assert find_duplicates(stacked([*pictures, *pictures])) == [*range(10), *range(10)]

    def test_two_images_are_enough_to_tell(self) -> None:
        assert find_duplicates(stacked([part(0), part(0)])) == [0, 0]
        assert find_duplicates(stacked([part(0), part(1)])) == [0, 1]

    def test_flat_images_without_anything_on_them_are_alike(self) -> None:
        flat = [np.full((*SIZE, 3), grey, np.uint8) for grey in (100, 110)]
        assert find_duplicates(stacked([*flat, part(0)])) == [0, 0, 2]

    @pytest.mark.real_data
    def test_real_sets_have_few(self, shared: Path) -> None:
        images = load_good_images(shared / "data" / "mvtec" / "toothbrush", preset("best"))
        found = find_duplicates(images.pixels)
        assert [(index, one) for index, one in enumerate(found) if index != one] == [(15, 6)]


class TestLoading:
    def test_copies_are_left_out_and_named(self) -> None:
        loaded = load_distinct_images([part(0), part(1), part(0), part(2)], CONFIG)
        assert loaded.names == ("image 0", "image 1", "image 3")
        assert loaded.copies == (("image 2", "image 0"),)

    def test_one_image_many_times_is_not_enough(self) -> None:
        with pytest.raises(DatasetError, match="all 5 images show the same"):
            load_distinct_images([part(0)] * 5, CONFIG)


@pytest.mark.parametrize("again", [np.copy, saved_again])
def test_good_images_given_twice_do_not_void_the_threshold(again: Any) -> None:
    """40 of 40 new good images were called anomalous, because each image had a copy in the memory."""
    pictures = [part(seed) for seed in range(30)]
    settings = TINY | TINY_CRITIC | {"encoder": "random"}
    once = PatchSVDD.fit(pictures, preset="best", device="cpu", **settings)
    twice = PatchSVDD.fit([*pictures, *map(again, pictures)], preset="best", device="cpu", **settings)
    assert len(twice.memory.image_names) == 30
    assert len(twice.provenance["data"]["copies"]) == 30
    assert twice.threshold == once.threshold
    assert twice.calibration is not None
    assert twice.calibration.conformal_guarantee.count == len(twice.provenance["data"]["held_out"]) == 8
    alarms = sum(one.is_anomalous for one in twice.inspect_many([part(seed) for seed in range(100, 140)]))
    assert alarms <= 12  # 1 in 9 is promised, and 8 images happened to be chosen


@pytest.fixture(scope="module")
def detector() -> PatchSVDD:
    settings = TINY | {"encoder": "random", "image_size": SIZE}
    return PatchSVDD.fit([part(seed) for seed in range(10)], preset="encoder", device="cpu", **settings)


class TestCalibrating:
    def test_images_that_the_memory_knows_are_no_news(self, detector: PatchSVDD) -> None:
        new = [part(seed) for seed in range(20, 30)]
        done = recalibrate(detector, [*new, saved_again(part(2)), saved_again(new[4]), new[0]], 0.1)
        assert (done.separate, done.known) == (10, 0)
        assert done.copies == ("image 10", "image 11", "image 12")
        assert done.calibration.basis == "separate"

    def test_those_of_the_memory_stand_for_themselves(self, detector: PatchSVDD) -> None:
        done = recalibrate(detector, [part(seed) for seed in range(10)], 0.1)
        assert (done.separate, done.known, done.copies) == (0, 10, ())

    def test_copies_alone_set_no_threshold(self, detector: PatchSVDD) -> None:
        with pytest.raises(DatasetError, match="copies of images in its memory"):
            recalibrate(detector, [saved_again(part(seed)) for seed in range(3)], 0.1)


def test_the_command_line_reports_them(tmp_path: Path) -> None:
    for index, seed in enumerate((0, 1, 2, 1)):
        save_picture(tmp_path / "good" / f"{index}.png", part(seed))
    options = ["--preset", "encoder", "--encoder", "random", "--image-size", "64", "--device", "cpu", *NO_ESTIMATE]
    done = run("train", tmp_path / "good", "--out", tmp_path / "model", *options)
    assert "1 image is a copy or a near-copy of another and left out (3.png of 1.png)" in " ".join(done.stderr.split())
    done = run("train", tmp_path / "good", "--out", tmp_path / "model", "--overwrite", "--json", *options)
    assert json.loads(done.stdout)["copies"] == [["3.png", "1.png"]]
