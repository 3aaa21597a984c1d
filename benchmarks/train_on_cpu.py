"""Train and evaluate a category on a CPU with the commands, as a user would: wall time and CPU time.

    python benchmarks/train_on_cpu.py CATEGORY --out benchmarks/results/train-best-cpu.json

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("category", type=Path)
    parser.add_argument("--preset", default="best")
    parser.add_argument("--minutes", type=float, help="minutes of training; default: those of the preset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    settings = ["--preset", args.preset, "--seed", str(args.seed), "--device", "cpu"]
    settings += [] if args.minutes is None else ["--minutes", str(args.minutes)]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        training, trained = run("train", str(args.category), "--out", f"{folder}/model", *settings)
        evaluation, evaluated = run("evaluate", f"{folder}/model", str(args.category), "--device", "cpu")
    name = args.category.name
    write_result(
        args.out,
        {
            "command": f"python benchmarks/train_on_cpu.py {name} --preset {args.preset} --seed {args.seed}"
            + (f" --minutes {args.minutes:g}" if args.minutes is not None else ""),
            **circumstances(torch.device("cpu")),
            "category": name,
            "seed": args.seed,
            "load_before": round(load, 2),
            "training_minutes": trained,
            "evaluation_minutes": evaluated,
            "training": {key: value for key, value in training.items() if key != "model"},
            "evaluation": {key: value for key, value in evaluation.items() if key not in ("model", "category")},
        },
    )
    print(f"{name}: trained in {trained['clock']:.1f} minutes ({trained['one_core']:.1f} of one core)")


if __name__ == "__main__":
    main()
