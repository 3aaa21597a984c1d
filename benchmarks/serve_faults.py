"""What is lost in failures under load: the server killed, the disk full, the database unavailable, the model replaced?

    PYTHONPATH=tests python benchmarks/serve_faults.py [--kills 10] [--seed 0]

Clients inspect images continuously and record each acknowledged inspection. Each part ends with a check of all of
them: the row, the image byte for byte, the map. The full disk requires root (a small tmpfs), the database PostgreSQL on
this machine; a part that cannot run reports the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import torch

from patchsvdd import PatchSVDD
from patchsvdd.detector.memory_update import add_images
from record import RESULTS, circumstances, write_result
from serve_process import Server, machine_load, picture, train
from support.postgres import missing, postgres

CLIENTS = 4


class Load:
    """Clients that inspect continuously, also while the server restarts."""

    def __init__(self, server: Server, fixed: bytes | None = None) -> None:
        self.server = server
        self.acknowledged: dict[str, tuple[str, float, str]] = {}
        self.statuses: Counter[str] = Counter()
        self._fixed = fixed
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        seed = number
        with httpx.Client(timeout=120) as http:
            while not self._stopped.is_set():
                seed += CLIENTS
                data = self._fixed or picture(seed)
                try:
                    answer = http.post(f"{self.server.url}/v1/models/part/inspect", content=data)
                except httpx.TransportError:
                    self.statuses["no answer"] += 1
                    time.sleep(0.05)
                    continue
                self.statuses[str(answer.status_code)] += 1
                if answer.status_code == 200:
                    told = answer.json()
                    digest = hashlib.sha256(data).hexdigest()
                    self.acknowledged[told["id"]] = (digest, told["score"], told["identity"])
                elif answer.status_code == 503:
                    time.sleep(0.05)

    def wait_for(self, more: int, seconds: float = 300) -> None:
        """Wait until this many more inspections are acknowledged."""
        wanted, end = len(self.acknowledged) + more, time.monotonic() + seconds
        while len(self.acknowledged) < wanted:
            if time.monotonic() > end:
                raise SystemExit(f"the service did not recover: {self.statuses}\n{self.server.log.read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def verdict(self) -> dict[str, Any]:
        """Which acknowledged inspections are stored."""
        lost = altered = 0
        with httpx.Client(base_url=self.server.url, timeout=120) as http:
            for number, (digest, score, identity) in self.acknowledged.items():
                found = http.get(f"/v1/inspections/{number}")
                data = http.get(f"/v1/inspections/{number}/picture")
                map_ = http.get(f"/v1/inspections/{number}/map?format=npy")
                if any(one.status_code != 200 for one in (found, data, map_)):
                    lost += 1
                    continue
                same = hashlib.sha256(data.content).hexdigest() == digest
                altered += not (same and (found.json()["score"], found.json()["identity"]) == (score, identity))
            total = http.get("/v1/inspections/counts").json()["total"]
        return {
            "answers": dict(self.statuses),
            "acknowledged": len(self.acknowledged),
            "lost": lost,
            "altered": altered,
            "in_store": total,
        }


def killed(root: Path, model: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """Send SIGKILL to the server repeatedly."""
    data = root / "killed"
    server = Server(data, [model], "--device", "cpu")
    load = Load(server)
    for number in range(kills):
        load.wait_for(chance.randrange(5, 40))
        time.sleep(chance.uniform(0, 0.3))
        server.kill()
        server = Server(data, [model], "--device", "cpu")
        load.server = server
        print(f"{number + 1} kills, {len(load.acknowledged)} acknowledged", flush=True)
    load.wait_for(10)
    load.stop()
    found = {"kills": kills, **load.verdict()}
    server.stop()
    return found


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[str | None]:
    """Mount a small disk; yield None, or the reason why it is not possible."""
    folder.mkdir()
    if os.geteuid() != 0:
        yield "only root can make a small disk"
        return
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    made = subprocess.run(["mount", *options], capture_output=True, text=True)
    if made.returncode != 0:
        yield made.stderr.strip()
        return
    try:
        yield None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def disk_full(root: Path, model: Path, times: int) -> dict[str, Any]:
    """Fill the disk with another file and remove it again."""
    with small_disk(root / "disk", 64) as why:
        if why is not None:
            return {"not run": why}
        server = Server(root / "disk" / "data", [model], "--device", "cpu")
        load = Load(server)
        refused = 0
        for _ in range(times):
            load.wait_for(10)
            before = load.statuses["503"]
            ballast = root / "disk" / "ballast"
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            end = time.monotonic() + 60
            while load.statuses["503"] < before + 5 and time.monotonic() < end:
                time.sleep(0.05)
            refused += load.statuses["503"] > before
            ballast.unlink()
        load.wait_for(10)
        load.stop()
        found = {"times": times, "times_refused": refused, **load.verdict()}
        server.stop()
    return found


def database_gone(root: Path, model: Path, times: int, chance: random.Random) -> dict[str, Any]:
    """Stop or crash PostgreSQL and start it again."""
    if why := missing():
        return {"not run": why}
    with postgres() as database:
        server = Server(root / "gone", [model], "--device", "cpu", "--store", database.url)
        load = Load(server)
        not_ready = 0
        for number in range(times):
            load.wait_for(10)
            database.stop("immediate" if number % 2 else "fast")
            not_ready += _readiness(server) == 503
            time.sleep(chance.choice((0.5, 3, 14)))  # shorter and longer than writes wait
            database.start()
        load.wait_for(10)
        ready = _readiness(server)
        load.stop()
        found = {"times": times, "times_not_ready": not_ready, "ready_afterwards": ready == 200, **load.verdict()}
        server.stop()
    return found


def _readiness(server: Server) -> int:
    return httpx.get(f"{server.url}/readyz", timeout=60).status_code


def replaced(root: Path, model: Path, times: int) -> dict[str, Any]:
    """Change the model folder while it is in use: does each answer come from the model that it names?"""
    data = picture(7)
    other = root / "other" / "part"
    shutil.copytree(model, other)
    (root / "new").mkdir()
    (root / "new" / "new.png").write_bytes(data)
    add_images(other, root / "new", device="cpu")
    expected = {}
    for folder in (model, other):
        detector = PatchSVDD.load(folder, "cpu")
        expected[str(detector.identity)] = detector.inspect(root / "new" / "new.png").score
    used = root / "used" / "part"
    shutil.copytree(model, used)
    server = Server(root / "replaced", [used], "--device", "cpu")
    load = Load(server, data)
    for number in range(times):
        load.wait_for(10)
        source = model if number % 2 else other
        if number % 3 == 0:  # copied over it, file by file
            shutil.copytree(source, used, dirs_exist_ok=True)
        elif number % 3 == 1:  # deleted, and replaced a moment later
            shutil.rmtree(used)
            time.sleep(0.5)
            shutil.copytree(source, used)
        else:  # swapped in one step
            shutil.copytree(source, root / "used" / "next")
            used.rename(root / "used" / "last")
            (root / "used" / "next").rename(used)
            shutil.rmtree(root / "used" / "last")
        wanted = PatchSVDD.load(used, "cpu").identity
        end = time.monotonic() + 60
        while server.get("/v1/models/part")["identity"] != wanted:
            if time.monotonic() > end:
                raise SystemExit(f"the new model was not loaded\n{server.log.read_text()}")
            time.sleep(0.1)
    load.wait_for(10)
    load.stop()
    wrong = sum(
        identity not in expected or abs(score - expected[identity]) > 1e-3 * max(expected.values())
        for _, score, identity in load.acknowledged.values()
    )
    by_model = Counter(identity for _, _, identity in load.acknowledged.values())
    found = {"times": times, "by_model": dict(by_model), "scores_of_another_model": wrong, **load.verdict()}
    server.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--times", type=int, default=6, help="number of every other fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "serve-faults.json")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for stores; default: a temporary folder")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=args.scratch))
    chance, load_before, begun = random.Random(args.seed), machine_load(), time.monotonic()
    model = train(root / "part")
    result: dict[str, Any] = {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "killed": lambda: killed(root, model, args.kills, chance),
        "disk_full": lambda: disk_full(root, model, args.times),
        "database_gone": lambda: database_gone(root, model, args.times, chance),
        "model_replaced": lambda: replaced(root, model, args.times),
    }
    for name, run in parts.items():
        result[name] = run()
        print(name, json.dumps(result[name]), flush=True)
    result |= {
        "clients": CLIENTS,
        "seed": args.seed,
        "seconds": round(time.monotonic() - begun, 1),
        "load_average_before": load_before,
        **circumstances(torch.device("cpu")),
    }
    write_result(args.out, result)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
