"""Training of the baselines on good images."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchsvdd.baselines.autoencoder import CROP, IMAGE, Autoencoder
from patchsvdd.baselines.deep_svdd import SIDE, Decoder, DeepSvdd, normalized_contrast
from patchsvdd.core.baseline_settings import BaselineSettings
from patchsvdd.core.device import reproducible, trains_in_bfloat16
from patchsvdd.core.errors import DatasetError, Interrupted
from patchsvdd.core.progress import OnProgress
from patchsvdd.core.triton_support import available
from patchsvdd.training.checkpoint import Checkpoint, below, moments, restore_moments
from patchsvdd.training.hooks import TrainingHooks, TrainingRecord

Network = Autoencoder | DeepSvdd
COMPILING_PAYS_AFTER = 5_000
"""Trainings of an autoencoder of at least this many steps are compiled on a GPU, which takes up to a minute."""
RECORDS = 100
"""Rows of the training history, about."""
WARMUP_EPOCHS = 10
"""deep-svdd: epochs before the radius of a soft boundary is first set."""
FIXED_STRUCTURE = 0.15
"""Share of the variance of good images in their mean image from which they show an object, not a texture."""
SHIFT, TURN = 0.05, 0.09
"""Largest shift, as a share of the side, and rotation in radians, of an augmented image."""


def sees_crops(settings: BaselineSettings, images: Tensor) -> bool:
    """Return whether an autoencoder for these images (N, 3, H, W) in 0 … 255 sees crops instead of whole images."""
    if settings.view != "auto":
        return settings.view == "crops"
    return structure(images) < FIXED_STRUCTURE


def structure(images: Tensor) -> float:
    """Return the share of the variance of images (N, 3, H, W) that their mean image keeps: what is in its place."""
    pixels = F.avg_pool2d(images.float(), 4)
    centred = pixels - pixels.mean((2, 3), keepdim=True)
    return float(centred.mean(0).square().mean() / centred.square().mean().clamp_min(1e-6))


def build_baseline(settings: BaselineSettings, crops: bool, seed: int) -> Network:
    """Return an untrained network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.kind == "deep-svdd":
            return DeepSvdd(settings.latent, settings.boundary, settings.nu)
        return Autoencoder("l2" if settings.kind == "l2-ae" else "ssim", settings.latent, CROP if crops else IMAGE)


