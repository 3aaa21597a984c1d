from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch

import patchsvdd.apps.cli.train
from patchsvdd.apps.cli.train import notes_on
from patchsvdd.detector import fitting as learning
from patchsvdd.detector import training_backend as backend
from patchsvdd.images import loading
from patchsvdd.scoring.ranking import MARGIN
from patchsvdd.training.hooks import TrainingProgress
from support.command_line import NO_ESTIMATE, QUICK, Ended, draw_category, files, finish, part, run, start
from support.parts import draw_part, save_picture

pytestmark = pytest.mark.slow

STEPS = 6
SETTINGS = (
    *("--preset", "paper", "--sampling", "dense"),
    *("--steps", STEPS, "--image-size", 64, "--batch-size", 1, "--device", "cpu"),
)
"""A training with room for an interruption; so short that it finds no more, it is still not undone."""
SIGNAL_AT_STEP_2 = """
import os, signal
import patchsvdd.apps.cli.train as command
describe = command._describe
def describe_and_signal(now):
    if now.step == 2:
        os.kill(os.getpid(), signal.SIGINT)
    return describe(now)
command._describe = describe_and_signal
"""
DIE_IN_THE_THIRD_CHECKPOINT = """
import os, signal
import patchsvdd.training.hooks
patchsvdd.training.hooks.CHECKPOINT_SECONDS = 0
fsync = os.fsync
written = []
def fsync_or_die(descriptor):
    written.append(1)
    if len(written) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)
os.fsync = fsync_or_die
"""


@pytest.fixture(scope="module")
def category(bolt: Path) -> Path:
    return bolt


