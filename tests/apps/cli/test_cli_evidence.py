"""Thresholds that weigh false alarms against synthetic defects, where images are few, odd or unusable."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import patchsvdd.apps.cli.train
from patchsvdd.core.errors import ConfigError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import read_index
from patchsvdd.detector.threshold_evidence import gather_evidence
from patchsvdd.training.hooks import TrainingProgress
from support.command_line import Ended, draw_parts, files, part, run
from support.parts import draw_part

pytestmark = pytest.mark.slow

SMALL = ("--steps", "1", "--image-size", "64", "--device", "cpu")
DRAWN = ("--aim", "balanced", "--synthetic-defects", "24")
WEIGHED = ("--preset", "encoder", *SMALL, *DRAWN)
"""A quick training whose threshold weighs false alarms and misses."""
CRITIC = ("--preset", "best", *SMALL, *DRAWN, "--critic-steps", "1", "--fusion-share", "0.5")
TINY_REGION = ("--roi", "30,30 33,30 33,33 30,33")
"""Too small for any synthetic defect."""
NO_DEFECT = "no synthetic defect could be placed"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six images and the aim balanced. Tests share it: copy it first to change it."""
    folder = tmp_path_factory.mktemp("weighed")
    ended = run("train", draw_parts(folder / "good", 6), "--out", folder / "model", *WEIGHED)
    assert ended.code == 0, ended.stderr
    return folder / "model"


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "model"))


def save(folder: Path, pictures: list[Image.Image]) -> Path:
    folder.mkdir()
    for index, picture in enumerate(pictures):
        picture.save(folder / f"{index:03}.png")
    return folder


def speckled(seed: int) -> Image.Image:
    """A part that differs from others in every pixel of its middle."""
    pixels = draw_part(seed, (72, 72))
    pixels[20:50, 20:50] = np.random.default_rng(seed).integers(0, 255, (30, 30, 3))
    return Image.fromarray(pixels)


def summary(ended: Ended) -> str:
    """What people read, without line breaks."""
    assert ended.code == 0, ended.stderr
    return " ".join((ended.stdout + ended.stderr).split())


class TestFewImages:
    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("settings", [WEIGHED, CRITIC], ids=["encoder", "best"])
    def test_fewer_than_four_are_refused(self, tmp_path: Path, count: int, settings: tuple[str, ...]) -> None:
        good = draw_parts(tmp_path / "good", count)
        error = run("train", good, "--out", tmp_path / "model", *settings).error()
        assert "at least 4 good images (--aim few-alarms accepts 2)" in error
        assert f"got {count} usable of {count}" in error
        assert not (tmp_path / "model").exists()

    def test_two_are_accepted_for_few_alarms(self, tmp_path: Path) -> None:
        good = draw_parts(tmp_path / "good", 2)
        told = run("train", good, "--out", tmp_path / "model", *WEIGHED, "--aim", "few-alarms", "--json").json()
        assert (told["aim"], told["images"]) == ("few-alarms", 2)

    @pytest.mark.parametrize(("count", "held_out"), [(4, 2), (10, 5)])
    def test_four_and_ten_work_and_the_uncertainty_is_told(self, tmp_path: Path, count: int, held_out: int) -> None:
        good = draw_parts(tmp_path / "good", count)
        words = summary(run("train", good, "--out", tmp_path / "model", *CRITIC))
        assert f"{held_out} good images leave the false-alarm rate uncertain: about" in words
        assert "with 95% confidence at most" in words
        assert f"given {held_out} images" in words
        calibration = read_index(tmp_path / "model")["calibration"]
        assert (calibration["aim"], len(calibration["scores"])) == ("balanced", held_out)
        assert "Calibrate with 60 or more good images" in summary(run("info", tmp_path / "model"))

    def test_identical_ones_are_refused(self, tmp_path: Path) -> None:
        good = save(tmp_path / "good", [part(0)[0]] * 8)
        error = run("train", good, "--out", tmp_path / "model", *WEIGHED).error()
        assert "all 8 images show the same; training requires at least 4 different good images" in error
        some = save(tmp_path / "some", [part(0)[0]] * 8 + [part(1)[0]] * 2)
        error = run("train", some, "--out", tmp_path / "model", *WEIGHED).error()
        assert "only 2 of the 10 images differ, the others are copies of them" in error
        assert not (tmp_path / "model").exists()

    def test_one_corrupt_file_among_twenty_is_named_and_skipped(self, tmp_path: Path) -> None:
        good = draw_parts(tmp_path / "good", 20)
        (good / "007.png").write_bytes((good / "007.png").read_bytes()[:500])
        ended = run("train", good, "--out", tmp_path / "model", *WEIGHED, "--json")
        told = ended.json()
        assert (told["images"], told["aim"]) == (19, "balanced")
        assert told["synthetic_defects"] >= 20
        assert "skipped: 007.png: is damaged" in ended.stderr


