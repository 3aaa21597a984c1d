"""Runs training and embedding in this process or in a group of worker processes, with the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.progress import OnProgress
from patchsvdd.core.roi import RoiCrop
from patchsvdd.critic.network import Critic, build_critic
from patchsvdd.critic.training import train_critic
from patchsvdd.encoder.networks import PatchEncoder, build_encoder
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import Memory, build_memory, fill_memory
from patchsvdd.training.hooks import TrainingHooks, TrainingRecord
from patchsvdd.training.loop import train
from patchsvdd.training.process_group import check_shares

CPU = torch.device("cpu")
Trained = tuple[dict[str, Tensor], TrainingRecord]
"""Weights in host memory, and the record of their training."""
Work = Callable[[Tensor, torch.device, TrainingHooks, OnProgress | None], Trained]
"""The task of each worker: all pixels, its device, hooks and progress callback → trained weights."""
RunWorkers = Callable[[Work, Tensor, TrainingHooks, OnProgress | None], Trained]
"""Runs the task on all workers; stops, reports and writes checkpoints through the hooks. Arguments are picklable."""
Embed = Callable[[PatchEncoder, Tensor, Normalization, Sequence[PatchGrid]], Iterator[Sequence[Tensor]]]
"""Embeddings (P, D) on each grid of images (N, 3, H, W) in 0 … 255, one image after the other, in host memory."""


@dataclass(frozen=True)
class TrainingBackend:
    """Where training and embedding run."""

    run_workers: RunWorkers | None = None
    """Trains in worker processes; None for this process."""
    embed: Embed | None = None
    """Embeds in worker processes; None for this process."""
    workers: int = 1
    """Number of worker processes."""
    device: torch.device | None = None
    """Device of the workers; None for that of this process."""

    def check(self, config: Config) -> None:
        """Raise ConfigError if the workers cannot share the batches evenly."""
        check_shares("`batch_size`", config.batch_size, self.workers)
        if config.critic is not None:
            check_shares("the critic's batch of", config.critic.batch_size, self.workers)

    def train_encoder(
        self,
        encoder: PatchEncoder,
        pixels: Tensor,
        normalization: Normalization,
        config: Config,
        fingerprint: str,
        hooks: TrainingHooks,
    ) -> TrainingRecord:
        """Train a fresh encoder in place on pixels (N, 3, H, W) in 0 … 255, as ``training.loop.train`` does."""
        if self.run_workers is None:
            device = next(encoder.parameters()).device
            return train(encoder, normalization(pixels).to(device), config, fingerprint, hooks)
        work = partial(_encoder_work, normalization, config, fingerprint)
        weights, record = self.run_workers(work, pixels, hooks, None)
        encoder.load_state_dict(weights)
        return record

    def train_critic(
        self,
        pixels: Tensor,
        normalization: Normalization,
        settings: CriticSettings,
        seed: int,
        fingerprint: str,
        hooks: TrainingHooks,
        on_progress: OnProgress | None = None,
        frame: RoiCrop | None = None,
    ) -> tuple[Critic, TrainingRecord]:
        """Train a critic as ``critic.training.train_critic`` does, and return it with its record."""
        if self.run_workers is None:
            return train_critic(pixels, normalization, settings, seed, fingerprint, hooks, on_progress, frame)
        work = partial(_critic_work, normalization.to(CPU), settings, seed, fingerprint, frame)
        weights, record = self.run_workers(work, pixels.cpu(), hooks, on_progress)
        critic = build_critic(settings, seed)
        critic.load_state_dict(weights)
        return critic.to(pixels.device).eval().requires_grad_(False), record

    def build_memory(
        self,
        encoder: PatchEncoder,
        pixels: Tensor,
        normalization: Normalization,
        image_names: Sequence[str],
        grids: Sequence[PatchGrid],
        on_progress: OnProgress | None = None,
    ) -> Memory:
        """Return the memory of all images (N, 3, H, W) in 0 … 255, on the normalization's device."""
        device = normalization.mean.device
        if self.embed is None:
            return build_memory(encoder, normalization(pixels.to(device)), image_names, grids, on_progress)
        embedded = self.embed(encoder, pixels, normalization, grids)
        rows = ([embeddings.to(device) for embeddings in of_image] for of_image in embedded)
        return fill_memory(rows, image_names, grids, on_progress)


LOCAL = TrainingBackend()
"""This process."""


def _encoder_work(
    normalization: Normalization,
    config: Config,
    fingerprint: str,
    pixels: Tensor,
    device: torch.device,
    hooks: TrainingHooks,
    _: OnProgress | None,
) -> Trained:
    encoder = build_encoder(config).to(device)
    record = train(encoder, normalization(pixels).to(device), config, fingerprint, hooks)
    return {name: value.cpu() for name, value in encoder.state_dict().items()}, record


def _critic_work(
    normalization: Normalization,
    settings: CriticSettings,
    seed: int,
    fingerprint: str,
    frame: RoiCrop | None,
    pixels: Tensor,
    device: torch.device,
    hooks: TrainingHooks,
    on_progress: OnProgress | None,
) -> Trained:
    pixels = pixels.to(device)
    critic, record = train_critic(pixels, normalization, settings, seed, fingerprint, hooks, on_progress, frame)
    return {name: value.cpu() for name, value in critic.state_dict().items()}, record
