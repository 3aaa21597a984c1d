from __future__ import annotations

import csv
import functools
import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import patchsvdd.apps.demo.run
from patchsvdd.apps.cli import app, console
from patchsvdd.apps.demo.dataset import CATEGORIES, draw_dataset
from patchsvdd.detector.model_folder import read_model, write_model
from support.command_line import QUICK, Ended, finish, images, rows, run, start
from support.parts import ROOT

COMMANDS = sorted(str(command.name) for command in app.registered_commands)
TEST_IMAGES = [f"{kind}/{index:03d}.png" for kind in ("good", "spot") for index in range(3)]


@pytest.fixture(scope="module")
def category(bolt: Path) -> Path:
    return bolt


@pytest.fixture(scope="module")
def model(bolt_model: Path) -> Path:
    return bolt_model


# Help


BARE = "import typer; app = typer.Typer(); app.command()(lambda: None); app(['--help'])"


def cpu_seconds(run_once: Callable[[], Ended]) -> tuple[float, Ended]:
    """Time on the processor of the quickest of three runs: others may keep the machine busy."""
    quickest, ended = float("inf"), None
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = run_once()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        quickest = min(quickest, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert ended is not None
    return quickest, ended


@pytest.fixture(scope="module")
def bare_help() -> float:
    """What the help of a program of one line costs on this machine: the libraries that print it."""
    return cpu_seconds(lambda: finish(subprocess.Popen([sys.executable, "-c", BARE], text=True, stdout=-1, stderr=-1)))[
        0
    ]


ALL_HELP = """
import sys
from typer.testing import CliRunner
from patchsvdd.apps.cli import app
for command in sys.argv[1:]:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    assert "torch" not in sys.modules, command
"""
"""The help of every command in one process."""


def test_help_is_instant(bare_help: float) -> None:
    seconds, ended = cpu_seconds(lambda: finish(start("--help")))
    assert (ended.code, ended.stderr) == (0, "")
    assert "Example: patchsvdd" in ended.stdout
    assert seconds < 4 * bare_help  # importing torch alone costs more


def test_no_command_imports_torch_for_its_help() -> None:
    subprocess.run([sys.executable, "-c", ALL_HELP, *COMMANDS], check=True)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_ends_with_an_example(command: str) -> None:
    ended = run(*command.split(), "--help")
    assert (ended.code, ended.stderr) == (0, "")
    assert re.search(f"Example: patchsvdd {command}[^╭╰]*$", ended.stdout)


def test_every_command_is_in_the_help_of_the_program() -> None:
    ended = run("--help")
    assert all(command in ended.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    usage = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    assert f"\n### {command}\n" in usage


@pytest.mark.parametrize("arguments", [["frobnicate"], ["train"], ["train", "photos", "--out", "m", "--steps", "many"]])
def test_wrong_usage_is_explained(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert "Usage: patchsvdd" in ended.stderr
    assert arguments[-1] in ended.stderr or "--out" in ended.stderr or "--steps" in ended.stderr


# From training to a verdict


def test_train_tells_what_it_made(trained_bolt: tuple[Path, Ended]) -> None:
    out, ended = trained_bolt
    told = ended.json()
    assert told["model"] == str(out)
    assert told["images"] == 6
    assert told["steps"] == 1
    assert told["skipped"] == []
    assert told["threshold"] > 0
    assert told["false_alarm_rate"] == 0.01
    assert "6 good images" in told["caveat"]
    assert {path.name.split("-")[0] for path in out.iterdir()} == {"model.json", "encoder", "memory", "pictures"}


def test_inspect_writes_rows_pictures_and_a_page(model: Path, category: Path, tmp_path: Path) -> None:
    out = tmp_path / "inspected"
    told = run("inspect", model, category / "test", "--out", out, "--json").json()
    assert told["images"] == 6
    assert told["anomalous"] + told["good"] == 6
    assert told["unreadable"] == told["already_done"] == 0
    assert told["anomalous"] >= 3
    assert images(out) == TEST_IMAGES
    for row in rows(out):
        assert (out / row["overlay"]).stat().st_size > 1000
        assert row["is_anomalous"] == (row["score"] > row["threshold"]) == (row["verdict"] == "anomalous")
        assert row["image_size"] == [72, 72]
        assert Path(row["path"]) == category / "test" / row["image"]
        if row["image"].startswith("spot/"):
            assert row["verdict"] == "anomalous"
            assert row["regions"]
    with (out / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    scores = [float(line["score"]) for line in table]
    assert sorted(line["image"] for line in table) == TEST_IMAGES
    assert scores == sorted(scores, reverse=True)
    page = Path(told["page"]).read_text(encoding="utf-8")
    assert all(name in page for name in TEST_IMAGES)


def test_evaluate_measures_every_scale(model: Path, category: Path) -> None:
    told = run("evaluate", model, category, "--json").json()
    assert told["images"] == 6
    assert told["seconds_per_image"] > 0
    assert told["skipped"] == {}
    assert set(told["scales"]) == {"32", "64"}
    for metrics in (told, *told["scales"].values()):
        assert 0 <= metrics["detection_auroc"] <= 1
        assert 0 <= metrics["segmentation_auroc"] <= 1
    assert told["detection_auroc"] > 0.8  # the red spots are hard to miss
    assert told["verdicts"]["spot"] == {"images": 3, "anomalous": 3}


def test_info_tells_how_a_model_came_about(model: Path) -> None:
    told = run("info", model, "--json").json()
    assert told["model"] == str(model)
    assert told["config"]["image_size"] == [64, 64]
    assert told["provenance"]["training"]["steps"] == 1
    assert told["provenance"]["data"]["images"] == 6
    assert len(told["calibration"]["scores"]) == 6
    assert told["identity"]


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"lambda": 0.3, "collapses": []}, "λ 0.3, seed"),
        ({"lambda": 0.03, "collapses": ["flat"]}, "λ 0.03 (0.3 collapsed), seed"),
        (
            {"lambda": None, "collapses": ["flat"] * 3, "kept": "untrained", "steps": 0},
            "no λ used (0.3 collapsed), seed",
        ),
        ({"lambda": None, "collapses": [], "steps": 0}, "no λ used, seed"),
    ],
    ids=["as asked", "a tenth", "untrained", "no training"],
)
def test_info_says_the_lambda_that_was_used(
    model: Path, tmp_path: Path, training: dict[str, object], said: str
) -> None:
    stored = read_model(model)
    about = {name: stored.about[name] for name in ("config", "calibration", "provenance", "image_names")}
    assert about["config"]["lambda_"] == 0.3
    about["provenance"]["training"] |= training
    write_model(tmp_path / "retried", about, stored.parts)
    assert said in run("info", tmp_path / "retried").stdout


