"""What one client can take of the service: memory, connections, places in the queue; and what others can read."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from patchsvdd.apps.serve import http_protocol
from patchsvdd.apps.serve.auth import add_key
from patchsvdd.apps.serve.byte_budget import ByteBudget
from patchsvdd.apps.serve.inspection_queue import InspectionQueue
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Store
from patchsvdd.apps.serve.telemetry import Telemetry
from support.command_line import run
from support.serving import Process, Running, complete, memory_of, part, process, raw, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service

MEGABYTE = 1_000_000
INSPECT = "/v1/models/part/inspect"


@pytest.fixture(scope="module")
def guarded(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, str]]:
    """A process that requires keys, and a key of the smallest role."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    store = Store(Settings((), data).url)
    key = add_key(store, "camera", "inspect")
    store.close()
    data.chmod(0o755)
    with process(data, str(stored), "--require-key", "--max-megabytes", "8") as server:
        yield server, key


@pytest.fixture(scope="module")
def local(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service without keys that has little memory for uploads."""
    limits = {"upload_bytes": 200_000, "arriving_bytes": 300_000, "batch_bytes": 400_000}
    with running(settings(tmp_path_factory.mktemp("local") / "data", stored, limits=limits)) as server:
        yield server


def head(path: str, length: int | None, *more: str, method: str = "POST") -> bytes:
    """The head of a request; ``length`` None for a chunked body."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", size, *more, "", ""]).encode()


