"""Defective images among the good ones: are they found, and what do they cost?

    python benchmarks/dirty_sets.py CATEGORY... --out FOLDER [--shares 0.05,0.1] [--critic-steps 8000] [--result FILE]

Real defective images are moved from the test set into the training images. The share of them that is among the tenth of
the images that ``train`` suggests to check is counted. Critics are trained without the planted images (clean), with
them (dirty), and without the whole suggested tenth (cleaned), and tested on the rest of the test set. A row per
category, share and seed goes to FOLDER/rows.jsonl, with the scores of every test image; share 0 is the clean critic,
which serves all shares. An interrupted run skips what is there. The result file has the AUROCs.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patchsvdd.core.config import Config
from patchsvdd.core.device import reproducible
from patchsvdd.core.presets import preset, with_critic_steps
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.detector.fitting import learn_critic
from patchsvdd.detector.split import Split
from patchsvdd.detector.unusual_images import list_unusual, rank_by_features
from patchsvdd.evaluation.metrics import auroc
from patchsvdd.images.image_set import ImageSet, load_image
from patchsvdd.images.loading import load_training_images
from patchsvdd.images.mvtec_layout import TestImage, find_good_images, find_test_images
from patchsvdd.training.hooks import TrainingHooks
from record import circumstances, write_result

KEY = ("category", "share", "seed")


def run(category: Path, share: float, seed: int, steps: int, device: str) -> dict[str, Any]:
    """One row: plant defects, look for them, train with them and without those found. Share 0: only train."""
    torch.set_num_threads(2)
    start = time.time()
    good = [path for _, path in find_good_images(category).named()]
    test = find_test_images(category, with_masks=False).images
    planted = plant([image for image in test if not image.is_good], round(share / (1 - share) * len(good)), seed)
    paths = [*good, *(image.file for image in planted)]
    random.Random(seed).shuffle(paths)
    config = with_critic_steps(preset("best", seed=seed), steps)
    images, config = load_training_images(paths, config)
    critic = trained(images, config, device)
    row = {"category": category.name, "share": share, "seed": seed, "steps": steps, "images": len(images)}
    if not planted:
        return row | {"clean": scores(critic, config, test, device), "seconds": round(time.time() - start, 1)}
    names = {str(image.file) for image in planted}
    is_planted = [name in names for name in images.names]
    ranked = rank_by_features(critic, images.pixels.to(device), Split.of(config, len(images)).trained, seed)
    assert ranked is not None
    suggested = {one.image for one in list_unusual(ranked, images.names)}
    cleaned = trained(images.subset([i for i in range(len(images)) if i not in suggested]), config, device)
    left = [image for image in test if image not in planted]
    return {
        **row,
        **{"planted": sum(is_planted), "suggested": len(suggested)},
        "found": sum(is_planted[index] for index in suggested),
        **{"dirty": scores(critic, config, left, device), "cleaned": scores(cleaned, config, left, device)},
        "seconds": round(time.time() - start, 1),
    }


def plant(defective: list[TestImage], count: int, seed: int) -> list[TestImage]:
    """Choose this many defective images, from all kinds in turn."""
    kinds: dict[str, list[TestImage]] = {}
    for image in defective:
        kinds.setdefault(image.defect, []).append(image)
    for images in kinds.values():
        random.Random(seed).shuffle(images)
    chosen: list[TestImage] = []
    while len(chosen) < count and any(kinds.values()):
        for images in kinds.values():
            if images and len(chosen) < count:
                chosen.append(images.pop())
    return chosen


def trained(images: ImageSet, config: Config, device: str) -> TrainedCritic:
    """The critic that ``train`` would learn from these images."""
    critic, _ = learn_critic(images, config, torch.device(device), TrainingHooks())
    return critic.to(torch.device(device))


def scores(critic: TrainedCritic, config: Config, images: Sequence[TestImage], device: str) -> dict[str, float]:
    """The highest value of the critic's map of each image, by the image's name."""
    found = {}
    with reproducible(), torch.inference_mode():
        for image in images:
            loaded = load_image(image.file, config)
            height, width = loaded.content or loaded.tensor.shape[1:]
            peak = float(critic(loaded.tensor[None].to(device))[0, :height, :width].max())
            found[f"{image.defect}/{image.file.name}"] = peak
    return found


def aurocs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with planted defects, with AUROCs instead of scores; the same test images count for all critics."""
    clean = {(row["category"], row["seed"]): row["clean"] for row in rows if "clean" in row}
    table = []
    for row in sorted((row for row in rows if "dirty" in row), key=lambda row: [row[key] for key in KEY]):
        critics = {name: row[name] for name in ("dirty", "cleaned")}
        if (row["category"], row["seed"]) in clean:
            critics["clean"] = clean[row["category"], row["seed"]]
        tested = sorted(row["dirty"])
        labels = np.array([not name.startswith("good/") for name in tested])
        found = {
            name: round(auroc(labels, np.array([values[image] for image in tested])), 4)
            for name, values in critics.items()
        }
        table.append({name: value for name, value in row.items() if name not in critics} | {"detection_auroc": found})
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--shares", default="0.05,0.1")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--critic-steps", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--result", type=Path, help="write all rows to this result file")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows, done = args.out / "rows.jsonl", set[tuple[Any, ...]]()
    if rows.exists():
        done = {tuple(json.loads(line)[key] for key in KEY) for line in rows.read_text().splitlines()}
    jobs = [
        (path, float(share), int(seed), args.critic_steps, args.device)
        for seed in args.seeds.split(",")
        for share in (*args.shares.split(","), "0")
        for path in args.categories
        if (path.name, float(share), int(seed)) not in done
    ]
    run_info = circumstances(torch.device(args.device))
    print(run_info, len(jobs), flush=True)
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, *job) for job in jobs]):
            row = future.result()
            with rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps({k: v for k, v in row.items() if not isinstance(v, dict)}), flush=True)
    if args.result is not None:
        table = aurocs([json.loads(line) for line in rows.read_text().splitlines()])
        write_result(args.result, {"command": "benchmarks/dirty_sets.py", **run_info, "rows": table})


if __name__ == "__main__":
    main()
