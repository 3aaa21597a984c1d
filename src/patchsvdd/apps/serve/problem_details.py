"""Errors as RFC 9457 problem details: the cause, the received value, and the remedy."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from patchsvdd.core.errors import with_settings

LOG = logging.getLogger("patchsvdd.apps.serve")
MEDIA_TYPE = "application/problem+json"

TITLES = {
    "not-found": (404, "Not found"),
    "not-allowed": (405, "This route does not support the method"),
    "invalid-request": (422, "The request is invalid"),
    "invalid-image": (422, "The image cannot be used"),
    "unsupported-media-type": (415, "The media type is not supported"),
    "too-large": (413, "The upload is too large"),
    "too-slow": (408, "The upload took too long"),
    "unauthenticated": (401, "A sign-in or an API key is required"),
    "forbidden": (403, "Your role does not allow that"),
    "cross-site": (403, "The request comes from another site"),
    "conflict": (409, "This is not possible now"),
    "too-many-attempts": (429, "Too many sign-ins have failed"),
    "overloaded": (503, "Too many images are waiting"),
    "deadline-exceeded": (503, "The image was not answered in time"),
    "store-unavailable": (503, "The result cannot be stored"),
    "stopping": (503, "The service is stopping"),
    "model-unusable": (503, "The model cannot be used"),
    "internal-error": (500, "The service failed"),
}
"""Kind of problem → status and title."""


class Problem(Exception):
    """An error response."""

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
        """The headers of the response."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="patchsvdd"'
        return headers


def in_fields(message: str) -> str:
    """Return a message of the library with settings as the fields of a request: `lambda_` as lambda."""
    return with_settings(message, lambda name, value: " ".join((name.strip("_"), *([] if value is None else [value]))))


def store_problem(error: Exception) -> Problem:
    """The problem for a database or disk that is unavailable; the reason is logged."""
    LOG.error("store: %s", error)
    words = "the database or the disk is unavailable; nothing was changed, please retry"
    return Problem("store-unavailable", words, retry_after=5)


def problem_response(problem: Problem) -> Response:
    """The response for a problem."""
    return Response(
        json.dumps(problem.body()),
        status_code=problem.status,
        headers=dict(problem.headers()),
        media_type=MEDIA_TYPE,
    )
