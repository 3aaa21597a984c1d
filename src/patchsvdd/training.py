"""The training loop: resumable, seeded, the same code on CPU and CUDA."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from patchsvdd.checkpoint import Checkpoint, CheckpointFile, below, moments, restore_moments
from patchsvdd.collapse import check_collapse, check_stuck
from patchsvdd.config import Config
from patchsvdd.cuda_graph import capture
from patchsvdd.device import reproducible
from patchsvdd.encoder import HierarchicalEncoder, PatchEncoder, PositionClassifier, grids_for
from patchsvdd.errors import Interrupted, TrainingCollapsed
from patchsvdd.fused_training import FusedStep, fused_step_runs_on
from patchsvdd.losses import (
    before_tanh,
    embedding_spread,
    patch_svdd_loss,
    position_loss,
    svdd_center,
    svdd_loss,
    svdd_prime_loss,
)
from patchsvdd.pairs import EmbeddedPairs, PairSource, pair_source

METRICS = ("svdd_loss", "spread", "position_loss", "position_accuracy")
"""Per scale: L_SVDD' (or L_SVDD) and how far embeddings spread; with L_SSL, it and the share of positions told."""
CHECKPOINT_SECONDS = 60.0
KERNELS_PAY_AFTER = 15_000
"""Schedules of so many steps use the Triton kernels where they run: by then they have made up for their compilation.
The whole schedule counts, not what is left of it, so that a resumed run computes as it began."""


@dataclass(frozen=True)
class TrainingProgress:
    """Where training stands, averaged over the steps since the last report."""

    step: int
    steps: int
    metrics: dict[int, dict[str, float]]
    """Patch size → METRICS (the first two, under an objective without L_SSL)."""
    steps_per_second: float
    seconds_left: float
    lambda_: float | None = None
    """λ in use."""
    collapses: int = 0
    """Earlier attempts that collapsed, each at ten times the λ of the next."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready row of the training history."""
        scales = {
            str(size): {name: float(f"{value:.6g}") for name, value in values.items()}
            for size, values in self.metrics.items()
        }
        return {"step": self.step, "scales": scales}


@dataclass(frozen=True)
class TrainingRecord:
    """What training did, for the model's provenance."""

    steps: int
    seconds: float
    """Time spent in the loop, over all resumed runs and all attempts."""
    history: list[dict[str, Any]]
    """Of the last attempt."""
    lambda_: float | None = None
    """λ of the last attempt; None where nothing was trained."""
    collapses: tuple[str, ...] = ()
    """How earlier attempts ended, each at ten times the λ of the next."""
    validation: dict[str, float] = field(default_factory=dict)
    """How well drawn defects are found by the "untrained" and the "trained" encoder, where that decided."""
    kept_untrained: bool = False
    """Whether the encoder was left as it was before training, for what validation found or because it collapsed."""


@dataclass(frozen=True)
class TrainingHooks:
    """What the caller wants to know and do while training runs."""

    on_progress: Callable[[TrainingProgress], None] | None = None
    should_stop: Callable[[], bool] = lambda: False
    checkpoint: CheckpointFile | None = None
    resume: bool = False
    fuse: bool = False
    """Let torch.compile fuse the encoder's kernels: a fifth faster on a GPU after a start of some seconds; it takes a
    C compiler, and results agree to rounding only."""


