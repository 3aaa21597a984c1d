from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.command_line import run
from support.parts import draw_part, save_picture


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, good_folder: Path) -> Path:
    """Good images, of which one is broken and one was learned; defects of one kind; shots of a part."""
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(3):
        save_picture(folder / "good" / f"{seed}.png", draw_part(50 + seed))
        save_picture(folder / "defects" / "square" / f"{seed}.png", draw_part(60 + seed, defect=True))
        save_picture(folder / "repeats" / "part 1" / f"{seed}.png", draw_part(70 + seed, defect=True))
    shutil.copy(good_folder / "002.png", folder / "good" / "learned.png")
    (folder / "good" / "broken.png").write_bytes(b"no image")
    (folder / "none").mkdir()
    return folder


@pytest.fixture
def model(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "part"))


def given(photos: Path) -> tuple[object, ...]:
    return "--good", photos / "good", "--defects", photos / "defects", "--device", "cpu"


def test_a_test_in_words(model: Path, photos: Path) -> None:
    ended = run("accept", model, *given(photos), "--repeats", photos / "repeats", "--claim", "miss<=50%")
    assert ended.code == 0, ended.stderr
    for words in ("missed: square", "of 3 defects were found", "of 3 good images were rejected", "miss<=50%"):
        assert words in ended.stdout
    assert "standard deviation" in ended.stdout
    assert "skipped:" in ended.stderr
    assert "broken.png" in ended.stderr
    assert "1 image was left out: the model was trained on this image" in ended.stderr


def test_a_test_as_json(model: Path, photos: Path, tmp_path: Path) -> None:
    found = run("accept", model, *given(photos), "--out", tmp_path / "out", "--json").json()
    assert found["misses"]["of"] == found["false_rejects"]["of"] == 3
    assert found["accepted"] is None
    assert {one["name"] for one in found["left_out"]} == {"good/learned.png", "good/broken.png"}
    assert found["repeatability"] is None
    for path in found["files"].values():
        assert Path(path).parent == tmp_path / "out"
        assert Path(path).is_file()


def test_the_exit_code_is_that_of_the_requirements(model: Path, photos: Path) -> None:
    # Three of three show at most 63.2 %.
    met = run("accept", model, *given(photos), "--require", "miss<=0.64", "--json")
    assert met.json()["accepted"] is True
    missed = run("accept", model, *given(photos), "--require", "miss<=0.64", "--require", "miss:square<=5%")
    assert missed.code == 3
    assert "met: miss<=64%" in missed.stdout
    assert "not met: miss:square<=5%" in missed.stdout
    assert "56 more without a failure would show it" in missed.stdout


def test_verdicts_of_inspectors(model: Path, photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "verdicts.csv"
    rows = [f"{folder}/{kind}{seed}.png,Ana,{verdict}" for folder, kind, verdict in (
        ("good", "", "good"), ("defects", "square/", "defect")) for seed in range(3)]  # fmt: skip
    table.write_text("\n".join(["image,inspector,verdict", *rows]))
    ended = run("accept", model, *given(photos), "--inspectors", table, "--require", "kappa>=0.01")
    assert ended.code in (0, 3), ended.stderr
    assert "with model" in ended.stdout
    assert "Ana" in ended.stdout
    table.write_text("\n".join(["image,inspector,verdict", *rows, "good/77.png,Ana,good"]))
    error = run("accept", model, *given(photos), "--inspectors", table).error()
    assert "row 8: the model did not inspect 'good/77.png'; name an image of --good or --defects" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--good", "good", "--require", "miss<=5%"], "needs --defects"),
        (["--good", "good", "--require", "recall>=5%"], "cannot be limited"),
        (["--good", "good", "--claim", "kappa>=0.5"], "cannot be limited"),
        (["--good", "good", "--inspectors", "x.csv"], "--inspectors needs --good and --defects"),
        ([], "nothing to test"),
        (["--plan", "--claim", "miss<=5%"], "go with it"),
    ],
)
def test_wrong_usage(model: Path, photos: Path, arguments: list[str], said: str) -> None:
    ended = run("accept", model, *[photos / one if one == "good" else one for one in arguments])
    assert ended.code == 2
    assert said in " ".join(ended.stderr.replace("│", " ").split())


def test_neither_a_model_nor_a_plan_is_wrong_usage() -> None:
    assert run("accept").code == 2
    assert run("accept", "--plan").code == 2


def test_errors_are_one_line(model: Path, photos: Path, tmp_path: Path) -> None:
    assert "there is no image in" in run("accept", model, "--good", photos / "none").error()
    assert "there is no folder" in run("accept", model, "--good", photos / "nowhere").error()
    assert "no model folder" in run("accept", tmp_path / "nothing", "--good", photos / "good").error()
    assert "--confidence is at least" in run("accept", model, *given(photos), "--confidence", 2).error()
    error = run("accept", model, *given(photos), "--require", "miss:hole<=5%").error()
    assert "names a kind of defect that no image has; there are: square" in error
    assert not (model / "acceptance").exists()


def test_a_plan_needs_no_images() -> None:
    plan = run("accept", "--plan", "--claim", "miss<=5%", "--claim", "repeatability>=90%", "--json").json()
    assert [one["claim"] for one in plan["claims"]] == ["miss<=5%", "repeatability>=90%"]
    assert [row["parts"] for row in plan["claims"][0]["plan"]] == [59, 93, 124, 153, 208]
    assert plan["claims"][1]["plan"][0]["parts"] == 29
    ended = run("accept", "--plan", "--claim", "miss<=1%", "--confidence", "0.9")
    assert ended.code == 0
    assert "230" in ended.stdout
    assert "230 parts without a failure show miss<=1% with 0.9 confidence" in ended.stderr


def test_info_reports_the_last_test(model: Path, photos: Path) -> None:
    assert run("info", model, "--json").json()["acceptance"] is None
    run("accept", model, *given(photos))
    run("accept", model, *given(photos), "--require", "miss<=5%")
    found = run("info", model, "--json").json()["acceptance"]
    assert found["accepted"] is False
    assert found["model_changed"] is False
    assert found["requirements"] == ["miss<=5%"]
    shown = run("info", model).stdout
    assert "requirements not met (miss<=5%)" in shown
    assert "has changed since" not in shown
    run("calibrate", model, "--threshold", "0.5")
    assert "the model has changed since then" in run("info", model).stdout
    assert run("info", model, "--json").json()["acceptance"]["model_changed"] is True
    record = sorted((model / "acceptance").glob("*.json"))[-1]
    record.write_text(json.dumps({**json.loads(record.read_text()), "accepted": True}))
    assert "cannot be used" in run("info", model).stdout
