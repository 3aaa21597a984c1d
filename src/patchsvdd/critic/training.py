"""Training the critic to segment synthetic defects in good images."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.device import reproducible, trains_in_bfloat16
from patchsvdd.core.errors import Interrupted
from patchsvdd.core.progress import OnProgress
from patchsvdd.core.roi import RoiCrop
from patchsvdd.critic.defect_fills import read
from patchsvdd.critic.defect_shapes import RandomStream, offsets
from patchsvdd.critic.network import Critic, build_critic
from patchsvdd.critic.synthetic_defects import Sizes, covered, draw_defects, paint
from patchsvdd.critic.tiles import STEP
from patchsvdd.images.normalization import Normalization
from patchsvdd.training.checkpoint import Checkpoint, below, moments, restore_moments
from patchsvdd.training.cuda_graph import RecordedStep
from patchsvdd.training.hooks import TrainingHooks, TrainingRecord
from patchsvdd.training.muon import Muon
from patchsvdd.training.process_group import ProcessGroup, check_shares, shared_norms

LESSONS = (
    *("blend",) * 5,
    *("paste",) * 3,
    *("stain",) * 2,
    "paint",
    "smear",
    "pull",
    *("bend",) * 2,
    *("missing",) * 2,
    *("scratch",) * 2,
)
"""Kinds of synthetic defects, repeated by frequency: mostly those that are hard to see."""
ROUNDS = (1.0, 1.0, 1.0)
"""Three defects in every image that gets any: a defect costs less than an image."""
SIZES = Sizes(smallest=2.2)
"""Smaller defects look like noise; learning to mark them would mean marking good images."""
METRICS = ("loss", "found", "false")
"""Mean loss; mean probability on synthetic defects and on everything else."""
POSITIVE_WEIGHT = 3.0
"""A pixel of a defect counts as much as three others."""
EASIEST = 0.05
"""Minimum weight of a pixel, for one that is already right; a completely wrong one has 1."""


class CriticTrainer(RecordedStep):
    """Trains a critic one optimiser step at a time."""

    def __init__(
        self,
        critic: Critic,
        images: Tensor,
        normalization: Normalization,
        settings: CriticSettings,
        seed: int,
        frame: RoiCrop | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        """``images`` (N, 3, H, W) in 0 … 255, at the critic's resolution, on the device to train on.

        In a ``group`` each process computes its share of every batch, without a CUDA graph.
        """
        super().__init__(images.device, torch.Generator(images.device).manual_seed(seed), group)
        self.frame = frame
        if group is not None:
            check_shares("the critic's batch of", settings.batch_size, group.size)
        device = images.device
        self.settings, self.images = settings, images
        self.normalization = normalization.to(device)
        self.critic = critic.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.parameters = list(critic.parameters())
        self._lr = {"adam": torch.zeros((), device=device), "muon": torch.zeros((), device=device)}
        inner = critic.inner_convolutions() if settings.muon_learning_rate > 0 else []
        others = [one for one in self.parameters if not any(one is weight for weight in inner)]
        graph = device.type == "cuda"
        adam = torch.optim.AdamW(others, lr=self._lr["adam"], weight_decay=1e-3, fused=True, capturable=graph)
        self.optimizers: dict[str, torch.optim.Optimizer] = {"adam": adam}
        if inner:
            self.optimizers["muon"] = Muon(inner, self._lr["muon"])
        self._average = {name: value.detach().clone() for name, value in critic.state_dict().items()}
        floating = [name for name, value in self._average.items() if value.is_floating_point()]
        state = critic.state_dict()
        self._floating, self._averages = [state[name] for name in floating], [self._average[name] for name in floating]
        self._sums = torch.zeros(len(METRICS), device=device)

    def _compute(self) -> None:
        settings = self.settings
        progress = self._step_on_device / settings.steps
        rate = 0.5 * (1 + torch.cos(math.pi * progress)) * ((self._step_on_device + 1) / settings.warmup).clamp_max(1)
        self._lr["adam"].copy_(settings.learning_rate * rate)
        self._lr["muon"].copy_(settings.muon_learning_rate * rate)
        with torch.no_grad():
            views, labels, counted = self.draw(settings.batch_size)
        self.critic.zero_grad(set_to_none=True)
        half = trains_in_bfloat16(self.device)
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False)
        with autocast, shared_norms(self.critic, self._group):
            logits = self.critic(views if self._group is None else self._group.share(views))
        logits = logits.float()
        loss, row = critic_loss(logits if self._group is None else self._group.gather(logits), labels, counted)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._group is not None:
            self._group.average(self.parameters)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        for optimizer in self.optimizers.values():
            optimizer.step()
        self._step_on_device += 1
        self._sums += row
        self._update_average(self._floating, self._averages, settings.ema)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw normalised views (count, 3, H, W), labels (count, H/4, W/4) in 0 … 1, and how much each label counts."""
        # A new stream every time: leftovers of an older draw would repeat in each replay of a captured step.
        settings, dice = self.settings, RandomStream(self.generator, self.device)
        chosen = self.images[dice.integers(len(self.images), count)].float()
        moved = move(chosen, settings, dice)
        drawn = draw_defects(moved, self.images, self.generator, LESSONS, settings.share, SIZES, ROUNDS)
        views = self.normalization(paint(light(drawn.images, settings.photometric, dice), self.frame))
        views = views + 0.05 * dice.uniform(count, 1, 1, 1) * dice.normal(*views.shape)
        visible, doubtful = (covered(each, self.frame)[:, None] for each in drawn.labels())
        labels = F.avg_pool2d(visible, STEP, ceil_mode=True)[:, 0]
        counted = 1 - F.avg_pool2d(doubtful, STEP, ceil_mode=True)[:, 0]
        return views.contiguous(memory_format=torch.channels_last), labels, counted

    def finish(self) -> None:
        """Load the averaged weights into the critic."""
        self.critic.load_state_dict(self._average)
        self.critic.eval().requires_grad_(False)
        # The memory format of a loaded critic: another one rounds differently on a GPU.
        self.critic.to(memory_format=torch.contiguous_format)

    def read_metrics(self) -> dict[str, float]:
        """Return METRICS, averaged since the last call."""
        values = dict(zip(METRICS, (self._sums / max(1, self._summed)).tolist(), strict=True))
        self._sums.zero_()
        self._summed = 0
        return values

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that the next step depends on."""
        tensors = {f"critic.{name}": value for name, value in self.critic.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self._average.items()}
        for kind, optimizer in self.optimizers.items():
            tensors |= {f"{kind}.{name}": value for name, value in moments(optimizer).items()}
        tensors["generator"] = self.generator.get_state()
        tensors["metrics"] = self._sums
        tensors["metrics_count"] = torch.tensor(self._summed)
        return tensors

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from what ``state`` returned after ``step`` steps."""
        with torch.no_grad():
            for name, value in self.critic.state_dict().items():
                value.copy_(tensors[f"critic.{name}"])
            for name, value in self._average.items():
                value.copy_(tensors[f"average.{name}"])
            self._sums.copy_(tensors["metrics"])
        for kind, optimizer in self.optimizers.items():
            restore_moments(optimizer, below(f"{kind}.", tensors), self._lr[kind])
        self.generator.set_state(tensors["generator"])
        self._summed = int(tensors["metrics_count"])
        self.step = step
        self._step_on_device.fill_(step)


