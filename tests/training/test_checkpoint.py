from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.presets import preset
from patchsvdd.training.checkpoint import Checkpoint, CheckpointFile

CONFIG = preset("encoder", steps=10, lambda_=0.1)


def checkpoint(step: int = 3) -> Checkpoint:
    tensors = {"encoder.weight": torch.randn(4, 3), "adam.0.step": torch.tensor(3.0), "rng": torch.arange(5).byte()}
    return Checkpoint(tensors, step, 1.5, [{"step": 1, "scales": {"32": {"spread": 0.125}}}])


@pytest.fixture
def file(tmp_path: Path) -> CheckpointFile:
    file = CheckpointFile(tmp_path / "model")
    file.write(checkpoint(), CONFIG.to_json(), 10, "print")
    return file


def test_written_is_read(tmp_path: Path) -> None:
    written = checkpoint()
    file = CheckpointFile(tmp_path)
    assert not file.exists()
    file.write(written, CONFIG.to_json(), 10, "print")
    assert file.exists()
    read = file.read(CONFIG.to_json(), 10, "print")
    assert (read.step, read.seconds, read.history) == (3, 1.5, written.history)
    assert set(read.tensors) == set(written.tensors)
    for name, tensor in written.tensors.items():
        assert torch.equal(read.tensors[name], tensor)
        assert read.tensors[name].dtype == tensor.dtype


def test_a_second_write_replaces_the_first(file: CheckpointFile) -> None:
    file.write(checkpoint(step=7), CONFIG.to_json(), 10, "print")
    assert file.read(CONFIG.to_json(), 10, "print").step == 7
    assert [path.name for path in file.path.parent.iterdir()] == ["training.safetensors"]


def test_remove_ends_it(file: CheckpointFile) -> None:
    file.remove()
    assert not file.exists()
    file.remove()


def test_parts_have_files_of_their_own(file: CheckpointFile) -> None:
    critic = file.of("critic")
    assert not critic.exists()
    critic.write(checkpoint(step=7), {"width": 2}, 9, "print")
    assert critic.path.name == "training-critic.safetensors"
    assert critic.read({"width": 2}, 9, "print").step == 7
    assert file.read(CONFIG.to_json(), 10, "print").step == 3
    with pytest.raises(ConfigError, match="width was 2, now 3"):
        critic.read({"width": 3}, 9, "print")


def test_remove_ends_all_parts_and_nothing_else(file: CheckpointFile) -> None:
    file.of("critic").write(checkpoint(), {}, 9, "print")
    (file.path.parent / "training.txt").write_text("mine")
    file.remove()
    assert [path.name for path in file.path.parent.iterdir()] == ["training.txt"]


def test_settings_are_told_where_they_can_be_read(file: CheckpointFile) -> None:
    assert file.settings() == json.loads(json.dumps(CONFIG.to_json()))
    assert file.of("critic").settings() is None
    file.path.write_bytes(b"not a checkpoint")
    assert file.settings() is None


@pytest.mark.parametrize(
    ("settings", "steps", "fingerprint", "named"),
    [
        ({"lambda_": 0.7}, 10, "print", ["lambda_ was 0.1, now 0.7"]),
        ({"seed": 4, "noise": 0.5}, 10, "print", ["seed was 0, now 4", "noise was 0.02, now 0.5"]),
        ({}, 10, "other", ["the training images have changed"]),
        ({"seed": 4}, 10, "other", ["seed was 0, now 4", "the training images have changed"]),
        ({}, 11, "print", ["it ran for 10 steps, now 11"]),
    ],
)
def test_what_differs_is_named(
    file: CheckpointFile, settings: dict[str, Any], steps: int, fingerprint: str, named: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        file.read(CONFIG.replace(**settings).to_json(), steps, fingerprint)
    for part in (*named, str(file.path), "`overwrite=True`"):
        assert part in str(error.value)


def test_a_missing_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        CheckpointFile(tmp_path).read(CONFIG.to_json(), 10, "print")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_a_model_error(file: CheckpointFile, share: float) -> None:
    content = file.path.read_bytes()
    file.path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelError, match="cannot be read"):
        file.read(CONFIG.to_json(), 10, "print")


@pytest.mark.parametrize(
    "metadata",
    [None, {"other": "x"}, {"training": "no JSON"}, {"training": "[]"}, {"training": json.dumps({"step": 3})}],
    ids=str,
)
def test_a_file_of_something_else_is_a_model_error(file: CheckpointFile, metadata: dict[str, str] | None) -> None:
    file.path.write_bytes(safetensors.torch.save({"a": torch.zeros(2)}, metadata))
    with pytest.raises(ModelError, match="cannot be read"):
        file.read(CONFIG.to_json(), 10, "print")
