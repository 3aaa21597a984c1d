"""Bytes of a request, bounded while they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchsvdd.serve.problems import Problem

OVERHEAD = 1 << 16
"""Bytes that a form may take beside the files."""
SMALL = 1 << 20
"""Bytes of a request that holds no image."""


@dataclass(frozen=True)
class Upload:
    """One file of a request."""

    name: str
    data: bytes


class BodyLimit:
    """Refuses the body of a request that grows beyond what its route takes, before it is kept anywhere."""

    def __init__(self, app: ASGIApp, upload_bytes: int, batch_images: int, training_bytes: int) -> None:
        self._app = app
        self._upload, self._batch, self._training = upload_bytes, batch_images * upload_bytes, training_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit, seen = self._limit(scope["path"]), 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise too_large(limit)
            return message

        await self._app(scope, bounded, send)

    def _limit(self, path: str) -> int:
        if path.endswith("/inspect"):
            return self._upload + OVERHEAD
        if path.endswith("/inspect-batch"):
            return self._batch + OVERHEAD
        if path.endswith("/v1/trainings"):
            return self._training + OVERHEAD
        return SMALL


def too_large(limit: int) -> Problem:
    """The answer to an upload beyond a limit."""
    return Problem("too-large", f"the request is larger than {limit / 1e6:,.1f} MB, the most that is taken here")


def announced(request: Request, limit: int) -> None:
    """Refuse a body that says itself that it is too large, before any of it is read."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise too_large(limit)


async def one_image(request: Request, limit: int) -> Upload:
    """The image of a request: the field ``file`` of a form, or the body itself."""
    announced(request, limit + OVERHEAD)
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "multipart/form-data":
        uploads, _ = await form_files(request, {"file"}, 1, limit)
        return uploads[0]
    if kind == "application/x-www-form-urlencoded":
        raise Problem("unsupported-media-type", "send the image as field 'file' of multipart/form-data, or as the body")
    data = await request.body()
    if len(data) > limit:
        raise too_large(limit)
    if not data:
        raise Problem("invalid-request", "the body is empty; send an image as field 'file' of a form, or as the body")
    return Upload(unquote(request.headers.get("x-filename", "image")), data)


async def form_files(
    request: Request, names: set[str], most: int, limit: int, fields: int = 0
) -> tuple[list[Upload], dict[str, str]]:
    """The files of a form, in order, and its other fields."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise Problem("unsupported-media-type", f"send multipart/form-data with images in {_fields(names)}")
    try:
        async with request.form(max_files=most, max_fields=fields + 1) as form:
            uploads = []
            for name, value in form.multi_items():
                if not isinstance(value, UploadFile) or name not in names:
                    continue
                data = await value.read(limit + 1)
                if len(data) > limit:
                    raise too_large(limit)
                uploads.append(Upload(value.filename or "image", data))
            texts = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    except MultiPartException as error:
        raise Problem("invalid-request", f"the form cannot be read: {error.message}") from None
    except ValueError:  # lengths and characters that are none
        raise Problem("invalid-request", "the form cannot be read") from None
    if not uploads:
        raise Problem("invalid-request", f"the form has no image; send it in {_fields(names)}")
    return uploads, texts


def _fields(names: set[str]) -> str:
    return "field " + " or ".join(f"'{name}'" for name in sorted(names))
