"""Golden images: stored beside the model without changing it, and a check that says why it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.core.errors import ConfigError, ImageError
from patchsvdd.detector import golden_images as golden_module
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.golden_images import (
    FOLDER,
    INDEX,
    GoldenCheck,
    add_golden_images,
    check_golden_images,
    golden_images,
    remove_golden_images,
)
from patchsvdd.detector.model_folder import read_index
from patchsvdd.detector.threshold_choice import choose_threshold
from support.command_line import run
from support.parts import draw_part, save_picture
from support.serving import copy_model


@pytest.fixture
def model(stored: Path, tmp_path: Path) -> Path:
    return copy_model(stored, tmp_path / "part")


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, Path]:
    """One image that the tiny model calls good, and one that it calls anomalous."""
    found = {"good": tmp_path / "golden good.png", "anomalous": tmp_path / "crack.png"}
    save_picture(found["good"], draw_part(0))
    save_picture(found["anomalous"], draw_part(30, defect=True))
    return found


def checked(model: Path) -> GoldenCheck:
    return check_golden_images(model, PatchSVDD.load(model, "cpu"))


@pytest.fixture
def golden(model: Path, pictures: dict[str, Path]) -> Path:
    """The model with both images."""
    detector = PatchSVDD.load(model, "cpu")
    for verdict, path in pictures.items():
        add_golden_images(model, detector, [path], verdict)
    return model


def test_the_model_stays_the_same_and_passes(golden: Path, stored: Path, pictures: dict[str, Path]) -> None:
    assert read_index(golden) == read_index(stored)
    assert [(one.name, one.verdict) for one in golden_images(golden)] == [
        ("crack.png", "anomalous"),
        ("golden good.png", "good"),
    ]
    assert (golden / FOLDER / "crack.png").read_bytes() == pictures["anomalous"].read_bytes()
    found = checked(golden)
    assert (found.problem, len(found.results)) == (None, 2)
    assert found.to_json()["passed"] is True
    assert checked(stored).results == ()


def test_an_image_with_the_wrong_verdict_is_refused_unless_forced(model: Path, pictures: dict[str, Path]) -> None:
    detector = PatchSVDD.load(model, "cpu")
    both = list(pictures.values())
    with pytest.raises(ConfigError, match=r"says 'anomalous' about 'crack\.png', not 'good'"):
        add_golden_images(model, detector, both, "good")
    assert golden_images(model) == []  # all or none
    add_golden_images(model, detector, both, "good", force=True)
    problem = check_golden_images(model, detector).problem
    assert problem is not None
    assert problem.startswith("golden image 'crack.png' is judged 'anomalous', not 'good'")
    add_golden_images(model, detector, [pictures["anomalous"]], "anomalous")  # corrects it
    assert check_golden_images(model, detector).problem is None
    with pytest.raises(ConfigError, match="good or anomalous"):
        add_golden_images(model, detector, both, "fine")
    with pytest.raises(ConfigError, match="no image to add"):
        add_golden_images(model, detector, [], "good")
    with pytest.raises(ConfigError, match="different names"):
        add_golden_images(model, detector, [both[0], both[0]], "good")
    with pytest.raises(ImageError, match="cannot be read"):
        add_golden_images(model, detector, [model / "none.png"], "good")


def rewritten(model: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = model / FOLDER / INDEX
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda model: (model / FOLDER / "crack.png").unlink(), "'crack.png' cannot be read: No such file"),
        (lambda model: (model / FOLDER / "crack.png").write_bytes(b"x"), "'crack.png' was altered"),
        (lambda model: (model / FOLDER / INDEX).write_text("{"), "is damaged"),
        (lambda model: (model / FOLDER / INDEX).unlink(), "is missing"),
        (lambda model: rewritten(model, lambda content: content["images"][0].update(verdict="good")), "is damaged"),
    ],
)
def test_damage_is_a_failed_check(golden: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(golden)
    found = checked(golden)
    assert found.problem is not None
    assert words in found.problem
    assert str(golden) not in found.problem


@pytest.mark.parametrize(("share", "passes"), [(0.01, True), (-0.01, True), (0.03, False), (-0.03, False)])
def test_scores_must_agree_as_long_as_the_model_is_the_same(golden: Path, share: float, passes: bool) -> None:
    detector = PatchSVDD.load(golden, "cpu")
    shift = share * detector.threshold
    golden_module._write(golden, [replace(one, score=one.score + shift) for one in golden_images(golden)])
    found = check_golden_images(golden, detector)
    assert (found.problem is None) == passes
    if not passes:
        assert "was recorded with the same model" in str(found.problem)
        assert check_golden_images(golden, detector, tolerance=0.05).problem is None
    # A model that was changed is held to the verdicts only.
    choose_threshold(golden, threshold=1.001 * detector.threshold)
    assert checked(golden).problem is None


def test_the_command_adds_checks_lists_and_removes(model: Path, pictures: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "defects"
    folder.mkdir()
    pictures["anomalous"].rename(folder / "crack.png")
    assert "has no golden images" in run("check", model).error()
    assert "belong together" in run("check", model, "--add", folder).error()
    assert "leave it out, or add it with --force" in run("check", model, "--add", folder, "--verdict", "good").error()
    assert run("check", model, "--add", folder, "--verdict", "anomalous").code == 0
    added = run("check", model, "--add", pictures["good"], "--verdict", "good", "--json").json()
    assert (added["passed"], added["images"]) == (True, 2)
    listed = run("check", model, "--list", "--json").json()["golden"]
    assert [one["name"] for one in listed] == ["crack.png", "golden good.png"]
    assert "passed" in run("check", model).stdout
    (model / FOLDER / "crack.png").unlink()
    assert "the check failed: golden image 'crack.png' cannot be read" in run("check", model).error()
    failed = run("check", model, "--json")
    assert (failed.code, json.loads(failed.stdout)["passed"]) == (1, False)
    (tmp_path / "camera").mkdir()
    watched = run("watch", model, tmp_path / "camera", "--out", tmp_path / "out", "--once")
    assert "the model failed its check: golden image 'crack.png'" in watched.error()
    assert run("check", model, "--remove", "crack.png").code == 0
    assert run("check", model).code == 0


def test_images_are_removed(golden: Path) -> None:
    with pytest.raises(ConfigError, match=r"there are: crack\.png, golden good\.png"):
        remove_golden_images(golden, ["none.png"])
    remove_golden_images(golden, ["crack.png"])
    assert checked(golden).problem is None
    remove_golden_images(golden, ["golden good.png"])
    assert not (golden / FOLDER).exists()