@contextmanager
def sending(port: int, said: bytes) -> Iterator[socket.socket]:
    """A connection that has sent something and waits."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(said)
        yield connection


def answer(connection: socket.socket) -> bytes:
    said = b""
    while not complete(said) and (some := connection.recv(65536)):
        said += some
    return said


# Memory


def test_nobody_fills_the_memory_without_a_key(guarded: tuple[Process, str]) -> None:
    """M1: 1 MB for each connection without a key, which was not given back."""
    server, key = guarded
    httpx.post(f"{server.url}{INSPECT}", content=part(), headers={"X-API-Key": key}, timeout=60).raise_for_status()
    before, number = memory_of(server.process.pid), server.process.pid
    body = b" " * ((1 << 20) - 100)
    most = 0
    with ExitStack() as stack:
        for index in range(100):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            path = ("/v1/session", INSPECT, f"/v1/inspections/{'0' * 24}/review")[index % 3]
            try:
                connection.sendall(head(path, len(body) + 10, "Content-Type: application/json") + body)
            except OSError:
                continue  # refused before all was sent
        for _ in range(10):
            most = max(most, memory_of(number))
            time.sleep(0.05)
    assert most - before < 25 * MEGABYTE, f"{(most - before) / 1e6:.0f} MB more"
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_the_smallest_role_stays_within_the_budget(guarded: tuple[Process, str]) -> None:
    """M1: as many images as there are readers, each of the largest size, were all kept in memory."""
    server, key = guarded
    before, size = memory_of(server.process.pid), 7 * MEGABYTE
    statuses: list[bytes] = []
    most = 0
    with ExitStack() as stack:
        connections = []
        for _ in range(60):  # 420 MB, where 256 MiB are allowed
            connection = stack.enter_context(sending(server.port, head(INSPECT, size + 1, f"X-API-Key: {key}")))
            with suppress(OSError):  # refused before all was sent
                connection.sendall(b"\0" * size)
            connections.append(connection)
            most = max(most, memory_of(server.process.pid))
        for connection in connections:
            connection.settimeout(0.05)
            try:
                statuses.append(connection.recv(200).split(b"\r\n")[0])
            except OSError:
                statuses.append(b"")
    refused = sum(b"503" in status for status in statuses)
    assert refused >= 60 - (256 << 20) // size
    assert statuses.count(b"") >= 30  # those within the budget are still being read
    assert most - before < 1.125 * (256 << 20) + 32 * MEGABYTE
    wait_until(lambda: memory_of(server.process.pid) - before < 60 * MEGABYTE, 180)
    good = httpx.post(f"{server.url}{INSPECT}", content=part(), headers={"X-API-Key": key}, timeout=60)
    assert good.status_code == 200


def test_a_service_is_not_idle_while_an_image_is_arriving(local: Running) -> None:
    """Memory was given back while uploads held it, and then no more."""
    wait_until(lambda: local.service.is_idle)
    with sending(local.port, head(INSPECT, 1000) + b" " * 500):
        wait_until(lambda: not local.service.is_idle)
        assert local.service.queue.in_flight == 0
    wait_until(lambda: local.service.is_idle)


def test_who_has_no_key_is_refused_before_the_body_is_read(guarded: tuple[Process, str]) -> None:
    server, key = guarded
    for path in (INSPECT, f"/v1/inspections/{'0' * 24}/review", "/v1/trainings", "/v1/models/part/learn"):
        for length in (1000, None):
            said = raw(server.port, head(path, length, "Content-Type: application/json"), seconds=10)
            assert said.startswith(b"HTTP/1.1 401"), (path, length, said[:100])
    wrong = raw(server.port, head(INSPECT, 1000, f"Authorization: Bearer {key[:-1]}"))
    assert wrong.startswith(b"HTTP/1.1 401")


def test_who_is_refused_while_sending_can_read_why(guarded: tuple[Process, str]) -> None:
    server, _ = guarded
    for path, status in ((INSPECT, 401), ("/v1/session", 413)):
        refused = httpx.post(f"{server.url}{path}", content=b"\0" * 7 * MEGABYTE, timeout=60)
        assert refused.status_code == status
        assert refused.headers["connection"] == "close"
    small = raw(server.port, head(INSPECT, 4) + b"some" + head("/healthz", 0, method="GET"))
    assert b"connection: close" not in small.lower()


def test_requests_without_images_are_small(local: Running) -> None:
    """M1: 4 kB to sign in, 64 kB for other JSON."""
    number = local.inspect("part", part()).json()["id"]
    for path, size in (("/v1/session", 1 << 12), (f"/v1/inspections/{number}/review", 1 << 16)):
        for content in (b" " * (size + 1), iter([b" " * size, b" "])):
            refused = local.client.post(path, content=content, headers={"Content-Type": "application/json"})
            assert refused.status_code == 413, path
        fits = local.client.post(path, content=b" " * size, headers={"Content-Type": "application/json"})
        assert fits.status_code == 422, path


def test_arriving_images_share_one_budget(local: Running) -> None:
    budget = local.service.arriving
    with ExitStack() as stack:
        waiting = [stack.enter_context(sending(local.port, head(INSPECT, 100_000) + b"some")) for _ in range(2)]
        wait_until(lambda: budget.used == 200_000)
        large = b"\0" * 120_000
        refused = local.client.post(INSPECT, content=large)
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:patchsvdd:overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        chunked = local.client.post(INSPECT, content=(large[:40_000] for _ in range(3)))
        assert chunked.status_code == 503
        form = local.client.post("/v1/models/part/inspect-batch", files=[("files", large), ("files", b"x")])
        assert form.status_code == 503
        training = local.client.post("/v1/trainings", files=[("files", large)], data={"name": "x"})
        assert training.status_code == 503
        assert local.inspect("part", part()).status_code == 200
        for connection in waiting:
            connection.close()
    wait_until(lambda: budget.used == 0)
    assert local.inspect("part", large).status_code == 422
    assert budget.used == 0
    # Alone, a batch may be larger than the budget.
    batch = local.client.post("/v1/models/part/inspect-batch", files=[("files", b"\0" * 170_000) for _ in range(2)])
    assert batch.json()["failed"] == 2


def test_a_budget_grows_and_is_given_back() -> None:
    told: list[bool] = []
    budget = ByteBudget(100, lambda: told.append(True))
    with budget.hold(40) as first, budget.hold(0) as second:
        second.grow_to(60)
        second.grow_to(50)
        assert budget.used == budget.peak == 100
        with pytest.raises(Problem):
            first.grow_to(41)
        with pytest.raises(Problem), budget.hold(1):
            pass
    assert (budget.used, told) == (0, [True, True])
    with budget.hold(1000):
        assert budget.used == 100


# Connections


def test_too_many_connections_are_told_so(local: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    local.client.get("/healthz")
    held = len(local.server.server_state.connections)
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS", held + 2)
    monkeypatch.setattr(http_protocol, "SPARE_CONNECTIONS", 1)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(sending(local.port, b""))
        wait_until(lambda: len(local.server.server_state.connections) == held + 2)
        said = raw(local.port, head("/healthz", 0, method="GET"))
        assert said.startswith(b"HTTP/1.1 503")
        assert b"connection: close" in said.lower()
        assert b"too many connections" in said
        assert b"content-security-policy" in said.lower()
        wait_until(lambda: len(local.server.server_state.connections) == held + 2)
        third = stack.enter_context(sending(local.port, b""))
        wait_until(lambda: len(local.server.server_state.connections) == held + 3)
        with socket.create_connection(("127.0.0.1", local.port), timeout=20) as fourth, suppress(ConnectionResetError):
            assert fourth.recv(100) == b""  # closed at once
        third.close()
        assert local.client.get("/healthz").status_code == 200  # those that were there are served
    wait_until(lambda: len(local.server.server_state.connections) == held)


# The queue


def test_nobody_is_accepted_who_would_wait_too_long(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L16: of a burst, 40 of the 64 accepted ran into their deadline."""
    with running(settings(tmp_path / "data", stored, limits={"batch_size": 1, "deadline": 4.0})) as server:
        detector = server.service.models.named("part").detector
        inspect = detector.inspect_loaded

        def slowly(images: Any) -> Any:
            time.sleep(0.2)
            return inspect(images)

        monkeypatch.setattr(detector, "inspect_loaded", slowly)
        for _ in range(3):
            assert server.inspect("part", part()).status_code == 200

        async def burst() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
                return await asyncio.gather(*(client.post(INSPECT, content=part()) for _ in range(120)))

        answers = asyncio.run(burst())
        kinds = [one.json().get("type", "good") for one in answers]
        assert kinds.count("urn:patchsvdd:deadline-exceeded") <= 1, kinds
        assert kinds.count("good") >= 4
        assert kinds.count("good") + kinds.count("urn:patchsvdd:overloaded") >= 119
        for one in answers:
            assert one.status_code == 200 or int(one.headers["retry-after"]) >= 1


