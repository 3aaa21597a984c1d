"""Test an ablation along its schedule: does an encoder without L_SSL get worse the longer it is trained?

    python benchmarks/loss_schedule.py CATEGORY... --out benchmarks/results/loss-schedule.json

The encoder is tested at the start, after 5, 15, 35 and 65 % of the steps, and at the end. Nothing is chosen from the
results: ``patchsvdd paper losses`` tests the last encoder. Rows in an existing result file are not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.encoder.networks import PatchEncoder, build_encoder
from patchsvdd.evaluation.collected_results import inspect_test_images
from patchsvdd.evaluation.evaluate import measure
from patchsvdd.evaluation.paper.study import TASKS
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.training.hooks import TrainingHooks
from patchsvdd.training.loop import train
from record import circumstances, write_result


def schedule(category: Path, config: Config, device: torch.device) -> list[dict[str, Any]]:
    """A row per test of the encoder: step, spread of the embeddings of each scale, AUROC."""
    images = load_good_images(category, config)
    pixels = Normalization.fit(images.pixels, config)(images.pixels).to(device)
    rows: list[dict[str, Any]] = []

    def test(encoder: PatchEncoder, step: int) -> None:
        detector = PatchSVDD.fit_images(images, config, device=str(device), encoder=encoder, calibrated=False)
        found = measure(inspect_test_images(detector, category, lambda *_: None), detector).to_json()
        values: dict[str, Any] = {task: found[task] for task in TASKS if task in found}
        spread = {
            str(size): float(scale.embeddings.double().std(0, correction=0).mean())
            for size, scale in detector.memory.scales.items()
        }
        rows.append({"step": step, "spread": spread, **values})
        print(category.name, config.objective, config.seed, rows[-1], flush=True)

    train(build_encoder(config).to(device), pixels, config, images.fingerprint(), TrainingHooks(on_encoder=test))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--objectives", default="svdd-prime,svdd", help="comma-separated")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, help="training steps instead of the paper's 300 epochs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = choose_device(args.device)
    results = json.loads(args.out.read_bytes())["results"] if args.out.is_file() else []
    for category in args.categories:
        for objective in args.objectives.split(","):
            for seed in map(int, args.seeds.split(",")):
                about = {"category": category.name, "objective": objective, "seed": seed, "steps": args.steps}
                if about in [{name: one[name] for name in about} for one in results]:
                    continue
                start = time.monotonic()
                rows = schedule(category, preset("paper", objective=objective, seed=seed, steps=args.steps), device)
                results.append({**about, "seconds": round(time.monotonic() - start, 1), "rows": rows})
                command = f"python benchmarks/loss_schedule.py CATEGORY... --objectives {args.objectives}"
                write_result(args.out, {"command": command, **circumstances(device), "results": results})


if __name__ == "__main__":
    main()
