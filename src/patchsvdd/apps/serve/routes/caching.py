"""Caching of pictures and maps by browsers."""

from __future__ import annotations

from fastapi import Request, Response

from patchsvdd.apps.serve.service import Service

NEVER_CHANGES = {"Cache-Control": "private, max-age=31536000, immutable"}
ASK_FIRST = {"Cache-Control": "private, no-cache"}
"""The browser keeps the file, but asks each time: it shows nothing once the user has signed out."""


def cache_headers(service: Service, tag: str) -> dict[str, str]:
    """The headers of a file that never changes; ``tag`` identifies its content."""
    return {**(ASK_FIRST if service.guard.needs_key else NEVER_CHANGES), "ETag": f'"{tag}"'}


def unchanged(request: Request, headers: dict[str, str]) -> Response | None:
    """The response to a browser that has the file already; None for others."""
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    return Response(status_code=304, headers=headers) if headers["ETag"] in known else None
