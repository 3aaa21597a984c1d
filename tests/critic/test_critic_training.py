from __future__ import annotations

import copy
import ctypes.util
import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.errors import ConfigError, Interrupted
from patchsvdd.critic.defect_shapes import RandomStream
from patchsvdd.critic.network import Critic, Residual, _every_other, build_critic, critic_normalization
from patchsvdd.critic.synthetic_defects import SELECTION_KINDS, TRAINING_KINDS
from patchsvdd.critic.training import LESSONS, METRICS, CriticTrainer, critic_loss, light, move, train_critic
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.hooks import TrainingHooks, TrainingRecord
from support.parts import draw_part

TINY = CriticSettings(width=2, steps=3, batch_size=2, warmup=1, ema=0.5)
IMAGES = torch.stack([torch.from_numpy(draw_part(seed)) for seed in range(3)]).permute(0, 3, 1, 2).contiguous()
NORMALIZATION = critic_normalization(IMAGES)


def dice(seed: int = 0) -> RandomStream:
    return RandomStream(torch.Generator().manual_seed(seed), torch.device("cpu"))


def trained(
    settings: CriticSettings = TINY,
    hooks: TrainingHooks | None = None,
    seed: int = 0,
    images: Tensor = IMAGES,
    fingerprint: str = "images",
) -> tuple[Critic, TrainingRecord]:
    return train_critic(images, NORMALIZATION, settings, seed, fingerprint, hooks or TrainingHooks())


def trainer_of(settings: CriticSettings, seed: int = 0) -> CriticTrainer:
    return CriticTrainer(build_critic(settings, seed), IMAGES, NORMALIZATION, settings, seed)


def differing(first: Critic, second: Critic) -> list[str]:
    """Names of the weights that are not bit for bit the same."""
    one, other = first.state_dict(), second.state_dict()
    return [name for name in one if not torch.equal(one[name], other[name])]


def stop_after(step: int, folder: Path, resume: bool = False) -> TrainingHooks:
    """Hooks that stop the training after so many steps of this run, leaving a checkpoint."""
    asked = iter(range(1, 100))
    return TrainingHooks(should_stop=lambda: next(asked) == step, checkpoint=CheckpointFile(folder), resume=resume)


def resumed_in(folder: Path) -> TrainingHooks:
    return TrainingHooks(checkpoint=CheckpointFile(folder), resume=True)


class TestLoss:
    LABELS = torch.zeros(1, 8, 8)
    LABELS[0, 2:5, 3:6] = 1

    def loss(self, logits: Tensor) -> float:
        return float(critic_loss(logits, self.LABELS, torch.ones(1, 8, 8))[0])

    def test_right_is_less_than_unsure_is_less_than_wrong(self) -> None:
        right = 10 * (2 * self.LABELS - 1)
        assert 0 <= self.loss(right) < 1e-4
        assert self.loss(right) < self.loss(torch.zeros(1, 8, 8)) < self.loss(-right)

    @given(logit=st.floats(-1e4, 1e4), label=st.floats(0, 1))
    def test_it_is_a_finite_number(self, logit: float, label: float) -> None:
        logits = torch.full((1, 4, 4), logit, requires_grad=True)
        loss, row = critic_loss(logits, torch.full((1, 4, 4), label), torch.ones(1, 4, 4))
        loss.backward()  # type: ignore[no-untyped-call]
        assert float(loss.detach()) >= 0
        assert logits.grad is not None
        for values in (loss, row, logits.grad):
            assert values.isfinite().all()

    @given(label=st.sampled_from([0.0, 1.0]), low=st.floats(-20, 20), high=st.floats(-20, 20))
    def test_more_wrong_is_worse(self, label: float, low: float, high: float) -> None:
        near, far = sorted((low, high), reverse=label == 1)
        labels = torch.full((1, 2, 2), label)
        counted = torch.ones(1, 2, 2)
        losses = [float(critic_loss(torch.full((1, 2, 2), logit), labels, counted)[0]) for logit in (near, far)]
        assert losses[0] <= losses[1] * (1 + 1e-5) + 1e-12

    def test_a_missed_pixel_weighs_more_than_a_false_one(self) -> None:
        right = 10 * (2 * self.LABELS - 1)
        missed, false = right.clone(), right.clone()
        missed[0, 3, 4], false[0, 7, 7] = -10, 10
        assert self.loss(missed) > 2 * self.loss(false)

    def test_doubtful_pixels_do_not_count(self) -> None:
        right = 10 * (2 * self.LABELS - 1)
        wrong, counted = right.clone(), torch.ones(1, 8, 8)
        wrong[0, 6:], counted[0, 6:] = 10, 0
        assert self.loss(wrong) > 100 * self.loss(right)
        assert float(critic_loss(wrong, self.LABELS, counted)[0]) <= self.loss(right)

    def test_the_metrics(self) -> None:
        right, counted = 10 * (2 * self.LABELS - 1), torch.ones(1, 8, 8)
        found, false = (critic_loss(sign * right, self.LABELS, counted)[1] for sign in (1, -1))
        assert dict(zip(METRICS, found.tolist(), strict=True))["found"] == pytest.approx(1, abs=1e-3)
        assert dict(zip(METRICS, false.tolist(), strict=True))["false"] == pytest.approx(1, abs=1e-3)
        nothing = critic_loss(torch.zeros(1, 8, 8), torch.zeros(1, 8, 8), counted)[1]
        assert nothing.tolist()[1:] == pytest.approx([0, 0.5]), "no defect was there to be found"


