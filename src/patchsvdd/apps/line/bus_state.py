"""What a bus server says of itself, and the thread that its event loop runs in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from patchsvdd.core.signals import signals_held

T = TypeVar("T")


@dataclass(frozen=True)
class BusState:
    """A bus server at one moment."""

    address: str
    clients: int
    """Connections (Modbus) or sessions (OPC UA)."""
    trouble: str | None
    """What does not work, or soon will not; None if all is well."""


class LoopThread:
    """An event loop in a thread of its own, so that a bus answers while the line computes."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        with signals_held():
            self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        """End the loop with all its tasks; returns when the thread has ended."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self.loop.close()