def train(
    encoder: PatchEncoder, images: Tensor, config: Config, fingerprint: str, hooks: TrainingHooks
) -> TrainingRecord:
    """Train ``encoder`` in place on normalised images (N, 3, H, W), on the images' device.

    A training that collapses starts anew from the weights it began with and a tenth of λ, ``config.retries`` times.
    After that it raises TrainingCollapsed, or leaves the encoder untrained where ``config.stop`` allows it.
    """
    steps = config.total_steps(len(images))
    if steps == 0:
        return TrainingRecord(0, 0.0, [])
    run = _Run(encoder, images, config, steps, fingerprint, hooks)
    saved = None
    if hooks.resume and hooks.checkpoint is not None and hooks.checkpoint.exists():
        saved = hooks.checkpoint.read(config.to_json(), steps, fingerprint)
        run.collapses, run.clock.seconds_before = saved.collapses, saved.seconds
    fresh = {name: value.clone() for name, value in encoder.state_dict().items()}
    with reproducible(allow_tf32=config.learns_positions):  # the layers that autocast leaves in float32
        while True:
            try:
                history = run.attempt(saved)
                break
            except TrainingCollapsed as error:
                last = len(run.collapses) == config.retries or run.config.lambda_ == 0
                if last and config.stop == "end":
                    raise
                run.collapses = (*run.collapses, str(error))
            saved = None
            encoder.load_state_dict(fresh)
            if last:
                return TrainingRecord(0, run.clock.seconds, [], None, run.collapses, kept_untrained=True)
    return TrainingRecord(steps, run.clock.seconds, history, run.config.lambda_, run.collapses)


