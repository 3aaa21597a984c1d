"""What can one client take of a service? Memory without and with a key, pictures of a large history, bursts, counts.

    PYTHONPATH=tests python benchmarks/serve_limits.py [--rows 400000]

All connections go to a server on 127.0.0.1 that this script starts.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import shutil
import socket
import statistics
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import sqlalchemy as sa
import torch
from PIL import Image

from patchsvdd.apps.serve.auth import add_key
from patchsvdd.apps.serve.decoder_pool import decode_upload
from patchsvdd.apps.serve.settings import Limits, Settings
from patchsvdd.apps.serve.store import Filter, Store
from patchsvdd.apps.serve.tables import inspections
from record import RESULTS, circumstances, write_result
from serve_process import Server, machine_load, picture, resident, train
from support.serving import row

CONNECTIONS = 400
NEARLY = (1 << 20) - 100
"""Bytes sent without a key: nearly the limit of requests without images in version 0.1."""
UPLOADS = 256
UPLOAD_BYTES = 30_000_000
UPLOAD_SECONDS = 30.0
HISTORY = 20
OTHERS = 20
BURST = 200
PATHS = ("/v1/session", "/v1/models/part/inspect", f"/v1/inspections/{'0' * 24}/review")


class Memory:
    """The largest resident memory of a process while the block runs, in megabytes."""

    def __init__(self, number: int) -> None:
        self._number, self._stopped = number, threading.Event()
        self.before = self.most = resident(number)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.02):
            self.most = max(self.most, resident(self._number))

    def report(self) -> dict[str, float]:
        """Megabytes before, in addition at most, and in addition some seconds later."""
        time.sleep(15)
        later = resident(self._number) - self.before
        return {"before_mb": self.before, "more_mb": round(self.most - self.before, 1), "later_mb": round(later, 1)}


def guarded(root: Path, model: Path) -> tuple[Server, str]:
    """A server that requires keys, warm, and a key of the smallest role."""
    store = Store(Settings((), root / "guarded").url)
    key = add_key(store, "camera", "inspect")
    store.close()
    server = Server(root / "guarded", [model], "--device", "cpu", "--require-key")
    for seed in range(20):
        _inspect(server, picture(seed), key).raise_for_status()
    return server, key


def _inspect(server: Server, data: bytes, key: str = "") -> httpx.Response:
    return httpx.post(f"{server.url}/v1/models/part/inspect", content=data, headers={"X-API-Key": key}, timeout=120)


def _head(path: str, length: int, key: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nX-API-Key: {key}\r\n\r\n".encode()


def _connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=30)


def without_key(server: Server) -> dict[str, Any]:
    """Connections that send almost a megabyte each without a key, and stay."""
    statuses: Counter[str] = Counter()
    with Memory(server.process.pid) as memory, ExitStack() as stack:
        connections = [stack.enter_context(_connect(server)) for _ in range(CONNECTIONS)]
        for index, connection in enumerate(connections):
            with suppress(OSError):  # refused before all was sent
                connection.sendall(_head(PATHS[index % len(PATHS)], NEARLY + 99) + b" " * NEARLY)
        for connection in connections:
            statuses[_status(connection)] += 1
    return {"connections": CONNECTIONS, "answers": dict(statuses), **memory.report()}


def _status(connection: socket.socket) -> str:
    try:
        return connection.recv(4096).split(b" ")[1].decode() or "none"
    except (OSError, IndexError):
        return "none"


def smallest_role(server: Server, key: str) -> dict[str, Any]:
    """Slow uploads of large images, all at once, with a key that may inspect."""
    statuses: Counter[str] = Counter()
    lock, chunk, steps = threading.Lock(), bytes(1_000_000), UPLOAD_BYTES // 1_000_000

    def upload(_: int) -> None:
        with _connect(server) as connection, suppress(OSError):
            connection.sendall(_head(PATHS[1], UPLOAD_BYTES, key))
            for _step in range(steps):
                connection.sendall(chunk)
                connection.settimeout(UPLOAD_SECONDS / steps)
                try:
                    status = connection.recv(4096).split(b" ")[1].decode()
                    break
                except TimeoutError:
                    connection.settimeout(30)
            else:
                status = _status(connection)
            with lock:
                statuses[status] += 1

    with Memory(server.process.pid) as memory:
        threads = [threading.Thread(target=upload, args=(number,)) for number in range(UPLOADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    bound = round(1.125 * Limits().arriving_bytes / 1e6, 1)
    return {"uploads": UPLOADS, "bytes": UPLOAD_BYTES, "bound_mb": bound, "answers": dict(statuses), **memory.report()}


def large_png(seed: int, height: int = 3000, width: int = 4000) -> bytes:
    """A PNG with the noise of a camera."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(40, 200, width, dtype=np.float32)[None, :, None]
    pixels = (ramp + rng.normal(0, 3, (height, width, 3)).astype(np.float32)).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=3)
    return file.getvalue()


