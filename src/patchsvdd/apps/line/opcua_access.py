"""Who may connect to a line over OPC UA, and what they may do there.

asyncua checks the security policy, but leaves these to the application: that a session is on a channel as secure as the
settings demand, that the channel's certificate is trusted, and that a client which only reads cannot write or call.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from asyncua import ua
from asyncua.common.utils import ServiceError
from asyncua.crypto.permission_rules import User, UserRole
from asyncua.server.binary_server_asyncio import BinaryServer, OPCUAProtocol
from asyncua.server.internal_server import InternalServer
from asyncua.server.internal_session import InternalSession

from patchsvdd.apps.line.bus_settings import OpcUaSettings, Role
from patchsvdd.apps.line.opcua_certificate import TrustedClients
from patchsvdd.core.password_hash import matches

LOG = logging.getLogger("patchsvdd.apps.line")
MOST_BYTES = 1 << 17
"""Of a message that is not complete yet."""
MOST_SESSIONS = 50
MOST_SUBSCRIPTIONS = 100
MOST_QUEUED = 100
"""Values per monitored item, and messages per subscription, that wait for a client which does not fetch them."""
ATTEMPTS = 3
"""Wrong passwords from one address, after which it has to wait."""
WAIT = 30.0
MOST_ADDRESSES = 1000


def status(name: str) -> ua.StatusCode:
    """The status code with this name."""
    return ua.StatusCode(getattr(ua.StatusCodes, name))


@dataclass
class BusUser(User):
    """A user of asyncua with a role of ours."""

    operates: bool = False


class Users:
    """Names, passwords and roles (asyncua's user manager)."""

    def __init__(self, settings: OpcUaSettings) -> None:
        self._users = {user.name: user for user in settings.users}
        self._anonymous: Role | None = settings.anonymous
        self._key = secrets.token_bytes(32)
        self._seen: dict[str, bytes] = {}
        """Passwords that were right, under a fast hash: a PLC that connects again must not hold up the bus."""

    def get_user(
        self, _server: InternalServer, username: str | None = None, password: str | None = None, **_more: Any
    ) -> BusUser | None:
        """The user with this name and password; the anonymous one if there is no name; None if neither may connect."""
        if username is None:
            return self._user("anonymous", self._anonymous) if self._anonymous else None
        user = self._users.get(username)
        given = password or ""
        fast = hmac.digest(self._key, given.encode("utf-8", "surrogatepass"), hashlib.sha256)
        if not hmac.compare_digest(self._seen.get(username, b""), fast):
            if not matches(given, user.password if user else None):
                return None
            self._seen[username] = fast
        return self._user(username, user.role) if user else None

    @staticmethod
    def _user(name: str, role: Role) -> BusUser:
        return BusUser(role=UserRole.User, name=name, operates=role == "operate")


class Session(InternalSession):
    """A client's session."""

    iserver: Access

    async def create_session(self, params: Any, sockname: Any = None) -> Any:
        """Refuse clients beyond the limit."""
        if self.iserver.sessions > MOST_SESSIONS:
            await self.close_session()
            raise ServiceError(ua.StatusCodes.BadTooManySessions)
        return await super().create_session(params, sockname)

    def activate_session(self, params: Any, peer_certificate: bytes | None) -> Any:
        """Let in a client with a trusted certificate and the right password."""
        self.iserver.check_channel(peer_certificate)
        with self.iserver.counting_failures(self._address):
            return super().activate_session(params, peer_certificate)

    async def write(self, params: Any) -> list[ua.StatusCode]:
        """Write what the client may write, then act on it."""
        if not self._operates:
            return [status("BadUserAccessDenied") for _ in params.NodesToWrite]
        results: list[ua.StatusCode] = []
        changed: dict[ua.NodeId, Any] = {}
        for one in params.NodesToWrite:
            result = self.iserver.refusal(one)
            if result is None:
                (result,) = await super().write(ua.WriteParameters(NodesToWrite=[one]))
                if result.is_good():
                    changed[one.NodeId] = one.Value.Value.Value
            results.append(result)
        if changed:
            await self.iserver.on_write(changed)
        return results

    async def call(self, params: Any) -> list[ua.CallMethodResult]:
        """Call methods, if the client may."""
        if not self._operates:
            denied = status("BadUserAccessDenied")
            return [ua.CallMethodResult(StatusCode=denied) for _ in params]
        return await super().call(params)

    async def create_subscription(self, params: Any, callback: Any, request_callback: Any = None) -> Any:
        """Create a subscription whose messages have the changes in the order in which they happened."""

        async def in_order(result: Any, *request: Any) -> None:
            for data in result.NotificationMessage.NotificationData:
                if isinstance(data, ua.DataChangeNotification):
                    data.MonitoredItems.sort(key=_when)
            await callback(result, *request)

        return await super().create_subscription(params, in_order, request_callback)

    @property
    def _address(self) -> str:
        return str(self.name[0] if isinstance(self.name, tuple) else self.name)

    @property
    def _operates(self) -> bool:
        return isinstance(self.user, BusUser) and self.user.operates


class Access(InternalServer):
    """asyncua's server, with such sessions."""

    def __init__(self, settings: OpcUaSettings) -> None:
        super().__init__(user_manager=Users(settings))  # type: ignore[arg-type]
        self._settings = settings
        self._trusted = TrustedClients(settings.trusted_clients) if settings.trusted_clients else None
        self._failures: dict[str, tuple[int, float]] = {}
        self.refusal: Callable[[Any], ua.StatusCode | None] = lambda _one: None
        """Why a value must not be written."""
        self.on_write: Callable[[dict[ua.NodeId, Any]], Awaitable[None]] = _ignore
        """Called after all values of a request were written."""
        self.allow_remote_admin = False
        self.max_connections = 2 * MOST_SESSIONS
        self.max_subscriptions = MOST_SUBSCRIPTIONS
        self.max_unacked_messages_per_subscription = MOST_QUEUED
        self.max_monitored_item_queue_size = MOST_QUEUED
        tokens = (ua.UserNameIdentityToken,) if settings.users else ()
        self.supported_tokens = (*tokens, ua.AnonymousIdentityToken) if settings.anonymous else tokens

    @property
    def sessions(self) -> int:
        """How many clients have a session."""
        return len(self._external_sessions)

    def create_session(self, name: str, user: User | None = None, external: bool = False) -> InternalSession:
        """A session, with a token that nobody can guess: it is enough to enter the session from another connection."""
        session = Session(self, self.aspace, self.subscription_service, name, user=user or User(), external=external)
        self.unregister_external_session(session)
        session.auth_token = ua.NodeId(ua.ByteString(secrets.token_bytes(32)), ua.Int16(0), ua.NodeIdType.ByteString)
        if external:
            self.register_external_session(session)
        return session

    def register_server(self, _server: Any, _conf: Any = None) -> None:
        """Refuse: this is no discovery server."""
        raise ServiceError(ua.StatusCodes.BadServiceUnsupported)

    def check_channel(self, peer_certificate: bytes | None) -> None:
        """Raise if a session's channel is not as secure as the settings demand."""
        if not peer_certificate:  # an open channel
            if "None" not in self._settings.security:
                raise ServiceError(ua.StatusCodes.BadSecurityModeRejected)
        elif self._trusted is not None and not self._trusted.trusts(peer_certificate):
            raise ServiceError(ua.StatusCodes.BadCertificateUntrusted)

    def counting_failures(self, address: str) -> _Counting:
        """A context in which refused users count against an address; raises if there were too many."""
        count, since = self._failures.get(address, (0, 0.0))
        if time.monotonic() - since > WAIT:
            self._failures.pop(address, None)
        elif count >= ATTEMPTS:
            raise ServiceError(ua.StatusCodes.BadUserAccessDenied)
        return _Counting(self._failures, address)


class Protocol(OPCUAProtocol):
    """A connection that does not store more than one message of a client that never completes it."""

    def data_received(self, data: bytes) -> None:
        """Close the connection if what is left is longer than a message may be."""
        super().data_received(data)
        if len(self._buffer) > MOST_BYTES and self.transport is not None:
            self._buffer = b""
            self.transport.abort()


class Connections(BinaryServer):
    """asyncua's socket server, with such connections."""

    def _make_protocol(self) -> OPCUAProtocol:
        return Protocol(self.iserver, self._policies, self.clients, self.closing_tasks, self.limits)


def _when(item: Any) -> float:
    time_written = item.Value.ServerTimestamp
    return 0.0 if time_written is None else float(time_written.timestamp())


async def _ignore(_changed: dict[ua.NodeId, Any]) -> None:
    pass


class _Counting:
    def __init__(self, failures: dict[str, tuple[int, float]], address: str) -> None:
        self._failures = failures
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, _trace: object) -> None:
        if kind is None:
            self._failures.pop(self._address, None)
        else:
            reason = ua.status_codes.get_name_and_doc(error.code)[0] if isinstance(error, ServiceError) else error
            LOG.warning("OPC UA: refused a client at %s: %s", self._address, reason)
            if len(self._failures) >= MOST_ADDRESSES:
                self._failures.clear()
            self._failures[self._address] = self._failures.get(self._address, (0, 0.0))[0] + 1, time.monotonic()
