"""Request bodies, limited in size and time while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import unquote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchsvdd.apps.serve.byte_budget import Held
from patchsvdd.apps.serve.problem_details import Problem, problem_response

OVERHEAD = 1 << 16
"""Bytes that a form may have in addition to the files."""
JSON_BYTES = 1 << 16
"""Maximum bytes of a request without images."""
DRAWING_BYTES = 2 << 20
"""Maximum bytes of what was drawn on an image."""
SIGN_IN_BYTES = 1 << 12
"""Maximum bytes of a request to sign in, which anyone may send."""
BODY_SECONDS = 20.0
"""Time limit of a body, in addition to the time for its size."""
SLOWEST = 1 << 16
"""Minimum bytes per second that a client must send."""
FIELD_BYTES = 4096
"""Maximum bytes of a form field that is not a file."""
MORE_FIELDS = 4
"""Unknown form fields that are tolerated and ignored."""


@dataclass(frozen=True)
class Upload:
    """One file of a request."""

    name: str
    data: bytes | bytearray


Keep = Callable[[Upload], Awaitable[None]]


class BodyLimit:
    """Rejects request bodies that exceed the limit of their route or arrive too slowly.

    The response always names this reason, whatever the route does with the truncated body.
    """

    def __init__(self, app: ASGIApp, upload_bytes: int, batch_bytes: int, training_bytes: int) -> None:
        self._app = app
        self._upload, self._batch, self._training = upload_bytes, batch_bytes, training_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit, clock = self._limit(scope["path"]), asyncio.get_running_loop().time
        length = announced_length(Headers(scope=scope))
        if length is not None and length > limit:
            await problem_response(too_large(limit))(scope, receive, send)
            return
        begun, seen, ended, started = clock(), 0, False, False
        refused: Problem | None = None

        async def bounded() -> Message:
            nonlocal seen, ended, refused
            try:
                async with asyncio.timeout_at(None if ended else begun + BODY_SECONDS + seen / SLOWEST):
                    message = await receive()
            except TimeoutError:
                words = f"the request's body arrived too slowly: {seen} bytes in {BODY_SECONDS:g} s"
                refused = Problem("too-slow", words)
                raise refused from None
            seen += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if seen > limit:
                refused = too_large(limit)
                raise refused
            return message

        async def unless_refused(message: Message) -> None:
            nonlocal started
            if refused is None or started:
                started = True
                await send(message)

        try:
            await self._app(scope, bounded, unless_refused)
        except Exception:
            if refused is None or started:
                raise
        if refused is not None and not started:
            await problem_response(refused)(scope, receive, send)

    def _limit(self, path: str) -> int:
        if path.endswith("/annotation"):
            return DRAWING_BYTES
        if path.endswith(("/inspect", "/v1/annotations")):
            return self._upload + OVERHEAD
        if path.endswith("/inspect-batch"):
            return self._batch + OVERHEAD
        if path.endswith("/v1/trainings"):
            return self._training + OVERHEAD
        return SIGN_IN_BYTES if signs_in(path) else JSON_BYTES


def signs_in(path: str) -> bool:
    """Whether a path is one to sign in or out, which need no key."""
    return path == "/v1/session" or path.startswith("/v1/session/")


def announced_length(headers: Headers) -> int | None:
    """The Content-Length; None if there is none or it is not a number."""
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        return None
    return int(length) if len(length) <= 18 else 10**18


def too_large(limit: int) -> Problem:
    """The problem for an upload beyond a limit."""
    size = f"{limit / 1e6:,.1f} MB" if limit >= 1e5 else f"{limit / 1e3:,.0f} kB"
    return Problem("too-large", f"the request is larger than the limit of {size}")


async def one_image(request: Request, limit: int, held: Held, fields: int = 0) -> tuple[Upload, dict[str, str]]:
    """The image of a request: the field ``file`` of a form, or the body itself; and the form's other fields."""
    kind = _media_type(request)
    if kind == "multipart/form-data":
        uploads, texts = await form_files(request, {"file"}, 1, limit, fields, held=held)
        return uploads[0], texts
    if kind == "application/x-www-form-urlencoded":
        raise Problem("unsupported-media-type", "send the image as field 'file' of multipart/form-data, or as the body")
    data = await _whole_body(request, held)
    if len(data) > limit:
        raise too_large(limit)
    if not data:
        raise Problem("invalid-request", "the body is empty; send an image as field 'file' of a form, or as the body")
    return Upload(unquote(request.headers.get("x-filename", "image")), data), {}


