"""MQTT against a real broker: mosquitto, started here on a port of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.watch.delivery import Delivery, NotDelivered
from patchsvdd.apps.watch.mqtt import Mqtt
from patchsvdd.apps.watch.outbox import Outbox, waiting_by_channel
from patchsvdd.core.errors import ConfigError
from support.waiting import wait_until
from support.watching import ledger_of

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
real_broker = pytest.mark.skipif(MOSQUITTO is None, reason="no mosquitto here: apt-get install mosquitto")


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def broker(folder: Path, port: int, *lines: str) -> Iterator[None]:
    """A broker on a port of this machine; ``lines`` say who may use it."""
    config = folder / "mosquitto.conf"
    config.write_text("\n".join([f"listener {port} 127.0.0.1", "persistence false", *lines, ""]))
    process = subprocess.Popen(
        [str(MOSQUITTO), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: _answers(port))
        yield
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def subscribed(port: int, topic: str) -> Iterator[list[dict[str, Any]]]:
    """What arrives on a topic."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    heard: list[dict[str, Any]] = []
    ready = threading.Event()
    client = Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: heard.append(json.loads(message.payload))
    client.on_subscribe = lambda *_: ready.set()
    client.connect("127.0.0.1", port)
    client.subscribe(topic, qos=1)
    client.loop_start()
    assert ready.wait(10)
    try:
        yield heard
    finally:
        client.disconnect()
        client.loop_stop()


@real_broker
def test_rows_arrive_on_the_topic(tmp_path: Path, port: int) -> None:
    ledger = ledger_of(tmp_path, 3, "mqtt")
    with broker(tmp_path, port, "allow_anonymous true"), subscribed(port, "line/3/#") as heard:
        delivery = Delivery(Mqtt(f"mqtt://127.0.0.1:{port}/line/3/defects"), ledger)
        wait_until(lambda: len(heard) == 3)
        wait_until(lambda: not waiting_by_channel(ledger))
        delivery.stop(5)
    assert [one["image"] for one in heard] == ["0.png", "1.png", "2.png"]
    assert len({one["delivery"] for one in heard}) == 3


@real_broker
def test_a_broker_that_is_away_is_told_when_it_is_back(tmp_path: Path, port: int) -> None:
    ledger = ledger_of(tmp_path, 2, "mqtt")
    notes: list[str] = []
    channel = Mqtt(f"mqtt://127.0.0.1:{port}/defects", timeout=2)
    delivery = Delivery(channel, ledger, notes.append, first_pause=0.05, longest_pause=0.1)
    wait_until(lambda: len(notes) >= 2)
    assert waiting_by_channel(ledger) == {"mqtt": 2}
    with broker(tmp_path, port, "allow_anonymous true"), subscribed(port, "defects") as heard:
        wait_until(lambda: not waiting_by_channel(ledger))
        wait_until(lambda: len({one["delivery"] for one in heard}) == 2)
    delivery.stop(5)
    assert "delivering again" in notes[-1]


@real_broker
def test_a_broker_with_passwords_is_given_one(tmp_path: Path, port: int) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch(mode=0o600)
    map_builder = shutil.which("mosquitto_passwd")
    if map_builder is None:
        pytest.skip("no mosquitto_passwd here")
    subprocess.run([map_builder, "-b", str(passwords), "line", "hush"], check=True, capture_output=True)
    shutil.copy(passwords, tmp_path / "readable")
    (tmp_path / "readable").chmod(0o644)
    for parent in (tmp_path, *tmp_path.parents):
        if parent == tmp_path or parent.name.startswith(("pytest-", "popen-")):
            parent.chmod(0o755)  # a broker started by root gives its rights up before it reads the file
    outbox = Outbox(ledger_of(tmp_path, 1, "mqtt"), "mqtt")
    message = outbox.next()
    assert message is not None
    with broker(tmp_path, port, "allow_anonymous false", f"password_file {tmp_path / 'readable'}"):
        wrong = Mqtt(f"mqtt://line@127.0.0.1:{port}/defects", "wrong", timeout=5)
        with pytest.raises(NotDelivered, match=r"(?i)authori") as caught:
            wrong.deliver(message)
        assert caught.value.tries is None  # the broker's passwords may be mended
        right = Mqtt(f"mqtt://line@127.0.0.1:{port}/defects", "hush", timeout=5)
        right.deliver(message)
        right.close()
    outbox.close()


@pytest.mark.parametrize(
    "url", ["http://host/topic", "mqtt://host", "mqtt:///topic", "mqtt://host/a/#", "mqtt://host:port/topic"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="mqtt://"):
        Mqtt(url)


def test_passwords_in_urls_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="PATCHSVDD_MQTT_PASSWORD") as caught:
        Mqtt("mqtt://me:hush@host/topic")
    assert "hush" not in str(caught.value)


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    with pytest.raises(ConfigError, match=r'pip install "patchsvdd\[mqtt\]"'):
        Mqtt("mqtt://host/topic")
