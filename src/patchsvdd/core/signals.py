"""Ctrl-C and kill, kept from threads that do not take them well."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any


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


@lru_cache(maxsize=1)
def openvino_core() -> Any:
    """The one Core of OpenVINO that this process ever makes; ImportError without OpenVINO.

    A Core gives its thread another stack to handle signals on, and gives back the older one when it ends. Of two that
    do not end in the opposite order, the second gives back a stack that is gone, and the next Ctrl-C is a crash.
    """
    with signals_held():
        return import_module("openvino").Core()
