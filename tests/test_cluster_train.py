"""Training on a cluster: its workers train what one process trains, and nothing is lost with a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import patchsvdd.cli.train
from command_line import draw_parts, files, run
from conftest import draw_part
from patchsvdd.crew import HERE
from patchsvdd.detector import PatchSVDD
from patchsvdd.encoder import build_encoder, grids_for
from patchsvdd.images import load_image
from patchsvdd.normalization import Normalization
from patchsvdd.presets import preset
from patchsvdd.training import TrainingProgress

ray = pytest.importorskip("ray")

from patchsvdd.cluster import crew_on  # noqa: E402

STEPS = 8
ON_TWO = ("--workers", 2, "--cluster", "local")


@pytest.fixture(scope="module", autouse=True)
def two_cores() -> Iterator[None]:
    """A cluster of this machine alone, with two CPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setattr("patchsvdd.training.CHECKPOINT_SECONDS", 0.0)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_parts(tmp_path_factory.mktemp("parts") / "good", 6)


@pytest.fixture(scope="module")
def flags(good: Path) -> tuple[object, ...]:
    """A short training of encoder and critic that is not undone for being short."""
    settings = ("--batch-size", 2, "--image-size", 64, "--steps", STEPS, "--critic-steps", 2, "--device", "cpu")
    return (good, "--preset", "best", *settings, "--fusion-share", 0.5)


@pytest.fixture(scope="module", autouse=True)
def kept_as_trained(two_cores: None) -> Iterator[None]:
    """So short a training finds no more than none, and is kept all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchsvdd.learning.MARGIN", -2.0)
        yield


@pytest.fixture(scope="module")
def alone(flags: tuple[object, ...], good: Path) -> PatchSVDD:
    """What one process makes of it."""
    out = good.parent / "alone"
    assert run("train", *flags, "--out", out).code == 0
    return PatchSVDD.load(out, "cpu")


def workers() -> list[int]:
    """Processes below this one that train."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue  # it has ended

    def ours(number: int) -> bool:
        return number == os.getpid() or (number in parents and ours(parents[number]))

    return sorted(number for number, name in names.items() if "RayTrainWorker" in name and ours(number))


def at_step(patch: pytest.MonkeyPatch, step: int, act: Callable[[], None]) -> list[int]:
    """Act once when the progress bar reaches ``step``; the steps it has shown, as they come."""
    describe, seen = patchsvdd.cli.train._describe, list[int]()

    def describe_and_act(now: TrainingProgress) -> str:
        if now.step >= step and (not seen or seen[-1] < step):
            act()
        seen.append(now.step)
        return describe(now)

    patch.setattr(patchsvdd.cli.train, "_describe", describe_and_act)
    return seen


def same_to_rounding(ours: PatchSVDD, theirs: PatchSVDD) -> None:
    for name, value in theirs.encoder.state_dict().items():
        torch.testing.assert_close(ours.encoder.state_dict()[name], value, atol=2e-3, rtol=2e-3)
    assert ours.critic is not None
    assert theirs.critic is not None
    for name, value in theirs.critic.state().items():
        torch.testing.assert_close(ours.critic.state()[name], value, atol=2e-3, rtol=2e-3)
    assert ours.threshold == pytest.approx(theirs.threshold, rel=0.02)


def test_a_lost_worker_costs_no_more_than_the_steps_since_the_last_checkpoint(
    flags: tuple[object, ...], good: Path, alone: PatchSVDD, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []

    def kill() -> None:
        killed.extend(workers()[:1])
        os.kill(killed[0], signal.SIGKILL)

    seen = at_step(monkeypatch, 2, kill)
    out = good.parent / "with a loss"
    told = run("train", *flags, "--out", out, *ON_TWO, "--json").json()
    assert len(killed) == 1
    assert told["steps"] == STEPS
    assert seen[-1] == STEPS
    assert seen == sorted(seen), "it began anew"
    assert not list(out.glob("training*")), "a finished training leaves no checkpoint"
    ours = PatchSVDD.load(out, "cpu")
    same_to_rounding(ours, alone)
    ours_history, alone_history = (one.provenance["training"]["history"] for one in (ours, alone))
    assert [row["step"] for row in ours_history] == [row["step"] for row in alone_history]
    expected = HERE.remember(
        ours.encoder,
        torch.stack([load_image(path, ours.config).tensor for path in sorted(good.iterdir())]),
        ours.normalization,
        ours.memory.image_names,
        grids_for(ours.encoder, ours.config, (64, 64)),
    )
    assert all(torch.equal(ours.memory.state()[name], value) for name, value in expected.state().items())


def test_a_training_stopped_on_a_cluster_goes_on_anywhere(
    flags: tuple[object, ...], good: Path, alone: PatchSVDD, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = good.parent / "stopped"
    with monkeypatch.context() as patch:
        at_step(patch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        ended = run("train", *flags, "--out", out, *ON_TWO)
    assert ended.code == 130
    assert "--resume" in ended.stderr
    assert set(files(out)) == {"training.safetensors"}
    seen = at_step(monkeypatch, STEPS + 1, lambda: None)
    assert run("train", *flags, "--out", out, "--resume").code == 0
    assert seen[0] > 2
    same_to_rounding(PatchSVDD.load(out, "cpu"), alone)


@pytest.mark.parametrize("centering", ["channel", "exposure"])
def test_the_memory_is_the_same_to_the_bit(centering: str) -> None:
    config = preset("encoder", image_size=64, centering=centering)
    pixels = torch.stack([torch.from_numpy(draw_part(seed).transpose(2, 0, 1).copy()) for seed in range(7)])
    encoder = build_encoder(config).eval().requires_grad_(False)
    normalization, grids = Normalization.fit(pixels, config), grids_for(encoder, config, (64, 64))
    names, steps = tuple("abcdefg"), list[tuple[int, int]]()
    with crew_on("local", 2) as crew:
        ours = crew.remember(encoder, pixels, normalization, names, grids, lambda *done: steps.append(done))
    theirs = HERE.remember(encoder, pixels, normalization, names, grids)
    assert ours.image_names == theirs.image_names
    assert steps == [(done, 7) for done in range(1, 8)]
    assert all(torch.equal(ours.state()[name], value) for name, value in theirs.state().items())


def test_more_workers_than_the_cluster_has_room_for_are_refused(flags: tuple[object, ...], tmp_path: Path) -> None:
    message = run("train", *flags, "--out", tmp_path / "model", "--workers", 3).error()
    assert "--workers 3: the cluster has 2 CPUs" in message
    assert "--workers 1 to 2" in message
    assert "at least one" in run("train", *flags, "--out", tmp_path / "model", "--workers", 0).error()


def test_a_batch_that_workers_cannot_share_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    message = run("train", tmp_path, "--out", tmp_path / "model", "--batch-size", 3, *ON_TWO).error()
    assert "--batch-size 3 cannot be shared evenly by 2 workers" in message


def test_without_a_number_there_is_a_worker_for_every_machine() -> None:
    with crew_on("auto") as crew:
        assert crew.workers == 1
        assert crew.device == torch.device("cpu")