class TestViews:
    @pytest.mark.parametrize("size", [(64, 64), (48, 90)])
    def test_other_light_keeps_range_and_shape(self, size: tuple[int, int]) -> None:
        images = torch.rand(4, 3, *size) * 255
        lit = light(images, 1.0, dice())
        assert lit.shape == images.shape
        assert float(lit.min()) >= 0
        assert float(lit.max()) <= 255
        assert float((lit - images).abs().mean()) > 5
        torch.testing.assert_close(light(images, 0.0, dice()), images)

    @pytest.mark.parametrize("size", [(64, 64), (48, 90)])
    def test_moving_keeps_range_and_shape(self, size: tuple[int, int]) -> None:
        images = torch.rand(4, 3, *size) * 255
        moved = move(images, TINY, dice())
        assert moved.shape == images.shape
        assert float(moved.min()) >= float(images.min())
        assert float(moved.max()) <= float(images.max()) + 1e-3
        assert not torch.allclose(moved, images)
        flat = torch.full((2, 3, *size), 77.0)
        torch.testing.assert_close(move(flat, TINY, dice()), flat)

    def test_moving_is_a_little(self) -> None:
        centre = move(IMAGES.float(), TINY, dice())[:, :, 24:40, 24:40]
        assert float((centre - IMAGES[:, :, 24:40, 24:40]).abs().median()) < 10

    @pytest.mark.parametrize("share", [0.0, 1.0])
    def test_labels_are_where_defects_are(self, share: float) -> None:
        settings = dataclasses.replace(TINY, share=share)
        views, labels, counted = trainer_of(settings).draw(8)
        assert views.shape == (8, 3, 64, 64)
        assert labels.shape == counted.shape == (8, 16, 16)
        assert bool((counted < 1).any()) == (share > 0)
        assert float(counted.min()) >= 0
        assert bool((counted + 1e-6 >= labels).all()), "a defect counts as much as it is one"
        assert views.isfinite().all()
        assert float(labels.min()) >= 0
        assert float(labels.max()) <= 1
        assert bool(labels.any()) == (share > 0)

    def test_odd_sizes(self) -> None:
        images = torch.randint(0, 256, (2, 3, 67, 81), dtype=torch.uint8)
        settings = dataclasses.replace(TINY, steps=1)
        critic, record = train_critic(images, critic_normalization(images), settings, 0, "odd", TrainingHooks())
        assert record.steps == 1
        assert critic(torch.zeros(1, 3, 67, 81)).shape == (1, 17, 21)

    def test_settings_are_not_chosen_by_what_trains(self) -> None:
        assert set(LESSONS) == set(TRAINING_KINDS)
        assert not set(LESSONS) & set(SELECTION_KINDS)


