"""Ten thousand invalid images sent to a live server: is each one answered, and does memory stay bounded?

    PYTHONPATH=tests python benchmarks/serve_fuzz.py [--images 10000] [--seed 0]

Several clients send them concurrently, some in forms and batches; valid images in between must be answered normally.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch

from record import RESULTS, circumstances, write_result
from serve_process import Server, machine_load, picture, resident, train
from support.mutated_images import mutated


class Sender:
    """Sends images and counts the answers."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.seed = server, seed
        self.http = httpx.Client(base_url=server.url, timeout=120)
        self.statuses: dict[str, Counter[int]] = {}
        self.slowest: dict[str, float] = {}
        self.wrong: list[str] = []
        self.good = [0, 0]
        self._lock = threading.Lock()

    def send(self, number: int) -> None:
        kind, data = mutated(self.seed * 1_000_003 + number)
        begun = time.monotonic()
        try:
            if number % 5 == 1:
                answer = self.http.post("/v1/models/part/inspect", files={"file": (f"{kind}.png", data)})
                status = answer.status_code
            elif number % 5 == 2:
                files = [("files", ("x", data)), ("files", ("good.png", picture(number)))]
                answer = self.http.post("/v1/models/part/inspect-batch", files=files)
                status = answer.status_code
                if status == 200:
                    items = answer.json()["images"]
                    self._check_good(items[1]["problem"] is None)
                    status = 200 if items[0]["problem"] is None else items[0]["problem"]["status"]
            else:
                answer = self.http.post("/v1/models/part/inspect", content=data)
                status = answer.status_code
        except httpx.TransportError as error:
            status = 0
            print(kind, number, repr(error), flush=True)
        seconds = time.monotonic() - begun
        with self._lock:
            self.statuses.setdefault(kind, Counter())[status] += 1
            self.slowest[kind] = max(self.slowest.get(kind, 0.0), seconds)
            if status not in (200, 413, 422):
                self.wrong.append(f"{kind} {number}: {status}")
        if number % 20 == 0:
            answer = self.http.post("/v1/models/part/inspect", content=picture(number))
            self._check_good(answer.status_code == 200)

    def _check_good(self, fine: bool) -> None:
        with self._lock:
            self.good[0] += 1
            self.good[1] += fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS / "serve-fuzz.json")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the store; default: a temporary folder")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=args.scratch))
    load_before = machine_load()
    server = Server(root / "data", [train(root / "part")], "--device", "cpu")
    sender = Sender(server, args.seed)
    for number in range(20):
        server_answer = sender.http.post("/v1/models/part/inspect", content=picture(number))
        assert server_answer.status_code == 200, server_answer.text
    number = server.process.pid
    memory: list[dict[str, Any]] = [{"images": 0, **server.resident()}]
    decoders: set[int] = set(server.tree()[1:])
    begun = time.monotonic()
    step = max(1, args.images // 50)
    with ThreadPoolExecutor(args.clients) as pool:
        for first in range(0, args.images, step):
            list(pool.map(sender.send, range(first, min(first + step, args.images))))
            memory.append({"images": min(first + step, args.images), **server.resident()})
            decoders |= set(server.tree()[1:])
            print(memory[-1], flush=True)
    seconds = time.monotonic() - begun
    alive = server.process.poll() is None and server.process.pid == number and resident(number) > 0
    total: Counter[int] = Counter()
    for counted in sender.statuses.values():
        total += counted
    early = max(row["server"] for row in memory[: max(2, len(memory) // 5)])
    result = {
        "images": args.images,
        "seed": args.seed,
        "statuses": {str(status): count for status, count in sorted(total.items())},
        "unexpected": sender.wrong[:50],
        "by_kind": {
            kind: {str(status): count for status, count in sorted(counted.items())}
            for kind, counted in sorted(sender.statuses.items())
        },
        "slowest_seconds": {kind: round(value, 2) for kind, value in sorted(sender.slowest.items())},
        "good_images_in_between": {"sent": sender.good[0], "inspected": sender.good[1]},
        "server_alive": alive,
        "decoders_seen": len(decoders),
        "megabytes": {
            "server_in_the_first_fifth": early,
            "server_at_the_end": memory[-1]["server"],
            "most": {
                "server": max(row["server"] for row in memory),
                "decoders": max(row["decoders"] for row in memory),
            },
        },
        "memory": memory,
        "seconds": round(seconds, 1),
        "exit_status": server.stop(),
        "errors_in_log": server.log.read_text(errors="replace").count("Traceback"),
        "load_average_before": load_before,
        **circumstances(torch.device("cpu")),
    }
    write_result(args.out, result)
    print(json.dumps({key: value for key, value in result.items() if key != "memory"}, indent=1))
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
