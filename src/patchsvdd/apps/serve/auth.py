"""Who may do what: API keys for machines, sessions for browsers, and nothing from other sites.

A key is ``psk_<number>_<secret>``. The database holds the SHA-256 of the secret, which has 256 random bits: there is
nothing to guess, so that a slow hash would protect nothing. A browser shows its key once and gets a cookie that scripts
cannot read and other sites cannot send.
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
"""Each may do what those before it may."""
KEY = re.compile(r"psk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
KEY_NAME = re.compile(r"[\w][\w .@-]{0,99}")
COOKIE = "patchsvdd_session"
SESSION_SECONDS = 12 * 3600.0
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether it has at least that role."""
        return ROLES.index(self.role) >= ROLES.index(role)


LOCAL = Caller("local", "admin")
"""Anyone on this machine, where no key is asked for."""


def add_key(store: Store, name: str, role: str) -> str:
    """A new key, which is shown once and stored nowhere."""
    if role not in ROLES:
        raise ConfigError(f"`role` must be one of {', '.join(ROLES)}; got '{role}'")
    if not KEY_NAME.fullmatch(name):
        raise ConfigError(f"a key's name has 1 to 100 letters, digits, spaces or any of . _ @ -; got '{name}'")
    number, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    row = {"id": number, "name": name, "role": role, "hash": _digest(secret), "created": time.time()}
    if not store.insert_key(row):
        raise ConfigError(f"there is a key named '{name}' already, perhaps revoked; choose another name")
    return f"psk_{number}_{secret}"


class Authenticator:
    """Decides who a request comes from, and whether it may come at all."""

    def __init__(self, store: Store, needs_key: bool, host: str, secure_cookies: bool = False) -> None:
        self.needs_key = needs_key
        self.secure_cookies = secure_cookies
        self._store = store
        self._loopback = is_loopback(host)

    def caller(self, headers: Any, cookies: Any, method: str) -> Caller:
        """Who asks; a Problem if that is not known or not wanted."""
        self.refuse_other_sites(headers, method)
        if not self.needs_key:
            return LOCAL
        shown = _shown(headers)
        if shown is not None:
            return self._of_key(shown)
        session = cookies.get(COOKIE)
        if session:
            row = self._store.session(_digest(session))
            if row is not None and row["revoked"] is None:
                return Caller(row["name"], row["role"])
        raise Problem("unauthenticated", "send an API key: Authorization: Bearer psk_… (patchsvdd key add makes one)")

    def open_session(self, key: str) -> tuple[str, Caller]:
        """A cookie for a browser that shows a key."""
        caller = self._of_key(key)
        match = KEY.fullmatch(key)
        assert match is not None
        token = secrets.token_urlsafe(32)
        self._store.insert_session(_digest(token), match[1], time.time() + SESSION_SECONDS)
        return token, caller

    def close_session(self, token: str) -> None:
        """The cookie is worth nothing from now on."""
        self._store.end_session(_digest(token))

    def _of_key(self, key: str) -> Caller:
        match = KEY.fullmatch(key)
        row = self._store.key(match[1]) if match is not None else None
        stored = row["hash"] if row is not None else _digest("")
        right = hmac.compare_digest(stored, _digest(match[2] if match is not None else "-"))
        if row is None or not right or row["revoked"] is not None:
            raise Problem("unauthenticated", "this API key is not known, or was revoked")
        return Caller(row["name"], row["role"])

    def refuse_other_sites(self, headers: Any, method: str) -> None:
        """A page of another site may not use the browser of someone who may use this service.

        On loopback without keys the name that the browser asked for must be this machine's: another site's name that
        resolves to 127.0.0.1 is a trick.
        """
        host = headers.get("host", "")
        if self._loopback and not self.needs_key and not is_loopback(_parts(f"//{host}")[0]):
            raise Problem("cross-site", f"this service answers to localhost alone; it was called '{host[:100]}'")
        if method in SAFE_METHODS:
            return
        origin = headers.get("origin")
        if origin is not None and _parts(origin)[1] != host:
            raise Problem("cross-site", f"a page of {origin[:100]} may not change anything here")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Problem("cross-site", "a page of another site may not change anything here")


def _parts(url: str) -> tuple[str, str]:
    """Host, and host with port, of a URL that anyone may have made up."""
    try:
        found = urlsplit(url)
        return found.hostname or "", found.netloc
    except ValueError:
        return "", ""


def _shown(headers: Any) -> str | None:
    """The key of a request; None without one."""
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        return str(key.strip()) if scheme.lower() == "bearer" else ""
    key = headers.get("x-api-key")
    return None if key is None else str(key)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
