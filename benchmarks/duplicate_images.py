"""The effect of duplicates among the good images on the false-alarm rate, if counted twice and if counted once.

    nvidia-cuda-mps-control -d
    python benchmarks/duplicate_images.py DATASET --categories bottle,screw --splits 10 --workers 10 \
        --out benchmarks/results/duplicate-images.json

Each split draws good training images of a category at random and uses them twice: the second time as an exact copy,
as a JPEG of quality 60, or as the next shot of a burst (up to 2 px of 256 to the side, 3 % brighter or darker, noise of
4 grey levels). A detector is trained briefly on them; the remaining images show how often a good image exceeds its
threshold. Duplicates in the data set itself are removed first. Defects and test images are not read.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import queue
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from patchsvdd import preset
from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device
from patchsvdd.core.presets import with_critic_steps
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.images.duplicates import find_duplicates
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.loading import load_good_images
from record import circumstances, write_result

KINDS = ("exact copy", "saved again", "next shot")


def again(image: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """A duplicate of an image (3, H, W) uint8."""
    if kind == "exact copy":
        return image.clone()
    if kind == "saved again":
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=60)
        return torch.from_numpy(np.asarray(Image.open(file).convert("RGB")).copy()).permute(2, 0, 1)
    height, width = image.shape[1:]
    shift = (2 * torch.rand(2, generator=generator) - 1) * 2 * width / 256
    turn = torch.eye(2, 3)
    turn[:, 2] = 2 * shift / torch.tensor([width, height])
    grid = F.affine_grid(turn[None], [1, 3, height, width], align_corners=False)
    moved = F.grid_sample(image[None].float(), grid, "bicubic", "reflection", align_corners=False)[0]
    moved = moved * (1 + 0.03 * (2 * torch.rand(1, generator=generator) - 1))
    return (moved + 4 * torch.randn(moved.shape, generator=generator)).round().clamp(0, 255).byte()


def run_split(images: ImageSet, config: Config, split: int, count: int, kind: str) -> dict[str, Any]:
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(2000 + split)
    order = torch.randperm(len(images), generator=generator).tolist()
    once = images.subset(order[:count])
    copies = torch.stack([again(one, kind, generator) for one in once.pixels])
    names = (*once.names, *(f"{name}, again" for name in once.names))
    twice = dataclasses.replace(once, names=names, pixels=torch.cat((once.pixels, copies)))
    first = find_duplicates(twice.pixels)
    distinct = twice.subset([index for index, one in enumerate(first) if index == one])
    fresh = images.subset(order[count:])
    row: dict[str, Any] = {
        "split": split,
        "kind": kind,
        "copies": count,
        "copies_found": sum(first[count + index] == first[index] for index in range(count)),
        "others_left_out": sum(first[index] != index for index in range(count)),
    }
    for name, chosen in (("counted twice", twice), ("counted once", distinct)):
        detector = PatchSVDD.fit_images(chosen, dataclasses.replace(config, seed=split))
        assert detector.calibration is not None
        scores = torch.cat([maps.scores for maps in detector.map_batches(torch.split(fresh.pixels, 16))])
        row[name] = {
            "promised": detector.calibration.conformal_guarantee.rate,
            "realised": float((scores > detector.threshold).double().mean()),
        }
    return {**row, "seconds": round(time.perf_counter() - start, 1)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in sorted({row["kind"] for row in rows}):
        some = [row for row in rows if row["kind"] == kind]
        found[kind] = {
            "splits": len(some),
            "copies": sum(row["copies"] for row in some),
            "copies_found": sum(row["copies_found"] for row in some),
            "others_left_out": sum(row["others_left_out"] for row in some),
        }
        for name in ("counted twice", "counted once"):
            values = [row[name]["realised"] for row in some]
            mean = statistics.mean(values)
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            found[kind][name] = {
                "promised": statistics.mean(row[name]["promised"] for row in some),
                "realised": mean,
                "interval": [mean - 2 * error, mean + 2 * error],
            }
    return found


def work(jobs: Any, out: Any, args: argparse.Namespace, config: Config) -> None:
    torch.set_num_threads(2)
    while time.time() < args.end:
        try:
            name, images, split, kind = jobs.get(timeout=2)
        except queue.Empty:
            return
        out.put((name, run_split(images, config, split, args.images, kind)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--categories", default="bottle,screw")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--images", type=int, default=30, help="good images that are used twice")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--critic-steps", type=int, default=500)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.end = time.time() + args.seconds
    config = preset("best", steps=args.steps, image_size=args.size, aim="few-alarms", synthetic_defects=0)
    config = with_critic_steps(config, args.critic_steps)
    context = mp.get_context("spawn")
    jobs, out = context.Queue(), context.Queue()
    names = args.categories.split(",")
    result: dict[str, Any] = {
        "command": "benchmarks/duplicate_images.py",
        **circumstances(choose_device("auto")),
        "images_given_twice": args.images,
        "steps": args.steps,
        "critic_steps": args.critic_steps,
        "copies_in_the_data_set": {},
        "rows": {name: [] for name in names},
    }
    sets = {}
    for name in names:
        images = load_good_images(args.dataset / name, config)
        first = find_duplicates(images.pixels)
        sets[name] = images.subset([index for index, one in enumerate(first) if one == index])
        result["copies_in_the_data_set"][name] = [
            [images.names[index], images.names[one]] for index, one in enumerate(first) if index != one
        ]
    for split in range(args.splits):
        for name in names:
            for kind in KINDS:
                jobs.put((name, sets[name], split, kind))
    processes = [context.Process(target=work, args=(jobs, out, args, config)) for _ in range(args.workers)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes) or not out.empty():
        try:
            name, row = out.get(timeout=1)
        except queue.Empty:
            continue
        result["rows"][name].append(row)
        print(name, json.dumps(row), flush=True)
        result["summary"] = {one: summary(result["rows"][one]) for one in names if result["rows"][one]}
        write_result(args.out, result)


if __name__ == "__main__":
    main()