class TestTraining:
    def test_the_seed_decides_every_weight(self) -> None:
        torch.manual_seed(1)
        first, record = trained()
        torch.manual_seed(2)
        torch.rand(5)
        again, record_again = trained()
        other, _ = trained(seed=1)
        assert not differing(first, again)
        assert record.history == record_again.history
        assert differing(first, other)
        assert differing(first, build_critic(TINY)), "nothing was learnt"

    def test_the_callers_random_numbers_are_left_alone(self) -> None:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        trained(dataclasses.replace(TINY, steps=1))
        assert torch.equal(torch.rand(3), expected)

    def test_the_loss_falls(self) -> None:
        settings = CriticSettings(width=4, steps=20, batch_size=4, warmup=3, learning_rate=1e-2)
        _, record = trained(settings)
        losses = [row["loss"] for row in record.history]
        assert len(losses) == 20
        assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
        assert all(math.isfinite(value) for row in record.history for value in row.values())

    def test_the_record_can_be_stored(self) -> None:
        _, record = trained()
        assert [row["step"] for row in json.loads(json.dumps(record.history))] == [1, 2, 3]
        assert set(record.history[0]) == {"step", *METRICS}
        assert record.steps == 3
        assert record.seconds > 0

    def test_progress_is_told(self) -> None:
        seen: list[tuple[int, int]] = []
        train_critic(
            IMAGES, NORMALIZATION, TINY, 0, "images", TrainingHooks(), lambda done, total: seen.append((done, total))
        )
        assert seen == [(1, 3), (2, 3), (3, 3)]

    def test_the_learning_rate_rises_and_falls(self) -> None:
        settings = dataclasses.replace(TINY, steps=6, warmup=2, learning_rate=1.0, muon_learning_rate=2.0)
        trainer = trainer_of(settings)
        rates = []
        for _ in range(6):
            trainer.advance()
            rates.append(float(trainer.optimizers["adam"].param_groups[0]["lr"]))
            assert float(trainer.optimizers["muon"].param_groups[0]["lr"]) == pytest.approx(2 * rates[-1])
        assert rates[0] == pytest.approx(0.5)
        assert rates[1] == max(rates)
        assert rates[1:] == sorted(rates[1:], reverse=True)
        assert rates[-1] < 0.1

    def test_muon_trains_the_inner_convolutions_and_adam_the_rest(self) -> None:
        trainer = trainer_of(TINY)
        inner = trainer.optimizers["muon"].param_groups[0]["params"]
        others = trainer.optimizers["adam"].param_groups[0]["params"]
        assert {id(one) for one in (*inner, *others)} == {id(one) for one in trainer.critic.parameters()}
        assert len(inner) + len(others) == len(list(trainer.critic.parameters()))
        assert all(one.ndim == 4 for one in inner)
        left = [one for one in others if one.ndim == 4]
        assert [id(one) for one in left] == [id(trainer.critic.stem.weight), id(trainer.critic.head.weight)]

    def test_without_a_rate_for_muon_adam_trains_everything(self) -> None:
        trainer = trainer_of(dataclasses.replace(TINY, muon_learning_rate=0.0))
        assert list(trainer.optimizers) == ["adam"]
        assert len(trainer.optimizers["adam"].param_groups[0]["params"]) == len(list(trainer.critic.parameters()))

    def test_what_is_left_is_the_average_of_the_weights(self) -> None:
        trainer = trainer_of(TINY)
        expected = copy.deepcopy(trainer.critic.state_dict())
        for step in range(3):
            trainer.advance()
            share = max(1 - TINY.ema, 9 / (9 + step + 1))
            for name, value in trainer.critic.state_dict().items():
                if value.is_floating_point():
                    expected[name] += share * (value - expected[name])
        trainer.finish()
        for name, value in trainer.critic.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)
        assert not trainer.critic.training
        assert all(parameter.is_contiguous() for parameter in trainer.critic.parameters())
        assert not any(parameter.requires_grad for parameter in trainer.critic.parameters())


