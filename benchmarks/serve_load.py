"""Throughput of the service relative to ``inspect_many``, and its behaviour at twice the load.

    python benchmarks/serve_load.py MODEL IMAGES [--minutes 10] [--rounds 2]

A real server and a client, each in a separate process. Alternating: ``inspect_many`` on the files in a third process,
and the same files posted by enough clients to saturate the service. Then half of the service's rate in an open loop,
for latencies; then twice the rate for some minutes. Every answer is counted, memory is read every few seconds, and
every acknowledged inspection is looked up afterwards.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from record import RESULTS, circumstances, write_result
from serve_process import Server, images_in, machine_load

IN_PROCESS = """
import sys, time
from pathlib import Path
from patchsvdd import PatchSVDD
model, seconds, batch, *files = sys.argv[1:]
detector = PatchSVDD.load(model, "cpu")
for _ in detector.inspect_many(files[:4], batch_size=int(batch) or None):
    pass
count, begun = 0, time.perf_counter()
while time.perf_counter() - begun < float(seconds):
    for _ in detector.inspect_many(files, batch_size=int(batch) or None):
        count += 1
print(count / (time.perf_counter() - begun))
"""
CLIENT = Path(__file__).with_name("serve_client.py")


def in_process(model: Path, files: list[Path], seconds: float, batch: int) -> float:
    """Images per second of ``inspect_many``."""
    command = [sys.executable, "-c", IN_PROCESS, str(model), str(seconds), str(batch), *map(str, files)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_client(server: Server, model: Path, files: list[Path], **order: Any) -> dict[str, Any]:
    """The output of a client process, and the memory of the server during that time."""
    url = f"{server.url}/v1/models/{model.name}/inspect"
    process = subprocess.Popen(
        [sys.executable, str(CLIENT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as sending:
        json.dump({"url": url, "files": [str(path.resolve()) for path in files], **order}, sending)
    memory, begun = [], time.monotonic()
    every = max(1.0, order["seconds"] / 60)
    while not select.select([process.stdout], [], [], every)[0]:  # it prints nothing until it ends
        memory.append({"at": round(time.monotonic() - begun, 1), **server.resident()})
    said = process.stdout.read()
    process.wait()
    return {**json.loads(said), "memory": memory or [{"at": 0.0, **server.resident()}]}


def looked_up(server: Server, ids: list[str]) -> int:
    """Number of ids in the store, with image and map."""
    kept: set[str] = set()
    before = ""
    while True:
        page = server.get(f"/v1/inspections?limit=500{f'&before={before}' if before else ''}")
        kept |= {one["id"] for one in page["inspections"] if one["has_picture"] and one["has_map"]}
        before = page["next"]
        if not before:
            return len(set(ids) & kept)


def flatness(memory: list[dict[str, float]]) -> dict[str, float]:
    """Memory in the second and in the last quarter, in megabytes."""
    quarter = max(1, len(memory) // 4)

    def middle(rows: list[dict[str, float]]) -> float:
        return round(statistics.median(row["server"] + row["decoders"] for row in rows), 1)

    total = [row["server"] + row["decoders"] for row in memory]
    return {
        "second_quarter": middle(memory[quarter : 2 * quarter] or memory),
        "last_quarter": middle(memory[-quarter:]),
        "most": max(total),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of twice the load")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of inspect_many and the service")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each round")
    parser.add_argument("--clients", type=int, default=12, help="clients that saturate the service")
    parser.add_argument("--half-seconds", type=float, default=45.0, help="seconds of half the load")
    parser.add_argument("--most", type=int, default=64, help="largest number of images")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve-load.json")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the store; default: a temporary folder")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=args.scratch))
    files = images_in(args.images, args.most)
    load_before = machine_load()
    server = Server(root / "data", [args.model])
    warm = run_client(server, args.model, files, seconds=min(5.0, args.seconds), clients=args.clients)
    ids: list[str] = list(warm["ids"])
    alone: dict[str, list[float]] = {"one at a time": [], "four at a time": []}
    service: list[dict[str, Any]] = []
    for _ in range(args.rounds):
        alone["one at a time"].append(in_process(args.model, files, args.seconds, 0))
        alone["four at a time"].append(in_process(args.model, files, args.seconds, 4))
        found = run_client(server, args.model, files, seconds=args.seconds, clients=args.clients)
        ids += found.pop("ids")
        service.append(found)
        print({key: round(value[-1], 2) for key, value in alone.items()}, round(found["per_second"], 2), found["ms"])
    alone["one at a time"].append(in_process(args.model, files, args.seconds, 0))
    rate = statistics.median(one["per_second"] for one in service)
    best = max(statistics.median(values) for values in alone.values())

    half = run_client(server, args.model, files, seconds=args.half_seconds, rate=rate / 2)
    ids += half.pop("ids")
    print("half:", half["answers"], half["ms"])
    over = run_client(server, args.model, files, seconds=60 * args.minutes, rate=2 * rate)
    ids += over.pop("ids")
    print("twice:", over["answers"], over["ms"], flatness(over["memory"]))
    known = looked_up(server, ids)
    status = server.stop()
    result = {
        "model": args.model.name,
        "images": len(files),
        "inspect_many_per_second": {name: [round(one, 3) for one in values] for name, values in alone.items()},
        "service_per_second": [round(one["per_second"], 3) for one in service],
        "clients": args.clients,
        "ratio": round(rate / best, 3),
        "ratio_to_default": round(rate / statistics.median(alone["one at a time"]), 3),
        "saturated_ms": service[-1]["ms"],
        "half_load": {"per_second": round(rate / 2, 3), "answers": half["answers"], "ms": half["ms"]},
        "overload": {
            "minutes": args.minutes,
            "sent_per_second": round(over["sent"] / over["sending_seconds"], 3),
            "sent": over["sent"],
            "answered": sum(over["answers"].values()) - over["answers"].get("0", 0),
            "answers": over["answers"],
            "served_per_second": round(over["per_second"], 3),
            "ms": over["ms"],
            "megabytes": flatness(over["memory"]),
            "memory": over["memory"],
        },
        "acknowledged": len(ids),
        "acknowledged_in_store": known,
        "exit_status": status,
        "load_average_before": load_before,
        **circumstances(torch.device("cpu")),
    }
    write_result(args.out, result)
    print(json.dumps({key: value for key, value in result.items() if key != "overload"}, indent=1))
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
