"""Results published to an MQTT broker, as JSON, with quality of service 1."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from patchsvdd.apps.watch.delivery import NotDelivered
from patchsvdd.apps.watch.outbox import Message
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.extras import require

if TYPE_CHECKING:
    from paho.mqtt.client import Client

TIMEOUT = 10.0
PASSWORD = "PATCHSVDD_MQTT_PASSWORD"
"""Environment variable that holds the password of the URL's user."""
PORTS = {"mqtt": 1883, "mqtts": 8883}
EXAMPLE = "mqtt://[user@]host[:port]/topic (or mqtts:// for TLS)"


class Mqtt:
    """One message per row on one topic; delivered when the broker has acknowledged it."""

    name = "mqtt"

    def __init__(self, url: str, password: str | None = None, timeout: float = TIMEOUT) -> None:
        require("paho.mqtt.client", "mqtt", "`mqtt`")
        try:
            parts = urlsplit(url)
            self._host, port = parts.hostname or "", parts.port
        except ValueError:
            raise ConfigError(f"`mqtt` must be a URL like {EXAMPLE}; its port is not a number") from None
        if parts.password is not None:
            raise ConfigError(f"`mqtt` must not contain a password, which other users could read; set {PASSWORD}")
        self._topic = unquote(parts.path.removeprefix("/"))
        unusable = parts.fragment or parts.query or set(self._topic) & set("+#\0") or url.endswith("#")
        if parts.scheme not in PORTS or not self._host or not self._topic or unusable:
            raise ConfigError(f"`mqtt` must be a URL like {EXAMPLE}, with a topic without + and #; got '{url}'")
        self._port = port or PORTS[parts.scheme]
        self._encrypted = parts.scheme == "mqtts"
        self._user, self._password = parts.username, password
        self._timeout = timeout
        self._client: Client | None = None

    def deliver(self, message: Message) -> None:
        """Return when the broker has acknowledged the message."""
        self._client = self._client or self._connect()
        try:
            publication = self._client.publish(self._topic, message.body, qos=1)
            publication.wait_for_publish(self._timeout)
            acknowledged = publication.is_published()
        except (OSError, ValueError, RuntimeError) as error:
            self.close()
            raise NotDelivered(str(error) or type(error).__name__) from None
        if not acknowledged:
            self.close()  # this client would send its queued messages again
            raise NotDelivered(f"no acknowledgement within {self._timeout:g} s")

    def close(self) -> None:
        """Disconnect from the broker."""
        if self._client is not None:
            client, self._client = self._client, None
            client.disconnect()
            client.loop_stop()

    def _connect(self) -> Client:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        client = Client(CallbackAPIVersion.VERSION2, client_id=f"patchsvdd-{secrets.token_hex(6)}")
        if self._user is not None:
            client.username_pw_set(unquote(self._user), self._password)
        if self._encrypted:
            client.tls_set()
        client.connect_timeout = self._timeout
        answered = threading.Event()
        answers: list[Any] = []

        def on_connect(_client: Client, _data: Any, _flags: Any, answer: Any, _properties: Any) -> None:
            answers.append(answer)
            answered.set()

        client.on_connect = on_connect
        try:
            client.connect(self._host, self._port)
        except (OSError, ValueError) as error:
            raise NotDelivered(str(error) or type(error).__name__) from None
        client.loop_start()
        if answered.wait(self._timeout) and not answers[0].is_failure:
            return client
        client.disconnect()
        client.loop_stop()
        raise NotDelivered(f"the broker refused: {answers[0]}" if answers else "the broker does not answer")
