"""Helpers for tests of ``watch``: arrivals, ledgers with rows, a web server with scripted answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from patchsvdd.apps.watch.ledger import LEDGER, Ledger
from patchsvdd.images.watched_folder import Arrival, FileState, digest_of
from patchsvdd.report.rows import Row


def arrival(folder: Path, name: str, data: bytes | None = None) -> tuple[Arrival, str]:
    """An arrived file and its digest; writes ``data`` first if given."""
    path = folder / name
    if data is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    arrived = Arrival(name, path, FileState.of(path.stat()))
    digest = digest_of(arrived)
    assert digest is not None
    return arrived, digest


def row(name: str) -> Row:
    """A results row of an anomalous image."""
    return {
        "image": name,
        "score": 2.0,
        "threshold": 1.0,
        "verdict": "anomalous",
        "is_anomalous": True,
        "regions": [{"area": 4}],
    }


def ledger_of(folder: Path, count: int, channel: str) -> Path:
    """A ledger of ``count`` images, each still to be delivered to a channel."""
    (folder / "camera").mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder / LEDGER, folder / "camera")
    for index in range(count):
        name = f"{index}.png"
        ledger.add(*arrival(folder / "camera", name, name.encode()), row(name), [channel])
    ledger.close()
    return ledger.path


class Server:
    """A web server that gives the listed answers in turn, then 200."""

    def __init__(self, answers: list[int | str], port: int = 0) -> None:
        self.answers = answers
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.accepted: list[dict[str, Any]] = []
        self.released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.requests.append((dict(self.headers), body))
                answer = server.answers.pop(0) if server.answers else 200
                if answer == "hang":
                    server.released.wait(20)
                    return
                if answer == "hang up":
                    self.connection.close()
                    return
                assert isinstance(answer, int)
                if answer == 200:
                    server.accepted.append(json.loads(body))
                self.send_response(answer)
                self.send_header("Location", "/elsewhere")
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass

        self._server = Quiet(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/defects"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(*answers: int | str, port: int = 0) -> Iterator[Server]:
    server = Server(list(answers), port)
    try:
        yield server
    finally:
        server.close()
