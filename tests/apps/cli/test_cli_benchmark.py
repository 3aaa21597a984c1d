from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from patchsvdd.evaluation import experiment_store
from support.benchmark_results import metrics, read
from support.command_line import BRIEF, Ended, draw_category, files, finish, run, start

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_estimate")]

SETTINGS = ("--preset", "encoder", *BRIEF, "--steps", 2)
NAMES = ("bottle", "gear")
SIGNAL_IN_THE_SECOND_TRAINING = """
import os, signal
import patchsvdd.detector.fitting
patchsvdd.detector.fitting.JUDGED = 8  # as in this process
from patchsvdd.core.presets import PRESETS
PRESETS["encoder"] = PRESETS["encoder"].replace(aim="few-alarms", synthetic_defects=0)  # likewise
from patchsvdd.apps.cli.console import StageBars
show = StageBars.__call__
seen = []
def show_and_signal(self, stage, done, total):
    show(self, stage, done, total)
    seen.append((stage, done))
    if (stage, done) == ("training", 1) and seen.count(("training", 1)) == 2:
        os.kill(os.getpid(), signal.SIGINT)
StageBars.__call__ = show_and_signal
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two categories. Tests share it: change nothing in it."""
    root = tmp_path_factory.mktemp("data") / "parts"
    for name in NAMES:
        draw_category(root / name)
    shutil.rmtree(root / "gear" / "ground_truth")
    return root


@pytest.fixture(scope="module")
def ran(dataset: Path, no_estimate: None) -> tuple[Path, Ended]:
    """The output folder of a benchmark that nobody disturbed, and what it said."""
    out = dataset.parent / "out"
    return out, run("benchmark", dataset, "--out", out, *SETTINGS, "--json")


@pytest.fixture(scope="module")
def out(ran: tuple[Path, Ended]) -> Path:
    return ran[0]


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """No training in this test."""
    monkeypatch.setattr(experiment_store, "train", lambda *_: pytest.fail("trained again"))


def test_json_is_one_object_and_the_same_as_the_file(ran: tuple[Path, Ended]) -> None:
    out, ended = ran
    told = ended.json()
    assert told.pop("page") == str(out / "index.html")
    assert told == read(out)
    assert {"preset", "hardware", "commit", "date", "seeds", "categories"} <= set(told)
    assert (told["preset"], told["seeds"], told["dataset"]) == ("encoder", [0], "parts")
    assert set(told["categories"]) == set(NAMES)
    for metric in ("detection_auroc", "segmentation_auroc", "aupro"):
        assert {"mean", "std"} <= set(told["categories"]["bottle"][metric])
    assert told["categories"]["bottle"]["detection_auroc"]["mean"] > 0.8  # red spots on grey
    assert told["categories"]["bottle"]["train_seconds"] > 0


def test_tables_and_a_page_are_written(out: Path) -> None:
    assert {"results.json", "results.csv", "results.md", "index.html"} <= set(files(out))
    with (out / "results.csv").open(newline="") as file:
        assert [row["category"] for row in csv.DictReader(file)] == list(NAMES)
    for name in ("results.md", "index.html"):
        assert all(category in (out / name).read_text(encoding="utf-8") for category in NAMES)


def test_what_is_missing_is_said(ran: tuple[Path, Ended]) -> None:
    assert "gear, no segmentation_auroc: there are no masks" in ran[1].stderr


@pytest.mark.usefixtures("untrained")
def test_a_second_run_shows_people_what_the_first_found(dataset: Path, out: Path) -> None:
    before = files(out)
    ended = run("benchmark", dataset, "--out", out, *SETTINGS)
    assert ended.code == 0
    assert {name: files(out)[name] for name in before} == before
    mean = read(out)["categories"]["bottle"]["detection_auroc"]["mean"]
    (row,) = [line for line in ended.stdout.splitlines() if line.strip().startswith("bottle")]
    assert f"{mean:.3f}" in row
    assert "0.986" in row  # the paper's
    assert str(out / "index.html") in ended.stderr


