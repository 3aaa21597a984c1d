"""The runs of `patchsvdd benchmark`, several at a time on one GPU.

    nvidia-cuda-mps-control -d
    python benchmarks/side_by_side.py DATASET --cache RUNS --preset best --seeds 0,1,2 --workers 4 --seconds 560
    patchsvdd benchmark DATASET --cache RUNS --preset best --seeds 0,1,2 --out benchmark

One training leaves most of a large GPU idle. Processes take runs from a queue, all categories of one seed before the
next, and keep them in the folder that the benchmark looks into; the benchmark then finds them done and writes its
tables. No run is begun after the given seconds; one that is interrupted is continued the next time.
"""

from __future__ import annotations

import argparse
import json
import queue
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from patchsvdd import preset
from patchsvdd.core.config import Config
from patchsvdd.core.errors import Interrupted, PatchSVDDError
from patchsvdd.core.presets import with_critic_steps
from patchsvdd.evaluation.dataset import find_categories
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult
from patchsvdd.evaluation.experiment_store import ExperimentStore


def line_of(result: ExperimentResult, seconds: float) -> str:
    """One run in one line."""
    metrics = {name: round(result.metrics[name], 4) for name in HEADLINE if name in result.metrics}
    parts = {
        part: {name: round(values[name], 4) for name in HEADLINE if name in values}
        for part, values in result.parts.items()
    }
    training = {name: value for name, value in result.data["training"].items() if name in REPORTED}
    about = {"category": result.experiment.category.name, "seed": result.experiment.config.seed}
    return json.dumps({**about, **metrics, **parts, **training, "whole_seconds": round(seconds, 1)})


HEADLINE = ("detection_auroc", "segmentation_auroc", "aupro")
REPORTED = ("steps", "seconds", "critic_seconds", "fusion_share", "lambda", "collapsed")


def work(jobs: Any, cache: Path, device: str, end: float, stop: float) -> None:
    """Take runs until none is left or time is up."""
    torch.set_num_threads(4)
    store = ExperimentStore(cache, device=device, should_stop=lambda: time.time() > stop)
    while time.time() < end:
        try:
            category, config = jobs.get(timeout=2)
        except queue.Empty:
            return
        start = time.time()
        try:
            result = store.result(Experiment(category, config))
        except Interrupted as error:
            print(f"{category.name}, seed {config.seed}: {error}", flush=True)
            return
        except (PatchSVDDError, RuntimeError):
            print(f"{category.name}, seed {config.seed}: {traceback.format_exc()[-800:]}", flush=True)
        else:
            print(line_of(result, time.time() - start), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--preset", default="best")
    parser.add_argument("--categories")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--critic-steps", type=int)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no run is begun after them")
    parser.add_argument("--grace", type=float, default=60.0, help="seconds after which unfinished runs are put aside")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    config: Config = with_critic_steps(preset(args.preset, steps=args.steps), args.critic_steps)
    folders = find_categories(args.dataset, args.categories.split(",") if args.categories else None)
    mp.set_start_method("spawn")
    jobs: Any = mp.Queue()
    for seed in map(int, args.seeds.split(",")):
        for folder in folders:
            jobs.put((folder, config.replace(seed=seed)))
    end = time.time() + args.seconds
    workers = [
        mp.Process(target=work, args=(jobs, args.cache, args.device, end, end + args.grace))
        for _ in range(args.workers)
    ]
    for process in workers:
        process.start()
    for process in workers:
        process.join()


if __name__ == "__main__":
    main()
