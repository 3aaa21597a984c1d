"""The FastAPI application: routes, errors, headers."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchsvdd.apps.serve.admission import Admission
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.overview import Overview
from patchsvdd.apps.serve.problem_details import MEDIA_TYPE, Problem, problem_response, store_problem
from patchsvdd.apps.serve.routes import ROUTERS
from patchsvdd.apps.serve.schemas import ProblemDetails
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.telemetry import Telemetry
from patchsvdd.apps.serve.uploads import BodyLimit
from patchsvdd.core.errors import ImageError, OutputError, PatchSVDDError
from patchsvdd.core.version import __version__

LOG = logging.getLogger("patchsvdd.apps.serve")
PAGE = Path(__file__).with_name("page")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "media-src 'self' blob:; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_ERRORS = 20
"""Validation errors reported for one request."""
DESCRIPTION = """Inspect images, browse earlier inspections, review them, and add false alarms to a model's memory.

Errors are problem details (RFC 9457) with `type`, `title`, `status` and `detail`, which says what to do. If an API key
is required, send `Authorization: Bearer psk_…`; create one with `patchsvdd key add`. 503 has a `Retry-After` header."""


def make_app(service: Service, beside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext) -> FastAPI:
    """The application of a service, which it starts and closes; ``beside`` runs in its loop meanwhile."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        async with beside():
            yield
        await service.aside(service.jobs.close)
        service.close()

    app = FastAPI(
        title="patchsvdd",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # replaced by a route that checks the key
    )
    app.state.service = service
    app.state.overview = Overview(service)
    for router in ROUTERS:
        app.include_router(router)
    limits = service.settings.limits
    app.add_middleware(
        BodyLimit,
        upload_bytes=limits.upload_bytes,
        batch_bytes=limits.batch_bytes,
        training_bytes=limits.training_bytes,
    )
    app.add_middleware(Admission, service=service)
    app.add_middleware(ResponseMiddleware, telemetry=service.telemetry)
    _handle_errors(app, service.paths.hide)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    if PAGE.is_dir():
        app.router.routes.append(Page("/", StaticFiles(directory=PAGE, html=True), name="page"))
    return app


class Page(Mount):
    """The page's static files; never matches /v1/, so that a wrong method there gets the API's error."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match requests for files of the page."""
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            return Match.NONE, {}
        match, child = super().matches(scope)
        if scope["type"] == "http" and scope["path"] in ("/docs", "/line"):
            child = {**child, "path": f"{scope['path']}.html"}
        return match, child


class ResponseMiddleware:
    """Adds headers to every response, including errors, and records metrics."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, method = time.perf_counter(), 0, scope["method"]
        if method == "HEAD":  # handled as GET; the server omits the body
            scope = {**scope, "method": "GET"}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1/"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            LOG.info("%s %s: the client disconnected", method, _printable(scope["path"]))
        except Exception as error:  # logged; the response does not reveal the error
            LOG.error("%s %s failed", method, _printable(scope["path"]), exc_info=error)
            if status:
                raise
            words = "the request failed and nothing was changed; see the server's log"
            await problem_response(Problem("internal-error", words))(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            known = method if method in METHODS else "other"  # clients may send arbitrary methods
            self._telemetry.requests.labels(route, known, status).inc()
            self._telemetry.request_seconds.labels(route).observe(time.perf_counter() - start)


def _printable(path: str) -> str:
    return ascii(path[:200])


def _handle_errors(app: FastAPI, hide: Callable[[str], str]) -> None:
    def of_problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        error.detail = hide(error.detail)
        return problem_response(error)

    def of_image(_: Request, error: Exception) -> Response:
        return problem_response(Problem("invalid-image", hide(str(error))))

    def of_store(_: Request, error: Exception) -> Response:
        return problem_response(store_problem(error))

    def of_request(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        reported = error.errors()[:MAX_ERRORS]
        errors = [{"where": ".".join(map(str, one["loc"]))[:200], "what": one["msg"][:500]} for one in reported]
        words = "; ".join(f"{one['where']}: {one['what']}" for one in errors[:5])
        return problem_response(Problem("invalid-request", words, errors=errors))

    def of_status(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, ClientDisconnect):
            raise error.__cause__
        kinds = {404: "not-found", 405: "not-allowed", 413: "too-large"}
        kind = kinds.get(error.status_code, "invalid-request" if error.status_code < 500 else "internal-error")
        response = problem_response(Problem(kind, str(error.detail)))
        if error.status_code != 400:  # FastAPI uses 400 for malformed JSON
            response.status_code = error.status_code
        for name, value in (error.headers or {}).items():
            response.headers[name] = value
        return response

    def of_library(_: Request, error: Exception) -> Response:
        return problem_response(Problem("conflict", hide(str(error))))

    app.add_exception_handler(Problem, of_problem)
    app.add_exception_handler(ImageError, of_image)
    app.add_exception_handler(StoreUnavailable, of_store)
    app.add_exception_handler(OutputError, of_store)
    app.add_exception_handler(PatchSVDDError, of_library)
    app.add_exception_handler(RequestValidationError, of_request)
    app.add_exception_handler(HTTPException, of_status)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI schema of all routes, with security schemes and problem details added."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = schema["components"]
        parts["schemas"]["ProblemDetails"] = ProblemDetails.model_json_schema()
        parts["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "psk_…; created with patchsvdd key add"},
            "session": {"type": "apiKey", "in": "cookie", "name": app.state.service.guard.cookie},
        }
        for path, methods in schema["paths"].items():
            for route in methods.values():
                unauthenticated = path in ("/healthz", "/readyz", "/v1/session")
                route["security"] = [] if unauthenticated else [{"key": []}, {"session": []}]
                content = route["responses"].get("422", {}).get("content", {})
                if content.pop("application/json", None) is not None:  # FastAPI's error format, not ours
                    content[MEDIA_TYPE] = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
        for unused in ("HTTPValidationError", "ValidationError"):
            parts["schemas"].pop(unused, None)
        app.openapi_schema = schema
    return app.openapi_schema