class Trainer:
    """One optimiser step at a time over all state that training changes."""

    def __init__(
        self,
        encoder: PatchEncoder,
        images: Tensor,
        config: Config,
        steps: int,
        fuse: bool = False,
        with_kernels: bool | None = None,
    ) -> None:
        """``with_kernels``: whether to use the Triton kernels where they run; by default KERNELS_PAY_AFTER decides."""
        device = images.device
        self.config, self.steps, self.device = config, steps, device
        self.sizes = encoder.patch_sizes
        self.encoder = encoder.to(device).train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed + 1)
            self.classifiers = nn.ModuleDict(
                {
                    str(size): PositionClassifier(config.embedding_dim, config.frozen_position_output)
                    for size in self.sizes
                }
            ).to(device)
        self.generator = torch.Generator(device).manual_seed(config.seed)
        self.centers = embedding_centers(encoder, images, config) if config.objective == "svdd" else {}
        self.step = 0
        self._step_on_device = torch.zeros((), device=device)
        with_kernels = steps >= KERNELS_PAY_AFTER and not fuse if with_kernels is None else with_kernels
        self._source: PairSource | FusedStep
        if with_kernels and isinstance(encoder, HierarchicalEncoder) and fused_step_runs_on(encoder, images, config):
            self._source = FusedStep(encoder, self.classifiers, images, config, self._step_on_device)
        else:
            self._source = pair_source(encoder, images, config, self.generator, fuse, with_kernels)
        self._lr = torch.tensor(config.learning_rate, device=device)
        self._metrics = METRICS if config.learns_positions else METRICS[:2]
        self._sums = torch.zeros((len(self.sizes), len(self._metrics)), device=device)
        self._summed = 0
        trained = [p for p in (*encoder.parameters(), *self.classifiers.parameters()) if p.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=self._lr, fused=True, capturable=device.type == "cuda")
        self._average: dict[str, Tensor] = {}
        if config.ema > 0:
            self._average = {name: value.detach().clone() for name, value in encoder.named_parameters()}
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> None:
        """Compile kernels and record the step as a CUDA graph, on a GPU; the first step does it otherwise."""
        if self.device.type == "cuda" and self._graph is None:
            self._source.compile()
            self._graph = capture(self._compute, self.state, self.generator)
            self._step_on_device.fill_(self.step)

    def advance(self) -> None:
        """One step."""
        self.prepare()
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()
        self.step += 1
        self._summed += 1

    def finish(self) -> None:
        """Leave the averaged weights in the encoder, where there are any; training cannot go on after it."""
        if self._average:
            self.encoder.load_state_dict(self._average)

    def read_metrics(self, reset: bool) -> dict[int, dict[str, float]]:
        """Patch size → METRICS, averaged since the last reset."""
        means = (self._sums / max(1, self._summed)).tolist()
        if reset:
            self._sums.zero_()
            self._summed = 0
        return {size: dict(zip(self._metrics, row, strict=True)) for size, row in zip(self.sizes, means, strict=True)}

    def state(self) -> dict[str, Tensor]:
        """Everything the next step depends on."""
        tensors = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        tensors |= {f"classifiers.{name}": value for name, value in self.classifiers.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self._average.items()}
        tensors |= {f"center.{size}": value for size, value in self.centers.items()}
        tensors |= {f"adam.{name}": value for name, value in moments(self.optimizer).items()}
        tensors["generator"] = self.generator.get_state()
        # Metrics not yet reported belong to the state too: the history stays the same across a resume.
        tensors["metrics"] = self._sums
        tensors["metrics_count"] = torch.tensor(self._summed)
        return tensors

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from what ``state`` returned after ``step`` steps."""
        self.encoder.load_state_dict(below("encoder.", tensors))
        self.classifiers.load_state_dict(below("classifiers.", tensors))
        for name, value in below("average.", tensors).items():
            self._average[name].copy_(value)
        self.centers = {int(k): v.to(self.device) for k, v in below("center.", tensors).items()}
        restore_moments(self.optimizer, below("adam.", tensors), self._lr)
        self.generator.set_state(tensors["generator"])
        self._sums.copy_(tensors["metrics"])
        self._summed = int(tensors["metrics_count"])
        self.step = step
        self._step_on_device.fill_(step)

    def _compute(self) -> None:
        """Draw pairs, take the gradient of the loss, update; reads nothing back to the host."""
        if self.config.schedule == "cosine":
            turn = torch.cos(self._step_on_device * (math.pi / self.steps))
            self._lr.copy_(self.config.learning_rate * 0.5 * (1 + turn))
        if self.config.warmup > 0:
            whole = self._lr if self.config.schedule == "cosine" else self.config.learning_rate
            self._lr.copy_(whole * ((self._step_on_device + 1) / self.config.warmup).clamp_max(1))
        self.optimizer.zero_grad(set_to_none=True)
        rows = self._source.backward() if isinstance(self._source, FusedStep) else self._backward(self._source)
        if self.config.clip > 0:
            nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], self.config.clip, foreach=True)
        self.optimizer.step()
        self._sums += rows
        self._step_on_device += 1
        if self._average:
            self._follow()

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the average a little towards the weights; by more in the first steps, whose weights count for little."""
        average = list(self._average.values())
        share = (9 / (9 + self._step_on_device)).clamp_min(1 - self.config.ema)
        change = torch._foreach_sub(list(self.encoder.parameters()), average)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(average, change)

    def _backward(self, source: PairSource) -> Tensor:
        """Leave the gradient of the loss in all parameters; returns METRICS (scales, metrics)."""
        # Without L_SSL embeddings differ in their sixth digit, which bfloat16 would round away.
        half = self.device.type == "cuda" and self.config.learns_positions
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            pairs = source.draw()
        loss = torch.zeros((), device=self.device)
        rows = []
        for size, scale_pairs in pairs.items():
            scale_loss, row = self._loss(size, scale_pairs)
            loss = loss + scale_loss
            rows.append(row)
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack(rows)

    def _loss(self, size: int, pairs: EmbeddedPairs) -> tuple[Tensor, Tensor]:
        """The objective of one scale, and its METRICS as a detached row."""
        if self.config.objective == "svdd":
            embeddings = torch.cat((pairs.jitter_first, pairs.jitter_second))
            compact = svdd_loss(embeddings, self.centers[size])
        else:
            first, second = pairs.jitter_first, pairs.jitter_second
            if self.config.svdd_before_tanh:
                first, second = before_tanh(first), before_tanh(second)
            compact = svdd_prime_loss(first, second)
            if self.config.relative_svdd:
                compact = compact / embedding_spread(first)
        spread = pairs.jitter_first.std(0, correction=0).mean()  # defined for a single pair too
        if pairs.position is None:
            return compact, torch.stack((compact, spread)).detach()
        logits = self.classifiers[str(size)](pairs.position.first, pairs.position.second)
        position = position_loss(logits, pairs.position.label)
        accuracy = (logits.argmax(1) == pairs.position.label).float().mean()
        loss = patch_svdd_loss(compact, position, self.config.lambda_)
        return loss, torch.stack((compact, spread, position, accuracy)).detach()


