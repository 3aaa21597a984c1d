"""Fits the number of training steps into a time limit, by timing a few of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

import torch

from patchsvdd.core.config import Config, current_settings
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.device import reproducible
from patchsvdd.critic.network import build_critic, critic_normalization
from patchsvdd.critic.training import CriticTrainer
from patchsvdd.detector.split import Split
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.normalization import Normalization
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.hooks import TrainingHooks
from patchsvdd.training.step import Trainer

CPU_MINUTES = 40.0
"""Time limit on a CPU if no length was given: the presets' schedules are meant for a GPU."""
LENGTHS = ("steps", "epochs", "critic", "critic_steps")
"""Settings that fix the length of a training: if one is given, there is no time limit."""
TRAINING_TIME = 0.9
"""Largest share of the minutes for training itself; validation, the memory and the threshold need the rest."""
LEAST_TRAINING = 0.5
"""Smallest share, however long the rest takes."""
LATER = {"cpu": 0.9, "cuda": 0.0}
"""Seconds after the training of a critic, per good image of 256 × 256 pixels; measured on two x86 cores."""
ENOUGH, NARROWEST = 2000, 16
"""Steps below which the critic is made narrower instead, and its minimum width."""
FEWEST = 600
"""Steps below which the critic's batches are made smaller instead."""
SMALLEST_BATCH = {"cpu": 4, "cuda": 8}
"""On a GPU the kinds of defects in a batch are fixed when its step is recorded, so a batch must hold all of them."""
TIMED = 5
"""Number of timed steps, after one warm-up step."""


def limit_cpu_minutes(config: Config, device: torch.device, given: Mapping[str, object]) -> Config:
    """Limit training to CPU_MINUTES on a CPU unless the caller chose its length.

    ``given`` holds the caller's settings; None leaves a setting to the preset. The paper's schedule is never limited.
    """
    chosen = any(given.get(name) is not None for name in LENGTHS) or config.minutes is not None
    if chosen or device.type != "cpu" or config.preset == "paper":
        return config
    return config.replace(minutes=CPU_MINUTES)


def fit_schedule(images: ImageSet, config: Config, device: torch.device, hooks: TrainingHooks) -> Config:
    """Return the settings with as many steps as fit into ``config.minutes``, at most those configured.

    The critic comes first. The encoder is trained in the time that is left, or stays untrained: after a short training
    the fused map gives the memory little weight or none. A resumed training keeps its original schedule.
    """
    if config.minutes is None:
        return config
    if hooks.resume and hooks.checkpoint is not None:
        begun = _begun(config, hooks.checkpoint)
        if begun is not None:
            return begun
    if config.critic is None:
        return _fit_encoder(images, config, device, training_seconds(config.minutes))
    height, width = images.size
    seconds = training_seconds(config.minutes, LATER[device.type] * len(images) * height * width / 256**2)
    critic, left = _fit_critic(images, config.critic, device, seconds)
    return _fit_encoder(images, config, device, left).replace(critic=critic)


def training_seconds(minutes: float, later: float = 0.0) -> float:
    """The seconds of a limit that training itself may use, if about ``later`` seconds are needed after it."""
    whole = 60 * minutes
    return max(LEAST_TRAINING * whole, min(TRAINING_TIME * whole, whole - later))


def _begun(config: Config, checkpoint: CheckpointFile) -> Config | None:
    """Return the settings with the schedule of the resumed training; None if there is none."""
    whole, critic = checkpoint.settings(), checkpoint.of("critic").settings()
    if whole is None and critic is None:
        return None
    if whole is not None:
        whole = current_settings(whole)
        critic = whole["critic"]
        config = dataclasses.replace(config, **{name: whole[name] for name in ("steps", "epochs", "warmup", "minutes")})
    elif config.critic is not None:
        config = config.replace(steps=0, warmup=0)  # the critic has begun, so the encoder stays untrained
    if critic is not None and config.critic is not None:
        kept = {name: critic[name] for name in ("steps", "batch_size", "warmup")}
        kept["check_steps"] = critic.get("check_steps", 0)
        if critic["width"] in _widths(config.critic.width):
            kept["width"] = critic["width"]
        config = config.replace(critic=dataclasses.replace(config.critic, **kept))
    return config


def _fit_encoder(images: ImageSet, config: Config, device: torch.device, seconds: float) -> Config:
    total = config.total_steps(len(Split.of(config, len(images)).trained))
    encoder = build_encoder(config).to(device)
    if not encoder.trainable or total == 0:
        return config
    if seconds <= 0:
        return config.replace(steps=0, warmup=0)
    pixels = Normalization.fit(images.pixels, config)(images.pixels[:8]).to(device)
    with reproducible(allow_tf32=True):
        trainer = Trainer(encoder, pixels, config, total)
        each = _seconds_per_step(trainer.advance, device)
    steps = int(seconds / each)
    return config if steps >= total else config.replace(steps=max(1, steps), warmup=_shorter(config.warmup, steps))


def _fit_critic(
    images: ImageSet, settings: CriticSettings, device: torch.device, seconds: float
) -> tuple[CriticSettings, float]:
    """Return the settings that fit into the time, and the seconds that are left."""
    smallest = SMALLEST_BATCH[device.type]
    timed = dataclasses.replace(settings, batch_size=min(settings.batch_size, smallest))
    pixels = images.pixels[:8].to(device)
    with reproducible(allow_tf32=True):
        trainer = CriticTrainer(build_critic(timed), pixels, critic_normalization(pixels), timed, 0)
        per_image = _seconds_per_step(trainer.advance, device) / timed.batch_size
    if settings.width > NARROWEST and seconds / (smallest * per_image) < min(ENOUGH, settings.steps):
        return _fit_critic(images, dataclasses.replace(settings, width=settings.width // 2), device, seconds)
    batch = settings.batch_size
    while batch > smallest and seconds / (batch * per_image) < min(FEWEST, settings.steps):
        batch = max(smallest, batch // 2)
    steps = int(seconds / (batch * per_image))
    if steps >= settings.steps:
        checks = settings.check_steps if steps >= settings.steps + 2 * settings.check_steps else 0
        used = batch * per_image * (settings.steps + 2 * checks)
        return dataclasses.replace(settings, batch_size=batch, check_steps=checks), seconds - used
    warmup = _shorter(settings.warmup, steps)
    return dataclasses.replace(settings, batch_size=batch, steps=max(1, steps), warmup=warmup, check_steps=0), 0.0


def _widths(width: int) -> list[int]:
    """Return the configured width and the narrower ones used if time is short."""
    widths = [width]
    while widths[-1] > NARROWEST:
        widths.append(widths[-1] // 2)
    return widths


def _shorter(warmup: int, steps: int) -> int:
    """Return a warm-up of at most a tenth of the steps."""
    return min(warmup, max(1, steps // 10))


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