def test_people_get_tables_instead_of_json(model: Path, category: Path, tmp_path: Path) -> None:
    inspected = run("inspect", model, category / "test", "--out", tmp_path / "inspected")
    evaluated = run("evaluate", model, category)
    info = run("info", model)
    assert {inspected.code, evaluated.code, info.code} == {0}
    assert all(name in inspected.stdout for name in TEST_IMAGES)
    assert str(tmp_path / "inspected" / "index.html") in inspected.stdout
    assert "detection AUROC" in evaluated.stdout
    assert "product" in evaluated.stdout
    assert "6 good images" in info.stdout
    for ended in (inspected, evaluated, info):
        with pytest.raises(ValueError, match="Expecting value"):
            json.loads(ended.stdout)


def test_square_brackets_in_names_are_printed_as_they_are(model: Path, category: Path, tmp_path: Path) -> None:
    marked = tmp_path / "bolt [final]"
    shutil.copytree(model, marked)
    seen = tmp_path / "seen [bold]"
    assert f"Model {marked}" in run("info", marked).stdout
    assert str(seen / "index.html") in run("inspect", marked, category / "test", "--out", seen).stdout
    assert str(marked) in run("train", category, "--out", marked, "--resume").stderr


# Terminals


@pytest.mark.slow
def test_an_error_stays_on_one_line_in_a_narrow_terminal() -> None:
    ended = finish(start("train", "photos", "--out", "model", "--image-size", "banana", COLUMNS="40"))
    assert "banana" in ended.error()
    assert "native" in ended.error()


@pytest.mark.slow
def test_progress_in_a_file_is_short_and_whole(category: Path, tmp_path: Path) -> None:
    steps = (*QUICK, "--steps", 4, "--batch-size", 1)
    ended = finish(start("train", category, "--out", tmp_path / "model", *steps, COLUMNS="80"))
    assert ended.code == 0, ended.stderr
    assert len(ended.stderr.splitlines()) < 15
    assert not {"\r", "\x1b"} & set(ended.stderr)
    assert "4/4" in ended.stderr  # what a person wants to know first must not be squeezed out


