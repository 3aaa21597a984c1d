"""Load the authors' released checkpoints."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.errors import ModelError
from patchsvdd.encoder.networks import PatchEncoder, build_encoder


def load_reference_encoder(path: Path, config: Config) -> PatchEncoder:
    """The encoder of one of the authors' checkpoints (``enc.conv1 … enc.conv8``, ``conv1``, ``conv2``).

    The files are pickles; torch reads them with ``weights_only``, which runs no code from the file.
    """
    if not path.is_file():
        raise ModelError(f"there is no checkpoint '{path}'; check the path")
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, pickle.UnpicklingError) as error:
        # Not PyTorch's message: it suggests switching ``weights_only`` off.
        raise _not_a_checkpoint(path, config, f"PyTorch cannot read it: {type(error).__name__}") from error
    encoder = build_encoder(config)
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise _not_a_checkpoint(path, config, "it contains more than named weights")
    renamed = _rename({str(name): value for name, value in state.items()})
    expected = {name: value.shape for name, value in encoder.state_dict().items()}
    if {name: value.shape for name, value in renamed.items()} != expected:
        raise _not_a_checkpoint(path, config, "its weights have other names or shapes")
    encoder.load_state_dict(renamed)
    return encoder


def _not_a_checkpoint(path: Path, config: Config, reason: str) -> ModelError:
    return ModelError(
        f"{path} is not a Patch SVDD checkpoint of embedding size {config.embedding_dim} ({reason}); "
        f"give a state dict of the authors' encoder: enc.conv1 … enc.conv8, conv1 and conv2"
    )


def _rename(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Translate the authors' layer names; unknown names are kept and will not match."""
    ours = {f"enc.conv{i + 1}": f"small.body.{2 * i}" for i in range(7)}
    ours |= {"enc.conv8": "small.head", "conv1": "merges.0.gather", "conv2": "merges.0.mix"}
    renamed = {}
    for name, value in state.items():
        layer, _, kind = str(name).rpartition(".")
        renamed[f"{ours.get(layer, layer)}.{kind}"] = value
    return renamed
