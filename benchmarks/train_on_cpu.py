"""Train and evaluate a category on a CPU with the commands, as a user would: wall time and CPU time.

    python benchmarks/train_on_cpu.py CATEGORY... --minutes 2,5,10 --out benchmarks/results/train-minutes-x86.json

The commands run in separate processes. The load of the machine before they start and the CPU time show whether they had
the machine to themselves: with all cores busy, wall time is CPU time divided by the number of cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from record import circumstances, write_result


def run(*arguments: str) -> tuple[dict[str, Any], dict[str, float]]:
    """The JSON output of a command, and its minutes: wall time and CPU time."""
    start, before = time.perf_counter(), _core_seconds()
    told = subprocess.run(
        [sys.executable, "-m", "patchsvdd", *arguments, "--json"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    minutes = {"clock": (time.perf_counter() - start) / 60, "one_core": (_core_seconds() - before) / 60}
    return json.loads(told), {name: round(value, 2) for name, value in minutes.items()}


def _core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def train_and_test(category: Path, preset: str, minutes: float | None, seed: int) -> dict[str, Any]:
    """A row of the result: the time that both commands needed, the schedule, and the metrics."""
    settings = ["--preset", preset, "--seed", str(seed), "--device", "cpu"]
    settings += [] if minutes is None else ["--minutes", f"{minutes:g}"]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        training, trained = run("train", str(category), "--out", f"{folder}/model", *settings)
        evaluation, evaluated = run("evaluate", f"{folder}/model", str(category), "--device", "cpu")
        about = json.loads(Path(folder, "model", "model.json").read_bytes())
    return {
        "category": category.name,
        "minutes": minutes,
        "seed": seed,
        "load_before": round(load, 2),
        "training_minutes": trained,
        "evaluation_minutes": evaluated,
        "critic": about["config"]["critic"],
        "fusion": about["provenance"].get("fusion"),
        "training": {key: value for key, value in training.items() if key not in ("model", "unusual", "sizing")},
        "evaluation": {key: value for key, value in evaluation.items() if key not in ("model", "category")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--preset", default="best")
    parser.add_argument("--minutes", help="minutes of training, comma-separated; default: those of the preset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="written after every training; those in it are kept")
    args = parser.parse_args()
    limits = [float(text) for text in args.minutes.split(",")] if args.minutes else [None]
    rows = json.loads(args.out.read_bytes())["rows"] if args.out.is_file() else []
    for limit in limits:
        for category in args.categories:
            asked = (category.name, limit, args.seed)
            if asked in [(row["category"], row["minutes"], row["seed"]) for row in rows]:
                continue
            rows.append(train_and_test(category, args.preset, limit, args.seed))
            command = f"python benchmarks/train_on_cpu.py CATEGORY... --preset {args.preset} --minutes {args.minutes}"
            write_result(args.out, {"command": command, **circumstances(torch.device("cpu")), "rows": rows})
            print(f"{asked}: {rows[-1]['training_minutes']}", flush=True)


if __name__ == "__main__":
    main()
