"""Schedules that fit into a given time: how many steps that is, found by doing a few."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch

from patchsvdd.config import Config, CriticSettings
from patchsvdd.critic import Critic, critic_normalization
from patchsvdd.critic_training import CriticTrainer
from patchsvdd.device import reproducible
from patchsvdd.encoder import build_encoder
from patchsvdd.images import ImageSet
from patchsvdd.normalization import Normalization
from patchsvdd.training import Trainer, TrainingHooks

CRITIC_TIME = 0.6
"""Share of the time that the critic gets, where there is one."""
FEWEST = 600
"""Steps below which the critic's batches are made smaller instead."""
SMALLEST_BATCH = 4
TIMED = 3
"""Steps that are timed, after one that warms up."""


def fit_schedule(images: ImageSet, config: Config, device: torch.device, hooks: TrainingHooks) -> Config:
    """The settings with as many steps as fit into ``config.minutes``, at most those asked for.

    A training that is resumed keeps the schedule it began with.
    """
    if config.minutes is None:
        return config
    begun = hooks.checkpoint.settings() if hooks.resume and hooks.checkpoint is not None else None
    if begun is not None:
        critic = CriticSettings(**begun["critic"]) if begun["critic"] is not None else None
        if critic is not None and config.critic is not None:
            critic = dataclasses.replace(config.critic, steps=critic.steps, batch_size=critic.batch_size)
        return config.replace(steps=begun["steps"], critic=critic)
    seconds = 60 * config.minutes
    if config.critic is None:
        return config.replace(steps=_encoder_steps(images, config, device, seconds))
    steps = _encoder_steps(images, config, device, (1 - CRITIC_TIME) * seconds)
    critic = _critic_schedule(images, config.critic, device, CRITIC_TIME * seconds)
    return config.replace(steps=steps, critic=critic)


def _encoder_steps(images: ImageSet, config: Config, device: torch.device, seconds: float) -> int:
    total = config.total_steps(len(images))
    encoder = build_encoder(config).to(device)
    if not encoder.trainable or total == 0:
        return total
    pixels = Normalization.fit(images.pixels, config)(images.pixels[:8]).to(device)
    with reproducible(allow_tf32=True):
        trainer = Trainer(encoder, pixels, config, total)
        each = _seconds_per_step(trainer.advance, device)
    return max(1, min(total, int(seconds / each)))


def _critic_schedule(
    images: ImageSet, settings: CriticSettings, device: torch.device, seconds: float
) -> CriticSettings:
    timed = dataclasses.replace(settings, batch_size=min(settings.batch_size, SMALLEST_BATCH))
    pixels = images.pixels[:8].to(device)
    with reproducible(allow_tf32=True):
        trainer = CriticTrainer(Critic(timed), pixels, critic_normalization(pixels), timed, 0)
        per_image = _seconds_per_step(trainer.advance, device) / timed.batch_size
    batch = settings.batch_size
    while batch > SMALLEST_BATCH and seconds / (batch * per_image) < min(FEWEST, settings.steps):
        batch //= 2
    steps = max(1, min(settings.steps, int(seconds / (batch * per_image))))
    warmup = min(settings.warmup, max(1, steps // 10))
    return dataclasses.replace(settings, batch_size=batch, steps=steps, warmup=warmup)


def _seconds_per_step(advance: Callable[[], None], device: torch.device) -> float:
    def wait() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    advance()
    start = wait()
    for _ in range(TIMED):
        advance()
    return max(1e-6, (wait() - start) / TIMED)
