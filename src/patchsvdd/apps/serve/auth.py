"""Authentication: API keys for machines, users with passwords for people, sessions for browsers, other sites.

A key is ``psk_<number>_<secret>``. The database stores the SHA-256 of the secret, which has 256 random bits and cannot
be guessed, so a slow hash would not add protection. People have a name and a password, or a PIN, which can be guessed:
``passwords`` hashes them slowly and ``sign_in_limits`` limits the attempts. A browser sends its key or password once
and gets a cookie that scripts cannot read and other sites cannot send.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.people_store import PeopleStore, Row, folded
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.settings import Settings, is_loopback
from patchsvdd.apps.serve.sign_in_limits import Failures, SignInLimits, network
from patchsvdd.apps.serve.telemetry import Telemetry
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.password_hash import matches

LOG = logging.getLogger("patchsvdd.apps.serve")
T = TypeVar("T")
Role = Literal["inspect", "review", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each role includes the permissions of those before it."""
KEY = re.compile(r"psk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
KEY_NAME = re.compile(r"[\w][\w .@-]{0,99}")
SESSION_SECONDS = 12 * 3600.0
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
USE_SECONDS = 600.0
"""How often the use of a key is recorded."""
HASHING, WAITING = 2, 32
"""Passwords that are checked at a time, and that may wait for it."""


@dataclass(frozen=True)
class Caller:
    """The client of a request."""

    name: str
    role: Role
    kind: Literal["local", "key", "user"] = "key"
    id: str = ""
    """The number of the key or the user; empty on this machine."""

    @property
    def actor(self) -> Actor:
        """The client as the audit chain names it."""
        return Actor(self.name, self.kind, self.id)

    def may(self, role: Role) -> bool:
        """Whether the client has at least ``role``."""
        return ROLES.index(self.role) >= ROLES.index(role)


LOCAL = Caller("local", "admin", "local")
"""Any client on this machine, if no key is required."""


def cookie_name(port: int) -> str:
    """Name of the session's cookie; browsers send cookies to all ports of a host, so each service has its own."""
    return f"patchsvdd_session_{port}"


def add_key(store: PeopleStore, name: str, role: str, by: Actor | None = None) -> str:
    """Create a key and return it; only its hash is stored."""
    if role not in ROLES:
        raise ConfigError(f"`role` must be one of {', '.join(ROLES)}; got '{role}'")
    if not KEY_NAME.fullmatch(name):
        raise ConfigError(f"a key's name must have 1 to 100 letters, digits, spaces or any of . _ @ -; got '{name}'")
    number, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    row = {"id": number, "name": name, "role": role, "hash": _digest(secret), "created": time.time()}
    if not store.insert_key(row, by):
        raise ConfigError(f"a key named '{name}' already exists (it may be revoked); choose another name")
    return f"psk_{number}_{secret}"


class Authenticator:
    """Identifies the client of a request and rejects cross-site requests."""

    def __init__(self, store: PeopleStore, settings: Settings, telemetry: Telemetry) -> None:
        self.needs_key = settings.needs_key
        self.secure_cookies = settings.secure_cookies
        self.cookie = cookie_name(settings.port)
        self.limits = SignInLimits()
        self._store = store
        self._sign_ins = telemetry.sign_ins
        self._loopback = is_loopback(settings.host)
        self._wrong_keys = Failures(free=5, longest=900.0)
        self._used: dict[str, float] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(HASHING, thread_name_prefix="password")
        self._waiting = 0

    def close(self) -> None:
        """Finish the passwords that are being checked."""
        self._threads.shutdown()

    # Requests

    def caller(self, headers: Any, cookies: Any, method: str, address: str = "") -> Caller:
        """The client of a request; raises Problem if it is unknown or cross-site."""
        self.refuse_other_sites(headers, method)
        if not self.needs_key:
            return LOCAL
        key = _key_of(headers)
        if key is not None:
            row, wrong = self._key(key)
            if row is None:
                self._note_wrong_key(address, wrong)
                raise Problem("unauthenticated", "this API key is unknown or was revoked")
            return Caller(row["name"], row["role"], id=row["id"])
        session = cookies.get(self.cookie)
        if session:
            row = self._store.session(_digest(session))
            if row is not None:
                return Caller(row["name"], row["role"], "user" if row["user"] else "key", row["id"])
        raise Problem("unauthenticated", "send an API key: Authorization: Bearer psk_… (see `patchsvdd key`)")

    def address(self, scope: Any) -> str:
        """The address of a request's client.

        Behind a proxy (`secure_cookies`) it is the last one in X-Forwarded-For, which is what the proxy has added.
        """
        if self.secure_cookies:
            said = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
            last = said[-1].decode("latin-1").rpartition(",")[2].strip() if said else ""
            try:
                return str(ipaddress.ip_address(last))
            except ValueError:
                pass
        client = scope.get("client")
        return str(client[0]) if client else ""

    # Sessions

    async def slowly(self, work: Callable[..., T], *args: Any) -> T:
        """Run work that hashes a password in one of two threads; raises Problem if too many wait for it."""
        if self._waiting >= WAITING:
            raise Problem("too-many-attempts", "too many people are signing in; try again", retry_after=5)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args))
        finally:
            self._waiting -= 1

    def open_session(self, key: str, address: str = "") -> tuple[str, Caller]:
        """Open a session for a browser that sent a key; returns the cookie's token and the client."""
        row, wrong = self._key(key)
        if row is None:  # a valid key is accepted whatever failed before
            self._attempt(address, None)
            self._failed(address, wrong)
            raise Problem("unauthenticated", "this API key is unknown or was revoked")
        self.limits.succeeded(address, None)
        token = secrets.token_urlsafe(32)
        self._store.insert_session(_digest(token), row["id"], time.time() + SESSION_SECONDS)
        self._succeeded(address, f"key '{row['name']}'")
        return token, Caller(row["name"], row["role"], id=row["id"])

    def sign_in(self, name: str, password: str, address: str = "") -> tuple[str, Caller]:
        """Open a session for a user; returns the cookie's token and the client."""
        self._attempt(address, name)
        user = self._store.user(name)
        right = matches(password, None if user is None else user["hash"])
        if user is None or not right:
            self._failed(address, "unknown name" if user is None else f"wrong password for user '{user['name']}'")
            raise Problem("unauthenticated", "the name or the password is wrong")
        if user["disabled"] is not None:
            self._failed(address, f"user '{user['name']}' is disabled")
            raise Problem("unauthenticated", "this user is disabled; ask an administrator")
        token = self._session_of(user)
        self.limits.succeeded(address, folded(name))
        self._succeeded(address, f"user '{user['name']}'")
        return token, Caller(user["name"], user["role"], "user", user["id"])

    def require_password(self, name: str, password: str, address: str = "") -> None:
        """Raise Problem if this is not the user's password; failures count like failed sign-ins."""
        self._attempt(address, name)
        user = self._store.user(name)
        if not matches(password, None if user is None else user["hash"]):
            self._failed(address, f"wrong current password for user '{name}'")
            raise Problem("invalid-request", "the current password is wrong")
        self.limits.succeeded(address, folded(name))

    def renewed_session(self, name: str) -> str:
        """The token of a new session for a user who has changed their password."""
        user = self._store.user(name)
        if user is None:
            raise Problem("unauthenticated", "this user was deleted")
        return self._session_of(user)

    def close_session(self, token: str) -> None:
        """End a session; its cookie becomes invalid."""
        self._store.end_session(_digest(token))

    def _session_of(self, user: Row) -> str:
        token = secrets.token_urlsafe(32)
        if not self._store.insert_user_session(_digest(token), user, time.time() + SESSION_SECONDS):
            raise Problem("unauthenticated", "this user has just been changed; sign in again")
        return token

    # Keys

    def _key(self, key: str) -> tuple[Row | None, str]:
        """The row of a valid key, or None and what is wrong with it; without the secret."""
        match = KEY.fullmatch(key)
        row = self._store.key(match[1]) if match is not None else None
        stored = row["hash"] if row is not None else _digest("")
        right = hmac.compare_digest(stored, _digest(match[2] if match is not None else "-"))
        if match is None:
            return None, "not an API key"
        if row is None:
            return None, "unknown API key"
        if not right:
            return None, f"wrong secret for API key {match[1]}"
        if row["revoked"] is not None:
            return None, f"revoked API key {match[1]}"
        now = time.monotonic()
        if now - self._used.get(match[1], -USE_SECONDS) >= USE_SECONDS:
            self._used[match[1]] = now
            self._store.note_use(match[1])
        return row, ""

    def _note_wrong_key(self, address: str, wrong: str) -> None:
        """Count a wrong key, and log it unless this address has sent many: a flood must not fill the log."""
        self._sign_ins.labels("wrong-key").inc()
        with self._lock:
            now, where = time.monotonic(), network(address)
            if self._wrong_keys.wait(where, now):
                return
            self._wrong_keys.add(where, now)
        LOG.warning("request refused from %s: %s", _shown(address), wrong)

    # Attempts

    def _attempt(self, address: str, name: str | None) -> None:
        """Raise Problem if too many sign-ins failed."""
        wait = self.limits.attempt(address, None if name is None else folded(name))
        if wait:
            self._sign_ins.labels("refused").inc()
            words = f"{max(1, round(wait))} s" if wait < 90 else f"{round(wait / 60)} min"
            raise Problem("too-many-attempts", f"too many sign-ins have failed; try again in {words}", retry_after=wait)

    def _failed(self, address: str, what: str) -> None:
        self._sign_ins.labels("failed").inc()
        LOG.warning("sign-in failed from %s: %s", _shown(address), what)

    def _succeeded(self, address: str, who: str) -> None:
        self._sign_ins.labels("ok").inc()
        LOG.info("sign-in from %s: %s", _shown(address), who)

    # Other sites

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


def _shown(address: str) -> str:
    """An address for the log; it comes from the network, so anything but an address is left out."""
    try:
        return str(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return "an unknown address"


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