def train_critic(
    images: Tensor,
    normalization: Normalization,
    settings: CriticSettings,
    seed: int,
    fingerprint: str,
    hooks: TrainingHooks,
    on_progress: OnProgress | None = None,
    frame: RoiCrop | None = None,
) -> tuple[Critic, TrainingRecord]:
    """Train a critic on good images (N, 3, H, W) in 0 … 255, on their device; ``hooks`` allow resuming."""
    critic = build_critic(settings, seed)
    start, before, history = time.monotonic(), 0.0, list[dict[str, Any]]()
    with reproducible(allow_tf32=True):
        trainer = CriticTrainer(critic, images, normalization, settings, seed, frame, hooks.group)
        checkpoint = hooks.checkpoint.of("critic") if hooks.checkpoint is not None else None
        about = {**dataclasses.asdict(settings), "seed": seed}
        if hooks.resume and checkpoint is not None and checkpoint.exists():
            saved = checkpoint.read(about, settings.steps, fingerprint)
            trainer.load_state(saved.tensors, saved.step)
            before, history = saved.seconds, saved.history

        def save() -> None:
            if checkpoint is not None and hooks.is_leader:
                seconds = before + time.monotonic() - start
                saved = Checkpoint(trainer.state(), trainer.step, seconds, history)
                checkpoint.write(saved, about, settings.steps, fingerprint)

        stride = 1 if trainer.device.type == "cpu" else 100
        record_every = max(1, round(settings.steps / 100 / stride)) * stride
        last_saved = time.monotonic()
        while trainer.step < settings.steps:
            trainer.advance()
            done = trainer.step == settings.steps
            if trainer.step % record_every == 0 or done:
                history.append({"step": trainer.step, **trainer.read_metrics()})
            may_stop = hooks.group is None or trainer.step % stride == 0
            stopped = not done and may_stop and hooks.told_to_stop()
            if done or stopped or time.monotonic() - last_saved > hooks.seconds_between_checkpoints:
                save()
                last_saved = time.monotonic()
            if stopped:
                raise Interrupted(f"stopped at step {trainer.step} of {settings.steps} of the critic")
            if on_progress is not None and hooks.is_leader and (trainer.step % stride == 0 or done):
                on_progress(trainer.step, settings.steps)
        trainer.finish()
    return critic, TrainingRecord(settings.steps, before + time.monotonic() - start, history)


