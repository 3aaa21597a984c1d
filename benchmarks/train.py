"""Train and evaluate categories; milliseconds per step and AUROC at the end of the schedule.

    python benchmarks/train.py DATASET --categories bottle --preset paper --out benchmarks/results/train-paper.json

Test images are used once, after the last step. Results are written after each category. Training seconds are reported
separately until the end of the first step (compiling kernels, recording the CUDA graph) and for the loop after it;
seconds of the whole fit include the memory and, without --uncalibrated, the threshold.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

from patchsvdd import TrainingHooks, TrainingProgress, preset
from patchsvdd.core.device import choose_device
from patchsvdd.core.errors import TrainingCollapsed
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation.evaluate import evaluate
from patchsvdd.images.loading import load_good_images, sized_for
from record import circumstances, write_result


def run_category(
    folder: Path, device: str, preset_name: str, settings: dict[str, Any], calibrated: bool
) -> dict[str, Any]:
    config = sized_for(folder, preset(preset_name, **settings))
    images = load_good_images(folder, config)
    rates: list[tuple[float, int]] = []

    def on_progress(now: TrainingProgress) -> None:
        rates.append((time.perf_counter(), now.step))

    start = time.perf_counter()
    try:
        hooks = TrainingHooks(on_progress)
        detector = PatchSVDD.fit_images(images, config, device=device, hooks=hooks, calibrated=calibrated)
    except TrainingCollapsed as error:
        return {"collapsed": str(error)}
    fit_seconds = time.perf_counter() - start
    training = detector.provenance["training"]
    evaluation = evaluate(detector, folder).to_json()
    (first, first_step), (last, last_step) = rates[0], rates[-1]
    return {
        "images": len(images),
        "steps": training["steps"],
        "seed": config.seed,
        "batch_size": config.batch_size,
        "train_seconds": training["seconds"],
        "loop_seconds": last - first,
        "compile_seconds": training["seconds"] - (last - first),
        "ms_per_step": 1000 * (last - first) / max(1, last_step - first_step),
        "fit_seconds": fit_seconds,
        "evaluation": evaluation,
        "history": training["history"][:: max(1, len(training["history"]) // 40)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--categories", required=True, help="comma-separated")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lambda", dest="lambda_", type=float)
    parser.add_argument("--seeds", default="0", help="comma-separated")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--uncalibrated", action="store_true", help="do not compute a threshold")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "command": "benchmarks/train.py",
        "preset": args.preset,
        **circumstances(choose_device(args.device)),
        "categories": {},
    }
    for seed, name in itertools.product(map(int, args.seeds.split(",")), args.categories.split(",")):
        settings = {"steps": args.steps, "lambda_": args.lambda_, "seed": seed}
        row = run_category(args.dataset / name, args.device, args.preset, settings, not args.uncalibrated)
        result["categories"].setdefault(name, {})[f"seed {seed}"] = row
        write_result(args.out, result)
        if "collapsed" in row:
            print(name, row["collapsed"], flush=True)
            continue
        found = row["evaluation"]
        print(
            f"{name}, seed {seed}: {row['steps']} steps, {row['ms_per_step']:.3f} ms/step, "
            f"loop {row['loop_seconds']:.1f} s, compile {row['compile_seconds']:.1f} s, "
            f"fit {row['fit_seconds']:.1f} s, "
            f"det {found.get('detection_auroc')} seg {found.get('segmentation_auroc')} scales {found['scales']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
