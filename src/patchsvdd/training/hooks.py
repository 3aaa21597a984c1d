"""Hooks into training, and the progress and record it reports."""

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
    """Progress of a training, with metrics averaged over the steps since the last report."""

    step: int
    steps: int
    metrics: dict[int, dict[str, float]]
    """Patch size → metrics: ``svdd_loss``, ``spread`` and, unless the objective lacks L_SSL, ``position_loss`` and
    ``position_accuracy``."""
    steps_per_second: float
    seconds_left: float
    lambda_: float | None = None
    """λ of the current attempt."""
    collapses: int = 0
    """Number of earlier attempts that collapsed, each with ten times the λ of the next."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready row of the training history."""
        scales = {
            str(size): {name: float(f"{value:.6g}") for name, value in values.items()}
            for size, values in self.metrics.items()
        }
        return {"step": self.step, "scales": scales}


@dataclass(frozen=True)
class TrainingRecord:
    """Summary of a finished training, for the model's provenance."""

    steps: int
    seconds: float
    """Time spent in the training loop, over all resumed runs and attempts."""
    history: list[dict[str, Any]]
    """History rows of the last attempt."""
    lambda_: float | None = None
    """λ of the last attempt; None if nothing was trained."""
    collapses: tuple[str, ...] = ()
    """Error messages of earlier attempts, each with ten times the λ of the next."""
    validation: dict[str, float] = field(default_factory=dict)
    """Validation scores of the "untrained" and "trained" encoder on synthetic defects; empty if not compared."""
    kept_untrained: bool = False
    """Whether the untrained encoder was kept, because training collapsed or did not improve validation."""


@dataclass(frozen=True)
class TrainingHooks:
    """Callbacks, checkpointing and process group of a training."""

    on_progress: Callable[[TrainingProgress], None] | None = None
    """Called after every step on a CPU; on a GPU after the first, every 100th and the last."""
    should_stop: Callable[[], bool] = lambda: False
    """Checked between steps; if it returns True, training saves a checkpoint and raises Interrupted."""
    checkpoint: CheckpointFile | None = None
    """File to save the training state to; None to save nothing."""
    resume: bool = False
    """Continue from ``checkpoint`` if it exists."""
    on_encoder: Callable[[PatchEncoder, int], None] | None = None
    """Called with a copy of the encoder and the step number before the first step and then at growing intervals.
    Changing the copy does not affect training."""
    checkpoint_seconds: float | None = None
    """Seconds between checkpoints; None for 60."""
    group: ProcessGroup | None = None
    """Processes that train together; only the leader writes checkpoints and reports progress."""

    @property
    def seconds_between_checkpoints(self) -> float:
        """Seconds between two checkpoints."""
        return CHECKPOINT_SECONDS if self.checkpoint_seconds is None else self.checkpoint_seconds

    @property
    def is_leader(self) -> bool:
        """Whether this process writes checkpoints and reports progress."""
        return self.group is None or self.group.is_leader

    def told_to_stop(self) -> bool:
        """Return whether to stop now; in a group, whether any process should."""
        return self.should_stop() if self.group is None else self.group.any(self.should_stop())
