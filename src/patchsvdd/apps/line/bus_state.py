"""What a bus server says of itself, whether its client has gone, and the thread that its event loop runs in."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from patchsvdd.core.signals import signals_held

T = TypeVar("T")
GONE_AFTER = 3.0
"""Seconds without a client after which the PLC has gone: some connect again for every part."""


@dataclass(frozen=True)
class BusState:
    """A bus server at one moment."""

    address: str
    clients: int
    """Connections (Modbus) or sessions (OPC UA)."""
    trouble: str | None
    """What does not work, or soon will not; None if all is well."""


class ClientWatch:
    """Notes when clients of a bus come and go. A PLC that was connected and has gone is a trouble."""

    def __init__(self, name: str, on_event: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._on_event, self._clock = name, on_event, clock
        self._was_connected = False
        self._left: float | None = None
        """When the last client left."""
        self._gone: str | None = None
        """What is wrong, once the PLC has gone."""
        self._lock = threading.Lock()

    def look(self, state: BusState) -> BusState:
        """Take note of the clients, and return the state with the trouble of a PLC that has gone."""
        with self._lock:
            self._update(state.clients)
            return state if self._gone is None else replace(state, trouble=state.trouble or self._gone)

    def _update(self, clients: int) -> None:
        if clients:
            if not self._was_connected or self._gone is not None:
                self._on_event(f"{self._name}: a client is connected")
            self._was_connected, self._left, self._gone = True, None, None
        elif self._was_connected and self._left is None:
            self._left = self._clock()
        if self._left is not None and self._gone is None and self._clock() - self._left >= GONE_AFTER:
            left = datetime.fromtimestamp(time.time() - (self._clock() - self._left))
            self._gone = f"the client disconnected at {left:%H:%M:%S} and has not come back"
            self._on_event(f"{self._name}: {self._gone}")


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