def test_the_queue_is_as_long_as_the_deadline_allows() -> None:
    line = InspectionQueue(64, 1, Telemetry(), seconds_per_image=1.0)
    with ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(line.place(10.0))
        with pytest.raises(Problem, match="would not be answered within 10 s"):
            stack.enter_context(line.place(10.0))
        stack.enter_context(line.place(20.0))
        with pytest.raises(Problem), line.arriving(10.0):
            pass
    with line.place(0.1):  # found it empty
        pass
    start = time.monotonic()
    for _ in range(20):
        line.done(start)  # together
    assert line.seconds_per_image < 0.1
    with pytest.raises(Problem), line.place(images=65):
        pass
    line.close()


# Other users of the machine


def test_other_users_of_the_machine_read_nothing(guarded: tuple[Process, str], tmp_path: Path) -> None:
    """M11: the data folder was open to everyone."""
    server, key = guarded
    sent = httpx.post(f"{server.url}{INSPECT}", content=part(21), headers={"X-API-Key": key}, timeout=60)
    assert sent.status_code == 200
    (data,) = server.log.parent.glob("data")
    assert data.stat().st_mode & 0o777 == 0o700
    assert "closed" in server.said()
    written = [path for name in ("pictures", "service-id") for path in [data / name, *(data / name).rglob("*")]]
    assert len(written) > 4
    for path in written:
        assert not path.stat().st_mode & 0o077, path
    assert run("key", "add", "me", "--data", tmp_path / "new").code == 0
    for path in (tmp_path / "new", *(tmp_path / "new").iterdir()):
        assert not path.stat().st_mode & 0o077, path


def test_training_files_are_private(stored: Path, tmp_path: Path) -> None:
    with process(tmp_path / "data", str(stored)) as server:
        sent = server.client.post(
            "/v1/trainings", files=[("files", part(seed)) for seed in range(4)], data={"name": "x", "steps": "5"}
        )
        assert sent.status_code == 202, sent.text
        server.client.post(f"/v1/jobs/{sent.json()['id']}/cancel")
        found = [path for path in (tmp_path / "data").rglob("*") if "jobs" in path.parts or "sqlite" in path.name]
        assert len(found) > 5
        for path in found:
            assert not os.path.exists(path) or not path.stat().st_mode & 0o077, path
