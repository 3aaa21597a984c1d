"""Looks for defects among the good images, with critics that judge only images they were not trained on."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import torch

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.device import reproducible
from patchsvdd.core.progress import OnProgress, OnStage, stage
from patchsvdd.critic.network import TrainedCritic, critic_normalization
from patchsvdd.detector.training_backend import LOCAL, TrainingBackend
from patchsvdd.detector.unusual_images import Peak, peak
from patchsvdd.images.image_set import ImageSet
from patchsvdd.training.hooks import TrainingHooks

ROUNDS = (0.25, 0.75)
"""Shares of the steps. The second round trains without the images that the first one found suspicious."""
SUSPICIOUS = 0.2
"""Share of the images that the second round does not train on."""
FEWEST = 16
"""Good images below which a half is too few to train on."""
HIGHEST = 500
"""The score of an image is the mean of its highest logits: one in this many, at least one."""
LARGEST = 50.0
"""Limit of a difference of logits, so that the odds stay finite."""


def can_check(images: int, settings: CriticSettings) -> bool:
    """Whether there are enough images, and enough steps: a critic of fewer steps is not used to its images yet."""
    return 0 < settings.check_steps < settings.steps and images >= FEWEST


def rank_by_halves(
    images: ImageSet,
    config: Config,
    device: torch.device,
    hooks: TrainingHooks,
    on_stage: OnStage | None = None,
    backend: TrainingBackend = LOCAL,
) -> list[Peak]:
    """The odds of a defect in each image, 1 in a typical one, and where they are highest.

    A critic that was trained on an image with a defect has learned that the defect is good. So two critics are trained,
    on every other image each, and judge the other half. An interrupted check starts over: it is short.
    """
    assert config.critic is not None
    halves = [list(range(start, len(images), 2)) for start in (0, 1)]
    steps = [max(1, round(share * config.critic.check_steps)) for share in ROUNDS]
    progress, total, done = stage(on_stage, "check"), 2 * sum(steps), 0
    hooks = dataclasses.replace(hooks, checkpoint=None, resume=False)

    def from_here(before: int) -> OnProgress | None:
        return None if progress is None else lambda step, _: progress(before + step, total)

    known, ranked = halves, dict[int, Peak]()
    for count in steps:
        settings = dataclasses.replace(
            config.critic, steps=count, warmup=min(config.critic.warmup, max(1, count // 10)), feature_coreset=0
        )
        for own, others in ((known[0], halves[1]), (known[1], halves[0])):
            pixels = images.pixels[own].to(device)
            normalization = critic_normalization(pixels)
            critic, _ = backend.train_critic(
                pixels, normalization, settings, config.seed, "", hooks, from_here(done), config.frame
            )
            ranked |= _judge(TrainedCritic(critic, normalization).to(device), images, others, device)
            done += count
        known = [_least_suspicious(half, ranked) for half in halves]
    return [ranked[index] for index in range(len(images))]


def _judge(critic: TrainedCritic, images: ImageSet, chosen: Sequence[int], device: torch.device) -> dict[int, Peak]:
    """The highest odds of each chosen image, relative to their median, and where they are."""
    found = {}
    with reproducible(), torch.inference_mode():
        for index in chosen:
            logits = critic.logits(images.pixels[index : index + 1].to(device))[0]
            highest = logits.flatten().topk(max(1, logits.numel() // HIGHEST)).values.double()
            found[index] = (float(highest.mean()), peak(logits)[1])
    median = statistics.median(logit for logit, _ in found.values())
    return {index: (math.exp(min(logit - median, LARGEST)), at) for index, (logit, at) in found.items()}


def _least_suspicious(half: Sequence[int], ranked: dict[int, Peak]) -> list[int]:
    """The indices without the share that is SUSPICIOUS, in order."""
    by_odds = sorted(half, key=lambda index: ranked[index][0])
    return sorted(by_odds[: len(half) - round(SUSPICIOUS * len(half))])
