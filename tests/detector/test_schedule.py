from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.presets import preset
from patchsvdd.critic.validation import hold_out
from patchsvdd.detector.schedule import (
    CPU_MINUTES,
    ENOUGH,
    FEWEST,
    NARROWEST,
    SMALLEST_BATCH,
    TRAINING_TIME,
    fit_schedule,
    limit_cpu_minutes,
)
from patchsvdd.images.image_set import ImageSet
from patchsvdd.training.checkpoint import Checkpoint, CheckpointFile
from patchsvdd.training.hooks import TrainingHooks
from support.parts import TINY, draw_part

CPU = torch.device("cpu")
CRITIC = CriticSettings(width=2, steps=2000, batch_size=32, warmup=200)
"""A critic that takes 3.2 s a step where an image takes a tenth of a second."""


@pytest.fixture(scope="module")
def images() -> ImageSet:
    pictures = np.stack([draw_part(seed) for seed in range(4)])
    return ImageSet(tuple("abcd"), torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous(), ())


@pytest.fixture
def steps_take(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Says how long a step takes: of the encoder, and of the critic with four images."""

    def say(seconds: float) -> None:
        monkeypatch.setattr("patchsvdd.detector.schedule._seconds_per_step", lambda *_: seconds)

    return say


def asked(minutes: float | None, critic: CriticSettings | None = CRITIC, **changes: Any) -> Config:
    config = preset("encoder", **(TINY | {"steps": 3000} | changes))
    return dataclasses.replace(config, minutes=minutes, critic=critic)


def fit(images: ImageSet, config: Config, hooks: TrainingHooks | None = None) -> Config:
    return fit_schedule(images, config, CPU, hooks or TrainingHooks())


def critic_of(config: Config) -> CriticSettings:
    assert config.critic is not None
    return config.critic


def test_without_a_limit_nothing_is_timed(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchsvdd.detector.schedule._seconds_per_step", None)
    for config in (asked(None), asked(None, critic=None), preset("paper")):
        assert fit(images, config) is config


def test_on_a_cpu_time_is_limited_unless_a_length_is_given() -> None:
    assert limit_cpu_minutes(preset("best"), CPU, {"seed": 1, "steps": None}) == preset("best", minutes=CPU_MINUTES)
    for config in (preset("best", minutes=3), preset("paper")):
        assert limit_cpu_minutes(config, CPU, {}) is config
    assert limit_cpu_minutes(preset("best"), torch.device("cuda"), {}) == preset("best")


@pytest.mark.parametrize("name", ["steps", "epochs", "critic", "critic_steps"])
def test_a_given_length_lifts_the_limit(name: str) -> None:
    assert limit_cpu_minutes(preset("best"), CPU, {name: 10}) == preset("best")


def test_time_enough_changes_nothing(images: ImageSet, steps_take: Callable[[float], None]) -> None:
    steps_take(1e-3)
    for config in (asked(60), asked(60, critic=None), asked(60, epochs=2, steps=None)):
        assert fit(images, config) == config


@given(minutes=st.floats(1e-3, 1e4), seconds=st.floats(1e-5, 1e3), batch=st.integers(1, 64), steps=st.integers(1, 5000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_never_more_than_was_asked_for(
    images: ImageSet,
    steps_take: Callable[[float], None],
    minutes: float,
    seconds: float,
    batch: int,
    steps: int,
) -> None:
    steps_take(seconds)
    critic = dataclasses.replace(CRITIC, batch_size=batch, steps=steps)
    config = asked(minutes, critic, steps=steps)
    found = fit(images, config)
    assert found.steps is not None
    assert 0 <= found.steps <= steps
    assert found.steps == 0 or critic_of(found).steps == steps, "the critic comes first"
    assert 1 <= critic_of(found).steps <= steps
    assert min(batch, SMALLEST_BATCH["cpu"]) <= critic_of(found).batch_size <= batch
    assert 0 < critic_of(found).warmup <= CRITIC.warmup
    assert critic_of(found).check_steps in (0, critic.check_steps)
    kept = {"steps": steps, "batch_size": batch, "warmup": critic.warmup, "check_steps": critic.check_steps}
    assert dataclasses.replace(critic_of(found), **kept) == critic
    assert dataclasses.replace(found, steps=steps, warmup=config.warmup, critic=critic) == config


def test_the_check_of_the_good_images_is_left_out_if_it_does_not_fit(
    images: ImageSet, steps_take: Callable[[float], None]
) -> None:
    steps_take(0.1)
    critic = dataclasses.replace(CRITIC, batch_size=4, steps=8000, check_steps=3000)
    needed = (8000 + 2 * 3000) * 0.1 / 60 / TRAINING_TIME
    assert critic_of(fit(images, asked(1.01 * needed, critic))).check_steps == 3000
    without = critic_of(fit(images, asked(0.99 * needed, critic)))
    assert (without.steps, without.check_steps) == (8000, 0)


def test_what_fits_is_used(images: ImageSet, steps_take: Callable[[float], None]) -> None:
    steps_take(0.1)
    alone = fit(images, asked(1, critic=None))
    assert alone.steps == 540
    assert alone.warmup == 54, "a tenth of the steps"
    both = fit(images, asked(100, dataclasses.replace(CRITIC, batch_size=4, steps=10**6), steps=10**6))
    assert (both.steps, both.warmup) == (0, 0), "the critic needs all of the time"
    assert (critic_of(both).steps, critic_of(both).warmup) == (54_000, 200)
    rest = fit(images, asked(100, dataclasses.replace(CRITIC, batch_size=4, steps=50_000), steps=10**6))
    assert critic_of(rest).steps == 50_000
    assert rest.steps == pytest.approx(4_000, abs=1)


@pytest.mark.parametrize(
    ("minutes", "batch", "steps"),
    [
        (1, 4, 135),  # 54 s of 0.4 s: even the smallest batches do not give enough steps
        (10, 8, 675),
        (20, 16, 675),
        (100, 32, 1687),
        (1000, 32, 2000),
    ],
)
def test_batches_shrink_before_steps_get_few(
    images: ImageSet, steps_take: Callable[[float], None], minutes: float, batch: int, steps: int
) -> None:
    steps_take(0.4)  # of four images
    critic = critic_of(fit(images, asked(minutes)))
    assert (critic.batch_size, critic.steps) == (batch, steps)
    assert critic.steps >= FEWEST or critic.batch_size == SMALLEST_BATCH["cpu"]
    assert critic.warmup == min(200, steps // 10)


@pytest.mark.parametrize(("minutes", "width"), [(1, 16), (10, 16), (30, 64), (1000, 64)])
def test_a_critic_of_few_steps_is_made_narrower(
    images: ImageSet, steps_take: Callable[[float], None], minutes: float, width: int
) -> None:
    steps_take(0.4)  # of four images, whatever the width
    critic = critic_of(fit(images, asked(minutes, CriticSettings(width=64, steps=16000))))
    assert critic.width == width
    assert width == NARROWEST or critic.steps * critic.batch_size >= ENOUGH * SMALLEST_BATCH["cpu"]


def test_a_batch_does_not_fall_below_the_smallest(images: ImageSet, steps_take: Callable[[float], None]) -> None:
    steps_take(100)
    assert (
        critic_of(fit(images, asked(1, dataclasses.replace(CRITIC, batch_size=6)))).batch_size == SMALLEST_BATCH["cpu"]
    )
    assert critic_of(fit(images, asked(1, dataclasses.replace(CRITIC, batch_size=2)))).batch_size == 2


def test_epochs_count_the_images_that_train(images: ImageSet, steps_take: Callable[[float], None]) -> None:
    steps_take(1e-3)
    trained, _ = hold_out(len(images))
    config = asked(0.85, epochs=100, steps=None)
    left = 60 * TRAINING_TIME * 0.85 - CRITIC.steps * CRITIC.batch_size / 4 * 1e-3
    assert config.total_steps(len(trained)) * 1e-3 < left < config.total_steps(len(images)) * 1e-3
    assert fit(images, config).epochs == 100


@pytest.mark.parametrize("kind", ["random", "raw"])
def test_what_is_not_trained_needs_no_time(images: ImageSet, steps_take: Callable[[float], None], kind: str) -> None:
    steps_take(1)
    config = asked(1, critic=None, encoder=kind)
    assert fit(images, config) == config


class TestResume:
    @pytest.fixture
    def begun(self, images: ImageSet, steps_take: Callable[[float], None], tmp_path: Path) -> Config:
        """The schedule of a training that was stopped, on a day when the machine was slow."""
        steps_take(0.4)
        config = fit(images, asked(20))
        assert (config.steps, critic_of(config).steps, critic_of(config).warmup) == (0, 675, 67)
        CheckpointFile(tmp_path).write(Checkpoint({}, 1, 0.0, []), config.to_json(), 1200, "print")
        steps_take(0.1)
        return config

    def test_keeps_the_schedule(self, images: ImageSet, begun: Config, tmp_path: Path) -> None:
        resumed = fit(images, asked(20), TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True))
        assert resumed == begun
        CheckpointFile(tmp_path).read(resumed.to_json(), 1200, "print")

    def test_other_settings_are_still_found_out(self, images: ImageSet, begun: Config, tmp_path: Path) -> None:
        hooks = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        wider = dataclasses.replace(CRITIC, width=3)
        assert critic_of(fit(images, asked(20, wider), hooks)).width == 3
        assert fit(images, asked(20, critic=None), hooks).critic is None
        assert fit(images, asked(20, seed=7), hooks) == dataclasses.replace(begun, seed=7)

    def test_a_critic_made_narrower_stays_so(
        self, images: ImageSet, steps_take: Callable[[float], None], tmp_path: Path
    ) -> None:
        steps_take(0.4)
        config = asked(10, CriticSettings(width=64, steps=16000))
        begun = fit(images, config)
        CheckpointFile(tmp_path).write(Checkpoint({}, 1, 0.0, []), begun.to_json(), 1200, "print")
        steps_take(1e-4)
        hooks = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        assert fit(images, config, hooks) == begun
        assert critic_of(begun).width == NARROWEST

    def test_another_limit_does_not_change_it(self, images: ImageSet, begun: Config, tmp_path: Path) -> None:
        hooks = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        assert fit(images, asked(7), hooks) == begun

    def test_a_training_of_before_there_were_limits_goes_on(self, images: ImageSet, tmp_path: Path) -> None:
        config = asked(None, critic=None, epochs=3, steps=None)
        stored = config.to_json()
        for name in ("minutes", "critic", "warmup"):
            del stored[name]
        CheckpointFile(tmp_path).write(Checkpoint({}, 1, 0.0, []), stored, 1200, "print")
        hooks = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        limited = asked(40, critic=None)
        assert fit(images, limited, hooks) == dataclasses.replace(config, warmup=0)

    @pytest.mark.usefixtures("begun")
    def test_without_resume_it_is_found_again(self, images: ImageSet, tmp_path: Path) -> None:
        found = fit(images, asked(20), TrainingHooks(checkpoint=CheckpointFile(tmp_path)))
        assert critic_of(found).steps == 1350

    def test_without_a_checkpoint_it_is_found_again(
        self, images: ImageSet, tmp_path: Path, steps_take: Callable[[float], None]
    ) -> None:
        steps_take(0.4)
        hooks = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        assert fit(images, asked(20), hooks) == fit(images, asked(20))

    def test_where_only_the_critic_trains(
        self, images: ImageSet, tmp_path: Path, steps_take: Callable[[float], None]
    ) -> None:
        steps_take(0.4)
        config = asked(20, encoder="random")
        critic = critic_of(fit(images, config))
        about = {**dataclasses.asdict(critic), "seed": 0}
        CheckpointFile(tmp_path, "critic").write(Checkpoint({}, 1, 0.0, []), about, critic.steps, "print")
        steps_take(0.1)
        resumed = fit(images, config, TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True))
        assert resumed.critic == critic

    def test_an_encoder_without_time_stays_untrained(
        self, images: ImageSet, tmp_path: Path, steps_take: Callable[[float], None]
    ) -> None:
        steps_take(0.4)
        begun = fit(images, asked(20))
        assert begun.steps == 0
        about = {**dataclasses.asdict(critic_of(begun)), "seed": 0}
        CheckpointFile(tmp_path, "critic").write(Checkpoint({}, 1, 0.0, []), about, 675, "print")
        steps_take(1e-4)
        assert fit(images, asked(20), TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)) == begun


def test_steps_are_timed_and_nothing_else_is_touched(images: ImageSet) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    critic = CriticSettings(width=2, steps=100_000, batch_size=2)
    alone = fit(images, asked(0.1, None, steps=100_000, batch_size=1))
    assert alone.steps is not None
    assert 1 <= alone.steps < 100_000
    assert 1 <= critic_of(fit(images, asked(0.1, critic, steps=100_000, batch_size=1))).steps < 100_000
    assert torch.equal(torch.rand(3), expected)
