"""Results posted to a URL as JSON."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import urllib.error
import urllib.request
from email.message import Message as Headers
from urllib.parse import urlsplit

from patchsvdd.apps.watch.delivery import NotDelivered
from patchsvdd.apps.watch.outbox import Message
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.version import __version__

TIMEOUT = 10.0
SECRET = "PATCHSVDD_WEBHOOK_SECRET"
"""Environment variable with the secret that signs every request."""
TRIES = 10
"""Attempts before giving up on a message that the server refuses: some minutes, to allow for a fix."""
LATER = (408, 425, 429)
"""Client errors that are temporary."""

HANDLERS = (
    urllib.request.ProxyHandler,
    urllib.request.HTTPHandler,
    urllib.request.HTTPSHandler,
    urllib.request.HTTPErrorProcessor,
    urllib.request.HTTPDefaultErrorHandler,
)
"""No handler for redirects: a redirected POST would become a GET without a body and count as delivered."""


class Webhook:
    """One POST request per message.

    ``Idempotency-Key`` is the delivery's id, which is the same for repeated deliveries. With a ``secret``, the header
    ``X-Patchsvdd-Signature`` is ``sha256=`` and the hexadecimal HMAC-SHA256 of the body.
    """

    name = "webhook"

    def __init__(self, url: str, secret: str | None = None, timeout: float = TIMEOUT) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isascii()
        except ValueError:  # a port that is not a number
            usable = False
        if not usable:
            raise ConfigError(f"`webhook` must be a URL like https://host/path; got '{url}'")
        if parts.username or parts.password:
            raise ConfigError(f"`webhook` must not contain a user or password; sign requests with a secret in {SECRET}")
        self._url, self._secret, self._timeout = url, secret, timeout
        self._opener = urllib.request.OpenerDirector()
        for handler in HANDLERS:
            self._opener.add_handler(handler())

    def deliver(self, message: Message) -> None:
        """Return when the server has answered 2xx."""
        request = urllib.request.Request(self._url, message.body, self._headers(message), method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                answer.read(1024)
        except urllib.error.HTTPError as error:
            with error:
                tries = TRIES if error.code < 500 and error.code not in LATER else None
                reason = f"HTTP {error.code} {error.reason}"
                raise NotDelivered(reason, tries=tries, wait=_retry_after(error.headers)) from None
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            raise NotDelivered(str(cause) or type(error).__name__) from None

    def close(self) -> None:
        """Do nothing: every request has its own connection."""

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"patchsvdd/{__version__}",
            "Idempotency-Key": message.id,
        }
        if self._secret:
            signature = hmac.new(self._secret.encode(), message.body, hashlib.sha256).hexdigest()
            headers["X-Patchsvdd-Signature"] = f"sha256={signature}"
        return headers


def _retry_after(headers: Headers) -> float:
    """Seconds in the Retry-After header, at most an hour; 0 if there is none or it is a date."""
    seconds = headers.get("Retry-After", "")
    return min(float(seconds), 3600.0) if seconds.isdecimal() else 0.0
