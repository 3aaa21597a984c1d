"""The files of one experiment: trained encoder, trained critic, result of a test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from patchsvdd.core.config import CriticSettings
from patchsvdd.core.errors import ModelError
from patchsvdd.core.files import atomic_write
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.encoder.networks import PatchEncoder


@dataclass(frozen=True)
class Files:
    """Files of one experiment, to be sent elsewhere."""

    folder: str
    """The name of the folder they lie in."""
    content: dict[str, bytes]

    @classmethod
    def of(cls, folder: Path, names: Iterable[str]) -> Files:
        """Those of the names that there are."""
        return cls(folder.name, {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()})

    def write(self, root: Path) -> None:
        """Write them into their folder below ``root``; a result comes last: where it is, all is."""
        for name in sorted(self.content, key=lambda name: name.endswith(".json") and name.startswith("test-")):
            with atomic_write(root / self.folder / name) as file:
                file.write(self.content[name])


def read_result(path: Path) -> dict[str, Any]:
    """What a test found."""
    try:
        data = json.loads(path.read_bytes().decode("utf-8", "surrogatepass"))
        if not isinstance(data, dict) or not {"evaluation", "training", "images", "kept"} <= set(data):
            raise ValueError("it is not the result of a test")
    except ValueError as error:
        raise ModelError(f"'{path}' cannot be read ({error}); delete it to compute it anew") from None
    return data


def write_encoder(path: Path, encoder: PatchEncoder, about: dict[str, Any]) -> None:
    """Keep an encoder and how it was trained."""
    weights = {name: value.cpu().contiguous() for name, value in encoder.state_dict().items()}
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(weights, {"training": json.dumps(about)}))


def read_encoder(path: Path, encoder: PatchEncoder) -> dict[str, Any]:
    """How the stored encoder was trained; its weights go into ``encoder``."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["training"])
            encoder.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise ModelError(f"'{path}' cannot be read ({error}); delete it to train anew") from None
    del about["history"], about["settings"]
    return about


def write_critic(path: Path, critic: TrainedCritic, seconds: float) -> None:
    """Keep a critic and the seconds it learned."""
    tensors = {name: value.cpu().contiguous() for name, value in critic.state().items()}
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(tensors, {"seconds": str(seconds)}))


def read_critic(path: Path, settings: CriticSettings) -> tuple[TrainedCritic, float]:
    """The stored critic and the seconds it learned."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            seconds = float(file.metadata()["seconds"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return TrainedCritic.from_state(tensors, settings), seconds
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise ModelError(f"'{path}' cannot be read ({error}); delete it to train anew") from None