class TestResume:
    @pytest.mark.parametrize("step", [1, 2])
    def test_equals_training_without_a_stop(self, tmp_path: Path, step: int) -> None:
        whole, record = trained()
        with pytest.raises(Interrupted, match=f"stopped at step {step} of 3 of the critic"):
            trained(hooks=stop_after(step, tmp_path))
        assert [path.name for path in tmp_path.iterdir()] == ["training-critic.safetensors"]
        torch.manual_seed(123)
        resumed, resumed_record = trained(hooks=resumed_in(tmp_path))
        assert not differing(whole, resumed)
        assert resumed_record.history == record.history
        assert resumed_record.steps == 3

    def test_more_than_once(self, tmp_path: Path) -> None:
        settings = dataclasses.replace(TINY, steps=4)
        whole, record = trained(settings)
        for _ in range(3):
            with pytest.raises(Interrupted):
                trained(settings, stop_after(1, tmp_path, resume=True))
        resumed, resumed_record = trained(settings, resumed_in(tmp_path))
        assert not differing(whole, resumed)
        assert resumed_record.history == record.history

    def test_metrics_between_two_records_are_carried_over(self) -> None:
        whole, first, second = (trainer_of(TINY) for _ in range(3))
        for trainer in (whole, whole, first):
            trainer.advance()
        second.load_state(copy.deepcopy(first.state()), 1)
        second.advance()
        assert whole.read_metrics() == second.read_metrics()

    def test_a_finished_training_is_not_done_again(self, tmp_path: Path) -> None:
        whole, record = trained(hooks=resumed_in(tmp_path))
        seen: list[int] = []
        again, record_again = train_critic(
            IMAGES, NORMALIZATION, TINY, 0, "images", resumed_in(tmp_path), lambda done, _: seen.append(done)
        )
        assert seen == []
        assert not differing(whole, again)
        assert record_again.history == record.history

    def test_without_resume_training_starts_anew(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            trained(hooks=stop_after(1, tmp_path))
        _, record = trained(hooks=TrainingHooks(checkpoint=CheckpointFile(tmp_path)))
        assert [row["step"] for row in record.history] == [1, 2, 3]

    def test_what_was_done_is_kept_when_the_listener_stops_it(self, tmp_path: Path) -> None:
        # The command line asks for a stop in ``should_stop`` and raises wherever a stage is told.
        stopping: list[bool] = []

        def tell(done: int, total: int) -> None:
            if stopping:
                raise Interrupted("stopped during critic")
            stopping.append(True)

        hooks = TrainingHooks(should_stop=lambda: bool(stopping), checkpoint=CheckpointFile(tmp_path))
        with pytest.raises(Interrupted, match="step 2 of 3"):
            train_critic(IMAGES, NORMALIZATION, TINY, 0, "images", hooks, tell)
        whole, _ = trained()
        resumed, _ = trained(hooks=resumed_in(tmp_path))
        assert not differing(whole, resumed)

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"width": 3}, "width was 2, now 3"),
            ({"learning_rate": 0.5}, "learning_rate was 0.001, now 0.5"),
            ({"steps": 9}, "steps was 3, now 9"),
        ],
    )
    def test_other_settings_are_named(self, tmp_path: Path, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(Interrupted):
            trained(hooks=stop_after(1, tmp_path))
        with pytest.raises(ConfigError) as error:
            trained(dataclasses.replace(TINY, **changes), resumed_in(tmp_path))
        assert named in str(error.value)
        assert "`overwrite=True`" in str(error.value)

    def test_another_seed_and_other_images_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            trained(hooks=stop_after(1, tmp_path))
        with pytest.raises(ConfigError, match="seed was 0, now 4"):
            trained(hooks=resumed_in(tmp_path), seed=4)
        with pytest.raises(ConfigError, match="the training images have changed"):
            trained(hooks=resumed_in(tmp_path), fingerprint="others")


class Backwards(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the convolutions that a backward pass goes through."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.strided_points: list[tuple[int, ...]] = []
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution_backward.default:
            inputs, weight, stride = args[1], args[2], args[4]
            self.count += 1
            in_channels_last = inputs.is_contiguous(memory_format=torch.channels_last)
            if weight.shape[2:] == (1, 1) and max(stride) > 1 and in_channels_last:
                self.strided_points.append(tuple(inputs.shape))
        return func(*args, **(kwargs or {}))


class TestHeap:
    """The backward pass of a strided 1×1 convolution in channels-last layout corrupts the heap on x86 (critic.py)."""

    @pytest.mark.parametrize("width", [1, 2, 5, 16, 32])
    def test_no_width_uses_the_convolution_that_writes_past_its_buffer(self, width: int) -> None:
        trainer = trainer_of(dataclasses.replace(TINY, width=width))
        with Backwards() as seen:
            trainer.advance()
        assert seen.count > 20
        assert seen.strided_points == []

    def test_the_plain_convolution_is_the_strided_one(self) -> None:
        block = build_critic(TINY).quarter[0]
        images = torch.randn(2, 2, 9, 12)
        assert isinstance(block, Residual)
        assert block.skip is not None
        torch.testing.assert_close(_every_other(block.skip, images), block.skip(images))

    @pytest.mark.slow
    @pytest.mark.parametrize("float32", ["1", "0"], ids=["float32", "bfloat16 where the CPU has matrix units"])
    def test_training_passes_the_heap_check_of_glibc(self, float32: str) -> None:
        library = ctypes.util.find_library("c_malloc_debug")
        if library is None:
            pytest.skip("there is no libc_malloc_debug here")
        script = (
            "import torch; from patchsvdd.core.critic_settings import CriticSettings\n"
            "from patchsvdd.critic.network import *\n"
            "from patchsvdd.critic.training import CriticTrainer\n"
            "for width in (2, 6):\n"
            "    settings = CriticSettings(width=width, steps=12, batch_size=3)\n"
            "    images = torch.randint(0, 256, (3, 3, 160, 128), dtype=torch.uint8)\n"
            "    trainer = CriticTrainer(build_critic(settings), images, critic_normalization(images), settings, 0)\n"
            "    for _ in range(12): trainer.advance()\n"
            "print('clean')"
        )
        checked = {**os.environ, "LD_PRELOAD": library, "MALLOC_CHECK_": "3", "PATCHSVDD_FLOAT32": float32}
        done = subprocess.run([sys.executable, "-c", script], env=checked, capture_output=True, text=True)
        assert done.stdout.strip() == "clean", f"exit code {done.returncode}: {done.stderr[-500:]}"
