"""Support for Triton kernels; PyTorch for CPUs, Windows and macOS ships without Triton."""

from __future__ import annotations

from importlib.util import find_spec


def available() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


def blocks(count: int, size: int) -> int:
    """Return how many blocks of ``size`` hold ``count`` items."""
    return -(-count // size)