class _Run:
    """A training under its hooks, in as many attempts as it takes."""

    def __init__(
        self,
        encoder: PatchEncoder,
        images: Tensor,
        config: Config,
        steps: int,
        fingerprint: str,
        hooks: TrainingHooks,
    ) -> None:
        self._encoder, self._images, self._asked, self._steps = encoder, images, config, steps
        self._fingerprint, self._hooks = fingerprint, hooks
        self.clock = _Clock()
        self.collapses: tuple[str, ...] = ()

    @property
    def config(self) -> Config:
        """The settings of this attempt."""
        return dataclasses.replace(self._asked, lambda_=self._asked.lambda_ / 10 ** len(self.collapses))

    def attempt(self, saved: Checkpoint | None) -> list[dict[str, Any]]:
        """Train to the end, from a checkpoint or from the start; returns the history."""
        trainer = Trainer(self._encoder, self._images, self.config, self._steps, self._hooks.fuse)
        history: list[dict[str, Any]] = []
        if saved is not None:
            trainer.load_state(saved.tensors, saved.step)
            history = saved.history
        self._step_on(trainer, history)
        trainer.finish()
        return history

    def _step_on(self, trainer: Trainer, history: list[dict[str, Any]]) -> None:
        """Step until done, recording, saving and stopping as the hooks ask."""
        hooks, clock = self._hooks, self.clock

        def save() -> None:
            if hooks.checkpoint is not None:
                saved = Checkpoint(trainer.state(), trainer.step, clock.seconds, history, self.collapses)
                hooks.checkpoint.write(saved, self._asked.to_json(), trainer.steps, self._fingerprint)

        # Reading metrics back waits for the GPU, so a fast device reports in larger strides.
        report_every = 1 if trainer.device.type == "cpu" else 100
        record_every = max(1, round(trainer.steps / 200 / report_every)) * report_every
        last_saved = time.monotonic()
        while trainer.step < trainer.steps:
            trainer.advance()
            clock.steps += 1
            done = trainer.step == trainer.steps
            if trainer.step % report_every == 0 or trainer.step == 1 or done:
                record = trainer.step % record_every == 0 or trainer.step == 1 or done
                progress = self._progress(trainer, record)
                if hooks.on_progress is not None:
                    hooks.on_progress(progress)
                if record:
                    history.append(progress.to_json())
                    check_collapse(history, trainer.config)
                    if len(self.collapses) < self._asked.retries:
                        check_stuck(history, trainer.config, trainer.steps)
            if done:
                break
            if hooks.should_stop():
                save()
                raise Interrupted(f"stopped at step {trainer.step} of {trainer.steps}")
            if time.monotonic() - last_saved > CHECKPOINT_SECONDS:
                save()
                last_saved = time.monotonic()
        save()  # what follows training may be interrupted too

    def _progress(self, trainer: Trainer, reset: bool) -> TrainingProgress:
        """Where training stands; ``reset`` starts a new average."""
        metrics = trainer.read_metrics(reset)
        rate = self.clock.steps_per_second
        left = (trainer.steps - trainer.step) / max(rate, 1e-9)
        return TrainingProgress(
            trainer.step, trainer.steps, metrics, rate, left, trainer.config.lambda_, len(self.collapses)
        )


class _Clock:
    """Seconds and steps of this run, and the seconds of the runs it continues."""

    def __init__(self) -> None:
        self.seconds_before = 0.0
        self.steps = 0
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self._start

    @property
    def steps_per_second(self) -> float:
        return self.steps / max(1e-9, time.monotonic() - self._start)


def embedding_centers(encoder: PatchEncoder, images: Tensor, config: Config) -> dict[int, Tensor]:
    """c (D,) of each patch size (Eq. 3): the mean embedding of all training patches, under the untrained encoder."""
    grids = grids_for(encoder, config, (int(images.shape[2]), int(images.shape[3])))
    sums: dict[int, Tensor] = {}
    with torch.no_grad():
        for image in images:
            for size, embeddings in zip(encoder.patch_sizes, encoder.dense(image[None], grids), strict=True):
                center = svdd_center(embeddings[0].flatten(1).T)
                sums[size] = sums.get(size, torch.zeros_like(center)) + center
    return {size: total / len(images) for size, total in sums.items()}
