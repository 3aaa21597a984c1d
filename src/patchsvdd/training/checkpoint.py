"""Checkpoints of an unfinished training: one safetensors file, replaced atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from patchsvdd.core.config import current_settings
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.files import atomic_write


@dataclass(frozen=True)
class Checkpoint:
    """The training state after ``step`` steps."""

    tensors: dict[str, Tensor]
    step: int
    seconds: float
    history: list[dict[str, Any]]
    collapses: tuple[str, ...] = ()
    """Error messages of earlier attempts, each trained with ten times the λ of the next."""


class CheckpointFile:
    """``training.safetensors`` in the model folder, which exists while training is unfinished."""

    def __init__(self, folder: Path, part: str | None = None) -> None:
        self.path = folder / (f"training-{part}.safetensors" if part else "training.safetensors")

    def of(self, part: str) -> CheckpointFile:
        """Return the checkpoint file of another part of the same model."""
        return CheckpointFile(self.path.parent, part)

    def exists(self) -> bool:
        """Return whether this part has an unfinished training."""
        return os.path.exists(self.path)  # False, not an error, for a name too long

    def any_exists(self) -> bool:
        """Return whether any part has an unfinished training."""
        return self.exists() or self.of("critic").exists()

    def settings(self) -> dict[str, Any] | None:
        """Return the settings of the unfinished training, or None if no checkpoint can be read."""
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                settings: dict[str, Any] = json.loads(file.metadata()["training"])["config"]
        except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError):
            return None
        return settings

    def write(self, checkpoint: Checkpoint, settings: Mapping[str, Any], steps: int, fingerprint: str) -> None:
        """Replace the file; an interrupted write leaves the old one intact."""
        about = {
            "step": checkpoint.step,
            "steps": steps,
            "seconds": checkpoint.seconds,
            "history": checkpoint.history,
            "collapses": list(checkpoint.collapses),
            "config": dict(settings),
            "fingerprint": fingerprint,
        }
        tensors = {name: value.detach().cpu().contiguous() for name, value in checkpoint.tensors.items()}
        with atomic_write(self.path) as file:
            file.write(safetensors.torch.save(tensors, {"training": json.dumps(about)}))

    def read(self, settings: Mapping[str, Any], steps: int, fingerprint: str) -> Checkpoint:
        """Return the checkpoint; raise ConfigError naming the differences if the settings or images have changed."""
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                about = json.loads(file.metadata()["training"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            step, seconds, history = about["step"], about["seconds"], about["history"]
            checkpoint = Checkpoint(tensors, step, seconds, history, tuple(about.get("collapses", ())))
            before = dict(about["config"])
            steps_before, images_before = about["steps"], about["fingerprint"]
        except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
            raise ModelError(
                f"the checkpoint {self.path} cannot be read ({error}); start over with `overwrite=True`"
            ) from None
        now = json.loads(json.dumps(settings))
        before = {name: value for name, value in current_settings(before).items() if name in {*now, *before}}
        differing = [
            f"{name} was {before.get(name)}, now {now.get(name)}"
            for name in sorted({*now, *before})
            if before.get(name) != now.get(name)
        ]
        if images_before != fingerprint:
            differing.append("the training images have changed")
        if differing or steps_before != steps:
            changes = "; ".join(differing) or f"it ran for {steps_before} steps, now {steps}"
            raise ConfigError(
                f"cannot resume {self.path}: {changes}. Keep the settings and images, or start over: `overwrite=True`"
            )
        return checkpoint

    def remove(self) -> None:
        """Delete the files of all parts."""
        for path in self.paths():
            path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """Return the paths of all parts; the first may not exist."""
        return [self.path, *self.path.parent.glob("training-*.safetensors")]


class CarriedFile(CheckpointFile):
    """A checkpoint file that passes its name and content to ``carry`` after every write."""

    def __init__(self, folder: Path, carry: Callable[[str, bytes], None], part: str | None = None) -> None:
        super().__init__(folder, part)
        self._carry = carry

    def of(self, part: str) -> CheckpointFile:
        """Return the checkpoint file of another part of the same model."""
        return CarriedFile(self.path.parent, self._carry, part)

    def write(self, checkpoint: Checkpoint, settings: Mapping[str, Any], steps: int, fingerprint: str) -> None:
        """Replace the file and pass a copy to ``carry``."""
        super().write(checkpoint, settings, steps, fingerprint)
        self._carry(self.path.name, self.path.read_bytes())


def moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser state as named tensors: ``index.name``, e.g. ``0.exp_avg``."""
    tensors: dict[str, Tensor] = {}
    for index, entry in optimizer.state_dict()["state"].items():
        tensors |= {f"{index}.{name}": value for name, value in entry.items()}
    return tensors


def restore_moments(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], learning_rate: Tensor | float
) -> None:
    """Load what ``moments`` returned, keeping ``learning_rate`` as the optimiser's: a captured step reads a tensor."""
    state: dict[int, dict[str, Tensor]] = {}
    parameters = optimizer.param_groups[0]["params"]
    for key, value in tensors.items():
        index, name = key.split(".")
        # Moments must have the memory layout of their parameter, which the file does not store.
        like = parameters[int(index)]
        laid_out = value if value.ndim == 0 else torch.empty_like(like, dtype=value.dtype).copy_(value)
        state.setdefault(int(index), {})[name] = laid_out
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix``, with the prefix removed."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
