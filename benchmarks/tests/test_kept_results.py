"""Results are kept in one file and restored to another cache, where no network is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kept_results import keep, restore
from patchsvdd.core.presets import preset
from patchsvdd.evaluation import experiment_store
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_store import ExperimentStore
from support.paper_study import small_category


def test_restored_results_are_found_and_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(
        small_category(tmp_path / "bolt"), preset("paper", image_size=64, steps=1, batch_size=1), calibrated=False
    )
    first = ExperimentStore(tmp_path / "first", device="cpu")
    result = first.result(experiment)
    first.remember(experiment, "points", lambda: [1, 2])
    file = tmp_path / "kept.json"
    assert keep(tmp_path / "first", file) == 1
    assert restore(file, tmp_path / "second") == 2
    assert restore(file, tmp_path / "second") == 0
    monkeypatch.setattr(experiment_store, "train", lambda *_: pytest.fail("trained again"))
    second = ExperimentStore(tmp_path / "second", device="cpu")
    again = second.result(experiment)
    assert again.metrics == result.metrics
    assert again.scales == result.scales
    assert again.data["commit"] == result.data["commit"]
    assert second.remember(experiment, "points", lambda: pytest.fail("computed again")) == [1, 2]
    assert not list((tmp_path / "second").rglob("*.safetensors"))


def test_results_are_added_to_those_kept_before(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    before = {"settings": {"seed": 0}, "hardware": "GPU", "date": "2026-01-01", "commit": "aaa"}
    file.write_text(json.dumps({"trainings": {"bolt-1": {"test-a": before}}}))
    folder = tmp_path / "cache" / "nut-2"
    folder.mkdir(parents=True)
    added = {"settings": {"seed": 1}, "hardware": "GPU", "date": "2026-01-02", "commit": "bbb"}
    (folder / "test-b.json").write_text(json.dumps({**added, "images": [1, 2, 3], "curves": {}}))
    assert keep(tmp_path / "cache", file) == 2
    assert json.loads(file.read_text()) == {
        "hardware": ["GPU"],
        "date": ["2026-01-01", "2026-01-02"],
        "commit": ["aaa", "bbb"],
        "seeds": [0, 1],
        "trainings": {"bolt-1": {"test-a": before}, "nut-2": {"test-b": added}},
    }