@pytest.mark.usefixtures("untrained")
def test_one_category_of_several(dataset: Path, out: Path, tmp_path: Path) -> None:
    other = ("--out", tmp_path / "out", "--cache", out / "runs", *SETTINGS, "--json")
    told = run("benchmark", dataset, "--categories", " gear,", "--seeds", "0, 0", *other).json()
    assert (list(told["categories"]), told["seeds"]) == (["gear"], [0])
    assert told["categories"]["gear"] == read(out)["categories"]["gear"]
    alone = run("benchmark", dataset / "gear", *other).json()
    assert alone["categories"] == told["categories"]
    assert not (tmp_path / "out" / "runs").exists()


def test_a_category_that_cannot_be_used_does_not_stop_the_others(dataset: Path, out: Path, tmp_path: Path) -> None:
    root = tmp_path / "parts"
    for part in ("train/good", "test"):
        (root / "bare" / part).mkdir(parents=True)
    for name in NAMES:
        (root / name).symlink_to(dataset / name)
    ended = run("benchmark", root, "--out", tmp_path / "out", "--cache", out / "runs", *SETTINGS, "--json")
    assert ended.code == 1
    assert "Traceback" not in ended.stderr
    told = json.loads(ended.stdout)
    assert list(told["failed"]) == ["bare"]
    assert "there is no image in" in told["failed"]["bare"]
    assert "bare" in ended.stderr
    assert told["categories"] == read(out)["categories"]
    assert told["complete"] is False
    assert "bare" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def test_nothing_that_can_be_used_is_told_as_well(dataset: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(dataset / "bottle", tmp_path / "bottle"))
    shutil.rmtree(root / "test")
    untrained = ("--preset", "encoder", *BRIEF, "--steps", 0)
    ended = run("benchmark", root, "--out", tmp_path / "out", *untrained, "--json")
    assert ended.code == 1
    assert "has no test folder" in json.loads(ended.stdout)["failed"]["bottle"]
    assert "has no test folder" in (tmp_path / "out" / "results.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--categories", "gear,botle"), ("no category 'botle'", "choose from: bottle, gear")),
        (("--seeds", "one"), ("--seeds", "0,1,2", "'one'")),
        (("--seeds", ""), ("--seeds", "0,1,2")),
        (("--seeds", "-1"), ("--seeds", "0,1,2", "'-1'")),
        (("--seeds", "0.5"), ("--seeds", "'0.5'")),
        (("--preset", "papr"), ("papr", "paper", "encoder")),
        (("--steps", 1, "--epochs", 1), ("--steps", "--epochs", "give only one")),
        (("--image-size", 32), ("--image-size", "at least 64x64")),
        (("--device", "gpu"), ("--device", "gpu")),
    ],
)
def test_wrong_settings_are_explained(
    dataset: Path, tmp_path: Path, arguments: tuple[object, ...], words: tuple[str, ...]
) -> None:
    message = run("benchmark", dataset, "--out", tmp_path / "out", *arguments).error()
    assert all(word in message for word in words), message
    assert files(tmp_path) == {}


def test_wrong_paths_are_explained(dataset: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    assert "there is no folder" in run("benchmark", tmp_path / "mvtek", *out).error()
    assert "contains no category" in run("benchmark", dataset / "bottle" / "test", *out).error()
    assert "there is no folder" in run("benchmark", dataset / "bottle" / "train" / "good" / "000.png", *out).error()
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert "choose another folder" in run("benchmark", dataset, "--out", taken).error()
    assert files(tmp_path) == {"taken": b"mine"}


def test_help_ends_with_an_example() -> None:
    lines = [line for line in run("benchmark", "--help").stdout.splitlines() if line.strip()]
    assert lines[-1].strip().startswith("Example: patchsvdd benchmark mvtec")


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_same_command_finishes(dataset: Path, out: Path, tmp_path: Path) -> None:
    command = ("benchmark", dataset, "--out", tmp_path / "out", *SETTINGS, "--json")
    ended = finish(start(*command, before=SIGNAL_IN_THE_SECOND_TRAINING))
    assert ended.code == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "interrupted: stopped at step 1 of 2" in ended.stderr
    assert "run the same command to resume" in ended.stderr
    assert ended.stdout == ""
    partial = read(tmp_path / "out")
    assert partial["complete"] is False
    assert metrics(partial)["bottle"] == metrics(read(out))["bottle"]
    told = run(*command).json()
    assert told["complete"] is True
    assert metrics(told) == metrics(read(out))
    assert told["categories"]["bottle"] == partial["categories"]["bottle"]  # taken, not computed again
    assert not list((tmp_path / "out").rglob("training.safetensors"))