async def _whole_body(request: Request, held: Held) -> bytearray:
    """The body in one piece of memory: joining many small ones takes twice as much and leaves holes."""
    data, end = bytearray(announced_length(request.headers) or 0), 0
    async for chunk in request.stream():
        held.grow_to(end + len(chunk))
        data[end : end + len(chunk)] = chunk
        end += len(chunk)
    del data[end:]
    return data


async def form_files(
    request: Request,
    names: set[str],
    most: int,
    limit: int,
    fields: int = 0,
    keep: Keep | None = None,
    held: Held | None = None,
) -> tuple[list[Upload], dict[str, str]]:
    """The files of a form, in order, and its other fields.

    With ``keep``, each file is passed to it on arrival and not returned, so that only one file is in memory at a time.
    ``held`` grows with what has arrived.
    """
    if _media_type(request) != "multipart/form-data":
        raise Problem("unsupported-media-type", f"send multipart/form-data with images in {_fields(names)}")
    form = _Form(request.headers.get("content-type", ""), names, most, limit, fields)
    uploads: list[Upload] = []
    arrived = 0
    async for chunk in request.stream():
        arrived += len(chunk)
        if held is not None:
            held.grow_to(arrived)
        for upload in form.feed(chunk):
            if keep is None:
                uploads.append(upload)
            else:
                await keep(upload)
    form.require_end()
    if form.count == 0:
        raise Problem("invalid-request", f"the form has no image; send it in {_fields(names)}")
    return uploads, form.texts


class _Form:
    """An incremental form parser: one file at a time, nothing on disk."""

    def __init__(self, content_type: str, names: set[str], most: int, limit: int, fields: int) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary or len(boundary) > 256:
            raise Problem("invalid-request", "the form cannot be read: its content type has no boundary")
        self.texts: dict[str, str] = {}
        self.count = 0
        self._names, self._most, self._limit = names, most, limit
        self._parts_left = most + fields + MORE_FIELDS
        self._done: list[Upload] = []
        self._ended = False
        self._field, self._value = b"", b""
        self._disposition = b""
        self._name: str | None = None
        self._file: str | None = None
        self._data: bytearray | None = None
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._on_end_of_part,
                "on_end": self._on_end,
            },
        )
        self._parser = parser

    def feed(self, chunk: bytes) -> list[Upload]:
        """Parse a chunk; returns the files that it completes."""
        if not chunk or self._ended:
            return []
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise Problem("invalid-request", "the form cannot be read: it is damaged") from None
        completed, self._done = self._done, []
        return completed

    def require_end(self) -> None:
        """Raise Problem if the form was truncated."""
        if not self._ended:
            raise Problem("invalid-request", "the form cannot be read: it ends too early")

    def _begin(self) -> None:
        self._parts_left -= 1
        if self._parts_left < 0:
            raise Problem("invalid-request", f"the form has too many parts; the limit is {self._most} images")
        self._field = self._value = self._disposition = b""
        self._name = self._file = self._data = None

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]
        self._check_length(self._field)

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_length(self._value)

    def _check_length(self, header: bytes) -> None:
        if len(header) > OVERHEAD // 4:
            raise Problem("invalid-request", "the form cannot be read: a header in it is too long")

    def _on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def _on_headers(self) -> None:
        options = parse_options_header(self._disposition)[1]
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            self._file = options[b"filename"].decode("utf-8", "replace") or "image"
            if self._name in self._names:
                self.count += 1
                if self.count > self._most:
                    raise Problem("invalid-request", f"the form has too many images; the limit is {self._most}")
                self._data = bytearray()
        else:
            self._data = bytearray()

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._data is None:
            return
        self._data += data[start:end]
        if self._file is not None and len(self._data) > self._limit:
            raise too_large(self._limit)
        if self._file is None and len(self._data) > FIELD_BYTES:
            raise Problem("invalid-request", f"field '{(self._name or '')[:100]}' of the form is too long")

    def _on_end_of_part(self) -> None:
        if self._data is not None and self._file is not None:
            self._done.append(Upload(self._file, self._data))
        elif self._data is not None and self._name:
            self.texts[self._name] = self._data.decode("utf-8", "replace")
        self._data = None

    def _on_end(self) -> None:
        self._ended = True


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def _fields(names: set[str]) -> str:
    return "field " + " or ".join(f"'{name}'" for name in sorted(names))
