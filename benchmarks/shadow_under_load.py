"""A candidate in the shadow of a model under constant load: what it costs, and what switches and kills lose.

    python benchmarks/shadow_under_load.py --models LIVE CANDIDATE --images DIR [--minutes 10] [--load 0.5]

A real server and a client that sends images at a fixed rate, which is a share of what the server can do. Turns of 30 s
follow each other: without a candidate, with one (their order alternates), then switched to the candidate, and rolled
back. The server is killed twice (SIGKILL) and started again: in the middle of a turn, and while it is switching.

Every answer must name a model that was live between its request and its arrival, and have that model's own score of the
image. Every answered inspection must be stored as it was answered. Latencies with and without the candidate are those
of the same live model in the same run; turns with a kill do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch

from patchsvdd import PatchSVDD
from record import RESULTS, circumstances, write_result
from serve_process import Server, images_in, machine_load

TOLERANCE = 1e-3
"""Relative difference of scores that rounding may cause."""
WITHOUT, WITH, SWITCHED = "without", "with", "switched"


@dataclass
class Answer:
    """An answered request."""

    turn: int
    file: int
    sent: float
    received: float
    status: int
    body: dict[str, Any]


@dataclass
class Live:
    """Which versions were live when; both count while one replaces the other."""

    spans: list[list[Any]] = field(default_factory=list)

    def begin(self, identity: str, since: float) -> None:
        """A version is live, from ``since`` at the earliest; the one before was live until now at the latest."""
        if self.spans and self.spans[-1][0] == identity:
            return
        if self.spans:
            self.spans[-1][2] = time.perf_counter()
        self.spans.append([identity, since, float("inf")])

    def between(self, start: float, end: float) -> set[str]:
        """The versions that were live at some time of an interval."""
        return {identity for identity, since, until in self.spans if since <= end and start <= until}


class Load:
    """Sends images at a fixed rate, in a thread of its own."""

    def __init__(self, url: str, bodies: list[bytes], rate: float) -> None:
        self.url, self.bodies, self.rate = url, bodies, rate
        self.turn = 0
        self.answers: list[Answer] = []
        self.unanswered = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send_all()))
        self._thread.start()

    def end(self) -> None:
        """Stop sending and wait for the last answers."""
        self._ended.set()
        self._thread.join()

    async def _send_all(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        begun, number = time.perf_counter(), 0
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            while not self._ended.is_set():
                await asyncio.sleep(max(0.0, begun + number / self.rate - time.perf_counter()))
                task = asyncio.create_task(self._send(client, number % len(self.bodies)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            await asyncio.gather(*tasks)

    async def _send(self, client: httpx.AsyncClient, file: int) -> None:
        turn, sent = self.turn, time.perf_counter()
        try:
            answer = await client.post(self.url, content=self.bodies[file])
            body = answer.json()
        except (httpx.TransportError, ValueError):
            self.unanswered += 1  # the server was killed
            return
        self.answers.append(Answer(turn, file, sent, time.perf_counter(), answer.status_code, body))


class Run:
    """The server, the load and the turns."""

    def __init__(self, args: argparse.Namespace, root: Path) -> None:
        self.models = [Path(shutil.copytree(path, root / "models" / path.name)) for path in args.models]
        self.name, self.other = (path.name for path in self.models)
        self.files = images_in(args.images, args.most)
        self.own = {}
        for path in self.models:
            detector = PatchSVDD.load(path, "cpu")
            self.own[detector.identity] = [detector.inspect(file).score for file in self.files]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.root, self.live = root, Live()
        self.turns: list[tuple[str, bool]] = []
        self.kills = self.switches = self.rollbacks = 0
        self.compared: dict[str, int] = Counter()
        self.start()

    def start(self) -> None:
        self.server = Server(self.root / "data", self.models, "--port", str(self.port), "--device", "cpu")
        self.url = f"http://127.0.0.1:{self.port}/v1/models/{self.name}"

    def identity(self) -> str:
        found: str = httpx.get(self.url, timeout=60).json()["identity"]
        return found

    def seconds_per_image(self) -> float:
        bodies, found = [file.read_bytes() for file in self.files[:8]], []
        for _ in range(3):
            for body in bodies:
                start = time.perf_counter()
                httpx.post(f"{self.url}/inspect", content=body, timeout=60).raise_for_status()
                found.append(time.perf_counter() - start)
        return statistics.median(found[len(bodies) :])

    def set_candidate(self) -> None:
        httpx.put(f"{self.url}/candidate", json={"model": self.other}, timeout=60).raise_for_status()

    def note_shadow(self) -> None:
        found = httpx.get(f"{self.url}/shadow", timeout=60).json()
        self.compared["images"] = max(self.compared["images"], found["images"])
        self.compared["dropped"] += found["dropped"]
        self.compared["failed"] += found["failed"]

    def change(self, what: str) -> None:
        """Switch or roll back."""
        start = time.perf_counter()
        answer = httpx.post(f"{self.url}/{what}", timeout=120).raise_for_status().json()
        self.live.begin(answer["model"]["identity"], start)
        self.switches += what == "switch"
        self.rollbacks += what == "rollback"

    def kill(self, *, while_switching: bool) -> None:
        """Kill the server, and start it again."""
        start = time.perf_counter()
        if while_switching:
            asking = threading.Thread(target=self._ask_to_switch)
            asking.start()
            time.sleep(0.03)
        self.server.kill()
        self.kills += 1
        self.start()
        if while_switching:
            asking.join()
        self.live.begin(self.identity(), start)

    def _ask_to_switch(self) -> None:
        with suppress(httpx.HTTPError):
            httpx.post(f"{self.url}/switch", timeout=120)

    def turn(self, load: Load, kind: str, seconds: float, *, kill: bool = False) -> None:
        load.turn = len(self.turns)
        self.turns.append((kind, kill))
        time.sleep(seconds / 2)
        if kill:
            self.kill(while_switching=False)
        time.sleep(seconds / 2)

    def cycle(self, load: Load, number: int, seconds: float, kill: str | None) -> None:
        """Turns without and with a candidate, then one on the candidate, then the roll back."""
        before = self.identity()
        for kind in (WITHOUT, WITH) if number % 2 == 0 else (WITH, WITHOUT):
            if kind == WITH:
                self.set_candidate()
            self.turn(load, kind, seconds, kill=kill == "turn" and kind == WITH)
            if kind == WITH:
                self.note_shadow()
                httpx.delete(f"{self.url}/candidate", timeout=60).raise_for_status()
        self.set_candidate()
        load.turn = len(self.turns)
        if kill == "switch":
            self.kill(while_switching=True)
        if self.identity() == before:
            self.change("switch")
        self.turns.append((SWITCHED, kill == "switch"))
        time.sleep(seconds)
        self.change("rollback")
        load.turn = len(self.turns)

    def stored(self) -> dict[str, dict[str, Any]]:
        """All stored inspections by their ids."""
        found: dict[str, dict[str, Any]] = {}
        before = ""
        while True:
            page = self.server.get(f"/v1/inspections?limit=500{before and f'&before={before}'}")
            found |= {one["id"]: one for one in page["inspections"]}
            if page["next"] is None:
                return found
            before = page["next"]


def milliseconds(seconds: list[float]) -> dict[str, float | int | None]:
    ordered = sorted(seconds)

    def at(share: float) -> float | None:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else None

    return {"requests": len(ordered), "p50": at(0.5), "p99": at(0.99)}


def verdict(run: Run, load: Load) -> dict[str, Any]:
    """What was checked of every answer, and the latencies."""
    good = [one for one in load.answers if one.status == 200]
    stored = run.stored()
    wrong_model = wrong_score = lost = altered = 0
    for one in good:
        identity, score = one.body["identity"], one.body["score"]
        wrong_model += identity not in run.live.between(one.sent, one.received)
        own = run.own[identity][one.file] if identity in run.own else float("nan")
        wrong_score += not abs(score - own) <= TOLERANCE * max(abs(own), 1e-9)
        row = stored.get(one.body["id"])
        lost += row is None
        altered += row is not None and (row["identity"], row["score"]) != (identity, score)

    def latencies(kind: str) -> dict[str, Any]:
        counted = {number for number, turn in enumerate(run.turns) if turn == (kind, False)}
        found = milliseconds([one.received - one.sent for one in good if one.turn in counted])
        return {"turns": len(counted), **found}

    without, alongside = latencies(WITHOUT), latencies(WITH)
    ratios = {
        f"{name}_ratio": round(alongside[name] / without[name], 3) if alongside[name] and without[name] else None
        for name in ("p50", "p99")
    }
    return {
        "answers": dict(sorted(Counter(str(one.status) for one in load.answers).items())),
        "unanswered_because_of_kills": load.unanswered,
        "answered_by_the_wrong_model": wrong_model,
        "with_another_score_than_the_model's_own": wrong_score,
        "answered_but_not_stored": lost,
        "stored_differently": altered,
        "stored": len(stored),
        "switches": run.switches,
        "rollbacks": run.rollbacks,
        "kills": run.kills,
        "ms_without_candidate": without,
        "ms_with_candidate": alongside,
        "ms_switched": latencies(SWITCHED),
        **ratios,
        "shadow": dict(run.compared),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs=2, required=True, metavar=("LIVE", "CANDIDATE"))
    parser.add_argument("--images", type=Path, required=True, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of load")
    parser.add_argument("--load", type=float, default=0.5, help="share of the rate at which one client gets answers")
    parser.add_argument("--turn", type=float, default=30.0, help="longest turn in seconds")
    parser.add_argument("--most", type=int, default=64, help="largest number of images")
    parser.add_argument("--out", type=Path, default=RESULTS / "shadow-under-load.json")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the store; default: a temporary folder")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=args.scratch))
    load_before = machine_load()
    run = Run(args, root)
    rate = args.load / run.seconds_per_image()
    run.live.begin(run.identity(), 0.0)
    # At least three cycles of three turns: one with each kill, and one without any.
    cycles = max(3, round(60 * args.minutes / (3 * args.turn)))
    seconds = 60 * args.minutes / (3 * cycles)
    load = Load(f"{run.url}/inspect", [file.read_bytes() for file in run.files], rate)
    try:
        for number in range(cycles):
            kill = {cycles // 3: "turn", 2 * cycles // 3: "switch"}.get(number)
            run.cycle(load, number, seconds, kill)
            print(f"cycle {number + 1} of {cycles}: {len(load.answers)} answers", flush=True)
    finally:
        load.end()
    found = verdict(run, load)
    status = run.server.stop()
    result = {
        "models": [run.name, run.other],
        "images": len(run.files),
        "minutes": args.minutes,
        "seconds_per_turn": round(seconds, 2),
        "sent_per_second": round(rate, 3),
        "load": args.load,
        **found,
        "exit_status": status,
        "load_average_before": load_before,
        **circumstances(torch.device("cpu")),
    }
    write_result(args.out, result)
    print(json.dumps(result, indent=1))
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
