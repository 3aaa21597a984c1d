"""The device that computes."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

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


def trains_in_bfloat16(device: torch.device) -> bool:
    """Return whether training on this device uses bfloat16: on a GPU, and on a CPU with matrix units for it (AMX).

    The environment variable PATCHSVDD_FLOAT32=1 makes all CPUs train alike, in float32.
    """
    return device.type == "cuda" or (os.environ.get("PATCHSVDD_FLOAT32") != "1" and has_matrix_units())


@cache
def has_matrix_units() -> bool:
    """Return whether this CPU has matrix units for bfloat16."""
    return bool(torch.cpu.get_capabilities().get("amx_bf16")) if hasattr(torch.cpu, "get_capabilities") else False


@contextmanager
def reproducible(*, allow_tf32: bool = False, fastest: bool = False) -> Iterator[None]:
    """Use deterministic convolutions on CUDA, in full float32 unless TF32 is allowed.

    Training may use TF32. Inspection may not: TF32 changes embeddings by more than near neighbours differ.
    ``fastest`` tries all algorithms for each convolution, so two runs may round differently.
    """
    with torch.backends.cudnn.flags(enabled=True, benchmark=fastest, deterministic=True, allow_tf32=allow_tf32):
        yield
