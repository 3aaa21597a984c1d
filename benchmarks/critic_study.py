"""Ways to train the critic, side by side: drawn validation defects against the real ones of the test set.

    python benchmarks/critic_study.py --data DATASET --out FILE.jsonl --variants base,zoom --categories screw,pill

A row per training is written as it comes. A run reads test labels for its report alone. The critic's settings in the
preset were chosen by people who had read these reports (NOTES, entries 21, 27, 28 and 34).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor

from patchsvdd import preset
from patchsvdd.core.config import CriticSettings
from patchsvdd.critic import training as critic_training
from patchsvdd.critic.network import CENTERING, Critic, critic_map
from patchsvdd.critic.training import LESSONS, ROUNDS, CriticTrainer
from patchsvdd.critic.validation import ValidationSet, hold_out
from patchsvdd.images.image_set import load_image_set, load_mask
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.scoring.ranking import rank_tensors

SIDE = 256
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "short": {"steps": 2500},
    "long": {"steps": 10000},
    "light": {"photometric": 1.0},
    "turn": {"turn": 3.14},
    "wide": {"width": 48},
    "narrow": {"width": 16},
    "small": {"width": 16, "batch_size": 8},
    "channel": {"centering": "channel"},
    "dim": {"photometric": 0.2},
    "one or two": {"rounds": (1.0, 0.5)},
    "two": {"rounds": (1.0, 1.0)},
    "four": {"rounds": (1.0, 1.0, 1.0, 1.0)},
    "geometry": {
        "lessons": (
            *("blend",) * 4,
            *("paste",) * 2,
            *("stain",) * 2,
            *("paint", "smear"),
            *("pull",) * 3,
            *("bend",) * 3,
            *("missing",) * 2,
        )
    },
    "large batch": {"batch_size": 32, "steps": 4000},
    "small batch": {"batch_size": 8, "steps": 16000},
}


def auroc(labels: Tensor, scores: Tensor) -> float | None:
    """Area under the ROC curve; None without examples of both kinds."""
    mixed = bool(labels.any()) and not bool(labels.all())
    return rank_tensors(labels, scores).area() if mixed else None


def half(pixels: Tensor) -> Tensor:
    return F.avg_pool2d(pixels.float(), 2)


class Data:
    """A category at twice the working size, on the device."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        config = preset("encoder", image_size=2 * SIDE)
        self.train = load_good_images(folder, config).pixels
        images = find_test_images(folder).images
        self.test = load_image_set([(str(image.file), image.file) for image in images], config).pixels
        self.labels = torch.tensor([not image.is_good for image in images])
        nothing = np.zeros((SIDE, SIDE), dtype=bool)
        known = [image.is_good or image.mask is not None for image in images]
        masks = [load_mask(image.mask, (SIDE, SIDE), "area") if image.mask else nothing for image in images]
        self.masks = torch.from_numpy(np.stack(masks)).to(device)
        self.known = torch.tensor(known, device=device)
        self.train, self.test, self.labels = self.train.to(device), self.test.to(device), self.labels.to(device)


def maps_of(critic: Critic, normalization: Normalization, pixels: Tensor, smoothing: float) -> Tensor:
    with torch.inference_mode():
        parts = [critic_map(critic(normalization(p)), (SIDE, SIDE), smoothing) for p in torch.split(pixels, 16)]
    return torch.cat(parts)


