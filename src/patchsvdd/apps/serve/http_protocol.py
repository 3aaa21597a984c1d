"""HTTP/1.1 with limits on connections and on the time for headers, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 15.0
"""Time limit for the headers of a request, from the connection or the first byte."""
CLOSING_SECONDS = 0.5
"""Delay before an idle connection is closed at shutdown, because a request may already be under way."""

MAX_CONNECTIONS = 2048
"""Open connections; requests on further ones are answered with 503."""
SPARE_CONNECTIONS = 256
"""Connections beyond these that are still answered; more are closed at once."""
LINGER_SECONDS = 5.0
"""How long the rest of a refused request is discarded, so that its client can read the answer."""
OVERFULL = "patchsvdd.overfull"
"""Key of a request's scope: whether it came on one connection too many."""


class Server(uvicorn.Server):
    """A server that shuts down gracefully on a signal and then returns to its caller."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Finish accepted requests; a second Ctrl-C stops immediately."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


class LingeringTransport:
    """A transport that is closed in two steps if the client is still sending.

    A socket closed with unread data is reset, and the client may lose the answer. Instead, the answer is ended, what
    the client still sends is discarded, and the connection is closed by the client, or after LINGER_SECONDS.
    """

    def __init__(self, transport: asyncio.Transport, protocol: HeaderTimeoutProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self.lingers: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self.lingers is not None or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection once the client has had time to read the answer."""
        if self.is_closing() or self._protocol.conn.their_state is not h11.SEND_BODY:
            self._transport.close()
            return
        self.lingers = self._protocol.loop.call_later(LINGER_SECONDS, self._transport.abort)
        self._protocol.cycle.body = bytearray()  # what has arrived already
        try:
            self._transport.resume_reading()
            self._transport.write_eof()
        except (OSError, RuntimeError):
            self._transport.abort()


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP/1.1 with a limit on connections and a time limit for headers."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for a new connection, or refuse it if there are too many."""
        super().connection_made(LingeringTransport(transport, self))  # type: ignore[arg-type]
        if len(self.connections) > MAX_CONNECTIONS + SPARE_CONNECTIONS:
            transport.abort()
            return
        if len(self.connections) > MAX_CONNECTIONS:
            self.app = _overfull(self.app)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Update the timer after data has arrived."""
        if self._lingers is not None:
            return
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers of a closed connection."""
        self._stop_timer()
        if self._lingers is not None:
            self._lingers.cancel()
        super().connection_lost(exc)

    @property
    def _lingers(self) -> asyncio.TimerHandle | None:
        transport: Any = self.transport
        handle: asyncio.TimerHandle | None = transport.lingers
        return handle

    def shutdown(self) -> None:
        """Close the connection after the current request, or after a short delay if there is none."""
        if self._lingers is not None:
            self.transport.abort()
        elif self.cycle is None:
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


def _overfull(app: ASGIApp) -> ASGIApp:
    """The application, with a scope that says that there are too many connections."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, OVERFULL: True}, receive, send)

    return refuse
