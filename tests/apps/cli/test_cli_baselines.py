"""Baselines on the command line: trained, shown, inspected with, evaluated, compared; refused elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchsvdd.core import presets
from patchsvdd.core.baseline_settings import BASELINES
from support.baselines import short
from support.command_line import run

SHORT = ("--epochs", "1", "--batch-size", "2", "--minutes", "0.02", "--image-size", "64", "--device", "cpu")


@pytest.fixture
def model(category: Path, tmp_path: Path) -> Path:
    out = tmp_path / "model"
    report = run("train", category, "--out", out, "--preset", "l2-ae", *SHORT, "--json").json()
    assert report["preset"] == "l2-ae"
    assert report["images"] == 3
    assert report["steps"] > 0
    return out


def test_it_is_shown_inspected_with_and_evaluated(model: Path, category: Path, tmp_path: Path) -> None:
    shown = run("info", model)
    assert shown.code == 0
    assert "l2-ae, codes of 100, sees whole images" in shown.stdout
    summary = run("inspect", model, category / "test", "--out", tmp_path / "inspected", "--json").json()
    assert summary["images"] == 4
    assert (tmp_path / "inspected" / "index.html").exists()
    evaluation = run("evaluate", model, category, "--json").json()
    assert {"detection_auroc", "segmentation_auroc", "aupro"} <= set(evaluation)


@pytest.mark.parametrize("command", ["export", "update", "drift", "prepare"])
def test_what_needs_a_memory_is_refused(command: str, model: Path, category: Path, tmp_path: Path) -> None:
    arguments = {
        "export": (model, "--out", tmp_path / "model.onnx", "--images", category / "test"),
        "update": (model, "--add", category / "test" / "good"),
        "drift": (model, category / "test" / "good"),
        "prepare": (model,),
    }
    assert "holds a baseline (l2-ae)" in run(command, *arguments[command]).error()


@pytest.mark.parametrize("option", [("--explain",), ("--min-area", "4"), ("--roi", "0,0,32,32")])
def test_options_of_patch_svdd_are_refused(
    option: tuple[str, ...], model: Path, category: Path, tmp_path: Path
) -> None:
    ended = run("inspect", model, category / "test", "--out", tmp_path / "inspected", *option)
    assert f"holds a baseline (l2-ae), which has no {option[0]}" in ended.error()


def test_settings_of_patch_svdd_are_refused(category: Path, tmp_path: Path) -> None:
    ended = run("train", category, "--out", tmp_path / "model", "--preset", "ssim-ae", "--steps", "5")
    assert "--steps is a setting of Patch SVDD; preset 'ssim-ae' has none; leave it out" in ended.error()


def test_the_benchmark_compares_presets(category: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("deep-svdd", "l2-ae"):
        monkeypatch.setitem(presets.BASELINE_PRESETS, kind, presets.preset(kind, baseline=short(kind)))
        monkeypatch.setitem(BASELINES, kind, short(kind))
    ended = run(
        *("benchmark", category.parent, "--categories", category.name, "--preset", "deep-svdd,l2-ae"),
        *("--epochs", "1", "--image-size", "64", "--device", "cpu", "--out", tmp_path / "out", "--json"),
    )
    assert ended.code == 0, ended.stderr
    assert "deep-svdd scores whole images" in (tmp_path / "out" / "deep-svdd" / "results.md").read_text()