def one(data: Data, name: str, variant: str, seed: int, steps: int | None) -> dict[str, Any]:
    changes = {"steps": steps, **VARIANTS[variant]} if steps else dict(VARIANTS[variant])
    critic_training.LESSONS = changes.pop("lessons", LESSONS)
    critic_training.ROUNDS = changes.pop("rounds", ROUNDS)
    centering = changes.pop("centering", CENTERING)
    settings = CriticSettings(**changes)
    device = data.train.device
    fit, held = hold_out(len(data.train), seed=0)
    see = half
    pixels = see(data.train[fit]).round().byte()
    normalization = Normalization.fit(
        half(data.train[fit]).round().byte().cpu(), preset("encoder", centering=centering)
    ).to(device)
    torch.manual_seed(seed)
    critic = Critic(settings)
    trainer = CriticTrainer(critic, pixels, normalization, settings, seed)
    start = time.perf_counter()
    trainer.advance()
    if device.type == "cuda":
        torch.cuda.synchronize()
    compile_seconds, start = time.perf_counter() - start, time.perf_counter()
    for _ in range(settings.steps - 1):
        trainer.advance()
        if device.type == "cuda" and trainer.step % 200 == 0:
            torch.cuda.synchronize()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    sums = list(trainer.read_metrics().values())
    raw = {k: v.clone() for k, v in critic.state_dict().items()}
    row: dict[str, Any] = {
        "category": name,
        "variant": variant,
        "seed": seed,
        "settings": changes,
        "seconds": seconds,
        "compile": compile_seconds,
        "mean": sums,
    }
    valid = ValidationSet.draw(data.train[held], seed=0)
    trainer.finish()
    for weights, state in (("ema", None), ("raw", raw)):
        if state is not None:
            critic.load_state_dict(state)
        critic.eval()
        for smoothing in (1.0, 2.0, 4.0, 8.0) if state is None else (4.0,):
            test = maps_of(critic, normalization, see(data.test), smoothing)
            check = maps_of(critic, normalization, see(valid.images), smoothing)
            score, peak = test.flatten(1).amax(1), check.flatten(1).amax(1)
            masks = F.avg_pool2d(valid.masks[:, None].float(), 2)[:, 0] > 0.5
            row[f"{weights}-{smoothing:g}"] = {
                "det": auroc(data.labels, score),
                "seg": auroc(data.masks[data.known], test[data.known]),
                "val_det": auroc(masks.flatten(1).any(1), peak),
                "val_seg": auroc(masks, check),
                "good_mean": float(score[~data.labels].mean()) if (~data.labels).any() else None,
            }
            if weights == "ema" and smoothing == 4:
                row["scores"] = [round(x, 4) for x in score.tolist()]
                row["check"] = [round(x, 4) for x in peak.tolist()]
    return row


def worker(jobs: Any, arguments: argparse.Namespace, end: float) -> None:
    device = torch.device(arguments.device)
    torch.set_num_threads(4)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    kept: tuple[str, Data] | None = None
    while time.time() < end:
        try:
            name, variant, seed = jobs.get(timeout=1)
        except queue.Empty:
            return
        if kept is None or kept[0] != name:
            kept = (name, Data(Path(arguments.data) / name, device))
        start = time.time()
        try:
            row = one(kept[1], name, variant, seed, arguments.steps)
        except Exception as error:  # noqa: BLE001  # a broken variant must not cost the others their time
            row = {"category": name, "variant": variant, "seed": seed, "error": traceback.format_exc()[-1500:]}
            print(error, flush=True)
        row["whole"] = time.time() - start
        line = json.dumps(row)
        with open(arguments.out, "a") as file:
            file.write(line + "\n")
        short = {k: v for k, v in row.items() if k not in ("scores", "error")}
        print(json.dumps(short)[:900], flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--categories", default="screw,pill")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--jobs", help="category:variant:seed,… instead of the three above")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    end = time.time() + arguments.seconds
    mp.set_start_method("spawn")
    jobs: Any = mp.Queue()
    if arguments.jobs:
        todo = [(c, v, int(s)) for c, v, s in (job.split(":") for job in arguments.jobs.split(","))]
    else:
        todo = [
            (category, variant, int(seed))
            for seed in arguments.seeds.split(",")
            for variant in arguments.variants.split(",")
            for category in arguments.categories.split(",")
        ]
    for job in todo:
        jobs.put(job)
    workers = [mp.Process(target=worker, args=(jobs, arguments, end)) for _ in range(arguments.workers)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()


if __name__ == "__main__":
    main()
