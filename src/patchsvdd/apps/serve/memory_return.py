"""Free memory is returned to the system when the service is idle. The C library keeps it, as if every burst lasted."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

EVERY = 5.0
"""Seconds between two looks."""
WORTH = 16 << 20
"""Bytes by which the process must have grown since the last return."""


class MemoryReturn:
    """A thread that returns free memory of this process after bursts, while ``is_idle``."""

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._floor = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def start(self) -> None:
        """Start the thread, where the C library supports it."""
        if sys.platform == "linux":
            self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._floor = _resident()
        while not self._stopped.wait(EVERY):
            self._floor = min(self._floor, _resident())
            if _resident() - self._floor > WORTH and self._is_idle():
                trim_memory()
                if self._is_idle():  # memory in use again may be free at the next look
                    self._floor = _resident()


def trim_memory() -> None:
    """Return free memory to the system, if the C library can."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
