"""GPU kernels written in Triton, which PyTorch for CPUs, Windows and macOS comes without."""

from __future__ import annotations

from importlib.util import find_spec


def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def blocks(count: int, size: int) -> int:
    """Blocks of ``size`` that hold ``count``."""
    return -(-count // size)
