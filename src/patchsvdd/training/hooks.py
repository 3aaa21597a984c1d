"""Callbacks, checkpoints and process group of a training, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.process_group import ProcessGroup

CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class TrainingProgress:
    """Where training stands, averaged over the steps since the last report."""

    step: int
    steps: int
    metrics: dict[int, dict[str, float]]
    """Patch size → ``step.METRICS`` (the first two, under an objective without L_SSL)."""
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
    """How well synthetic defects are found by the "untrained" and the "trained" encoder, where that decided."""
    kept_untrained: bool = False
    """Whether the encoder was left as it was before training, for what validation found or because it collapsed."""


@dataclass(frozen=True)
class TrainingHooks:
    """Callbacks, checkpoint and process group of a training."""

    on_progress: Callable[[TrainingProgress], None] | None = None
    should_stop: Callable[[], bool] = lambda: False
    checkpoint: CheckpointFile | None = None
    resume: bool = False
    on_encoder: Callable[[PatchEncoder, int], None] | None = None
    """Handed a copy of the encoder, and its step, at a few moments: before the first step, and ever more rarely after.
    What is done with the copy changes nothing in the training."""
    checkpoint_seconds: float | None = None
    """Time between checkpoints; None for CHECKPOINT_SECONDS."""
    group: ProcessGroup | None = None
    """Processes that train together: all call the same function, only their leader writes and reports."""

    @property
    def seconds_between_checkpoints(self) -> float:
        """Time between two checkpoints."""
        return CHECKPOINT_SECONDS if self.checkpoint_seconds is None else self.checkpoint_seconds

    @property
    def is_leader(self) -> bool:
        """Whether this process writes and reports."""
        return self.group is None or self.group.is_leader

    def told_to_stop(self) -> bool:
        """Whether to stop now; in a group, whether any process should."""
        return self.should_stop() if self.group is None else self.group.any(self.should_stop())
