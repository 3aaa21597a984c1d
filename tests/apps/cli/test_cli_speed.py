"""The commands prepare and speed, and the options that make train and inspect quick."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from patchsvdd import PatchSVDD
from patchsvdd.evaluation import speed
from patchsvdd.memory import bank as memory
from patchsvdd.memory import graph_search
from patchsvdd.memory.graph_search import has_faiss
from support.command_line import QUICK, draw_parts, files, images, run

pytestmark = pytest.mark.slow

FEW = (*QUICK, "--scales", "32:16,64:16")
"""Ten patches per image, which the plain procedure encodes one by one in no time."""
needs_faiss = pytest.mark.skipif(not has_faiss(), reason="takes the package faiss-cpu")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_parts(tmp_path_factory.mktemp("data") / "good")


@pytest.fixture(scope="module")
def trained(good: Path) -> Path:
    out = good.parent / "model"
    assert run("train", good, "--out", out, *FEW).code == 0
    return out


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A model folder of one's own."""
    return Path(shutil.copytree(trained, tmp_path / "model"))


@pytest.fixture
def graphs_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs for memories of twenty rows: 36 of 32-px patches, not 4 of 64-px patches."""
    monkeypatch.setattr(graph_search, "MIN_GRAPH_ROWS", 20)
    monkeypatch.setattr(memory, "MIN_GRAPH_ROWS", 20)


# Prepare


@needs_faiss
@pytest.mark.usefixtures("graphs_pay")
def test_prepare_tells_what_it_did(model: Path) -> None:
    before = PatchSVDD.load(model, "cpu").threshold
    told = run("prepare", model, "--json").json()
    assert told["model"] == str(model)
    assert told["graphs"] == [32]
    assert told["threshold"] == [before, PatchSVDD.load(model, "cpu").threshold]
    assert told["engine"] in ("torch", "openvino", "onnxruntime")
    assert set(told["engines"][0]) == {"engine", "precision", "milliseconds", "largest_error"}
    assert told["engines"][0]["engine"] == told["engine"]
    again = run("prepare", model, "--json").json()
    assert (again["graphs"], again["threshold"], again["engine"]) == ([], None, told["engine"])


@needs_faiss
@pytest.mark.usefixtures("graphs_pay")
def test_prepare_for_people(model: Path) -> None:
    ended = run("prepare", model)
    assert ended.code == 0
    assert f"Prepared {model}" in ended.stdout
    assert "32 px" in ended.stdout
    assert re.search(r"threshold +\S+ before, \S+ now", ended.stdout)
    assert "no new ones" in run("prepare", model).stdout


def test_prepare_without_faiss_says_how_to_get_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    ended = run("prepare", model, "--json")
    assert ended.json()["graphs"] == []
    assert 'FAISS is not installed, so the search stays exact: pip install "patchsvdd[fast]"' in ended.stderr


@pytest.mark.parametrize("command", ["prepare", "speed"])
def test_no_model(command: str, tmp_path: Path) -> None:
    assert f"no model folder '{tmp_path / 'nowhere'}'" in run(command, tmp_path / "nowhere", "--json").error()
    assert files(tmp_path) == {}


# Speed


@pytest.mark.slow
def test_speed_in_fresh_processes_too(trained: Path, good: Path) -> None:
    told = run("speed", trained, "--images", good / "000.png", "--rounds", 1, "--device", "cpu", "--json").json()
    assert told["images"] == 1
    assert re.fullmatch(r"(encode|search|map) \(\d+% of the time\)", told["bottleneck"])
    names = {"import torch", "load model", "first image", "inspect command, one image"}
    assert set(told["start_up_seconds"]) == names
    assert min(told["start_up_seconds"].values()) > 0
    assert set(told["memory_mb"]) == {"pytorch", "beyond pytorch", "peak beyond pytorch"}
    assert told["memory_mb"]["peak beyond pytorch"] >= told["memory_mb"]["beyond pytorch"]
    assert "speedup_over_reference" not in told


def test_speed_for_people(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "measure_process", lambda *_: ({"load model": 0.5}, {"beyond pytorch": 100.0}))
    ended = run("speed", trained, "--rounds", 1, "--device", "cpu", "--against-reference")
    assert ended.code == 0
    assert "without --images, noise is inspected" in ended.stderr
    for words in (
        "images/s",
        "Speed of model",
        "36 of 32 px",
        "load model",
        "100 MB",
        "bottleneck",
        "slower one patch at a time",
    ):
        assert words in ended.stdout


def test_speed_without_an_image(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no image to inspect; check --images" in run("speed", trained, "--images", tmp_path / "empty").error()
    assert "there is no folder" in run("speed", trained, "--images", tmp_path / "nowhere").error()
    (tmp_path / "text.png").write_text("no image")
    assert "text.png" in run("speed", trained, "--images", tmp_path / "text.png").error()
    ended = run("speed", trained, "--rounds", 0)
    assert ended.code == 2
    assert "--rounds" in ended.stderr


@pytest.mark.parametrize("command", ["prepare", "speed"])
def test_help_ends_with_an_example(command: str) -> None:
    ended = run(command, "--help")
    assert ended.code == 0
    assert ended.stdout.rstrip().splitlines()[-1].strip().startswith(f"Example: patchsvdd {command} ")


# Inspect


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "tensorrt"), "--engine must be one of auto, torch, openvino, onnxruntime; got 'tensorrt'"),
        (("--precision", "float8"), "--precision must be one of float32, float16; got 'float8'"),
        (("--precision", "float16", "--engine", "torch"), "--precision float16 requires --engine openvino"),
        (("--search", "tree"), "--search must be one of auto, exact, graph; got 'tree'"),
    ],
    ids=str,
)
def test_inspect_refuses_what_it_does_not_know(
    trained: Path, good: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    assert words in run("inspect", trained, good, "--out", tmp_path / "out", *options).error()
    assert not (tmp_path / "out").exists()


@needs_faiss
@pytest.mark.usefixtures("graphs_pay")
def test_inspect_through_a_graph(model: Path, good: Path, tmp_path: Path) -> None:
    message = run("inspect", model, good, "--out", tmp_path / "out", "--search", "graph").error()
    assert f"build one: patchsvdd prepare '{model}'" in message
    assert not (tmp_path / "out").exists()
    run("prepare", model)
    for search in ("graph", "auto", "exact"):
        out = tmp_path / search
        assert run("inspect", model, good, "--out", out, "--search", search, "--json").json()["images"] == 4
        assert images(out) == ["000.png", "001.png", "002.png", "003.png"]


# Train


def test_train_with_a_share_of_the_patches(good: Path, tmp_path: Path) -> None:
    told = run("train", good, "--out", tmp_path / "model", *FEW, "--memory", "10%", "--json").json()
    detector = PatchSVDD.load(tmp_path / "model", "cpu")
    assert detector.config.memory == "10%"
    assert {size: len(scale.embeddings) for size, scale in detector.memory.scales.items()} == {32: 4, 64: 1}
    assert told["threshold"] == detector.threshold > 0


@needs_faiss
@pytest.mark.usefixtures("graphs_pay")
@pytest.mark.parametrize("search", ["auto", "exact"])
def test_train_builds_graphs_unless_told_otherwise(good: Path, tmp_path: Path, search: str) -> None:
    assert run("train", good, "--out", tmp_path / "model", *FEW, "--search", search).code == 0
    graph = PatchSVDD.load(tmp_path / "model", "cpu").memory.scales[32].graph
    assert (graph is not None) == (search == "auto")
