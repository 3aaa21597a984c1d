from __future__ import annotations

import hashlib
import hmac
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from patchsvdd.apps.watch.command import Command
from patchsvdd.apps.watch.delivery import Channel, Delivery, NotDelivered
from patchsvdd.apps.watch.ledger import Ledger
from patchsvdd.apps.watch.outbox import Message, Outbox, waiting_by_channel
from patchsvdd.apps.watch.webhook import Webhook
from patchsvdd.core.errors import ConfigError
from support.waiting import wait_until
from support.watching import arrival, ledger_of, row, serving


def deliver(channel: Channel, ledger: Path, until: Callable[[], bool] | None = None) -> list[str]:
    """Work through the outbox; what was said meanwhile."""
    notes: list[str] = []
    delivery = Delivery(channel, ledger, notes.append, first_pause=0.01, longest_pause=0.05)
    try:
        wait_until(until or (lambda: not waiting_by_channel(ledger)))
    finally:
        delivery.stop(5)
    return notes


def refusals(ledger: Path) -> list[str]:
    """Why messages were given up."""
    outbox = Outbox(ledger, "")
    found = outbox._connection.execute("SELECT refused FROM outbox WHERE refused IS NOT NULL").fetchall()
    outbox.close()
    return [reason for (reason,) in found]


# The webhook


def test_every_message_arrives_whatever_the_server_does_first(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, 5, "webhook")
    with serving(500, "hang", 503, "hang up", 429, 408) as server:
        notes = deliver(Webhook(server.url, timeout=0.3), ledger)
    assert sorted(one["image"] for one in server.accepted) == [f"{index}.png" for index in range(5)]
    assert len(server.requests) == 11
    assert "HTTP 500" in notes[0]
    assert "trying again" in notes[0]
    assert "delivering again" in notes[-1]
    assert refusals(ledger) == []


def test_a_server_that_is_down_is_told_everything_once_it_is_up(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, 3, "webhook")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    notes: list[str] = []
    delivery = Delivery(
        Webhook(f"http://127.0.0.1:{port}/"), ledger, notes.append, first_pause=0.01, longest_pause=0.05
    )
    wait_until(lambda: len(notes) >= 3)
    assert "refused" in notes[0]
    assert waiting_by_channel(ledger) == {"webhook": 3}
    with serving(port=port) as server:
        wait_until(lambda: not waiting_by_channel(ledger))
        assert len(server.accepted) == 3
    delivery.stop(5)


@pytest.mark.parametrize("answer", [400, 404, 302])
def test_a_message_that_is_not_wanted_is_given_up_after_some_attempts(tmp_path: Path, answer: int) -> None:
    ledger = ledger_of(tmp_path, 1, "webhook")
    with serving(*[answer] * 10) as server:
        notes = deliver(Webhook(server.url), ledger)
        assert len(server.requests) == 10
    assert refusals(ledger) == [notes[-1].split("given up: ")[1]]
    assert str(answer) in notes[-1]


def test_one_bad_message_does_not_hold_up_the_others(tmp_path: Path) -> None:
    class Picky:
        name = "webhook"
        arrived: list[int]

        def deliver(self, message: Message) -> None:
            if message.number == 1:
                raise NotDelivered("HTTP 500")
            self.arrived.append(message.number)

        def close(self) -> None:
            pass

    ledger = ledger_of(tmp_path, 4, "webhook")
    channel = Picky()
    channel.arrived = []
    deliver(channel, ledger, until=lambda: len(channel.arrived) == 3)
    assert channel.arrived == [2, 3, 4]
    assert waiting_by_channel(ledger) == {"webhook": 1}


def test_requests_carry_an_id_and_a_signature(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, 1, "webhook")
    with serving(500) as server:
        deliver(Webhook(server.url, secret="hush"), ledger)
    first, second = server.requests
    headers, body = second
    assert first[0]["Idempotency-Key"] == headers["Idempotency-Key"] == json.loads(body)["delivery"]
    signature = hmac.new(b"hush", body, hashlib.sha256).hexdigest()
    assert headers["X-Patchsvdd-Signature"] == f"sha256={signature}"
    assert headers["Content-Type"] == "application/json"
    assert b"hush" not in body


def test_what_was_not_delivered_survives_the_process(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, 2, "webhook")
    with serving(*[503] * 1000) as server:
        deliver(Webhook(server.url), ledger, until=lambda: len(server.requests) > 2)
    with serving() as server:
        deliver(Webhook(server.url), ledger)
        assert len(server.accepted) == 2


def test_new_rows_are_told_at_once_and_writing_them_waits_for_nobody(tmp_path: Path) -> None:
    path = ledger_of(tmp_path, 1, "webhook")
    with serving("hang") as server:
        delivery = Delivery(Webhook(server.url, timeout=15), path)
        wait_until(lambda: server.requests)
        ledger = Ledger(path, tmp_path / "camera")
        start = time.monotonic()
        for index in range(20):
            ledger.add(*arrival(tmp_path / "camera", f"new{index}.png", b"1"), row("new"), ["webhook"])
        assert time.monotonic() - start < 10  # the server has not answered yet
        assert not server.accepted
        server.released.set()
        delivery.wake()
        wait_until(lambda: len(server.accepted) == 21)
        delivery.stop(5)
        ledger.close()


@pytest.mark.parametrize("url", ["ftp://host/x", "host/x", "file:///etc/passwd", "http://host:port/", "http://häuser/"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="`webhook`"):
        Webhook(url)


def test_passwords_in_urls_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Webhook("https://me:hush@host/")
    assert "hush" not in str(caught.value)


# The command


def command(program: str) -> str:
    return f"'{sys.executable}' -c '{program}'"


def test_a_command_gets_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHSVDD_WEBHOOK_SECRET", "hush")
    ledger = ledger_of(tmp_path, 2, "command")
    out = tmp_path / "told"
    program = (
        "import json, os, sys; told = json.load(sys.stdin); "
        f'open("{out}", "a").write(os.environ["PATCHSVDD_IMAGE"] + " " + told["image"] + " " '
        '+ os.environ.get("PATCHSVDD_WEBHOOK_SECRET", "-") + "\\n")'
    )
    assert deliver(Command(command(program)), ledger) == []
    assert out.read_text() == "0.png 0.png -\n1.png 1.png -\n"


def test_a_command_that_fails_is_reported_and_not_repeated(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, 1, "command")
    out = tmp_path / "runs"
    program = f'import sys; open("{out}", "a").write("1"); sys.exit("no belt")'
    [note] = deliver(Command(command(program)), ledger)
    assert "ended with code 1 (no belt)" in note
    assert out.read_text() == "1"


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, 1, "command")
    start = time.monotonic()
    [note] = deliver(Command("sh -c 'sleep 60 & wait'", timeout=0.2), ledger)
    assert "was killed after" in note
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("line", ["", "'", "no-such-program-anywhere --x"])
def test_a_command_that_cannot_be_run_is_refused_at_once(line: str) -> None:
    with pytest.raises(ConfigError, match="`on_anomaly`"):
        Command(line)


def test_deliveries_are_threads_that_end(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, 0, "command")
    delivery = Delivery(Command("true"), ledger)
    delivery.stop(5)
    assert not [thread for thread in threading.enumerate() if thread.name == "delivery command"]
