"""Verdicts and regions at the shipped threshold, compared with the best threshold in hindsight, on several sets.

    python benchmarks/verdicts.py CATEGORY... --cache FOLDER [--seeds 0,1,2] [--workers 4] [--seconds 560]

Each category is trained and tested with each seed, several side by side (on one GPU under its multi-process service:
nvidia-cuda-mps-control -d). Trained parts stay in --cache, and an interrupted run continues from there. The threshold
is the model's own; labels are read only to report. The result has a row per category and seed, with the score of every
test image and the scores that set the threshold; ``verdict_table.py`` makes tables of them without a GPU.

With --without-critic the same encoders are tested as preset ``encoder`` would use them; no critic is trained.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from patchsvdd.core.config import Config
from patchsvdd.core.errors import Interrupted
from patchsvdd.core.presets import preset, with_critic_steps
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation.collected_results import inspect_test_images
from patchsvdd.evaluation.evaluate import measure
from patchsvdd.evaluation.experiment import Experiment, measured
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.images.loading import load_good_images
from patchsvdd.scoring.calibration import Calibration
from record import RESULTS, circumstances, write_result

KEPT = (
    "detection_auroc",
    "detection_f1_max",
    "segmentation_auroc",
    "segmentation_ap",
    "segmentation_f1_max",
    "aupro",
    "threshold",
    "false_alarm_rate",
    "false_alarm_rate_interval",
    "miss_rate",
    "miss_rate_interval",
    "balanced_accuracy",
    "balanced_accuracy_max",
    "balanced_accuracy_lost",
    "detection_f1",
    "detection_f1_lost",
    "region_precision",
    "region_recall",
    "region_f1",
    "region_f1_lost",
    "seconds_per_image",
)
TRAINED = ("kept_untrained", "validation", "fusion_share", "fusion_tried")
MEANS = (
    *("detection_auroc", "segmentation_auroc", "segmentation_ap", "false_alarm_rate", "miss_rate"),
    *("balanced_accuracy", "balanced_accuracy_lost", "region_f1"),
)


def run(category: Path, config: Config, cache: Path, device: str, until: float, without_critic: bool) -> dict[str, Any]:
    """One row: train or load the parts, test, and keep what the verdicts need."""
    torch.set_num_threads(2)
    store = ExperimentStore(cache, device=device, should_stop=lambda: time.time() > until)
    experiment = Experiment(category, config).sized()
    data = test_encoder(store, experiment) if without_critic else store.result(experiment).data
    evaluation = data["evaluation"]
    scores: dict[str, list[float]] = {}
    for image in data["images"]:
        scores.setdefault(image["defect"], []).append(float(f"{image['score']:.6g}"))
    calibration = Calibration.from_json(data["calibration"])
    training = data["training"]
    return {
        "category": category.name,
        "seed": config.seed,
        "aim": calibration.aim,
        **{name: evaluation[name] for name in KEPT if name in evaluation},
        "train_seconds": training["seconds"] + training.get("critic_seconds", 0.0),
        **{name: training[name] for name in TRAINED if name in training},
        "scores": scores,
        "region_level": calibration.region_level,
        "calibration_scores": _rounded(calibration.scores),
        "evidence": None
        if calibration.evidence is None
        else {name: _rounded(values) for name, values in calibration.evidence.to_json().items()},
    }


def test_encoder(store: ExperimentStore, experiment: Experiment) -> dict[str, Any]:
    """The result of preset ``encoder`` with the encoder that was trained for this experiment."""
    config = dataclasses.replace(experiment.config, preset="encoder", critic=None)
    images = load_good_images(experiment.category, config)
    encoder, training = store.encoder(experiment, images)
    detector = PatchSVDD.fit_images(images, config, device=str(store.device), encoder=encoder)
    results = inspect_test_images(detector, experiment.category)
    assert detector.calibration is not None
    calibration = detector.calibration.to_json()
    return {"training": training, "calibration": calibration, **measured(results, measure(results, detector))}


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--cache", type=Path, required=True, help="folder for trained encoders and critics")
    parser.add_argument("--preset", default="best")
    parser.add_argument("--without-critic", action="store_true", help="test the same encoders without their critics")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time; run again to go on")
    parser.add_argument("--aim", help="what the threshold is for; the preset's by default")
    parser.add_argument("--steps", type=int, help="training steps instead of the preset's")
    parser.add_argument("--critic-steps", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS / "verdicts.json")
    args = parser.parse_args()
    until = time.time() + args.seconds
    config = with_critic_steps(preset(args.preset, steps=args.steps, aim=args.aim), args.critic_steps)
    runs = [(path, config.replace(seed=int(seed))) for seed in args.seeds.split(",") for path in args.categories]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run, *one, args.cache, args.device, until, args.without_critic): one for one in runs}
        for future in as_completed(futures):
            category, settings = futures[future]
            try:
                rows.append(future.result())
            except Interrupted as error:
                print(f"{category.name}, seed {settings.seed}: {error}", flush=True)
                continue
            print(json.dumps({name: rows[-1].get(name) for name in ("category", "seed", *MEANS)}), flush=True)
            _write(args.out, "encoder" if args.without_critic else args.preset, runs, rows)


def _write(out: Path, name: str, runs: list[tuple[Path, Config]], rows: list[dict[str, Any]]) -> None:
    order = [(path.name, config.seed) for path, config in runs]
    rows = sorted(rows, key=lambda row: order.index((row["category"], row["seed"])))
    means = {}
    for metric in MEANS:
        by_category: dict[str, list[float]] = {}
        for row in rows:
            if row.get(metric) is not None:
                by_category.setdefault(row["category"], []).append(row[metric])
        if by_category:
            means[metric] = statistics.fmean(statistics.fmean(values) for values in by_category.values())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result = {"preset": name, "complete": len(rows) == len(runs), "means": means, "rows": rows}
    write_result(out, {**result, **circumstances(device)})


if __name__ == "__main__":
    main()