class TestOddImages:
    @pytest.mark.parametrize("kind", ["L", "I;16", "LA", "1"])
    def test_grey_and_deep_ones_work(self, tmp_path: Path, kind: str) -> None:
        pictures = [part(seed)[0].convert("L") for seed in range(5)]
        if kind == "I;16":
            pictures = [Image.fromarray(np.asarray(picture).astype(np.uint16) * 257) for picture in pictures]
        else:
            pictures = [picture.convert(kind) for picture in pictures]
        good = save(tmp_path / "good", pictures)
        told = run("train", good, "--out", tmp_path / "model", *WEIGHED, "--json").json()
        assert (told["images"], told["aim"]) == (5, "balanced")
        assert "5 good images leave the false-alarm rate uncertain" in told["caveat"]
        assert 0 <= told["estimated_miss_rate"] <= 1

    def test_images_of_one_colour_show_the_same(self, tmp_path: Path) -> None:
        good = save(tmp_path / "good", [Image.new("RGB", (72, 72), (100 + 5 * seed, 90, 80)) for seed in range(6)])
        assert "all 6 images show the same" in run("train", good, "--out", tmp_path / "model", *WEIGHED).error()

    def test_images_smaller_than_the_largest_patch(self, tmp_path: Path) -> None:
        good = save(tmp_path / "good", [part(seed, size=40)[0] for seed in range(5)])
        told = run("train", good, "--out", tmp_path / "model", *WEIGHED, "--json").json()
        assert (told["images"], told["aim"]) == (5, "balanced")
        native = (*WEIGHED, "--image-size", "native")
        error = run("train", good, "--out", tmp_path / "native", *native).error()
        assert "is 40x40 pixels, smaller than the largest patch (64 px)" in error

    @pytest.mark.parametrize("settings", [WEIGHED, CRITIC[:-2]], ids=["encoder", "best"])
    def test_a_region_without_room_for_a_defect(self, tmp_path: Path, settings: tuple[str, ...]) -> None:
        """Nothing can be estimated or compared: the threshold, the encoder and the fusion do without."""
        good = save(tmp_path / "good", [speckled(seed) for seed in range(6)])
        out = tmp_path / "model"
        words = summary(run("train", good, "--out", out, *settings, *TINY_REGION))
        assert f"misses cannot be estimated, because {NO_DEFECT}" in words
        assert "missed not known" in words
        assert NO_DEFECT in summary(run("info", out))
        about = read_index(out)["calibration"]
        assert (about["aim"], about["evidence"]["defects"], about["region_level"]) == ("few-alarms", [], None)
        before = files(out)
        assert "they found no place" in run("calibrate", out, "--aim", "few-misses").error()
        assert files(out) == before
        new = save(tmp_path / "new", [speckled(seed) for seed in range(50, 56)])
        told = run("calibrate", out, new, "--aim", "few-misses", "--json").json()
        assert (told["aim"], told["estimated_miss_rate"], told["missed_by_class"]) == ("few-alarms", None, [])
        assert NO_DEFECT in told["caveat"]
        assert run("inspect", out, new, "--out", tmp_path / "inspected").code == 0
        assert (tmp_path / "inspected" / "index.html").is_file()


