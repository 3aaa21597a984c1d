"""``patchsvdd part``: from good parts to verdicts on new ones."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from support.command_line import QUICK, part, run

PATTERN = r"(?P<part>\d+)_(?P<view>top|side)\.png"


def draw(folder: Path, numbers: range, *, defect: bool = False) -> Path:
    """Two images for each part, as 17_top.png and 17_side.png; with ``defect`` the side has a spot."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        part(number)[0].save(folder / f"{number}_top.png")
        part(5000 + number, defect=defect)[0].rotate(180).save(folder / f"{number}_side.png")
    return folder


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options that name two views and their models."""
    root = tmp_path_factory.mktemp("views")
    draw(root / "all", range(3))
    for view in ("top", "side"):
        (root / view).mkdir()
        for path in (root / "all").glob(f"*_{view}.png"):
            shutil.copy(path, root / view)
        assert run("train", root / view, "--out", root / "models" / view, *QUICK).code == 0
    return ("--view", f"top={root}/models/top", "--view", f"side={root}/models/side")


@pytest.fixture(scope="module")
def calibrated(views: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part file from 8 good parts."""
    folder = tmp_path_factory.mktemp("calibrated")
    good = draw(folder / "good", range(100, 108))
    done = run(
        *("part", "calibrate", good, *views, "--pattern", PATTERN, "--out", folder / "part.json"),
        *("--false-alarm-rate", "0.1", "--device", "cpu", "--json"),
    ).json()
    assert (done["parts"], done["basis"], done["known"], done["skipped"]) == (8, "parts", [], [])
    assert done["promised_rate"] == pytest.approx(1 / 9)
    return folder / "part.json"


def test_calibrate_says_what_it_guarantees(views: tuple[str, ...], tmp_path: Path) -> None:
    good = draw(tmp_path / "good", range(100, 106))
    (good / "overview.png").write_bytes((good / "100_top.png").read_bytes())
    (good / "105_side.png").write_bytes(b"broken")
    ended = run(
        "part", "calibrate", good, *views, "--pattern", PATTERN, "--out", tmp_path / "part.json", "--device", "cpu"
    )
    assert ended.code == 0, ended.stderr
    assert "given 5 parts" in ended.stdout
    assert "limit of side" in ended.stdout
    assert "skipped:" in ended.stderr
    assert "1 images belong to no part" in ended.stderr
    assert "5 good parts are too few for a false-alarm rate of 1.00%" in ended.stderr


def test_inspect_writes_one_verdict_for_each_part(calibrated: Path, tmp_path: Path) -> None:
    new = draw(tmp_path / "new", range(300, 302))
    draw(new, range(400, 401), defect=True)
    (new / "500_top.png").write_bytes((new / "300_top.png").read_bytes())
    (new / "301_side.png").write_bytes(b"broken")
    command = ("part", "inspect", calibrated, new, "--pattern", PATTERN, "--out", tmp_path / "out", "--device", "cpu")
    done = run(*command, "--json")
    found = {row["part"]: row for row in done.json()["rows"]}
    assert {number: row["verdict"] for number, row in found.items()} == {
        **{"300": "good", "301": "incomplete", "400": "anomalous", "500": "incomplete"}
    }
    assert found["301"]["missing"] == found["500"]["missing"] == ["side"]
    assert list(found["301"]["errors"]) == ["side"]
    assert found["400"]["views"]["side"]["relative"] == found["400"]["score"] > 1
    assert f"{new}/301_side.png: " in done.stderr
    assert (tmp_path / "out" / found["400"]["views"]["side"]["overlay"]).exists()
    assert [json.loads(line) for line in (tmp_path / "out" / "parts.jsonl").read_text().splitlines()] == list(
        found.values()
    )
    with (tmp_path / "out" / "parts.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["verdict"] for row in table] == ["anomalous", "incomplete", "incomplete", "good"]
    assert float(table[0]["side"]) == found["400"]["score"]

    before = (tmp_path / "out" / "top" / "results.jsonl").read_bytes()
    again = run(*command, "--fail-on-anomaly")
    assert again.code == 3
    assert "4 parts: 1 anomalous, 2 incomplete, 1 good" in again.stdout
    assert (tmp_path / "out" / "top" / "results.jsonl").read_bytes() == before, "finished images are kept"


def test_without_good_parts_the_models_need_a_guarantee(views: tuple[str, ...], tmp_path: Path) -> None:
    ended = run("part", "calibrate", *views, "--out", tmp_path / "part.json", "--device", "cpu")
    assert "the model of the view 'top' guarantees no false-alarm rate" in ended.error()
    assert not (tmp_path / "part.json").exists()


def test_incomplete_parts_can_count_as_anomalous(views: tuple[str, ...], tmp_path: Path) -> None:
    good = draw(tmp_path / "good", range(100, 103))
    out = tmp_path / "part.json"
    command = ("part", "calibrate", good, *views, "--pattern", PATTERN, "--out", out, "--device", "cpu")
    assert run(*command, "--incomplete-is-anomalous").code == 0
    (tmp_path / "new").mkdir()
    shutil.copy(good / "100_top.png", tmp_path / "new")
    done = run(
        *("part", "inspect", out, tmp_path / "new", "--pattern", PATTERN, "--out", tmp_path / "out", "--json"),
        *("--device", "cpu"),
    ).json()
    assert [row["verdict"] for row in done["rows"]] == ["anomalous"]


def test_a_changed_model_is_refused(views: tuple[str, ...], tmp_path: Path) -> None:
    good, out = draw(tmp_path / "good", range(100, 103)), tmp_path / "part.json"
    shutil.copytree(views[3].removeprefix("side="), tmp_path / "side")
    options = (views[0], views[1], "--view", f"side={tmp_path}/side", "--pattern", PATTERN, "--device", "cpu")
    assert run("part", "calibrate", good, *options, "--out", out).code == 0
    assert run("calibrate", tmp_path / "side", "--threshold", "5").code == 0
    ended = run("part", "inspect", out, good, "--pattern", PATTERN, "--out", tmp_path / "out", "--device", "cpu")
    assert "the model of the view 'side' was changed since the part was calibrated" in ended.error()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "name each view and its model"),
        (("--view", "top"), "give a name and a folder"),
        (("--view", "top=a", "--view", "top=b"), "top was given twice"),
        (("--view", "a/b=a"), "names a folder"),
    ],
)
def test_views_have_a_name_and_a_model(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    ended = run("part", "calibrate", tmp_path, *options, "--out", tmp_path / "part.json")
    assert ended.code == 2
    assert problem in ended.stderr.replace("\n", " ")


def test_wrong_usage_is_explained(tmp_path: Path) -> None:
    view = ("--view", f"top={tmp_path}")
    assert run("part", "calibrate", tmp_path, *view).code == 2
    assert run("part", "calibrate", *view, "--pattern", PATTERN, "--out", tmp_path / "part.json").code == 2
    ended = run("part", "calibrate", tmp_path, *view, "--false-alarm-rate", "2", "--out", tmp_path / "part.json")
    assert "--false-alarm-rate is a share between 0 and 1" in ended.error()
