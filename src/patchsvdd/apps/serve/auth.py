"""Authentication: API keys for machines, sessions for browsers, and protection against cross-site requests.

A key is ``psk_<number>_<secret>``. The database stores the SHA-256 of the secret, which has 256 random bits and cannot
be guessed, so a slow hash would not add protection. A browser sends its key once and gets a cookie that scripts cannot
read and other sites cannot send.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.settings import is_loopback
from patchsvdd.apps.serve.store import Store
from patchsvdd.core.errors import ConfigError

Role = Literal["inspect", "review", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each role includes the permissions of those before it."""
KEY = re.compile(r"psk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
KEY_NAME = re.compile(r"[\w][\w .@-]{0,99}")
COOKIE = "patchsvdd_session"
SESSION_SECONDS = 12 * 3600.0
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Caller:
    """The client of a request."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether the client has at least ``role``."""
        return ROLES.index(self.role) >= ROLES.index(role)


LOCAL = Caller("local", "admin")
"""Any client on this machine, if no key is required."""


def add_key(store: Store, name: str, role: str) -> str:
    """Create a key and return it; only its hash is stored."""
    if role not in ROLES:
        raise ConfigError(f"`role` must be one of {', '.join(ROLES)}; got '{role}'")
    if not KEY_NAME.fullmatch(name):
        raise ConfigError(f"a key's name must have 1 to 100 letters, digits, spaces or any of . _ @ -; got '{name}'")
    number, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    row = {"id": number, "name": name, "role": role, "hash": _digest(secret), "created": time.time()}
    if not store.insert_key(row):
        raise ConfigError(f"a key named '{name}' already exists (it may be revoked); choose another name")
    return f"psk_{number}_{secret}"


class Authenticator:
    """Identifies the client of a request and rejects cross-site requests."""

    def __init__(self, store: Store, needs_key: bool, host: str, secure_cookies: bool = False) -> None:
        self.needs_key = needs_key
        self.secure_cookies = secure_cookies
        self._store = store
        self._loopback = is_loopback(host)

    def caller(self, headers: Any, cookies: Any, method: str) -> Caller:
        """The client of a request; raises Problem if it is unknown or cross-site."""
        self.refuse_other_sites(headers, method)
        if not self.needs_key:
            return LOCAL
        key = _key_of(headers)
        if key is not None:
            return self._caller_of(key)
        session = cookies.get(COOKIE)
        if session:
            row = self._store.session(_digest(session))
            if row is not None and row["revoked"] is None:
                return Caller(row["name"], row["role"])
        raise Problem("unauthenticated", "send an API key: Authorization: Bearer psk_… (see `patchsvdd key`)")

    def open_session(self, key: str) -> tuple[str, Caller]:
        """Open a session for a browser that sent a key; returns the cookie's token and the client."""
        caller = self._caller_of(key)
        match = KEY.fullmatch(key)
        assert match is not None
        token = secrets.token_urlsafe(32)
        self._store.insert_session(_digest(token), match[1], time.time() + SESSION_SECONDS)
        return token, caller

    def close_session(self, token: str) -> None:
        """End a session; its cookie becomes invalid."""
        self._store.end_session(_digest(token))

    def _caller_of(self, key: str) -> Caller:
        match = KEY.fullmatch(key)
        row = self._store.key(match[1]) if match is not None else None
        stored = row["hash"] if row is not None else _digest("")
        matches = hmac.compare_digest(stored, _digest(match[2] if match is not None else "-"))
        if row is None or not matches or row["revoked"] is not None:
            raise Problem("unauthenticated", "this API key is unknown or was revoked")
        return Caller(row["name"], row["role"])

    def refuse_other_sites(self, headers: Any, method: str) -> None:
        """Raise Problem if a page of another site sent the request through the user's browser.

        On loopback without keys, the Host header must name this machine: this prevents DNS rebinding, where the name of
        another site resolves to 127.0.0.1.
        """
        host = headers.get("host", "")
        if self._loopback and not self.needs_key and not is_loopback(_parts(f"//{host}")[0]):
            raise Problem("cross-site", f"this service only answers to localhost; the request was for '{host[:100]}'")
        if method in SAFE_METHODS:
            return
        origin = headers.get("origin")
        if origin is not None and _parts(origin)[1] != host:
            raise Problem("cross-site", f"pages of {origin[:100]} may not send this request")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Problem("cross-site", "pages of other sites may not send this request")


def _parts(url: str) -> tuple[str, str]:
    """Host, and host with port, of an untrusted URL; empty if it is invalid."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.netloc
    except ValueError:
        return "", ""


def _key_of(headers: Any) -> str | None:
    """The API key of a request; None without one."""
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        return str(key.strip()) if scheme.lower() == "bearer" else ""
    key = headers.get("x-api-key")
    return None if key is None else str(key)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