def thumbnails(root: Path, model: Path) -> dict[str, Any]:
    """Thumbnails of images of 12 megapixels, while others are asked for."""
    server = Server(root / "pictures", [model], "--device", "cpu", "--deadline", "120")
    numbers = []
    for seed in range(HISTORY):
        answer = _inspect(server, large_png(seed))
        answer.raise_for_status()
        numbers.append(answer.json()["id"])

    def timed(number: str, side: int) -> float:
        start = time.perf_counter()
        with urllib.request.urlopen(f"{server.url}/v1/inspections/{number}/picture?side={side}", timeout=120) as answer:
            answer.read()
        return time.perf_counter() - start

    found: dict[str, Any] = {"history": HISTORY, "others": OTHERS, "megapixels": 12}
    for name, sides in (("while_thumbnails", [256] * OTHERS), ("while_decoding", list(range(1700, 1700 + OTHERS)))):
        with ThreadPoolExecutor(OTHERS) as pool:
            others = [
                pool.submit(timed, numbers[index % HISTORY], side) for index, side in enumerate(sides)
            ]  # the second kind has no file and is decoded whole
            time.sleep(0.3 if name == "while_decoding" else 0.0)
            seconds = [timed(numbers[index], 256) for index in range(10)]
            others_seconds = [one.result() for one in others]
        found[name] = {
            "thumbnail_ms": [round(1e3 * second, 1) for second in seconds],
            "largest_ms": round(1e3 * max(seconds), 1),
            "others_largest_ms": round(1e3 * max(others_seconds), 1),
        }
    server.stop()
    return found


def previews() -> dict[str, Any]:
    """What thumbnail and view add to the decoding of an image for a model of 256 pixels."""
    found = {}
    for name, (height, width) in {"256x256": (256, 256), "1 MP": (1000, 1000), "12 MP": (3000, 4000)}.items():
        data = large_png(1, height, width)
        order = {"size": [256, 256], "resize": "area", "max_pixels": 64_000_000}
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(9):
            for drawn in (False, True):
                start = time.perf_counter()
                decode_upload(data, {**order, "previews": drawn})
                times[drawn].append(time.perf_counter() - start)
        without, with_previews = (1e3 * statistics.median(times[drawn]) for drawn in (False, True))
        found[name] = {"decode_ms": round(without, 2), "with_previews_ms": round(with_previews, 2)}
    return found


def burst(root: Path, model: Path) -> dict[str, Any]:
    """Many images at once, with a deadline too short for all."""
    server = Server(root / "burst", [model], "--device", "cpu", "--deadline", "3", "--batch-size", "1")
    data = large_png(1, 1500, 2000)
    for _ in range(3):
        _inspect(server, data).raise_for_status()

    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:
            url = f"{server.url}/v1/models/part/inspect"
            return await asyncio.gather(*(client.post(url, content=data) for _ in range(BURST)))

    kinds = Counter(answer.json().get("type", "inspected").split(":")[-1] for answer in asyncio.run(ask_all()))
    server.stop()
    return {"images": BURST, "deadline_s": 3, "answers": dict(kinds)}


def _insert(rows: list[dict[str, Any]], connection: sa.Connection) -> None:
    connection.execute(sa.insert(inspections), rows)


def counts(root: Path, rows: int) -> dict[str, Any]:
    """Counts of a long history."""
    store = Store(f"sqlite:///{root / 'counts.sqlite'}")
    rng, start = np.random.default_rng(0), time.time() - 10.0 * rows
    for first in range(0, rows, 20_000):
        batch = []
        for index in range(first, min(first + 20_000, rows)):
            anomalous = rng.random() < 0.1
            names = {name: rng.bytes(32).hex() for name in ("picture", "map", "thumbnail")}
            verdict = "anomalous" if anomalous else "good"
            review = str(rng.choice(["true_defect", "false_alarm"])) if anomalous and rng.random() < 0.5 else None
            more = {"model": str(rng.choice(["part", "washer"])), "review": review, "position": index}
            batch.append(row(start + 10.0 * index, verdict=verdict, **more, **names))
        store.write(partial(_insert, batch))
    newest = store.inspections(Filter(), 101, columns=("id",))[-1]["id"]
    asked = {
        "all": Filter(),
        "of_a_model": Filter(model="part"),
        "anomalous": Filter(verdict="anomalous"),
        "last_day": Filter(since=time.time() - 86400),
        "new_100": Filter(after=newest),
    }
    found: dict[str, Any] = {"rows": rows}
    for name, where in asked.items():
        times = []
        for _ in range(7):
            begun = time.perf_counter()
            store.count(where)
            times.append(time.perf_counter() - begun)
        found[f"{name}_ms"] = round(1e3 * statistics.median(times), 1)
    store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--parts", nargs="*", help="default: all")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve-limits.json")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for stores; default: a temporary folder")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=args.scratch))
    load_before, begun = machine_load(), time.monotonic()
    model = train(root / "part")
    result: dict[str, Any] = {}
    server, key = guarded(root, model)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "without_key": lambda: without_key(server),
        "smallest_role": lambda: smallest_role(server, key),
        "thumbnails": lambda: thumbnails(root, model),
        "previews": previews,
        "burst": lambda: burst(root, model),
        "counts": lambda: counts(root, args.rows),
    }
    for name, run in parts.items():
        if args.parts and name not in args.parts:
            continue
        result[name] = run()
        print(name, json.dumps(result[name]), flush=True)
    server.stop()
    result |= {
        "seconds": round(time.monotonic() - begun, 1),
        "load_average_before": load_before,
        **circumstances(torch.device("cpu")),
    }
    write_result(args.out, result)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
