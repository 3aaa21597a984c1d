"""Files arrive in bursts while `watch` is killed repeatedly: is each in the results exactly once?

    python benchmarks/watch.py [--files 2000] [--seed 0]

A real `patchsvdd watch` runs in a separate process and receives SIGKILL some seconds after it began to inspect,
sometimes during its start. Files arrive in bursts, as from cameras and copies: written slowly in place, written under
another name and renamed, or identical to an earlier file; some are renamed after inspection. A webhook that fails
every third time counts the messages it receives.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from patchsvdd import PatchSVDD
from record import RESULTS, circumstances, write_result
from serve_process import SIZE, picture

PROGRAM = (sys.executable, "-c", "from patchsvdd.apps.cli import main; main()")


def train(folder: Path) -> Path:
    good = [np.asarray(Image.open(BytesIO(picture(7 * seed + 1)))) for seed in range(8)]
    settings: dict[str, Any] = {"image_size": 64, "steps": 20, "batch_size": 1, "stop": "end"}
    settings |= {"aim": "few-alarms", "synthetic_defects": 0}
    detector = PatchSVDD.fit(good, preset="encoder", device="cpu", **settings)
    detector.save(folder)
    return folder


class Receiver(BaseHTTPRequestHandler):
    """Stores the ids it receives; fails every third time."""

    told: ClassVar[Counter[str]] = Counter()
    requests: ClassVar[int] = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Receiver.requests += 1
        good = Receiver.requests % 3 != 0
        if good:
            Receiver.told[self.headers["Idempotency-Key"]] += 1
        self.send_response(200 if good else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Dropper(threading.Thread):
    """Writes files in bursts; ``names`` are their final paths."""

    def __init__(self, folder: Path, count: int, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.folder, self.count, self.chance = folder, count, chance
        self.ways: Counter[str] = Counter()

    def run(self) -> None:
        dropped = 0
        while dropped < self.count:
            burst = min(self.chance.choice((1, 5, 40, 120, 300)), self.count - dropped)
            for index in range(dropped, dropped + burst):
                self.drop(index)
            dropped += burst
            self.rename_some(dropped)
            time.sleep(self.chance.uniform(1, 12))

    def drop(self, index: int) -> None:
        folder = self.folder / f"station{index % 3}"
        folder.mkdir(exist_ok=True)
        path = folder / f"{index:05}.png"
        way = self.chance.choices(("whole", "renamed into place", "slowly", "twin"), (6, 3, 0.3, 1))[0]
        self.ways[way] += 1
        data = picture(index - index % 50 if way == "twin" else index)
        if way == "renamed into place":
            path.with_suffix(".tmp").write_bytes(data)
            path.with_suffix(".tmp").rename(path)
        elif way == "slowly":
            with path.open("wb", buffering=0) as file:
                file.write(data[: len(data) // 2])
                time.sleep(0.3)
                file.write(data[len(data) // 2 :])
        else:
            path.write_bytes(data)

    def rename_some(self, dropped: int) -> None:
        """Rename some files, inspected or not."""
        for index in self.chance.sample(range(dropped), min(dropped, 5)):
            path = self.folder / f"station{index % 3}" / f"{index:05}.png"
            if path.exists():
                path.rename(path.with_name(f"{index:05}-renamed.png"))
                self.ways["renamed later"] += 1


def rows(out: Path) -> list[dict[str, Any]]:
    """Complete lines of results.jsonl."""
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen([*PROGRAM, *arguments], stdout=file, stderr=file)


def kill_again_and_again(arguments: list[str], out: Path, dropper: Dropper, chance: random.Random) -> Counter[str]:
    """Start and kill until all files are written and inspected; return the number of kills by stage."""
    kills: Counter[str] = Counter()
    while dropper.is_alive() or len(rows(out)) < dropper.count:
        process = start(arguments, out.parent / "log")
        before, begun = len(rows(out)), time.monotonic()
        early = chance.random() < 0.15
        patience = chance.uniform(0.5, 8) if early else 60
        while len(rows(out)) == before and time.monotonic() - begun < patience:
            time.sleep(0.1)
        if not early:
            time.sleep(chance.uniform(4, 14))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills["while starting" if len(rows(out)) == before else "while inspecting"] += 1
        print(f"{sum(kills.values())} kills, {len(rows(out))} rows", flush=True)
    return kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "watch.json")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    model, folder, out = train(root / "model"), root / "camera", root / "watched"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    arguments = ["watch", str(model), str(folder), "--out", str(out), "--device", "cpu", "--webhook", url]

    begun = time.monotonic()
    dropper = Dropper(folder, args.files, random.Random(args.seed))
    dropper.start()
    kills = kill_again_and_again(arguments, out, dropper, random.Random(args.seed + 1))
    subprocess.run([*PROGRAM, *arguments, "--once", "--patience", "120"], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - begun

    found = rows(out)
    per_image = Counter(int(Path(row["image"]).name[:5]) for row in found)
    anomalous = [row["number"] for row in found if row.get("is_anomalous")]
    told = {int(one.rsplit("-", 1)[1]) for one in Receiver.told}
    numbers = [row["number"] for row in found]
    result = {
        "files": args.files,
        "dropped": dict(dropper.ways),
        "kills": sum(kills.values()),
        "kills_by_moment": dict(kills),
        "rows": len(found),
        "rows_in_csv": len((out / "results.csv").read_text().splitlines()) - 1,
        "duplicates": sum(count - 1 for count in per_image.values()),
        "missing": args.files - len(per_image),
        "unreadable": sum("error" in row for row in found),
        "numbers_without_gap": numbers == list(range(1, len(found) + 1)),
        "pictures_missing": sum(not (out / row["overlay"]).exists() for row in found if "error" not in row),
        "anomalous": len(anomalous),
        "webhook": {
            "requests": Receiver.requests,
            "told": len(told & set(anomalous)),
            "never_told": len(set(anomalous) - told),
            "told_more_than_once": sum(count > 1 for count in Receiver.told.values()),
        },
        "seconds": round(seconds, 1),
        "image_size": SIZE,
        "seed": args.seed,
        **circumstances(torch.device("cpu")),
    }
    write_result(args.out, result)
    print(json.dumps(result, indent=1))
    server.shutdown()


if __name__ == "__main__":
    main()