class BaselineTrainer:
    """Trains a baseline one optimiser step at a time."""

    def __init__(self, network: Network, images: Tensor, settings: BaselineSettings, seed: int) -> None:
        """``images`` (N, 3, H, W) in 0 … 255, on the device to train on."""
        self.network, self.images, self.settings = network.to(images.device), images, settings
        if isinstance(network, Autoencoder):
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.generator = torch.Generator(images.device).manual_seed(seed)
        self.steps_per_epoch = math.ceil((settings.views or len(images)) / settings.batch_size)
        pretraining = settings.pretraining if settings.kind == "deep-svdd" else 0
        self.pretraining_steps = pretraining * self.steps_per_epoch
        self.steps = self.pretraining_steps + settings.epochs * self.steps_per_epoch
        self._compiled: Callable[..., Tensor] | None = None
        if images.is_cuda and isinstance(network, Autoencoder) and self.steps >= COMPILING_PAYS_AFTER and available():
            self._compiled = torch.compile(Autoencoder.loss)
        self.step, self._summed = 0, 0
        self._sum = torch.zeros((), device=images.device)
        self.decoder: Decoder | None = None
        if self.pretraining_steps:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + 1)
                self.decoder = Decoder(settings.latent).to(images.device)
        self.optimizer = self._new_optimizer()
        if not self.pretraining_steps:
            self._begin()

    def _modules(self) -> list[nn.Module]:
        return [self.network] if self.decoder is None else [self.network, self.decoder]

    def _new_optimizer(self) -> torch.optim.Optimizer:
        parameters = [one for module in self._modules() for one in module.parameters()]
        return torch.optim.Adam(parameters, self.settings.learning_rate, weight_decay=self.settings.weight_decay)

    def _begin(self) -> None:
        """Start the training proper."""
        self.decoder = None
        self.optimizer = self._new_optimizer()
        if isinstance(self.network, DeepSvdd):
            self.network.eval()
            self.network.set_center(self.images.float() / 255)

    def advance(self) -> None:
        """Do one step."""
        self.network.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self.draw())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        self._sum += loss.detach()
        self._summed += 1
        if self.step == self.pretraining_steps:
            self._begin()
        elif self.step > self.pretraining_steps and self.step % self.steps_per_epoch == 0:
            self._end_epoch()

    def _loss(self, views: Tensor) -> Tensor:
        if isinstance(self.network, Autoencoder):
            return (self._compiled or Autoencoder.loss)(self.network, views, half=trains_in_bfloat16(views.device))
        if self.decoder is None:
            return self.network.loss(views)
        shrunk = F.interpolate(views, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
        reconstruction: Tensor = self.decoder(self.network(views))
        return (reconstruction - normalized_contrast(shrunk)).square().sum((1, 2, 3)).mean()

    @torch.no_grad()
    def _end_epoch(self) -> None:
        epoch = (self.step - self.pretraining_steps) // self.steps_per_epoch
        if isinstance(self.network, DeepSvdd) and self.network.boundary == "soft" and epoch >= WARMUP_EPOCHS:
            self.network.eval()
            pixels = self.images.float() / 255
            self.network.update_radius(torch.cat([self.network.distances(part) for part in torch.split(pixels, 64)]))

    def draw(self) -> Tensor:
        """Draw a batch of views (N, 3, side, side) in 0 … 1."""
        count, device = self.settings.batch_size, self.images.device
        chosen = torch.randint(len(self.images), (count,), generator=self.generator, device=device)
        views = self.images[chosen].float() / 255
        if isinstance(self.network, Autoencoder) and self.network.side == CROP:
            return self._crops(views)
        if self.settings.augment:
            views = self._moved(views)
        if isinstance(self.network, Autoencoder) and views.shape[2:] != (IMAGE, IMAGE):
            views = F.interpolate(views, (IMAGE, IMAGE), mode="bilinear", antialias=True, align_corners=False)
        return views

    def _crops(self, images: Tensor) -> Tensor:
        height, width = int(images.shape[2]), int(images.shape[3])
        if min(height, width) < CROP:
            raise DatasetError(f"crops of {CROP} px do not fit into images of {width}x{height}; use larger images")
        device = images.device
        inside = torch.arange(CROP, device=device)
        top = torch.randint(height - CROP + 1, (len(images), 1), generator=self.generator, device=device) + inside
        left = torch.randint(width - CROP + 1, (len(images), 1), generator=self.generator, device=device) + inside
        image = torch.arange(len(images), device=device)[:, None, None]
        return images[image, :, top[:, :, None], left[:, None, :]].permute(0, 3, 1, 2)

    def _moved(self, images: Tensor) -> Tensor:
        def signed(*shape: int) -> Tensor:
            return 2 * torch.rand(shape, generator=self.generator, device=images.device) - 1

        angle, shift = TURN * signed(len(images)), 2 * SHIFT * signed(len(images), 2)
        cos, sin = angle.cos(), angle.sin()
        turned = torch.stack((torch.stack((cos, -sin, shift[:, 0]), 1), torch.stack((sin, cos, shift[:, 1]), 1)), 1)
        grid = F.affine_grid(turned, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)

    def read_loss(self) -> float:
        """Return the mean loss since the last call."""
        mean = float(self._sum) / max(1, self._summed)
        self._sum.zero_()
        self._summed = 0
        return mean

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that the next step depends on."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        if self.decoder is not None:
            tensors |= {f"decoder.{name}": value for name, value in self.decoder.state_dict().items()}
        tensors |= {f"adam.{name}": value for name, value in moments(self.optimizer).items()}
        tensors["generator"] = self.generator.get_state()
        return tensors

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from what ``state`` returned after ``step`` steps."""
        if step >= self.pretraining_steps:
            self.decoder = None
            self.optimizer = self._new_optimizer()
        self.network.load_state_dict(below("network.", tensors))
        if self.decoder is not None:
            self.decoder.load_state_dict(below("decoder.", tensors))
        restore_moments(self.optimizer, below("adam.", tensors), self.settings.learning_rate)
        self.generator.set_state(tensors["generator"])
        self.step = step


def train_baseline(
    images: Tensor,
    settings: BaselineSettings,
    seed: int,
    fingerprint: str,
    hooks: TrainingHooks,
    on_progress: OnProgress | None = None,
) -> tuple[Network, TrainingRecord]:
    """Train a baseline on good images (N, 3, H, W) in 0 … 255, on their device; ``hooks`` allow resuming."""
    start, before, history = time.monotonic(), 0.0, list[dict[str, Any]]()
    with reproducible(allow_tf32=settings.kind == "deep-svdd"):
        network = build_baseline(settings, sees_crops(settings, images), seed)
        trainer = BaselineTrainer(network, images, settings, seed)
        about = {**dataclasses.asdict(settings), "seed": seed}
        checkpoint = hooks.checkpoint
        if hooks.resume and checkpoint is not None and checkpoint.exists():
            saved = checkpoint.read(about, trainer.steps, fingerprint)
            trainer.load_state(saved.tensors, saved.step)
            before, history = saved.seconds, saved.history
        every, last_saved = max(1, trainer.steps // RECORDS), time.monotonic()
        while trainer.step < trainer.steps:
            trainer.advance()
            done = trainer.step == trainer.steps
            if trainer.step % every == 0 or done:
                history.append({"step": trainer.step, "loss": trainer.read_loss()})
            stopped = not done and hooks.told_to_stop()
            if checkpoint is not None and (
                done or stopped or time.monotonic() - last_saved > hooks.seconds_between_checkpoints
            ):
                seconds = before + time.monotonic() - start
                saved = Checkpoint(trainer.state(), trainer.step, seconds, history)
                checkpoint.write(saved, about, trainer.steps, fingerprint)
                last_saved = time.monotonic()
            if stopped:
                raise Interrupted(f"stopped at step {trainer.step} of {trainer.steps} of {settings.kind}")
            if on_progress is not None:
                on_progress(trainer.step, trainer.steps)
        # The memory format of a loaded network: another one rounds differently.
        network.eval().requires_grad_(False).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return network, TrainingRecord(trainer.steps, before + time.monotonic() - start, history)
