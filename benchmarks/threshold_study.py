"""What could set a threshold: scores of good images, of good images under variation, and of synthetic defects.

    python benchmarks/threshold_study.py CATEGORY... --cache FOLDER --out FOLDER [--fold-steps 4000] [--seconds 560]

For each category the trained parts come from --cache (or are trained). The output has, for each category, a JSON file
with every image's score by several score functions, and an npz file with the maps of synthetic defects and of test
images at half resolution. Test labels are stored for the report; nothing here is chosen by them. With --fold-steps,
cross-fitting.json has the score of every good image by a critic that was trained without it, with fewer steps;
``verdict_table.py`` compares thresholds from them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.device import reproducible
from patchsvdd.core.presets import preset, with_critic_steps
from patchsvdd.critic.graded_defects import GradedDefects, vary
from patchsvdd.critic.network import TrainedCritic, critic_normalization
from patchsvdd.critic.training import train_critic
from patchsvdd.detector.cross_fitting import FOLDS, CrossFitter
from patchsvdd.detector.leave_one_out import LeaveOneOutScorer
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.images.image_set import load_image, load_mask
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.scoring.anomaly_map import multiply_scales
from patchsvdd.scoring.area_opening import area_opening_max
from patchsvdd.scoring.fusion import critic_scale, memory_scale
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.position_statistics import smooth
from patchsvdd.training.hooks import TrainingHooks
from record import circumstances, write_result

VARIANTS, DEFECTS = 96, 192
"""Fewest varied good images, and synthetic defects, of a category."""
STEP = 0.1
"""Rarities are stored in units of this."""
CRITIC_FOLDS = 3


def scores_of(maps: Tensor) -> dict[str, list[float]]:
    """Score maps (N, H, W) by several functions."""
    flat = maps.flatten(1)
    found = {"max": flat.amax(1)}
    for sigma in (1.0, 2.0, 4.0):
        found[f"smooth-{sigma:g}"] = torch.stack([smooth(one, sigma) for one in maps]).flatten(1).amax(1)
    ordered = flat.topk(flat.shape[1] // 100, 1).values
    for share in (0.0002, 0.001, 0.01):
        found[f"top-{share:g}"] = ordered[:, : max(1, round(share * flat.shape[1]))].mean(1)
    host = maps.cpu().numpy()
    for area in (8, 32):
        found[f"area-{area}"] = torch.tensor([area_opening_max(one, area) for one in host])
    return {name: [round(value, 4) for value in values.tolist()] for name, values in found.items()}


class Study:
    """Scores the images of one category."""

    def __init__(self, category: Path, config: Config, store: ExperimentStore) -> None:
        self.config, self.device = config, store.device
        self.images = load_good_images(category, config)
        experiment = Experiment(category, config)
        encoder, _ = store.encoder(experiment, self.images)
        critic = store.critic(experiment, self.images)
        assert critic is not None
        self.critic = critic.to(self.device)
        encoder = encoder.to(self.device).eval().requires_grad_(False)
        self.normalization = Normalization.fit(self.images.pixels, config).to(self.device)
        with reproducible(), torch.inference_mode():
            self.good = LeaveOneOutScorer(self.images, config, encoder, self.normalization, False, None)
            held = self.good.split.held_out
            self.products = torch.cat(list(self.good.products(range(len(self.images)))))
            self.builder, scored = self.good.learn_maps(self.critic, True)
            self.shipped = [image.score for image in scored]
            marks = torch.cat([self.critic(self.good._pixels([index])) for index in held])
            self.fitter = CrossFitter(self.products[held], marks, list(range(len(held))), False, None)
            assert self.builder.fusion is not None
            self.share = self.builder.fusion.share
            self.folds = [
                self.fitter.fit(self.good.memory, self.share, list(range(first, len(held), FOLDS)))
                for first in range(min(FOLDS, len(held)))
            ]

    def product(self, pixels: Tensor, without: int | None = None) -> Tensor:
        embedded = self.good.encoder.embed(self.normalization(pixels[None].to(self.device)), self.good.grids)
        return multiply_scales(MapBuilder(self.good.memory).distances(embedded, self.good.grids, without).values())

    def rarities(self, pixels: Tensor, builder: MapBuilder, without: int | None = None) -> tuple[Tensor, Tensor]:
        assert builder.fusion is not None
        product, mark = self.product(pixels, without), self.critic(pixels[None].to(self.device))
        return builder.fusion.memory(memory_scale(product))[0], builder.fusion.critic(critic_scale(mark))[0]

    def group(self, pixels: Tensor, sources: list[int] | None) -> tuple[Tensor, Tensor]:
        """Rarity maps of images; ``sources`` are the places of held-out images that they show, or None if new."""
        held = self.good.split.held_out
        found = []
        for place, one in enumerate(pixels):
            source = None if sources is None else sources[place]
            builder = self.builder if source is None else self.folds[source % len(self.folds)]
            found.append(self.rarities(one, builder, None if source is None else held[source]))
        memory, critic = zip(*found, strict=True)
        return torch.stack(memory), torch.stack(critic)

    def fused(self, memory: Tensor, critic: Tensor) -> Tensor:
        return self.share * memory + (1 - self.share) * critic


def cross_fitted(study: Study, steps: int) -> tuple[list[int], Tensor]:
    """Maps of all good images by critics with fewer steps, each trained without its fold."""
    images, config = study.images, study.config
    assert config.critic is not None
    settings = dataclasses.replace(config.critic, steps=steps)
    numbers, maps = [], []
    for fold in range(CRITIC_FOLDS):
        inside = list(range(fold, len(images), CRITIC_FOLDS))
        outside = [index for index in range(len(images)) if index % CRITIC_FOLDS != fold]
        pixels = images.pixels[outside].to(study.device)
        normalization = critic_normalization(pixels)
        network, _ = train_critic(pixels, normalization, settings, config.seed + fold, f"fold {fold}", TrainingHooks())
        critic = TrainedCritic(network, normalization)
        with reproducible(), torch.inference_mode():
            marks = torch.cat([critic(study.good._pixels([index])) for index in inside])
            fitter = CrossFitter(study.products[inside], marks, list(range(len(inside))), False, None)
            builder = fitter.fit(study.good.memory, study.share)
            maps.append(fitter.cross_fitted(builder))
        numbers += inside
    return numbers, torch.cat(maps)


def halved(maps: Tensor) -> np.ndarray[Any, Any]:
    return (F.max_pool2d(maps[:, None], 2)[:, 0] / STEP).round().clamp(0, 255).byte().cpu().numpy()


def run(category: Path, config: Config, cache: Path, out: Path, fold_steps: int, device: str, times: int) -> str:
    torch.set_num_threads(2)
    start = time.time()
    store = ExperimentStore(cache, device=device)
    study = Study(category, config, store)
    trained = time.time()
    held = study.good.split.held_out
    generator = torch.Generator(study.device).manual_seed(config.seed)
    pixels = study.good._pixels(held)
    sources = list(range(len(held))) * -(-VARIANTS // times // len(held))
    varied = vary(pixels[sources], pixels, generator)
    again = list(range(len(held))) * -(-DEFECTS // times // len(held))
    drawn = GradedDefects.draw(vary(pixels[again], pixels, generator), pixels, generator)
    maps: dict[str, np.ndarray[Any, Any]] = {}
    data: dict[str, Any] = {
        "category": category.name,
        "seed": config.seed,
        "share": study.share,
        "tried": study.good.shares,
        "shipped": study.shipped,
        "held_out": len(held),
        "images": len(study.images),
    }
    with reproducible(), torch.inference_mode():
        groups = {
            "held": (pixels, list(range(len(held)))),
            "varied": (varied, sources),
            "synthetic": (drawn.images, [again[index] for index in drawn.sources.tolist()]),
            "trained": (study.good._pixels(study.good.split.trained), None),
        }
        for name, (images, of) in groups.items():
            if name == "trained":
                rarities = []
                for index, one in zip(study.good.split.trained, images, strict=True):
                    rarities.append(study.rarities(one, study.builder, index))
                memory, critic = (torch.stack(part) for part in zip(*rarities, strict=True))
            else:
                memory, critic = study.group(images, of)
            data[name] = {"scores": scores_of(study.fused(memory, critic)), "sources": of}
            if name != "trained":
                maps[f"{name}-memory"], maps[f"{name}-critic"] = halved(memory), halved(critic)
        data["synthetic"]["contrast"] = [round(value, 2) for value in drawn.contrasts.tolist()]
        data["synthetic"]["pixels"] = drawn.masks.sum((1, 2)).tolist()
        maps["synthetic-mask"] = np.packbits(halved(drawn.masks.float() * STEP).astype(bool), axis=None)
        names, masks, memories, critics = [], [], [], []
        test = find_test_images(category)
        for image in test.images:
            pixels = load_image(image.file, config).tensor
            memory, critic = study.rarities(pixels, study.builder)
            names.append(image.defect)
            file, size = image.mask, (int(pixels.shape[1]), int(pixels.shape[2]))
            mask = np.zeros(size, bool) if image.is_good else None
            masks.append(mask if file is None else load_mask(file, size, config.resize))
            memories.append(memory)
            critics.append(critic)
        memory, critic = torch.stack(memories), torch.stack(critics)
        data["test"] = {"scores": scores_of(study.fused(memory, critic)), "defects": names}
        maps["test-memory"], maps["test-critic"] = halved(memory), halved(critic)
        if all(mask is not None for mask in masks):
            truth = torch.stack([torch.from_numpy(np.asarray(mask)).float() for mask in masks])
            maps["test-mask"] = np.packbits(halved(truth * STEP).astype(bool), axis=None)
    if fold_steps:
        numbers, fold_maps = cross_fitted(study, fold_steps)
        with reproducible(), torch.inference_mode():
            data["folds"] = {"numbers": numbers, "scores": scores_of(fold_maps)}
    data["seconds"] = {"train": trained - start, "all": time.time() - start}
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / f"{category.name}-{config.seed}.npz", **maps)  # type: ignore[arg-type]
    (out / f"{category.name}-{config.seed}.json").write_text(json.dumps(data))
    return f"{category.name} seed {config.seed}: {data['seconds']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--critic-steps", type=int)
    parser.add_argument("--fold-steps", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--fewer", type=int, default=1, help="divide the number of drawn images by this, for a trial")
    parser.add_argument("--image-size", type=int, default=256)
    args = parser.parse_args()
    config = preset("best", steps=args.steps, image_size=args.image_size, aim="few-alarms", synthetic_defects=0)
    config = with_critic_steps(config, args.critic_steps)
    runs = [(path, config.replace(seed=int(seed))) for seed in args.seeds.split(",") for path in args.categories]
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(run, *one, args.cache, args.out, args.fold_steps, args.device, args.fewer) for one in runs]
        for job in as_completed(jobs):
            try:
                print(job.result(), flush=True)
            except Exception as error:  # noqa: BLE001
                print("failed:", repr(error), flush=True)
    if args.fold_steps:
        write_folds(args.out, args.fold_steps)


def write_folds(out: Path, steps: int) -> None:
    """Write the cross-fitted scores of all categories to one file."""
    rows = []
    for path in sorted(out.glob("*-*.json")):
        data = json.loads(path.read_text())
        if "folds" in data:
            scores = data["folds"]["scores"]["max"]
            rows.append({"category": data["category"], "seed": data["seed"], "scores": scores})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result = {"folds": CRITIC_FOLDS, "critic_steps": steps, "rows": rows, **circumstances(device)}
    write_result(out / "cross-fitting.json", result)


if __name__ == "__main__":
    main()
