"""The client process of ``serve_load.py``: reads a task as JSON and prints the answers of the service as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx


async def closed_loop(url: str, bodies: list[bytes], seconds: float, clients: int) -> dict[str, Any]:
    """Closed loop: each client sends the next image as soon as it has an answer."""
    answers: list[tuple[float, int, str | None]] = []
    begun = time.perf_counter()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:

        async def one(first: int) -> None:
            number = first
            while time.perf_counter() - begun < seconds:
                answers.append(await ask(http, url, bodies[number % len(bodies)]))
                number += clients

        await asyncio.gather(*(one(number) for number in range(clients)))
    return summary(answers, time.perf_counter() - begun)


async def open_loop(url: str, bodies: list[bytes], seconds: float, rate: float) -> dict[str, Any]:
    """Open loop: send images at a fixed rate without waiting for answers."""
    answers: list[tuple[float, int, str | None]] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    begun = time.perf_counter()
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:
        tasks: set[asyncio.Task[None]] = set()

        async def one(body: bytes) -> None:
            answers.append(await ask(http, url, body))

        for number in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            task = asyncio.create_task(one(bodies[number % len(bodies)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        sent = time.perf_counter() - begun
        while tasks:
            await asyncio.gather(*tasks)
    return {**summary(answers, time.perf_counter() - begun), "sent": int(seconds * rate), "sending_seconds": sent}


async def ask(http: httpx.AsyncClient, url: str, body: bytes) -> tuple[float, int, str | None]:
    """Seconds, status (0 without an answer) and the inspection's id."""
    begun = time.perf_counter()
    try:
        answer = await http.post(url, content=body)
    except httpx.TransportError as error:
        print(repr(error), file=sys.stderr)
        return time.perf_counter() - begun, 0, None
    seconds = time.perf_counter() - begun
    if answer.status_code == 503 and "retry-after" not in answer.headers:
        return seconds, -503, None
    return seconds, answer.status_code, answer.json()["id"] if answer.status_code == 200 else None


def summary(answers: list[tuple[float, int, str | None]], seconds: float) -> dict[str, Any]:
    good = sorted(one[0] for one in answers if one[1] == 200)

    def at(share: float) -> float | None:
        return round(1000 * good[min(len(good) - 1, int(share * len(good)))], 1) if good else None

    return {
        "answers": {str(status): count for status, count in sorted(Counter(one[1] for one in answers).items())},
        "seconds": seconds,
        "per_second": len(good) / seconds,
        "ms": {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0)},
        "ids": [one[2] for one in answers if one[2] is not None],
    }


def main() -> None:
    order = json.load(sys.stdin)
    bodies = [Path(path).read_bytes() for path in order["files"]]
    if "clients" in order:
        found = asyncio.run(closed_loop(order["url"], bodies, order["seconds"], order["clients"]))
    else:
        found = asyncio.run(open_loop(order["url"], bodies, order["seconds"], order["rate"]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
