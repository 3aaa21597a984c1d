"""Connections that say nothing are closed: whoever opens a thousand of them keeps nobody else out for long."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 15.0
"""Within which a request's headers must have come, once a connection is open or a first byte is there."""


LAST_WORDS = 0.5
"""Seconds that a connection without a request has left when the service ends: one may be on its way."""


class Server(uvicorn.Server):
    """A server that a signal ends in good order; what was to be said afterwards is said."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Finish what was accepted; Ctrl-C again ends at once."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP/1.1 with a limit on the time that headers take."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """A client has said something."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has gone."""
        self._forget()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The service ends: what was asked is answered, also what was asked just now."""
        if self.cycle is None:
            self.loop.call_later(LAST_WORDS, self._end)
        else:
            super().shutdown()

    def _end(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    def _watch(self) -> None:
        """Set a clock where headers are awaited, and stop it where they are there."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._timer is None and self.timeout_keep_alive_task is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()