class TestCalibrate:
    def test_with_one_image_the_model_stays_as_it_was(self, model: Path, tmp_path: Path) -> None:
        before = files(model)
        one = draw_parts(tmp_path / "one", 1, first=40)
        error = run("calibrate", model, one).error()
        assert "the aim 'balanced' requires at least 2 different good images; got 1 of 1" in error
        assert "choose --aim few-alarms" in error
        same = save(tmp_path / "same", [part(41)[0]] * 5)
        assert "at least 2 different good images; got 1 of 5" in run("calibrate", model, same).error()
        assert files(model) == before

    def test_with_one_image_for_few_alarms(self, model: Path, tmp_path: Path) -> None:
        one = draw_parts(tmp_path / "one", 1, first=40)
        words = summary(run("calibrate", model, one, "--aim", "few-alarms"))
        assert "1 good image is too few for a false-alarm rate of 1.00%" in words
        assert "given 1 image (" in words

    def test_with_two_images_it_is_weighed_and_uncertain(self, model: Path, tmp_path: Path) -> None:
        told = run("calibrate", model, draw_parts(tmp_path / "two", 2, first=40), "--json").json()
        assert (told["aim"], told["images"]) == ("balanced", 2)
        assert "2 good images leave the false-alarm rate uncertain" in told["caveat"]

    def test_with_copies_of_training_images_nothing_is_guaranteed(self, model: Path, trained: Path) -> None:
        told = run("calibrate", model, trained.parent / "good", "--json").json()
        assert (told["known"], told["separate"], told["basis"], told["aim"]) == (6, 0, "learned", "balanced")
        assert told["guaranteed"] is False
        assert told["promise"].startswith("no false-alarm rate is guaranteed: the detector was trained on the images")

    @pytest.mark.parametrize("threshold", ["0", "-1", "nan", "inf"])
    def test_a_threshold_that_is_none(self, model: Path, threshold: str) -> None:
        before = files(model)
        error = run("calibrate", model, f"--threshold={threshold}").error()
        assert f"a threshold must be above 0 and finite; got {float(threshold)}" in error
        assert files(model) == before

    @pytest.mark.parametrize("arguments", [("calibrate",), ("train", "--out", "none")])
    def test_an_aim_that_does_not_exist(self, model: Path, arguments: tuple[str, ...]) -> None:
        ended = run(arguments[0], model, *arguments[1:], "--aim", "best")
        assert ended.code == 2
        assert "choose one of balanced, few-alarms, few-misses; got 'best'" in ended.stderr

    def test_an_aim_that_does_not_exist_in_python(self, model: Path) -> None:
        calibration = PatchSVDD.load(model, "cpu").calibration
        assert calibration is not None
        with pytest.raises(ConfigError, match="`aim` must be one of balanced, few-alarms, few-misses; got 'best'"):
            calibration.with_aim("best")  # type: ignore[arg-type]


class TestInterruption:
    def test_ctrl_c_while_evidence_is_gathered_keeps_what_was_trained(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good = draw_parts(tmp_path / "good", 6)
        assert run("train", good, "--out", tmp_path / "whole", *CRITIC).code == 0
        out, steps = tmp_path / "model", list[int]()
        describe = patchsvdd.apps.cli.train._describe

        def gather(*arguments: Any, **options: Any) -> object:
            os.kill(os.getpid(), signal.SIGINT)
            return gather_evidence(*arguments, **options)

        def count(now: TrainingProgress) -> str:
            steps.append(now.step)
            return describe(now)

        with monkeypatch.context() as patch:
            patch.setattr("patchsvdd.detector.leave_one_out.gather_evidence", gather)
            ended = run("train", good, "--out", out, *CRITIC)
        assert ended.code == 130
        assert "stopped during evidence; the training is saved" in ended.stderr
        kept = files(out)
        assert set(kept) == {"training.safetensors", "training-critic.safetensors"}
        monkeypatch.setattr(patchsvdd.apps.cli.train, "_describe", count)
        ended = run("train", good, "--out", out, *CRITIC, "--resume")
        assert ended.code == 0, ended.stderr
        assert steps == []
        assert read_index(out)["calibration"] == read_index(tmp_path / "whole")["calibration"]
        assert {name for name in files(out) if "training" in name} == set()
        weights = [
            sorted(name for name in files(folder) if name.startswith(("encoder", "critic")))
            for folder in (out, tmp_path / "whole")
        ]
        assert weights[0] == weights[1]  # their names hold the hash of the weights
