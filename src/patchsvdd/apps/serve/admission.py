"""Who is let in: clients are identified by the headers of a request, before any of its body is read."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchsvdd.apps.serve.auth import Caller
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.http_protocol import OVERFULL
from patchsvdd.apps.serve.problem_details import Problem, problem_response, store_problem
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.uploads import JSON_BYTES, announced_length, signs_in

LOG = logging.getLogger("patchsvdd.apps.serve")
CALLER = "patchsvdd.caller"
"""Key of a request's scope: the client, once it is known."""
RETRY_SECONDS = 5.0


async def caller_of(service: Service, connection: HTTPConnection) -> Caller:
    """The client of a request, looked up once; raises Problem if it is unknown or cross-site."""
    known: Caller | None = connection.scope.get(CALLER)
    if known is None:
        guard, scope = service.guard, connection.scope
        asked = (connection.headers, connection.cookies, scope["method"], guard.address(scope))
        known = await service.aside(guard.caller, *asked) if guard.needs_key else guard.caller(*asked)
        connection.scope[CALLER] = known
    return known


class Admission:
    """Refuses requests to the API from unknown clients before their body is read.

    Connections whose request was answered before its body was read are closed, so that nobody reads it for nothing.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        unread = _has_large_body(Headers(scope=scope)) or scope.get(OVERFULL, False)

        async def tracked() -> Message:
            nonlocal unread
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                unread = False
            return message

        async def closing(message: Message) -> None:
            if unread and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        try:
            await self._admit(scope)
        except Problem as problem:
            await problem_response(problem)(scope, tracked, closing)
        except StoreUnavailable as error:
            await problem_response(store_problem(error))(scope, tracked, closing)
        else:
            await self._app(scope, tracked, closing)

    async def _admit(self, scope: Scope) -> None:
        if scope.get(OVERFULL):
            raise Problem("overloaded", "too many connections are open; retry later", retry_after=RETRY_SECONDS)
        if scope["path"].startswith("/v1/") and not signs_in(scope["path"]):
            await caller_of(self._service, HTTPConnection(scope))


def _has_large_body(headers: Headers) -> bool:
    """Whether a body follows that is too large to be discarded on the side."""
    if "transfer-encoding" in headers:
        return True
    length = announced_length(headers)
    return length is not None and length > JSON_BYTES
