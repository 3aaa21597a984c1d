"""Ctrl-C and kill, kept from threads that do not take them well."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_held() -> Iterator[None]:
    """Ctrl-C and kill wait until the block is done, and threads started in it never get them.

    A signal goes to any thread that takes it, and Python's handler crashes in the threads of OpenVINO and ONNX Runtime.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
