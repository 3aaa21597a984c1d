"""An archive on a Ray cluster on this machine against one process, and the results after processes are killed.

    PYTHONPATH=tests python benchmarks/cluster_inspect.py [--images 20000] [--lossy 6000] [--seed 0]

First, the images are inspected by `inspect_many` in this process (half of them before the cluster and half after it)
and by `patchsvdd inspect --cluster`, whose workers have the same cores, one each. Rows are compared one by one, times
as a ratio, and the memory of all workers is recorded. Then some of the images are inspected on two nodes while a worker
is killed, then a whole node with its raylet, and finally the command itself, which is then run again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from patchsvdd import PatchSVDD
from patchsvdd.apps.cluster.job import Job
from patchsvdd.apps.cluster.storage import StoragePath
from patchsvdd.core.errors import ImageError
from record import RESULTS, circumstances, write_result
from serve_process import picture
from support.ray_cluster import kill_worker, nodes
from support.waiting import wait_until

PROGRAM = (sys.executable, "-c", "from patchsvdd.apps.cli import main; main()")
SAME = ("score", "threshold", "p_value", "verdict", "is_anomalous", "image_size", "regions", "min_area", "error")
BROKEN = 1000
"""One file in this many is not an image."""


def draw(folder: Path, count: int) -> Path:
    """``folder`` with ``count`` small photos, in subfolders of a thousand."""
    for index in range(count):
        path = folder / f"{index // 1000:03d}" / f"{index:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image" if index % BROKEN == BROKEN - 1 else picture(index))
    return folder


def train(folder: Path) -> Path:
    good = [np.asarray(Image.open(BytesIO(picture(7 * seed + 1)))) for seed in range(24)]
    settings: dict[str, Any] = {"image_size": 64, "steps": 60, "batch_size": 2, "stop": "end"}
    settings |= {"aim": "few-alarms", "synthetic_defects": 0}
    detector = PatchSVDD.fit(good, preset="encoder", device="cpu", **settings)
    detector.save(folder)
    return folder


def inspected(detector: PatchSVDD, paths: list[Path], root: Path) -> tuple[dict[str, dict[str, Any]], float]:
    """Results of this process by name, and the seconds it takes."""
    errors: list[ImageError] = []
    begin = time.perf_counter()
    found = {
        str(Path(one.name).relative_to(root)): one.to_json()
        for one in detector.inspect_many(paths, on_error=errors.append)
    }
    seconds = time.perf_counter() - begin
    return found | {str(Path(one.name).relative_to(root)): {"error": one.reason} for one in errors}, seconds


def compare(alone: dict[str, dict[str, Any]], rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Numbers of rows, of duplicate and missing rows, and of rows equal to the results of this process."""
    seen: dict[str, int] = {}
    equal, largest = 0, 0.0
    for row in rows:
        seen[row["image"]] = seen.get(row["image"], 0) + 1
        expected = alone.get(row["image"], {})
        equal += all(row[name] == expected.get(name) for name in SAME)
        if row["score"] is not None and "score" in expected:
            largest = max(largest, abs(row["score"] - expected["score"]) / expected["score"])
    return {
        "rows": sum(seen.values()),
        "missing": len(alone.keys() - seen.keys()),
        "doubled": sum(count > 1 for count in seen.values()),
        "foreign": len(seen.keys() - alone.keys()),
        "equal": equal,
        "largest_relative_difference_of_a_score": largest,
    }


