"""Errors as RFC 9457 problem details: what was wrong, what was got, what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from patchsvdd.core.errors import with_settings

MEDIA_TYPE = "application/problem+json"

TITLES = {
    "not-found": (404, "There is no such thing"),
    "not-allowed": (405, "This route does not answer that method"),
    "invalid-request": (422, "The request cannot be understood"),
    "invalid-image": (422, "The image cannot be used"),
    "unsupported-media-type": (415, "No image was sent in a form that is read"),
    "too-large": (413, "The upload is too large"),
    "too-slow": (408, "The upload took too long"),
    "unauthenticated": (401, "An API key is needed"),
    "forbidden": (403, "This key is not allowed to do that"),
    "cross-site": (403, "The request comes from another site"),
    "conflict": (409, "That cannot be done now"),
    "overloaded": (503, "Too many images are waiting"),
    "deadline-exceeded": (503, "The image was not answered in time"),
    "store-unavailable": (503, "The result cannot be stored"),
    "stopping": (503, "The service is stopping"),
    "model-unusable": (503, "The model cannot be used"),
    "internal-error": (500, "The service failed"),
}
"""Kind of problem → status and title."""


class Problem(Exception):
    """An answer that is an error."""

    def __init__(self, kind: str, detail: str, *, retry_after: float | None = None, **members: Any) -> None:
        self.kind = kind
        self.detail = in_fields(detail)
        super().__init__(self.detail)
        self.retry_after = retry_after
        self.members = members

    @property
    def status(self) -> int:
        """The HTTP status."""
        return TITLES[self.kind][0]

    def body(self) -> dict[str, Any]:
        """The problem as JSON."""
        status, title = TITLES[self.kind]
        members = {"type": f"urn:patchsvdd:{self.kind}", "title": title, "status": status, "detail": self.detail}
        return {**members, **self.members}

    def headers(self) -> Mapping[str, str]:
        """Headers that go with it."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="patchsvdd"'
        return headers


def in_fields(message: str) -> str:
    """Return a message of the library with settings as the fields of a request: `lambda_` as lambda."""
    return with_settings(message, lambda name, value: " ".join((name.strip("_"), *([] if value is None else [value]))))


def problem_response(problem: Problem) -> Response:
    """A problem as an answer."""
    return Response(
        json.dumps(problem.body()),
        status_code=problem.status,
        headers=dict(problem.headers()),
        media_type=MEDIA_TYPE,
    )