def critic_loss(logits: Tensor, labels: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy weighted by each pixel's error, and METRICS as a detached row.

    ``counted`` (N, h, w) in 0 … 1: what changed hardly visibly is neither a defect nor good, and counts less.
    """
    probability = torch.sigmoid(logits)
    wrong = (probability.detach() - labels).abs().clamp_min(EASIEST)
    weight = counted * (1 + (POSITIVE_WEIGHT - 1) * labels)
    each = F.binary_cross_entropy_with_logits(logits, labels, reduction="none") * weight * wrong
    loss = each.mean()
    found = (probability * labels).sum() / labels.sum().clamp_min(1)
    false = (probability * (1 - labels)).sum() / (1 - labels).sum().clamp_min(1)
    return loss, torch.stack((loss, found, false)).detach()


def move(images: Tensor, settings: CriticSettings, dice: RandomStream) -> Tensor:
    """Return images (N, 3, H, W) slightly rotated, scaled and shifted, as parts vary in front of a camera."""
    count, size = len(images), (int(images.shape[2]), int(images.shape[3]))
    angle = settings.turn * dice.signed(count)
    scale = 1 + 0.04 * dice.signed(count)
    middle = torch.full((count,), 0.5, device=images.device)
    centre = torch.stack((middle * (size[0] - 1), middle * (size[1] - 1)), dim=1)
    row, column = offsets(centre, size)
    cos, sin = (angle.cos() * scale)[:, None, None], (angle.sin() * scale)[:, None, None]
    shift = centre + 0.04 * min(size) * dice.signed(count, 2)
    row, column = row * cos - column * sin + shift[:, :1, None], column * cos + row * sin + shift[:, 1:, None]
    return read(images, row, column)


def light(images: Tensor, strength: float, dice: RandomStream) -> Tensor:
    """Return images (N, 3, H, W) in 0 … 255 with random contrast, brightness, colour and uneven illumination."""
    count = len(images)
    contrast = torch.exp(0.45 * strength * dice.signed(count, 1, 1, 1))
    brightness = 0.24 * strength * dice.signed(count, 1, 1, 1)
    colour = 0.045 * strength * dice.signed(count, 3, 1, 1)
    lamp = F.interpolate(dice.signed(count, 1, 3, 3), images.shape[2:], mode="bicubic", align_corners=True)
    field = 1 + 0.2 * strength * lamp * dice.uniform(count, 1, 1, 1)
    mean = images.mean((1, 2, 3), keepdim=True)
    return ((images - mean) * contrast * field + mean * field + 255 * (brightness + colour)).clamp(0, 255)