def test_progress_in_a_file_is_not_silent_for_long(
    category: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "LOG_INTERVAL", 0.0)
    ended = run("train", category, "--out", tmp_path / "model", *QUICK, "--steps", 3)
    assert ended.code == 0, ended.stderr
    assert re.search(r"^training: 1 of 3, 0:\d\d:\d\d elapsed(, \d:\d\d:\d\d left)?$", ended.stderr, re.MULTILINE)
    assert re.search(r"^memory: 2 of \d, ", ended.stderr, re.MULTILINE)


# What other packages have to say


OURS = re.compile(r"━|^(note|warning): |^L_SSL |^\S+ *: \d+ of \d+|^\s*$")
"""Lines on stderr that are this package's own: progress, notes, losses."""


ONE_AFTER_ANOTHER = """
import json, logging, sys
from patchsvdd.apps.cli import app
logging.basicConfig(level=logging.INFO)  # as in the service, whose log has all messages from INFO on
for command in json.loads(sys.argv[1]):
    app(command, standalone_mode=False)
"""
"""Several commands in one process: other packages say most when they are imported."""


@pytest.mark.slow
def test_other_packages_are_silent(model: Path, category: Path, tmp_path: Path) -> None:
    inspect = ["inspect", model, category / "test", "--out"]
    commands = [
        [*inspect, tmp_path / "graph", "--search", "graph"],
        [*inspect, tmp_path / "openvino", "--engine", "openvino"],
        [*inspect, tmp_path / "onnxruntime", "--engine", "onnxruntime"],
        ["export", model, "--out", tmp_path / "exported", "--images", category / "train" / "good"],
        ["train", category, "--out", tmp_path / "model", *QUICK],
    ]
    order = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run([sys.executable, "-c", ONE_AFTER_ANOTHER, order], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not OURS.search(line)] == []
    assert len(list(tmp_path.iterdir())) == len(commands)


@pytest.mark.slow
def test_an_application_may_have_the_messages_of_faiss() -> None:
    pytest.importorskip("faiss")
    program = (
        "import logging\nlogging.basicConfig(level=logging.INFO)\nlogging.getLogger('faiss').setLevel(logging.INFO)\n"
        "from patchsvdd.memory.graph_search import import_faiss\nimport_faiss()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Successfully loaded faiss" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_says_nothing_of_files_that_do_not_compile(tmp_path: Path) -> None:
    """An environment whose pip does nothing and whose compileall fails, as it does on some packages' templates."""
    for name, code in (("pip", 0), ("python", 1)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    venv = tmp_path / ".venv"
    (tmp_path / "venv").write_text(f"#!/bin/sh\nmkdir -p {venv}/bin\ncp {tmp_path}/pip {tmp_path}/python {venv}/bin\n")
    (tmp_path / "venv").chmod(0o755)
    order = ["make", f"VENV={venv}", f"PYTHON={tmp_path / 'venv'}", str(venv / ".fast")]
    done = subprocess.run(order, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (venv / ".fast").exists()
    assert done.stderr == ""
    assert "compileall" not in done.stdout
    assert "ignored" not in done.stdout


# The demo


@pytest.mark.slow
def test_demo_draws_learns_inspects_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = functools.partial(draw_dataset, test_good=2, per_defect=1)
    monkeypatch.setattr(patchsvdd.apps.demo.run, "draw_dataset", few)
    monkeypatch.setattr(patchsvdd.apps.demo.run, "IMAGE_SIZE", 64)
    monkeypatch.setattr(patchsvdd.apps.demo.run, "TRAINING_IMAGES", 4)
    monkeypatch.setattr(patchsvdd.apps.demo.run, "SYNTHETIC_DEFECTS", 4)
    out = tmp_path / "demo"
    told = run("demo", "--out", out, "--steps", 1, "--json").json()
    assert set(told["categories"]) == set(CATEGORIES)
    for metrics in (told, *told["categories"].values()):
        assert 0 <= metrics["detection_auroc"] <= 1
        assert 0 <= metrics["segmentation_auroc"] <= 1
    assert told["page"] == str(out / "index.html")
    page = (out / "index.html").read_text(encoding="utf-8")
    for name in CATEGORIES:
        assert f"{name}/index.html" in page
        assert (out / name / "index.html").exists()
        assert run("info", out / "models" / name, "--json").json()["provenance"]["data"]["images"] == 4


def test_an_unfinished_model_says_how_to_finish_it(tmp_path: Path, category: Path) -> None:
    out = tmp_path / "model"
    run("train", category, "--out", out, *QUICK)
    (out / "model.json").unlink()
    (out / "training.safetensors").write_bytes(b"")
    assert "--resume" in run("info", out).error()
