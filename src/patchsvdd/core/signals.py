"""Keep Ctrl-C and kill away from threads that crash on them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any


@contextmanager
def signals_held() -> Iterator[None]:
    """Block SIGINT and SIGTERM during the block, and for good in threads that it starts.

    The kernel delivers a signal to any thread that does not block it, and Python's handler crashes in threads of
    OpenVINO and ONNX Runtime.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@lru_cache(maxsize=1)
def openvino_core() -> Any:
    """Return the only OpenVINO Core of this process. Raise ImportError without OpenVINO.

    A Core installs a signal stack in its thread and restores the previous one when it is destroyed. If two Cores are
    not destroyed in reverse order, the thread keeps a freed stack, and the next Ctrl-C crashes the process.
    """
    with signals_held():
        return import_module("openvino").Core()
