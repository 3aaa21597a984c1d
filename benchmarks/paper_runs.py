"""Train and test everything that ``patchsvdd paper all`` and a benchmark of the baselines need, several at a time.

    python benchmarks/paper_runs.py CATEGORY... --cache FOLDER [--items patch-svdd,losses,…] [--seeds 0,1,2]

No command line and no charts are required. Results stay in --cache: give the same folder to ``patchsvdd paper`` or
``patchsvdd benchmark``, which then train nothing. An interrupted run continues from there, within a training too.
Processes can share one GPU (start nvidia-cuda-mps-control -d).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from patchsvdd.core.config import Objective
from patchsvdd.core.errors import Interrupted
from patchsvdd.core.presets import BASELINE_PRESETS, preset
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.evaluation.paper.hierarchy import FLAT
from patchsvdd.evaluation.paper.study import Study
from patchsvdd.evaluation.paper.sweeps import DIMENSIONS, LAMBDAS
from record import write_result

ITEMS = (*BASELINE_PRESETS, "untrained", "patch-svdd", "svdd-prime", "losses", "hierarchy", "lambda", "dimension")
"""In the order of running."""
WITH_SEEDS: dict[str, Objective] = {"patch-svdd": "patch-svdd", "svdd-prime": "svdd-prime"}
"""Item → loss that is trained with every seed."""


def experiments(item: str, study: Study) -> Iterator[Experiment]:
    """The experiments of an item; those of the baselines, the paper's method and L_SVDD' with every seed."""
    categories, first, seeds = study.categories, study.config, study.every_seed
    if item in BASELINE_PRESETS:
        yield from (Experiment(path, preset(item, seed=seed)) for seed in seeds for path in categories)
    elif item == "untrained":
        for kind in ("random", "raw"):
            yield from (Experiment(path, first.replace(encoder=kind), calibrated=False) for path in categories)
    elif item in WITH_SEEDS:
        for seed in seeds:
            changed = study.with_loss(WITH_SEEDS[item], seed)
            yield from (Experiment(path, changed, calibrated=False) for path in categories)
    elif item == "losses":
        for path in categories:
            one_center = study.with_loss("svdd")
            yield Experiment(path, one_center, "center", calibrated=False)
            yield Experiment(path, one_center, calibrated=False)
    elif item == "hierarchy":
        flat = first.replace(encoder="flat", scales=FLAT)
        yield from (Experiment(path, flat, calibrated=False) for path in categories)
    elif item == "lambda":
        for value in LAMBDAS:
            changed = first.replace(lambda_=value)
            yield from (Experiment(path, changed, calibrated=False) for path in study.one_of_each_kind())
    elif item == "dimension":
        for length in DIMENSIONS:
            changed = first.replace(embedding_dim=length)
            yield from (Experiment(path, changed, calibrated=False) for path in study.one_of_each_kind())


def run(group: Sequence[Experiment], cache: Path, device: str, until: float) -> list[dict[str, Any]]:
    """Train once and test each experiment of a group, or find the stored results."""
    torch.set_num_threads(2)
    store = ExperimentStore(cache, device=device, should_stop=lambda: time.time() > until)
    rows = []
    for experiment in group:
        start = time.time()
        result = store.result(experiment)
        rows.append(
            {
                "detection_auroc": result.metrics.get("detection_auroc"),
                "segmentation_auroc": result.metrics.get("segmentation_auroc"),
                "train_seconds": round(result.data["training"].get("seconds", 0.0), 1),
                "seconds": round(time.time() - start, 1),
                **{name: result.data[name] for name in ("hardware", "date", "commit")},
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--cache", type=Path, required=True, help="folder of trained encoders and results")
    parser.add_argument("--items", default=",".join(ITEMS), help="comma-separated")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, help="training steps instead of the paper's 300 epochs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time; run again to go on")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="file for a row per result; with --seconds 0 only of stored results")
    args = parser.parse_args()
    items = args.items.split(",")
    if odd := sorted(set(items) - set(ITEMS)):
        parser.error(f"unknown item {odd[0]}; choose from {', '.join(ITEMS)}")
    until = time.time() + args.seconds
    seeds = tuple(int(seed) for seed in args.seeds.split(","))
    config = preset("paper", steps=args.steps, seed=seeds[0])
    store = ExperimentStore(args.cache, device=args.device)
    study = Study(store, tuple(args.categories), config, args.cache, seeds)
    groups: dict[str, list[Experiment]] = {}  # one per encoder: two processes must not train the same
    for item in (name for name in ITEMS if name in items):
        for one in experiments(item, study):
            groups.setdefault(store.name_of(one), []).append(one)
    rows: list[dict[str, Any]] = []
    failed = 0
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run, group, args.cache, args.device, until): group for group in groups.values()}
        for future in as_completed(futures):
            group = futures[future]
            try:
                for one, row in zip(group, future.result(), strict=True):
                    rows.append({**about(one), **row})
                    print(json.dumps(rows[-1]), flush=True)
            except Interrupted as error:
                print(json.dumps({**about(group[0]), "interrupted": str(error)}), flush=True)
            except Exception as error:  # noqa: BLE001 (the other groups go on)
                failed += 1
                print(json.dumps({**about(group[0]), "failed": f"{type(error).__name__}: {error}"}), flush=True)
    if args.out is not None:
        kept = [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
        write_result(args.out, {"command": "benchmarks/paper_runs.py", "rows": sorted(kept, key=str)})
    if failed:
        raise SystemExit(f"error: {failed} of {len(groups)} groups failed; see above")


def about(experiment: Experiment) -> dict[str, Any]:
    """What distinguishes an experiment."""
    config = experiment.config
    settings = ("preset", "seed", "objective", "encoder", "lambda_", "embedding_dim")
    return {
        "category": experiment.category.name,
        "scoring": experiment.scoring,
        **{name: getattr(config, name) for name in settings},
    }


if __name__ == "__main__":
    main()
