"""Training on a cluster: its workers train what one process trains, and nothing is lost with a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import patchsvdd.apps.cli.train
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.errors import Interrupted
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.fitting import learn_critic
from patchsvdd.detector.training_backend import CPU, LOCAL
from patchsvdd.encoder.networks import build_encoder, grids_for
from patchsvdd.images.image_set import load_image
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.hooks import TrainingHooks, TrainingProgress
from support.command_line import draw_parts, files, run
from support.parts import draw_part

pytest.importorskip("ray")

from patchsvdd.apps.cluster.ray_training import backend_on

STEPS = 8
ON_TWO = ("--workers", 2, "--cluster", "local")


pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_cluster")]


@pytest.fixture(scope="module", autouse=True)
def _checkpoints_at_every_step() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchsvdd.training.hooks.CHECKPOINT_SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_parts(tmp_path_factory.mktemp("parts") / "good", 6)


ENCODER = (
    *("--preset", "paper", "--sampling", "dense", "--steps", STEPS),
    *("--batch-size", 2, "--image-size", 64, "--device", "cpu"),
)
"""A short training of an encoder; under this preset it is not undone for being short."""


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
    describe, seen = patchsvdd.apps.cli.train._describe, list[int]()

    def describe_and_act(now: TrainingProgress) -> str:
        if now.step >= step and (not seen or seen[-1] < step):
            act()
        seen.append(now.step)
        return describe(now)

    patch.setattr(patchsvdd.apps.cli.train, "_describe", describe_and_act)
    return seen


def test_a_lost_worker_costs_no_more_than_the_steps_since_the_last_checkpoint(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("train", good, "--out", good.parent / "alone", *ENCODER).code == 0
    alone = PatchSVDD.load(good.parent / "alone", "cpu")
    killed: list[int] = []

    def kill() -> None:
        killed.append(workers()[0])
        os.kill(killed[0], signal.SIGKILL)

    seen = at_step(monkeypatch, 2, kill)
    out = good.parent / "with a loss"
    told = run("train", good, "--out", out, *ENCODER, *ON_TWO, "--json").json()
    assert len(killed) == 1
    assert told["steps"] == STEPS
    assert seen[-1] == STEPS
    assert seen == sorted(seen), "it began anew"
    assert not list(out.glob("training*"))
    ours = PatchSVDD.load(out, "cpu")
    for name, value in alone.encoder.state_dict().items():
        torch.testing.assert_close(ours.encoder.state_dict()[name], value, atol=2e-3, rtol=2e-3)
    assert ours.threshold == pytest.approx(alone.threshold, rel=0.02)
    histories = [[row["step"] for row in one.provenance["training"]["history"]] for one in (ours, alone)]
    assert histories[0] == histories[1]
    pixels = torch.stack([load_image(path, ours.config).tensor for path in sorted(good.iterdir())])
    grids = grids_for(ours.encoder, ours.config, (64, 64))
    expected = LOCAL.build_memory(ours.encoder, pixels, ours.normalization, ours.memory.image_names, grids)
    assert all(torch.equal(ours.memory.state()[name], value) for name, value in expected.state().items())


def test_a_critic_stopped_on_a_cluster_goes_on_anywhere(good: Path, tmp_path: Path) -> None:
    config = preset("best", image_size=64, critic=CriticSettings(width=4, steps=12, batch_size=2))
    images = load_good_images(good, config)
    seen: list[tuple[str, int]] = []

    def on_stage(stage: str, done: int, total: int) -> None:
        seen.append((stage, done))

    stopping = TrainingHooks(should_stop=lambda: True, checkpoint=CheckpointFile(tmp_path))
    with (
        backend_on("local", 2) as backend,
        pytest.raises(Interrupted, match=r"stopped at step \d+ of 12 of the critic"),
    ):
        learn_critic(images, config, CPU, stopping, on_stage, backend)
    assert set(files(tmp_path)) == {"training-critic.safetensors"}
    assert {stage for stage, _ in seen} <= {"critic"}
    seen.clear()
    going_on = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
    resumed, record = learn_critic(images, config, CPU, going_on, on_stage)
    alone, again = learn_critic(images, config, CPU, TrainingHooks())
    assert seen[0][1] > 1
    assert [row["step"] for row in record.history] == [row["step"] for row in again.history]
    for name, value in alone.state().items():
        torch.testing.assert_close(resumed.state()[name], value, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("centering", ["channel", "exposure"])
def test_the_memory_is_the_same_to_the_bit(centering: str) -> None:
    config = preset("encoder", image_size=64, centering=centering)
    pixels = torch.stack([torch.from_numpy(draw_part(seed).transpose(2, 0, 1).copy()) for seed in range(7)])
    encoder = build_encoder(config).eval().requires_grad_(False)
    normalization, grids = Normalization.fit(pixels, config), grids_for(encoder, config, (64, 64))
    names, steps = tuple("abcdefg"), list[tuple[int, int]]()
    with backend_on("local", 2) as backend:
        ours = backend.build_memory(encoder, pixels, normalization, names, grids, lambda *done: steps.append(done))
    theirs = LOCAL.build_memory(encoder, pixels, normalization, names, grids)
    assert ours.image_names == theirs.image_names
    assert steps == [(done, 7) for done in range(1, 8)]
    assert all(torch.equal(ours.state()[name], value) for name, value in theirs.state().items())


def test_more_workers_than_the_cluster_has_room_for_are_refused(good: Path, tmp_path: Path) -> None:
    message = run("train", good, "--out", tmp_path / "model", "--workers", 3).error()
    assert "--workers 3: the cluster has 2 CPUs" in message
    assert "use 1 to 2 --workers" in message
    assert "at least one" in run("train", good, "--out", tmp_path / "model", "--workers", 0).error()


def test_a_batch_that_workers_cannot_share_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    message = run("train", tmp_path, "--out", tmp_path / "model", "--batch-size", 3, *ON_TWO).error()
    assert "--batch-size 3 cannot be shared evenly by 2 workers" in message


def test_without_a_number_there_is_a_worker_for_every_machine() -> None:
    with backend_on("auto") as backend:
        assert backend.workers == 1
        assert backend.device == torch.device("cpu")
