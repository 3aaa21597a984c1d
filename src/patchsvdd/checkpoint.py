"""The state of an unfinished training on disk: one safetensors file, replaced as a whole."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from patchsvdd.config import Config
from patchsvdd.errors import ConfigError, ModelError
from patchsvdd.files import atomic_write


@dataclass(frozen=True)
class Checkpoint:
    """Training after ``step`` steps."""

    tensors: dict[str, Tensor]
    step: int
    seconds: float
    history: list[dict[str, Any]]


class CheckpointFile:
    """``training.safetensors`` in the model folder: there while training is unfinished."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "training.safetensors"

    def exists(self) -> bool:
        """Whether there is an unfinished training to continue."""
        return os.path.exists(self.path)  # False, not an error, for a name too long

    def write(self, checkpoint: Checkpoint, config: Config, steps: int, fingerprint: str) -> None:
        """Replace the file; an interrupted write leaves the old one."""
        about = {
            "step": checkpoint.step,
            "steps": steps,
            "seconds": checkpoint.seconds,
            "history": checkpoint.history,
            "config": config.to_json(),
            "fingerprint": fingerprint,
        }
        tensors = {name: value.detach().cpu().contiguous() for name, value in checkpoint.tensors.items()}
        with atomic_write(self.path) as file:
            file.write(safetensors.torch.save(tensors, {"training": json.dumps(about)}))

    def read(self, config: Config, steps: int, fingerprint: str) -> Checkpoint:
        """The checkpoint, if it belongs to the same settings and images; an error that says what differs."""
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                about = json.loads(file.metadata()["training"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            checkpoint = Checkpoint(tensors, about["step"], about["seconds"], about["history"])
            before, steps_before, images_before = about["config"], about["steps"], about["fingerprint"]
        except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
            raise ModelError(
                f"the checkpoint {self.path} cannot be read ({error}); train anew with --overwrite"
            ) from None
        now = json.loads(json.dumps(config.to_json()))
        differing = [
            f"{name} was {before.get(name)}, now {now.get(name)}"
            for name in sorted({*now, *before})
            if before.get(name) != now.get(name)
        ]
        if images_before != fingerprint:
            differing.append("the training images have changed")
        if differing or steps_before != steps:
            what = "; ".join(differing) or f"it ran for {steps_before} steps, now {steps}"
            raise ConfigError(
                f"cannot resume {self.path}: {what}. Give the same settings and images, or --overwrite to start anew"
            )
        return checkpoint

    def remove(self) -> None:
        """Delete the file, once the model is saved."""
        self.path.unlink(missing_ok=True)
