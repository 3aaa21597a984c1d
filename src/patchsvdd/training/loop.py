"""The training loop: resumable, seeded, the same code on CPU and CUDA."""

from __future__ import annotations

import copy
import dataclasses
import time
from typing import Any

import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.device import reproducible
from patchsvdd.core.errors import Interrupted, TrainingCollapsed
from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.training.checkpoint import Checkpoint
from patchsvdd.training.collapse import check_collapse, check_stuck, is_constant
from patchsvdd.training.hooks import TrainingHooks, TrainingProgress, TrainingRecord
from patchsvdd.training.step import Trainer

MOMENTS = (0.0, 0.05, 0.15, 0.35, 0.65, 1.0)
"""Shares of the schedule after which ``TrainingHooks.on_encoder`` is called."""


def train(
    encoder: PatchEncoder, images: Tensor, config: Config, fingerprint: str, hooks: TrainingHooks
) -> TrainingRecord:
    """Train ``encoder`` in place on normalised images (N, 3, H, W), on the images' device.

    An ablation without L_SSL ends early when all of its embeddings are the same.
    A training that collapses restarts from the initial weights with a tenth of λ, at most ``config.retries`` times.
    After that TrainingCollapsed is raised, or the encoder is left untrained if ``config.stop`` allows it.
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
    # TF32: for the layers that autocast leaves in float32. Without L_SSL all layers are in float32, where the
    # algorithms that cuDNN prefers are not the fastest.
    with reproducible(allow_tf32=config.learns_positions, fastest=not config.learns_positions):
        while True:
            try:
                trained, history = run.attempt(saved)
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
    return TrainingRecord(trained, run.clock.seconds, history, run.config.lambda_, run.collapses)


class _Run:
    """A training with its hooks, in one or more attempts."""

    def __init__(
        self,
        encoder: PatchEncoder,
        images: Tensor,
        config: Config,
        steps: int,
        fingerprint: str,
        hooks: TrainingHooks,
    ) -> None:
        self._encoder, self._images, self._base_config, self._steps = encoder, images, config, steps
        self._fingerprint, self._hooks = fingerprint, hooks
        self.clock = _Clock()
        self.collapses: tuple[str, ...] = ()

    @property
    def config(self) -> Config:
        """The settings of the current attempt, with its λ."""
        return dataclasses.replace(self._base_config, lambda_=self._base_config.lambda_ / 10 ** len(self.collapses))

    def attempt(self, saved: Checkpoint | None) -> tuple[int, list[dict[str, Any]]]:
        """Train to the end, from a checkpoint or from the start, and return the number of steps and the history."""
        trainer = Trainer(self._encoder, self._images, self.config, self._steps, group=self._hooks.group)
        history: list[dict[str, Any]] = []
        if saved is not None:
            trainer.load_state(saved.tensors, saved.step)
            history = saved.history
        self._step_on(trainer, history)
        trainer.finish()
        return trainer.step, history

    def _step_on(self, trainer: Trainer, history: list[dict[str, Any]]) -> None:
        """Run all remaining steps, recording metrics, saving checkpoints and stopping as the hooks specify."""
        hooks, clock = self._hooks, self.clock

        def save() -> None:
            if hooks.checkpoint is not None and hooks.is_leader:
                saved = Checkpoint(trainer.state(), trainer.step, clock.seconds, history, self.collapses)
                hooks.checkpoint.write(saved, self._base_config.to_json(), trainer.steps, self._fingerprint)

        # Reading metrics back waits for the GPU, so a fast device reports less often.
        report_every = 1 if trainer.device.type == "cpu" else 100
        record_every = max(1, round(trainer.steps / 200 / report_every)) * report_every
        last_saved = time.monotonic()
        moments = {round(share * trainer.steps) for share in MOMENTS}
        if trainer.step == 0:
            self._show(trainer)
        while trainer.step < trainer.steps and not is_constant(history, trainer.config):
            trainer.advance()
            clock.steps += 1
            done = trainer.step == trainer.steps
            if trainer.step % report_every == 0 or trainer.step == 1 or done:
                record = trainer.step % record_every == 0 or trainer.step == 1 or done
                progress = self._progress(trainer, record)
                if hooks.on_progress is not None and hooks.is_leader:
                    hooks.on_progress(progress)
                if record:
                    history.append(progress.to_json())
                    check_collapse(history, trainer.config)
                    if len(self.collapses) < self._base_config.retries:
                        check_stuck(history, trainer.config, trainer.steps)
            if trainer.step in moments:
                self._show(trainer)
            if done:
                break
            # Agreeing to stop waits for the other processes and, on a GPU, for the queued work.
            if (hooks.group is None or trainer.step % report_every == 0) and hooks.told_to_stop():
                save()
                raise Interrupted(f"stopped at step {trainer.step} of {trainer.steps}")
            if time.monotonic() - last_saved > hooks.seconds_between_checkpoints:
                save()
                last_saved = time.monotonic()
        save()  # the stages after training may be interrupted too

    def _show(self, trainer: Trainer) -> None:
        """Pass a copy of the encoder to ``on_encoder``."""
        if self._hooks.on_encoder is not None and self._hooks.is_leader:
            with torch.random.fork_rng(devices=[]):
                self._hooks.on_encoder(copy.deepcopy(trainer.encoder).eval().requires_grad_(False), trainer.step)

    def _progress(self, trainer: Trainer, reset: bool) -> TrainingProgress:
        """Return the current progress; ``reset`` starts a new average."""
        metrics = trainer.read_metrics(reset)
        rate = self.clock.steps_per_second
        left = (trainer.steps - trainer.step) / max(rate, 1e-9)
        return TrainingProgress(
            trainer.step, trainer.steps, metrics, rate, left, trainer.config.lambda_, len(self.collapses)
        )


class _Clock:
    """Seconds and steps of this run, and the seconds of the runs it resumes."""

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