@pytest.fixture(scope="module")
def finished(category: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a training without interruption."""
    out = tmp_path_factory.mktemp("models") / "finished"
    assert run("train", category, "--out", out, *SETTINGS).code == 0
    return out


@pytest.fixture(scope="module")
def quick(bolt_model: Path) -> Path:
    """A finished model, for tests that do not look at its weights."""
    return bolt_model


@pytest.fixture
def unfinished(category: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder with a training that was stopped at step 2."""
    out = tmp_path / "unfinished"
    with monkeypatch.context() as patch:
        signal_at_step(patch, 2)
        assert run("train", category, "--out", out, *SETTINGS).code == 130
    assert set(files(out)) == {"training.safetensors"}
    return out


def signal_at_step(patch: pytest.MonkeyPatch, step: int, number: int = signal.SIGINT, times: int = 1) -> None:
    """Send this process a signal when training reaches ``step``."""
    describe = patchsvdd.apps.cli.train._describe

    def describe_and_signal(now: TrainingProgress) -> str:
        for _ in range(times if now.step == step else 0):
            os.kill(os.getpid(), number)
        return describe(now)

    patch.setattr(patchsvdd.apps.cli.train, "_describe", describe_and_signal)


def parts(model: Path) -> list[str]:
    """Names of the part files that training decides: they hold the hash of the weights and of the memory."""
    return sorted(path.name for path in model.glob("*.safetensors") if not path.name.startswith("pictures"))


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


# What --out holds already


def test_a_model_is_not_overwritten_by_accident(category: Path, quick: Path, tmp_path: Path) -> None:
    out = copy(quick, tmp_path / "model")
    message = run("train", category, "--out", out, *QUICK, "--seed", 1).error()
    assert str(out) in message
    assert "--overwrite" in message
    assert files(out) == files(quick)


def test_overwrite_replaces_a_model(category: Path, quick: Path, tmp_path: Path) -> None:
    out = copy(quick, tmp_path / "model")
    assert run("train", category, "--out", out, *QUICK, "--seed", 1, "--overwrite").code == 0
    assert len(parts(out)) == 2
    assert not set(parts(out)) & set(parts(quick))


def test_overwrite_leaves_files_of_others_alone(category: Path, quick: Path, tmp_path: Path) -> None:
    out = copy(quick, tmp_path / "model")
    (out / "weights-20240131-120.safetensors").write_bytes(b"not ours")
    assert run("train", category, "--out", out, *QUICK, "--seed", 1, "--overwrite").code == 0
    assert (out / "weights-20240131-120.safetensors").read_bytes() == b"not ours"


def test_an_unfinished_training_is_not_overwritten_by_accident(category: Path, unfinished: Path) -> None:
    before = files(unfinished)
    message = run("train", category, "--out", unfinished, *SETTINGS).error()
    assert str(unfinished) in message
    assert "--resume" in message
    assert "--overwrite" in message
    assert files(unfinished) == before


def test_overwrite_starts_anew(category: Path, unfinished: Path, finished: Path) -> None:
    assert run("train", category, "--out", unfinished, *SETTINGS, "--overwrite").code == 0
    assert parts(unfinished) == parts(finished)


def test_there_is_nothing_to_resume_in_a_finished_model(category: Path, quick: Path) -> None:
    before = files(quick)
    ended = run("train", category, "--out", quick, *QUICK, "--resume", "--json")
    assert ended.json()["steps"] == 1
    assert set(ended.json()["validation"]) == {"untrained", "trained"}
    assert "nothing to resume" in ended.stderr
    assert files(quick) == before


# Interruptions


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_that_resume_finishes(category: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    ended = finish(start("train", category, "--out", out, *SETTINGS, before=SIGNAL_AT_STEP_2))
    assert ended.code == 130
    assert "Traceback" not in ended.stderr
    assert f"interrupted: stopped at step 2 of {STEPS}" in ended.stderr
    assert "--resume" in ended.stderr
    assert set(files(out)) == {"training.safetensors"}
    assert run("train", category, "--out", out, *SETTINGS, "--resume", "--json").json()["steps"] == STEPS
    assert parts(out) == parts(finished)


@pytest.mark.slow
def test_kill_9_loses_no_more_than_since_the_last_checkpoint(category: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    ended = finish(start("train", category, "--out", out, *SETTINGS, before=DIE_IN_THE_THIRD_CHECKPOINT))
    assert ended.code == -signal.SIGKILL
    assert "training.safetensors" in files(out)
    steps = []
    describe = patchsvdd.apps.cli.train._describe

    def describe_and_count(now: TrainingProgress) -> str:
        steps.append(now.step)
        return describe(now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patchsvdd.apps.cli.train, "_describe", describe_and_count)
        assert run("train", category, "--out", out, *SETTINGS, "--resume").code == 0
    assert steps == [3, 4, 5, 6]
    assert len(files(out)) == 4  # what the killed process left half-written is gone
    assert parts(out) == parts(finished)  # bit by bit what an undisturbed training gives
    history = [run("info", model, "--json").json()["provenance"]["training"]["history"] for model in (out, finished)]
    assert history[0] == history[1]


def test_a_polite_kill_is_like_ctrl_c(category: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)  # not the default after tests with Ray
    signal_at_step(monkeypatch, 2, signal.SIGTERM)
    ended = run("train", category, "--out", tmp_path / "model", *SETTINGS)
    assert ended.code == 130
    assert "stopped at step 2" in ended.stderr
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_ctrl_c_stops_at_once(category: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal_at_step(monkeypatch, 2, times=2)
    ended = run("train", category, "--out", tmp_path / "model", *SETTINGS)
    assert ended.code == 130
    assert "interrupted" in ended.stderr
    assert files(tmp_path) == {}


def test_ctrl_c_after_training_keeps_the_training(
    category: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    with monkeypatch.context() as patch:
        signal_before(patch, backend, "build_memory")
        ended = run("train", category, "--out", out, *SETTINGS)
    assert ended.code == 130
    assert "the training is saved" in ended.stderr
    assert ended.stderr.count("--resume)") == 1
    assert run("train", category, "--out", out, *SETTINGS, "--resume").code == 0
    assert parts(out) == parts(finished)


@pytest.mark.parametrize(("margin", "kept"), [(1.0, "untrained"), (-1.0, "trained")])
def test_ctrl_c_while_the_training_is_judged_keeps_it(
    category: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, margin: float, kept: str
) -> None:
    monkeypatch.setattr("patchsvdd.detector.fitting.MARGIN", margin)
    whole = run("train", category, "--out", tmp_path / "whole", *QUICK, "--json").json()
    assert whole["encoder"] == kept
    out = tmp_path / "model"
    with monkeypatch.context() as patch:
        signal_before(patch, learning, "validate_encoder")
        ended = run("train", category, "--out", out, *QUICK)
    assert ended.code == 130
    assert "stopped during validation; the training is saved" in ended.stderr
    assert set(files(out)) == {"training.safetensors"}
    told = run("train", category, "--out", out, *QUICK, "--resume", "--json").json()
    assert (told["encoder"], told["validation"]) == (kept, whole["validation"])
    assert parts(out) == parts(tmp_path / "whole")


def test_ctrl_c_while_images_are_read_writes_nothing(
    category: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_before(monkeypatch, loading, "load_image_set")
    ended = run("train", category, "--out", tmp_path / "model", *SETTINGS)
    assert ended.code == 130
    assert "nothing was written" in ended.stderr
    assert files(tmp_path) == {}


def signal_before(patch: pytest.MonkeyPatch, module: ModuleType, function: str) -> None:
    """Send this process SIGINT when the module calls ``function``."""
    original: Callable[..., object] = getattr(module, function)

    def signal_and_call(*arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    patch.setattr(module, function, signal_and_call)


# What cannot be resumed


def resumed(category: Path, out: Path, *settings: object) -> Ended:
    return run("train", category, "--out", out, *SETTINGS, "--resume", *settings)


def test_resume_refuses_other_settings(category: Path, unfinished: Path) -> None:
    before = files(unfinished)
    message = resumed(category, unfinished, "--lambda", 0.5).error()
    assert "lambda" in message
    assert "now 0.5" in message
    assert "--overwrite" in message
    assert "steps" in resumed(category, unfinished, "--steps", 7).error()
    assert "seed" in resumed(category, unfinished, "--seed", 7).error()
    assert files(unfinished) == before


def test_resume_refuses_other_images(unfinished: Path, tmp_path: Path) -> None:
    other = draw_category(tmp_path / "other")
    part(999)[0].save(other / "train" / "good" / "000.png")
    message = resumed(other, unfinished).error()
    assert "images have changed" in message
    assert "--overwrite" in message


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None])
def test_resume_refuses_a_damaged_checkpoint(category: Path, unfinished: Path, damage: bytes | None) -> None:
    path = unfinished / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-1000] if damage is None else damage)
    message = resumed(category, unfinished).error()
    assert str(path) in message
    assert "--overwrite" in message


# Settings


def test_the_seed_decides_the_weights(category: Path, quick: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        assert run("train", category, "--out", tmp_path / f"{seed}", *QUICK, "--seed", seed).code == 0
    assert parts(tmp_path / "0") == parts(quick)
    assert parts(tmp_path / "1") != parts(quick)
    assert run("info", tmp_path / "1", "--json").json()["provenance"]["seed"] == 1


def test_a_plain_folder_trains_the_same_as_its_category(category: Path, quick: Path, tmp_path: Path) -> None:
    assert run("train", category / "train" / "good", "--out", tmp_path / "model", *QUICK).code == 0
    assert parts(tmp_path / "model") == parts(quick)


@pytest.mark.parametrize("encoder", ["random", "raw"])
def test_encoders_that_do_not_learn(category: Path, tmp_path: Path, encoder: str) -> None:
    told = run("train", category, "--out", tmp_path / "model", "--encoder", encoder, *QUICK, "--json").json()
    assert told["steps"] == 0
    others = {name for name in files(tmp_path / "model") if name.startswith("pictures")} | {"model.json"}
    assert set(parts(tmp_path / "model")) == set(files(tmp_path / "model")) - others


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("--steps", 1, "--epochs", 1), ("--steps", "--epochs", "give only one")),
        (("--preset", "papr"), ("papr", "paper", "encoder")),
        (("--image-size", "banana"), ("--image-size", "banana", "256")),
        (("--image-size", "32"), ("--image-size", "32x32", "at least 64x64")),
        (("--scales", "32"), ("--scales", "32:4,64:16")),
        (("--scales", "32:3"), ("--scales", "even")),
        (("--scales", "48:4"), ("--scales", "double from 32")),
        (("--encoder", "resnet"), ("--encoder", "resnet", "hierarchical")),
        (("--objective", "magic"), ("--objective", "magic", "patch-svdd")),
        (("--resize", "lanczos"), ("--resize", "lanczos", "bicubic")),
        (("--sampling", "some"), ("--sampling", "some", "dense")),
        (("--steps", -1), ("--steps", "-1")),
        (("--epochs", 0), ("--epochs", "0")),
        (("--batch-size", 0), ("--batch-size", "0")),
        (("--embedding-dim", 0), ("--embedding-dim", "0")),
        (("--learning-rate", "nan"), ("--learning-rate", "nan")),
        (("--lambda", -1), ("--lambda", "-1")),
        (("--photometric", -3, *QUICK), ("--photometric", "-3")),
        (("--photometric", 30, *QUICK), ("--photometric", "30")),
        (("--false-alarm-rate", 1), ("--false-alarm-rate", "0.01 is one good image in a hundred")),
        (("--seed", -1), ("--seed", "-1")),
        (("--device", "gpu"), ("--device", "gpu", "cuda:N")),
        (("--device", "cuda:99"), ("--device", "cuda")),
    ],
)
def test_settings_that_cannot_work(
    category: Path, tmp_path: Path, settings: tuple[object, ...], words: tuple[str, ...]
) -> None:
    message = run("train", category, "--out", tmp_path / "model", *settings).error()
    assert all(word in message for word in words), message
    assert files(tmp_path) == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_noticed_first(tmp_path: Path) -> None:
    message = run("train", tmp_path / "missing", "--out", tmp_path / "model", "--device", "cuda").error()
    assert "--device cuda" in message
    assert "--device cpu" in message


def test_a_learning_rate_that_diverges_is_named(category: Path, tmp_path: Path) -> None:
    message = run("train", category, "--out", tmp_path / "model", *SETTINGS, "--learning-rate", "1e9").error()
    assert "--learning-rate" in message
    assert "diverged" in message
    assert files(tmp_path) == {}


# What was kept of a training


def test_json_says_which_encoder_was_kept(category: Path, quick: Path, finished: Path) -> None:
    told = run("train", category, "--out", quick, *QUICK, "--resume", "--json").json()
    found = told["validation"]
    assert told["encoder"] == ("trained" if found["trained"] > found["untrained"] + MARGIN else "untrained")
    training = run("info", quick, "--json").json()["provenance"]["training"]
    assert (training["kept"], training["validation"]) == (told["encoder"], found)
    told = run("train", category, "--out", finished, *SETTINGS, "--resume", "--json").json()
    assert (told["encoder"], told["validation"]) == ("trained", {})


def test_people_are_told_of_a_training_in_vain(category: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchsvdd.detector.fitting.MARGIN", 1.0)
    ended = run("train", category, "--out", tmp_path / "model", *QUICK)
    assert ended.code == 0
    assert "note: the untrained encoder was kept" in ended.stderr
    assert "validation" in ended.stderr


def test_a_training_that_always_collapses_leaves_an_untrained_encoder(category: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    ended = run("train", category, "--out", out, *QUICK, "--steps", 2, "--learning-rate", "1e30")
    assert ended.code == 0
    assert "note: the encoder was left untrained, because every attempt to train it failed" in ended.stderr
    training = run("info", out, "--json").json()["provenance"]["training"]
    assert (training["kept"], training["steps"], training["lambda"]) == ("untrained", 0, None)
    assert [("diverged" in reason) for reason in training["collapses"]] == [True] * 3
    untrained = run("train", category, "--out", tmp_path / "untrained", *QUICK, "--steps", 0)
    assert untrained.code == 0
    assert parts(out) == parts(tmp_path / "untrained")


class TestNotes:
    """What is said of a training that did not go as planned."""

    FOUND: ClassVar[dict[str, float]] = {"untrained": 0.75, "trained": 0.6}

    def test_all_went_well(self) -> None:
        assert list(notes_on(0.3, {"collapses": [], "lambda": 0.3, "kept": "trained", "validation": {}})) == []
        better = {"untrained": 0.6, "trained": 0.75}
        assert list(notes_on(0.3, {"collapses": [], "lambda": 0.3, "kept": "trained", "validation": better})) == []

    def test_models_of_earlier_versions_say_less(self) -> None:
        assert list(notes_on(0.3, {"steps": 3, "seconds": 1.0, "history": []})) == []
        (note,) = notes_on(0.3, {"collapses": ["once"], "lambda": 0.03})
        assert note == "training collapsed with λ = 0.3 and was repeated with 0.03"

    def test_every_attempt_collapsed(self) -> None:
        training: dict[str, Any] = {"collapses": ["once"] * 3, "lambda": None, "kept": "untrained", "validation": {}}
        (note,) = notes_on(0.3, training)
        assert note == "the encoder was left untrained, because every attempt to train it failed; the last error: once"

    def test_a_later_attempt_did_not(self) -> None:
        training = {"collapses": ["once"], "lambda": 0.03, "kept": "trained", "validation": {}}
        assert list(notes_on(0.3, training)) == ["training collapsed with λ = 0.3 and was repeated with 0.03"]

    def test_training_was_in_vain(self) -> None:
        training = {"collapses": [], "lambda": 0.3, "kept": "untrained", "validation": self.FOUND}
        (note,) = notes_on(0.3, training)
        assert note.startswith("the untrained encoder was kept: ")
        assert "(0.600 against 0.750)" in note

    def test_after_a_collapse_it_was_in_vain_too(self) -> None:
        training = {"collapses": ["once"], "lambda": 0.03, "kept": "untrained", "validation": self.FOUND}
        collapsed, in_vain = notes_on(0.3, training)
        assert "collapsed" in collapsed
        assert "untrained encoder was kept" in in_vain


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good images of several shapes."""
    folder = tmp_path_factory.mktemp("mixed")
    for seed, size in enumerate([(90, 60), (60, 90), (80, 80), (60, 70)]):
        save_picture(folder / f"{seed}.png", draw_part(seed, size))
    return folder


class TestImageSize:
    def test_auto_keeps_the_aspect_ratio_and_says_what_it_chose(self, mixed: Path, tmp_path: Path) -> None:
        out = tmp_path / "model"
        trained = run("train", mixed, "--out", out, *QUICK, "--encoder", "random", "--image-size", "auto")
        assert trained.code == 0, trained.stderr
        words = " ".join(trained.stdout.split())
        assert "images of 70x60 to 80x80 are seen at 4.3 of their size on" in words
        assert "stretched" not in trained.stderr
        assert "the smallest visible defect is about 1 px wide" in " ".join(run("info", out).stdout.split())
        inspected = run("inspect", out, mixed, "--out", tmp_path / "inspected")
        assert inspected.code == 0, inspected.stderr

    def test_auto_is_the_default(self, tmp_path: Path) -> None:
        for seed in range(3):
            save_picture(tmp_path / "good" / f"{seed}.png", draw_part(seed, (300, 600)))
        brief = ("--preset", "encoder", "--encoder", "random", "--device", "cpu", *NO_ESTIMATE)
        told = run("train", tmp_path / "good", "--out", tmp_path / "model", *brief, "--json").json()
        assert told["sizing"]["image_size"] == [256, 512]
        assert run("info", tmp_path / "model", "--json").json()["config"]["image_size"] == [256, 512]
        paper = ("--preset", "paper", "--encoder", "random", "--device", "cpu", *NO_ESTIMATE)
        told = run("train", tmp_path / "good", "--out", tmp_path / "paper", *paper, "--json").json()
        assert told["sizing"] is None
        assert "by default auto, 256 with --preset paper" in " ".join(run("train", "--help").stdout.split())

    def test_the_smallest_defect_requires_auto(self, mixed: Path, tmp_path: Path) -> None:
        refused = run("train", mixed, "--out", tmp_path / "model", *QUICK, "--smallest-defect", 4)
        assert refused.code == 1
        assert "--image-size auto" in refused.stderr

    def test_stretched_images_are_mentioned(self, mixed: Path, tmp_path: Path) -> None:
        trained = run("train", mixed, "--out", tmp_path / "model", *QUICK)
        words = " ".join((trained.stdout + trained.stderr).split())
        assert "images of 60x90 are stretched to 64x64; --image-size auto keeps their aspect ratio" in words
