"""The files of one experiment: trained encoder, trained critic, test result."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import nn

from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.errors import ModelError
from patchsvdd.core.files import atomic_write
from patchsvdd.critic.network import TrainedCritic


@dataclass(frozen=True)
class Files:
    """Files of one experiment, to be sent to another machine."""

    folder: str
    """Name of the experiment's folder."""
    content: dict[str, bytes]

    @classmethod
    def of(cls, folder: Path, names: Iterable[str]) -> Files:
        """Read the files of ``names`` that exist in ``folder``."""
        return cls(folder.name, {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()})

    def write(self, root: Path) -> None:
        """Write the files into their folder in ``root``. The result comes last: if it exists, all files exist."""
        for name in sorted(self.content, key=lambda name: name.endswith(".json") and name.startswith("test-")):
            with atomic_write(root / self.folder / name) as file:
                file.write(self.content[name])


def read_result(path: Path) -> dict[str, Any]:
    """The stored test result."""
    try:
        data = json.loads(path.read_bytes().decode("utf-8", "surrogatepass"))
        if not isinstance(data, dict) or not {"evaluation", "training", "images", "kept"} <= set(data):
            raise ValueError("not a test result")
    except ValueError as error:
        raise ModelError(f"'{path}' cannot be read ({error}); delete it to compute it again") from None
    return data


def write_encoder(path: Path, encoder: nn.Module, about: dict[str, Any]) -> None:
    """Store an encoder, or the network of a baseline, and its training record."""
    weights = {name: value.cpu().contiguous() for name, value in encoder.state_dict().items()}
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(weights, {"training": json.dumps(about)}))


def read_encoder(path: Path, encoder: nn.Module) -> dict[str, Any]:
    """Load the stored weights into ``encoder``; return its training record."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["training"])
            encoder.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise ModelError(f"'{path}' cannot be read ({error}); delete it to train again") from None
    del about["history"], about["settings"]
    return about


def write_critic(path: Path, critic: TrainedCritic, seconds: float) -> None:
    """Store a critic and its training time in seconds."""
    tensors = {name: value.cpu().contiguous() for name, value in critic.state().items()}
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(tensors, {"seconds": str(seconds)}))


def read_critic(path: Path, settings: CriticSettings) -> tuple[TrainedCritic, float]:
    """The stored critic and its training time in seconds."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            seconds = float(file.metadata()["seconds"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return TrainedCritic.from_state(tensors, settings), seconds
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise ModelError(f"'{path}' cannot be read ({error}); delete it to train again") from None
