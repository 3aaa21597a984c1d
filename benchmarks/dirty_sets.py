"""Defective images among the good ones: are they found, and what do they cost?

    python benchmarks/dirty_sets.py CATEGORY... --out FOLDER [--shares 0.05,0.1] [--critic-steps 8000] [--result FILE]

Real defective images are moved from the test set into the training images. Critics are trained without the planted
images (clean), with them (dirty), and without the whole tenth of the images that ``train`` suggests to check (cleaned),
and tested on the rest of the test set. The share of the planted images that is in the suggested tenth is counted. A row
per category, share, seed and critic goes to FOLDER/rows.jsonl, with the scores of every test image; share 0 is the
clean critic, which serves all shares. An interrupted run skips what is there. The result file has the AUROCs.
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
from patchsvdd.detector.image_check import rank_by_halves
from patchsvdd.detector.unusual_images import list_unusual
from patchsvdd.evaluation.metrics import auroc
from patchsvdd.images.image_set import ImageSet, load_image
from patchsvdd.images.loading import load_training_images
from patchsvdd.images.mvtec_layout import TestImage, find_good_images, find_test_images
from patchsvdd.training.hooks import TrainingHooks
from record import circumstances, write_result

KEY = ("category", "share", "seed", "critic")


def run(category: Path, share: float, seed: int, critic: str, steps: int, device: str) -> dict[str, Any]:
    """One row: plant defects, train a critic with or without those found, and test it."""
    torch.set_num_threads(2)
    start = time.time()
    good = [path for _, path in find_good_images(category).named()]
    test = find_test_images(category, with_masks=False).images
    planted = plant([image for image in test if not image.is_good], round(share / (1 - share) * len(good)), seed)
    paths = [*good, *(image.file for image in planted)]
    random.Random(seed).shuffle(paths)
    config = with_critic_steps(preset("best", seed=seed), steps)
    images, config = load_training_images(paths, config)
    row = {"category": category.name, "share": share, "seed": seed, "critic": critic, "steps": steps}
    if critic == "cleaned":
        ranked = rank_by_halves(images, config, torch.device(device), TrainingHooks())
        suggested = {one.image for one in list_unusual(ranked, images.names)}
        names = {str(image.file) for image in planted}
        found = sum(images.names[index] in names for index in suggested)
        row |= {"images": len(images), "planted": len(planted), "suggested": len(suggested), "found": found}
        print(json.dumps(row), round(time.time() - start), flush=True)
        images = images.subset([index for index in range(len(images)) if index not in suggested])
    left = [image for image in test if image not in planted]
    tested = scores(trained(images, config, device), config, left, device)
    return {**row, "seconds": round(time.time() - start, 1), "scores": tested}


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
    """A row per category, share and seed with the AUROC of each critic, on the test images that all of them saw."""
    table = []
    for row in sorted((row for row in rows if row["critic"] == "cleaned"), key=lambda row: [row[key] for key in KEY]):
        alike = [other for other in rows if all(other[key] == row[key] for key in ("category", "seed"))]
        critics = {other["critic"]: other["scores"] for other in alike if other["share"] in (0, row["share"])}
        tested = sorted(row["scores"])
        labels = np.array([not name.startswith("good/") for name in tested])
        found = {
            name: round(auroc(labels, np.array([values[image] for image in tested])), 4)
            for name, values in sorted(critics.items())
        }
        kept = {name: value for name, value in row.items() if name not in ("scores", "critic", "run")}
        table.append(kept | {"detection_auroc": found, "runs": {other["critic"]: other["run"] for other in alike}})
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
    shares = [float(share) for share in args.shares.split(",")]
    kinds = [("cleaned", share) for share in shares] + [("dirty", share) for share in shares] + [("clean", 0.0)]
    jobs = [
        (path, share, int(seed), kind, args.critic_steps, args.device)
        for seed in args.seeds.split(",")
        for kind, share in kinds
        for path in args.categories
        if (path.name, share, int(seed), kind) not in done
    ]
    run_info = circumstances(torch.device(args.device))
    print(run_info, len(jobs), flush=True)
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, *job) for job in jobs]):
            row = future.result() | {"run": run_info}
            with rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps({k: v for k, v in row.items() if not isinstance(v, dict)}), flush=True)
    if args.result is not None:
        table = aurocs([json.loads(line) for line in rows.read_text().splitlines()])
        write_result(args.result, {"command": "benchmarks/dirty_sets.py", **run_info, "rows": table})


if __name__ == "__main__":
    main()
