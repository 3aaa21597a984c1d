from __future__ import annotations

import dataclasses

import pytest
import torch

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.errors import ConfigError, Interrupted
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.image_check import can_check, rank_by_halves
from patchsvdd.detector.unusual_images import list_unusual, unusual_images
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.loading import load_training_images
from patchsvdd.training.hooks import TrainingHooks
from support.parts import TINY, draw_part

CPU = torch.device("cpu")
SETTINGS = CriticSettings(width=8, steps=49, batch_size=8, warmup=2, ema=0.9, check_steps=48)
PLANTED = (5, 12)
"""One in each half."""


@pytest.fixture(scope="module")
def good() -> tuple[ImageSet, Config]:
    images = [draw_part(index, (64, 64)).copy() for index in range(20)]
    for index in PLANTED:
        images[index][20:40, 16:36] = (255, 255, 255)
    return load_training_images(images, preset("best", **{**TINY, "critic": SETTINGS}))


def test_planted_defects_come_first(good: tuple[ImageSet, Config]) -> None:
    images, config = good
    stages: list[tuple[str, int, int]] = []
    ranked = rank_by_halves(images, config, CPU, TrainingHooks(), lambda *now: stages.append(now))
    listed = list_unusual(ranked, images.names)
    assert {one.image for one in listed[:2]} == set(PLANTED)
    assert listed[0].ratio > 1
    assert {name for name, _, _ in stages} == {"check"}
    assert [done for _, done, _ in stages] == sorted(done for _, done, _ in stages)
    assert stages[-1][1:] == (96, 96)
    detector = PatchSVDD.fit_images(images, config, device="cpu")  # the same seed finds the same
    assert [one.to_json() for one in unusual_images(detector.provenance)] == [one.to_json() for one in listed]


def test_it_stops_when_asked(good: tuple[ImageSet, Config]) -> None:
    images, config = good
    with pytest.raises(Interrupted):
        rank_by_halves(images, config, CPU, TrainingHooks(should_stop=lambda: True))


def test_short_trainings_and_few_images_are_not_checked() -> None:
    assert can_check(16, SETTINGS)
    assert not can_check(15, SETTINGS)
    assert not can_check(100, dataclasses.replace(SETTINGS, steps=48))
    assert not can_check(100, dataclasses.replace(SETTINGS, check_steps=0))


def test_a_negative_number_of_steps_is_an_error() -> None:
    with pytest.raises(ConfigError, match="check_steps must be a whole number of at least 0"):
        preset("best", critic=dataclasses.replace(SETTINGS, check_steps=-1))
