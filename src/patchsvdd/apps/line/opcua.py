"""A line as an OPC UA server."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from patchsvdd.apps.line.bus_settings import OpcUaSettings
from patchsvdd.apps.line.bus_state import BusState, LoopThread
from patchsvdd.apps.line.handshake import Handshake
from patchsvdd.apps.line.opcua_certificate import application_uri, days_left, load_certificate, uri_in
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.extras import require
from patchsvdd.core.version import __version__

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from patchsvdd.apps.line.opcua_nodes import Nodes

EXPIRES_SOON = 30.0
"""Days before its end when a certificate becomes a trouble."""


class OpcUaServer:
    """The signals of a handshake as OPC UA nodes, served in a thread of its own.

    All values of a result are written before ResultValid becomes 1, and ResultValid becomes 0 before any of them
    changes. All values of a write request are taken over before Trigger is acted upon.
    """

    def __init__(self, handshake: Handshake, settings: OpcUaSettings) -> None:
        require("asyncua", "opcua", "`opcua`")
        self._handshake = handshake
        self._settings = settings
        self._thread: LoopThread | None = None
        self._nodes: Nodes | None = None
        self._certificate: Certificate | None = None

    def start(self) -> None:
        """Listen; raises ConfigError if the address or the certificate cannot be used."""
        logging.getLogger("asyncua").setLevel(logging.CRITICAL)  # it logs every malformed request
        self._thread = LoopThread("opcua")
        try:
            self._nodes = self._thread.call(self._open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all connections and stop listening."""
        thread, self._thread = self._thread, None
        nodes, self._nodes = self._nodes, None
        if thread is not None:
            if nodes is not None:
                thread.call(nodes.close())
            thread.close()

    def state(self) -> BusState:
        """Where the server listens, how many sessions there are, and whether its certificate expires soon."""
        settings, nodes = self._settings, self._nodes
        if nodes is None:
            return BusState(f"opc.tcp://{settings.host}:{settings.port}", 0, "not started")
        trouble = None
        if self._certificate is not None and (left := days_left(self._certificate)) < EXPIRES_SOON:
            trouble = "its certificate has expired" if left < 0 else f"its certificate expires in {left:.0f} days"
        return BusState(f"opc.tcp://{settings.host}:{nodes.port}", nodes.access.sessions, nodes.trouble or trouble)

    async def _open(self) -> Nodes:
        from asyncua import Server, ua

        from patchsvdd.apps.line.opcua_access import Access, Connections
        from patchsvdd.apps.line.opcua_nodes import Nodes

        settings = self._settings
        access = Access(settings)
        uri = application_uri(settings.name)
        if settings.certificate is not None and settings.private_key is not None:
            self._certificate = load_certificate(settings.certificate)
            access.certificate = self._certificate
            access.private_key = _private_key(settings, self._certificate)
            uri = uri_in(self._certificate) or uri
        server = Server(iserver=access)
        await server.init()
        await server.set_application_uri(uri)
        server.product_uri, server.name, server.manufacturer_name = "urn:patchsvdd", "patchsvdd line", "patchsvdd"
        server.application_type = ua.ApplicationType.Server
        now = datetime.now(UTC)
        await server.set_build_info(server.product_uri, "patchsvdd", server.name, __version__, __version__, now)
        server.set_endpoint(f"opc.tcp://{settings.host}:{settings.port}")
        policies = {
            "None": ua.SecurityPolicyType.NoSecurity,
            "Basic256Sha256": ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt,
            "Aes256Sha256RsaPss": ua.SecurityPolicyType.Aes256Sha256RsaPss_SignAndEncrypt,
        }
        server.set_security_policy([policies[one] for one in settings.security])
        nodes = Nodes(server, access, self._handshake, settings.name)
        await nodes.build()
        # As Server.start does it, with other connections, and without a traceback in the log if the port is in use
        await server._setup_server_nodes()
        await access.start()
        connections = Connections(access, settings.host, settings.port, server.limits)
        connections.set_policies(server._policies)
        server.bserver = connections
        try:
            await connections.start()
        except OSError as error:
            await access.stop()
            raise ConfigError(
                f"OPC UA cannot listen on {settings.host}, port {settings.port}: {os.strerror(error.errno or 0)}; "
                "change `host` or `port` of [opcua]"
            ) from None
        nodes.port = connections.port
        return nodes


def _private_key(settings: OpcUaSettings, certificate: Certificate) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    assert settings.private_key is not None
    try:
        key = load_pem_private_key(settings.private_key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "it is no PEM file without a password"
        raise ConfigError(f"cannot read `private_key` {settings.private_key} of [opcua]: {reason}") from None
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"`private_key` of [opcua] does not belong to `certificate` {settings.certificate}")
    if days_left(certificate) < 0:
        raise ConfigError(f"`certificate` {settings.certificate} of [opcua] has expired; create a new one")
    return key
