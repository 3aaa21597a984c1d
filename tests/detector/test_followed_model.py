from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from patchsvdd.core.errors import ModelError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.followed_model import CHECK_SECONDS, RETRY_SECONDS, FollowedModel


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(detector: PatchSVDD, tmp_path: Path) -> Path:
    detector.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def successor(critical: PatchSVDD, tmp_path: Path) -> Path:
    critical.save(tmp_path / "successor")
    return tmp_path / "successor"


def load(folder: Path) -> PatchSVDD:
    return PatchSVDD.load(folder, "cpu")


def test_a_replaced_model_is_loaded_once_it_is_complete(folder: Path, successor: Path) -> None:
    clock = Clock()
    notes: list[str] = []
    replaced: list[bool] = []
    model = FollowedModel(folder, load, notes.append, lambda: replaced.append(True), clock)
    first = model.detector
    clock.now += CHECK_SECONDS
    assert model.refresh() is first
    shutil.copy(successor / "model.json", folder / "model.json")  # copied in the wrong order: its parts are missing
    for _ in range(2):
        clock.now += RETRY_SECONDS
        assert model.refresh() is first
    assert len(notes) == 1
    assert "the previous one stays in use" in notes[0]
    assert model.problem is not None
    assert not replaced

    for part in successor.glob("*.safetensors"):
        shutil.copy(part, folder)
    clock.now += RETRY_SECONDS
    second = model.refresh()
    assert second.identity == load(successor).identity != first.identity
    assert model.problem is None
    assert len(notes) == 2
    assert len(replaced) == 1
    (folder / "model.json").unlink()
    clock.now += RETRY_SECONDS
    assert model.refresh() is second


def test_the_folder_is_checked_at_intervals(folder: Path, successor: Path) -> None:
    clock = Clock()
    model = FollowedModel(folder, load, clock=clock)
    shutil.rmtree(folder)
    clock.now += CHECK_SECONDS / 2
    model.refresh()
    assert model.problem is None, "looked too early"
    clock.now += CHECK_SECONDS
    model.refresh()
    assert model.problem is not None
    shutil.copytree(successor, folder)
    clock.now += RETRY_SECONDS / 2
    model.refresh()
    assert model.problem is not None, "tried again too early"
    clock.now += RETRY_SECONDS
    assert model.refresh().identity == load(successor).identity


def test_reload_reports_what_is_wrong_and_keeps_the_model(folder: Path, successor: Path) -> None:
    model = FollowedModel(folder, load)
    before = model.detector
    assert model.reload() is False
    assert model.detector is before
    (folder / "model.json").write_text("{}")
    with pytest.raises(ModelError):
        model.reload()
    assert model.detector is before
    shutil.rmtree(folder)
    shutil.copytree(successor, folder)
    assert model.reload() is True
    assert model.detector.identity != before.identity
