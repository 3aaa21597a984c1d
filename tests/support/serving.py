"""Helpers for tests of the service: images, a service in this process or in a new one, clients."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import sqlalchemy as sa
import uvicorn
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.apps.line.line_file import LineSettings
from patchsvdd.apps.serve.app import make_app
from patchsvdd.apps.serve.http_protocol import HeaderTimeoutProtocol
from patchsvdd.apps.serve.served_line import ServedLine
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.settings import Limits, Settings
from patchsvdd.apps.serve.store import Store, new_id
from patchsvdd.apps.serve.tables import reviews
from support.parts import ROOT, draw_part
from support.waiting import wait_until

PROGRAM = (sys.executable, "-c", "from patchsvdd.apps.cli import main; main()")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode pixels as PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def part(seed: int = 10, defect: bool = False) -> bytes:
    """An image of a part as PNG."""
    return png(draw_part(seed, defect=defect))


def row(at: float | None = None, **values: Any) -> dict[str, Any]:
    """A row of the table of inspections."""
    at = time.time() if at is None else at
    facts = {"id": new_id(at), "at": at, "model": "part", "identity": "i", "name": "n.png", "score": 1.5}
    facts |= {"threshold": 1.0, "p_value": 0.1, "verdict": "good", "regions": [], "traits": {}, "timings": {}}
    facts |= {"width": 8, "height": 8, "min_area": 0, "picture": None, "media_type": "image/png", "picture_bytes": 0}
    return {**facts, "map": None, "map_bytes": 0, **values}


def reviews_of(store: Store, inspection: str) -> list[tuple[str | None, str]]:
    """Verdict and note of all reviews of an inspection, in order."""
    query = sa.select(reviews.c.verdict, reviews.c.note).where(reviews.c.inspection == inspection)
    with store.reading() as connection:
        return [(one.verdict, one.note) for one in connection.execute(query.order_by(reviews.c.id))]


def settings(data: Path, *models: Path, **more: Any) -> Settings:
    """Settings of a service on the CPU with short time limits."""
    limits = Limits(**{"decode_seconds": 5.0, "deadline": 20.0, **more.pop("limits", {})})
    return Settings(models=models, data=data, device="cpu", limits=limits, **{"port": 0, **more})


class Running:
    """A service in a thread of this process, with a real socket; ``around`` may wrap the application.

    With ``line``, it runs that line.
    """

    def __init__(
        self, told: Settings, around: Callable[[Any], Any] = lambda app: app, line: LineSettings | None = None
    ) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.service = Service(replace(told, port=self.port))
        self.line = None if line is None else ServedLine(line, self.service)
        if self.line is None:
            self.app = make_app(self.service)
        else:
            self.service.line_view = self.line
            self.line.listen()
            self.app = make_app(self.service, self.line.running)
        app = around(self.app)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            http=HeaderTimeoutProtocol,
            ws="none",
            timeout_keep_alive=30,  # as the command; with uvicorn's 5 s, which are httpx's too, both may close at once
        )
        self.server = uvicorn.Server(config)
        self._socket.listen(512)
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=lambda: self.server.run(sockets=[self._socket]), daemon=True)
        self._thread.start()
        wait_until(lambda: self.server.started)
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._socket.close()

    def inspect(self, name: str, data: bytes, **params: Any) -> httpx.Response:
        return self.client.post(f"/v1/models/{name}/inspect", content=data, params=params)

    def job(self, number: str, seconds: float = 180) -> dict[str, Any]:
        """Wait until a job has ended and return it."""
        return ended(self.client, number, seconds)


def ended(client: httpx.Client, number: str, seconds: float = 180) -> dict[str, Any]:
    """Wait until a job has ended and return it."""
    found: dict[str, Any] = {}

    def is_over() -> bool:
        nonlocal found
        found = client.get(f"/v1/jobs/{number}").json()
        return found["state"] in ("done", "failed", "cancelled")

    wait_until(is_over, seconds)
    return found


@contextmanager
def running(
    told: Settings, around: Callable[[Any], Any] = lambda app: app, line: LineSettings | None = None
) -> Iterator[Running]:
    server = Running(told, around, line)
    try:
        yield server
    finally:
        server.close()


class Process:
    """A ``patchsvdd serve`` process."""

    def __init__(self, data: Path, *arguments: str, **environment: str) -> None:
        self.log = data.parent / f"{data.name}.log"
        begun = self.log.stat().st_size if self.log.exists() else 0
        command = [*PROGRAM, "serve", "--data", str(data), "--port", "0", "--device", "cpu", *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **environment}
            )
        found: re.Match[bytes] | None = None

        def is_up() -> bool:
            nonlocal found
            said = self.log.read_bytes()[begun:]
            assert self.process.poll() is None, said.decode()
            found = re.search(rb"http://\S+?:(\d+)/", said.replace(b"\n", b""))
            return found is not None

        wait_until(is_up, 180)
        assert found is not None
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=60)
        wait_until(self._answers, 180)

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return self.client.get("/healthz").status_code == 200
        return False

    def said(self) -> str:
        """The log of the process."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.client.close()

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        self.client.close()
        return status

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self.process.poll() is None:
            self.kill()

    def children(self) -> list[int]:
        """IDs of its live child processes."""
        return children(self.process.pid)


def children(number: int) -> list[int]:
    """IDs of the live child processes of a process."""
    found = ""
    for task in Path(f"/proc/{number}/task").iterdir():
        with suppress(OSError):
            found += (task / "children").read_text()
    return [int(one) for one in found.split()]


@contextmanager
def process(data: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    server = Process(data, *arguments, **environment)
    try:
        yield server
    finally:
        server.end()


def copy_model(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder)
    return folder


def raw(port: int, data: bytes, seconds: float = 10.0) -> bytes:
    """Send bytes to a server and return its answer up to the end of the response, or of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(data)
        said = b""
        with suppress(TimeoutError, ConnectionResetError):
            while some := connection.recv(65536):
                said += some
                if complete(said):
                    break
        return said


def complete(said: bytes) -> bool:
    """Whether the bytes contain a whole response."""
    head, gap, body = said.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return bool(gap) and length is not None and len(body) >= int(length[1])


def memory_of(number: int | str = "self") -> int:
    """Resident memory of a process in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{number}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])
