"""HTTP/1.1 with a timeout for headers, so that idle connections cannot block the service, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 15.0
"""Time limit for the headers of a request, from the connection or the first byte."""
CLOSING_SECONDS = 0.5
"""Delay before an idle connection is closed at shutdown, because a request may already be under way."""


class Server(uvicorn.Server):
    """A server that shuts down gracefully on a signal and then returns to its caller."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Finish accepted requests; a second Ctrl-C stops immediately."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for headers."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for a new connection."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Update the timer after data has arrived."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection after the current request, or after a short delay if there is none."""
        if self.cycle is None:
            self.loop.call_later(CLOSING_SECONDS, self._end)
        else:
            super().shutdown()

    def _end(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    def _watch(self) -> None:
        """Start a timer while headers are awaited; stop it once they have arrived."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._timer is None and self.timeout_keep_alive_task is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()