class MemoryWatch(threading.Thread):
    """Resident bytes of every worker that inspects, and of the command."""

    def __init__(self, command: int) -> None:
        super().__init__(daemon=True)
        self.command, self.ended = command, threading.Event()
        self.seen: list[dict[str, int]] = []

    def run(self) -> None:
        while not self.ended.wait(2):
            workers = [_resident(pid) for pid in _processes("ray::MapWorker")]
            if workers:
                self.seen.append({"workers": sum(workers), "command": _resident(self.command)})

    def told(self) -> dict[str, Any]:
        quarter = self.seen[len(self.seen) // 4 :]
        return {
            name: {
                "after_a_quarter": quarter[0][name],
                "at_the_end": quarter[-1][name],
                "most": max(one[name] for one in quarter),
            }
            for name in ("workers", "command")
        }


def _processes(title: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cmdline").read_bytes().startswith(title.encode()):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def command(model: Path, photos: object, out: Path, address: str, engine: str) -> list[str]:
    options = ["--heat-maps", "none", "--engine", engine, "--json"]
    return [*PROGRAM, "inspect", str(model), str(photos), "--out", str(out), "--cluster", address, *options]


def parts(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in out.glob("results/plan=*/part-*.parquet")}


def against_one_process(model: Path, photos: Path, out: Path, engine: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Times, rows and memory; and the results of one process."""
    detector = PatchSVDD.load(model, "cpu", engine=engine)  # type: ignore[arg-type]
    paths = sorted(photos.rglob("*.png"))
    half = len(paths) // 2
    list(detector.inspect_many(paths[:20]))
    first, before = inspected(detector, paths[:half], photos)
    begin = time.time()
    process = subprocess.Popen(command(model, photos, out, "local", engine), stdout=subprocess.PIPE, text=True)
    watch = MemoryWatch(process.pid)
    watch.start()
    told, _ = process.communicate()
    whole = time.time() - begin
    watch.ended.set()
    assert process.returncode == 0, told
    second, after = inspected(detector, paths[half:], photos)
    alone = first | second
    written = sorted(stamp / 1e9 for stamp in parts(out).values())
    size = len(paths) / len(written)  # of a chunk; all but the last are equally large
    # Starting with the second of two workers.
    steady = (written[-1] - written[1]) / (len(written) - 2) / size * len(paths)
    result = {
        "images": len(paths),
        "chunks": len(written),
        "one_process_seconds": before + after,
        "one_process_halves_seconds": [before, after],
        "cluster_seconds": whole,
        "cluster_start_seconds": written[0] - begin,
        "overhead_of_the_whole_command": whole / (before + after) - 1,
        "overhead_once_workers_run": steady / (before + after) - 1,
        "told": json.loads(told) | {"worst": None, "out": None},
        "compared": compare(alone, Job(StoragePath.of(out)).results()),
        "resident_bytes": watch.told(),
        "result_bytes": sum(path.stat().st_size for path in out.glob("results/plan=*/*")),
    }
    return result, alone


def with_losses(model: Path, photos: Path, out: Path, alone: dict[str, dict[str, Any]], engine: str) -> dict[str, Any]:
    """Kill a worker, a node and the command, one after the other."""
    with nodes(1, 1) as cluster:
        order = command(model, photos, out, str(cluster.address), engine)
        process = subprocess.Popen(order, stdout=subprocess.DEVNULL)

        wait_until(lambda: len(parts(out)) >= 3, 120)
        chunks = len(Job(StoragePath.of(out)).chunks())
        kill_worker(cluster, "MapWorker")
        at_worker = len(parts(out))
        wait_until(lambda: len(parts(out)) >= chunks // 3, 600)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        at_node = len(parts(out))
        wait_until(lambda: len(parts(out)) >= 2 * chunks // 3, 600)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(2)
        before = parts(out)
        again = subprocess.run(order, stdout=subprocess.PIPE, text=True, check=True)
    told, after = json.loads(again.stdout), parts(out)
    return {
        "chunks": chunks,
        "parts_when_the_worker_was_killed": at_worker,
        "parts_when_the_node_was_killed": at_node,
        "parts_when_the_command_was_killed": len(before),
        "already_done": told["already_done"],
        "parts_written_again": sum(after[name] != stamp for name, stamp in before.items()),
        "compared": compare(alone, Job(StoragePath.of(out)).results()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--lossy", type=int, default=6_000, help="images of the run with losses; a multiple of 1000")
    parser.add_argument("--engine", default="openvino")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "cluster-inspect.json")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = train(folder / "model")
        photos = draw(folder / "photos", chosen.images)
        measured, alone = against_one_process(model, photos, folder / "out", chosen.engine)
        print(json.dumps(measured, indent=1))
        some = draw(folder / "some", chosen.lossy)
        known = {name: alone[name] for name in sorted(alone)[: chosen.lossy]}
        lost = with_losses(model, some, folder / "lossy", known, chosen.engine)
        print(json.dumps(lost, indent=1))
    result = {
        "command": "python benchmarks/cluster_inspect.py",
        **circumstances(torch.device("cpu")),
        "seed": chosen.seed,
        "engine": chosen.engine,
        "against_one_process": measured,
        "with_losses": lost,
    }
    write_result(chosen.out, result)


if __name__ == "__main__":
    main()
