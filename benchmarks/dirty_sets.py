"""Defective images among the good ones: are they found, and what do they cost?

    python benchmarks/dirty_sets.py CATEGORY... --out FOLDER [--shares 0.05,0.1] [--fold-steps 2000] [--steps 8000]

Real defective images are moved from the test set into the training images. Several rankings of the training images are
compared by how many planted images are among their first tenth. Then a critic is trained on the clean images, on all,
and on all without the first tenth, and tested on the rest of the test set.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchsvdd.core.device import reproducible
from patchsvdd.core.presets import preset
from patchsvdd.critic.network import TrainedCritic, critic_normalization
from patchsvdd.critic.training import train_critic
from patchsvdd.detector.leave_one_out import LeaveOneOutScorer
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.evaluation.metrics import auroc
from patchsvdd.images.image_set import load_image
from patchsvdd.images.loading import load_training_images
from patchsvdd.images.mvtec_layout import find_good_images, find_test_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.training.hooks import TrainingHooks
from record import circumstances


def run(
    category: Path, share: float, seed: int, steps: int, fold_steps: int, width: int, device: str
) -> dict[str, Any]:
    torch.set_num_threads(2)
    start = time.time()
    config = preset("best", seed=seed, image_size="auto")
    good = [path for _, path in find_good_images(category).named]
    test = find_test_images(category, with_masks=False).images
    defective = [image for image in test if not image.is_good]
    rng = random.Random(seed)
    by_kind: dict[str, list[Any]] = {}
    for image in defective:
        by_kind.setdefault(image.defect, []).append(image)
    for images in by_kind.values():
        rng.shuffle(images)
    wanted, planted = round(share / (1 - share) * len(good)), []
    while len(planted) < wanted and any(by_kind.values()):
        for images in by_kind.values():
            if images and len(planted) < wanted:
                planted.append(images.pop())
    left = [image for image in test if image not in planted]
    paths = good + [image.file for image in planted]
    names = {str(image.file) for image in planted}
    rng.shuffle(paths)
    images, config = load_training_images(paths, config)
    is_planted = np.array([name in names for name in images.names])
    assert is_planted.any(), images.names[:3]
    assert config.critic is not None
    settings = dataclasses.replace(config.critic, steps=fold_steps, width=width)
    pixels = images.pixels.to(device)
    rankings: dict[str, np.ndarray[Any, Any]] = {}

    def critic_of(chosen: Tensor, count: int) -> TrainedCritic:
        normalization = critic_normalization(pixels[chosen])
        own = dataclasses.replace(settings, steps=count)
        network, _ = train_critic(pixels[chosen], normalization, own, seed, "dirty", TrainingHooks())
        return TrainedCritic(network, normalization).to(torch.device(device))

    def scores(critic: TrainedCritic, which: Tensor) -> np.ndarray[Any, Any]:
        with reproducible(), torch.inference_mode():
            return np.array([float(torch.logit(critic(pixels[index : index + 1]).max(), 1e-6)) for index in which])

    everything = torch.arange(len(pixels))
    crossed = np.zeros(len(pixels))
    for fold in range(2):
        critic = critic_of(everything[everything % 2 != fold], fold_steps)
        inside = everything[everything % 2 == fold]
        crossed[inside.numpy()] = scores(critic, inside)
    rankings["crossed"] = crossed
    rankings["own"] = scores(critic_of(everything, fold_steps), everything)
    folded = time.time()
    encoder = build_encoder(config).to(device).eval().requires_grad_(False)
    normalization = Normalization.fit(images.pixels, config).to(torch.device(device))
    with reproducible(), torch.inference_mode():
        plain = dataclasses.replace(config, memory="100%")
        scorer = LeaveOneOutScorer(images, plain, encoder, normalization, False, None)
        products = torch.cat(list(scorer.products(range(len(images))))).flatten(1)
        rankings["memory"] = products.amax(1).cpu().numpy()
        rankings["memory-top"] = products.topk(max(1, products.shape[1] // 500), 1).values.mean(1).cpu().numpy()

    def rank(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return values.argsort().argsort() / len(values)

    rankings["crossed+memory"] = rank(rankings["crossed"]) + rank(rankings["memory"])
    rankings["crossed, memory"] = np.maximum(rank(rankings["crossed"]), rank(rankings["memory"]))
    count = round(0.1 * len(pixels))
    found = {
        name: round(float(is_planted[np.argsort(-values)[:count]].sum() / is_planted.sum()), 3)
        for name, values in rankings.items()
    }
    tested: dict[str, float] = {}
    if steps:
        labels = np.array([not image.is_good for image in left])
        sets = {"clean": everything[torch.from_numpy(~is_planted)], "dirty": everything}
        first = np.argsort(-rankings["crossed"])[:count]
        sets["cleaned"] = everything[~torch.isin(everything, torch.from_numpy(first.copy()))]
        for name, chosen in sets.items():
            critic = critic_of(chosen, steps)
            with reproducible(), torch.inference_mode():
                values = []
                for image in left:
                    loaded = load_image(image.file, config)
                    height, width = loaded.content or loaded.tensor.shape[1:]
                    values.append(float(critic(loaded.tensor[None].to(device))[0, :height, :width].max()))
            tested[name] = round(auroc(labels, np.array(values)), 4)
    return {
        **{"category": category.name, "share": share, "seed": seed, "planted": int(is_planted.sum())},
        **{"images": len(pixels), "found": found, "tested": tested, "fold_seconds": round(folded - start, 1)},
        "seconds": round(time.time() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--shares", default="0.05,0.1")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--fold-steps", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows, done = args.out / "dirty.jsonl", set()
    if rows.exists():
        done = {tuple(json.loads(line)[key] for key in KEY) for line in rows.read_text().splitlines()}
    jobs = [
        (path, float(share), int(seed))
        for seed in args.seeds.split(",")
        for share in args.shares.split(",")
        for path in args.categories
        if (path.name, float(share), int(seed)) not in done
    ]
    print(circumstances(torch.device(args.device)), len(jobs), flush=True)
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run, *job, args.steps, args.fold_steps, args.width, args.device) for job in jobs]
        for future in as_completed(futures):
            row = future.result()
            with rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


KEY = ("category", "share", "seed")

if __name__ == "__main__":
    main()
