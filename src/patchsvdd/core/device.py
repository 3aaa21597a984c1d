"""The device that computes."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from patchsvdd.core.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device called "auto" (CUDA if available), "cpu", "cuda" or "cuda:1"."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"`device` must be auto, cpu, cuda or cuda:N; got '{name}'") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"`device` must be auto, cpu, cuda or cuda:N; got '{name}'")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("`device=cuda`: PyTorch finds no CUDA device on this machine; use `device=cpu`")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise ConfigError(f"`device={name}`: there are {torch.cuda.device_count()} CUDA devices")
    return device


def describe_device(device: torch.device) -> str:
    """Return the name of the device, for provenance."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


@contextmanager
def reproducible(*, allow_tf32: bool = False) -> Iterator[None]:
    """Use deterministic convolutions on CUDA, in full float32 unless TF32 is allowed.

    Training may use TF32. Inspection may not: TF32 changes embeddings by more than near neighbours differ.
    """
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=allow_tf32):
        yield
