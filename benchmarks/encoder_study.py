"""The memory alone on real sets: which encoder should embed which patches?

    python benchmarks/encoder_study.py CATEGORY... --out FOLDER [--seeds 0,1,2] [--centering channel,exposure]

Each category is trained once per seed, several side by side. Four detectors without a critic are tested: with trained
or untrained small patches, and with larger patches that are embedded by the same encoder or by an untrained one. Each
also has its validation score on synthetic defects, so that the choice between them can be repeated without labels. A
row per category and seed goes to FOLDER/rows.jsonl; an interrupted run skips what is there.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from critic_study import measured
from patchsvdd.core.device import reproducible
from patchsvdd.core.presets import preset
from patchsvdd.critic.validation import ValidationSet
from patchsvdd.detector.fitting import JUDGED, learn_encoder
from patchsvdd.detector.leave_one_out import LeaveOneOutScorer, map_images
from patchsvdd.detector.split import Split
from patchsvdd.detector.stored_memory import wants_graphs
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.encoder.untrained import inspection_encoder
from patchsvdd.images.image_set import load_image, load_mask
from patchsvdd.images.loading import load_training_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.training.hooks import TrainingHooks
from record import circumstances, write_result

KEY = ("category", "seed", "steps", "centering")


def run(category: Path, seed: int, steps: int, centering: str, device: str) -> dict[str, Any]:
    """Train one encoder and test four detectors."""
    torch.set_num_threads(2)
    start, on = time.time(), torch.device(device)
    config = preset("encoder", seed=seed, steps=steps, centering=centering, stop="end", larger_patches="trained")
    images, config = load_training_images(category, config)
    trained, record = learn_encoder(images, config, on, TrainingHooks())
    split = Split.of(config.replace(stop="validation"), len(images))
    normalization = Normalization.fit(images.pixels, config).to(on)
    validation = ValidationSet.draw(images.pixels[split.held_out].to(on), seed, JUDGED, config.frame)
    test = find_test_images(category).images
    pictures, masks = [], []
    for image in test:
        loaded = load_image(image.file, config)
        size = loaded.content or (int(loaded.tensor.shape[1]), int(loaded.tensor.shape[2]))
        pictures.append((loaded.tensor.to(on), size))
        if image.mask is not None:
            masks.append(load_mask(image.mask, size, config.resize))
        elif image.is_good:
            masks.append(np.zeros(size, bool))
    found: dict[str, dict[str, Any]] = {}
    for name, encoder in (("trained", trained), ("untrained", build_encoder(config).to(on))):
        for larger in ("trained", "untrained"):
            inspecting = inspection_encoder(encoder, config.replace(larger_patches=larger)).eval()
            with reproducible(), torch.inference_mode():
                good = LeaveOneOutScorer(
                    images.subset(split.trained), config, inspecting, normalization, wants_graphs("auto", on), None
                )
                builder, _ = good.learn_maps(None, calibrated=False)
                synthetic = map_images(validation.images, inspecting, normalization, good.grids, builder)
                maps = map_images([one for one, _ in pictures], inspecting, normalization, good.grids, builder).cpu()
            cut = [one[:height, :width].numpy() for one, (_, (height, width)) in zip(maps, pictures, strict=True)]
            whole = masks if len(masks) == len(test) and any(mask.any() for mask in masks) else None
            key = f"{name}, larger patches {'alike' if larger == 'trained' else 'untrained'}"
            found[key] = measured(cut, [image.defect for image in test], whole)
            found[key]["synthetic"] = round(validation.score(synthetic, image_score(synthetic)).criterion, 4)
    return {
        **{"category": category.name, "seed": seed, "steps": steps, "centering": centering},
        **{"size": images.size, "found": found},
        **{"train_seconds": round(record.seconds, 1), "seconds": round(time.time() - start, 1)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--centering", default="channel", help="comma-separated; how images are normalised")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--result", type=Path, help="write all rows to this result file")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = args.out / "rows.jsonl"
    done = set()
    if rows.exists():
        done = {tuple(json.loads(line)[key] for key in KEY) for line in rows.read_text().splitlines()}
    jobs = [
        (path, int(seed), args.steps, centering)
        for centering in args.centering.split(",")
        for seed in args.seeds.split(",")
        for path in args.categories
    ]
    jobs = [job for job in jobs if (job[0].name, *job[1:]) not in done]
    run_info = circumstances(torch.device(args.device))
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, *job, args.device) for job in jobs]):
            row = future.result() | {"run": run_info}
            with rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            brief = {key: {k: v for k, v in one.items() if k != "kinds"} for key, one in row["found"].items()}
            print(*(row[key] for key in KEY), row["seconds"], json.dumps(brief), flush=True)
    if args.result is not None:
        found = sorted(
            (json.loads(line) for line in rows.read_text().splitlines()), key=lambda row: [row[k] for k in KEY]
        )
        write_result(args.result, {"command": "benchmarks/encoder_study.py", **found[-1]["run"], "rows": found})


if __name__ == "__main__":
    main()
