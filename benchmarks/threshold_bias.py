"""Whether a threshold keeps its false-alarm rate if the calibration images were also used for another choice.

    nvidia-cuda-mps-control -d
    python benchmarks/threshold_bias.py DATASET --categories bottle,screw --splits 40 --workers 8 \
        --out benchmarks/results/threshold-bias.json

Each split draws good training images of a category at random: most are kept back, and a detector is trained briefly on
the others. Kept-back images are exchangeable with the training images, so on average the share above the threshold must
be the guaranteed rate. Designs differ in what the held-out images decide besides the threshold. Duplicates are removed
first. Defects and test images are not read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor

from patchsvdd import preset
from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device, reproducible
from patchsvdd.core.presets import with_critic_steps
from patchsvdd.critic.validation import ValidationSet
from patchsvdd.detector.fitting import learn_critic, learn_encoder
from patchsvdd.detector.leave_one_out import LeaveOneOutScorer, map_images
from patchsvdd.encoder.embedder import Embedder
from patchsvdd.images.duplicates import find_duplicates
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.scoring.conformal import guarantee_for, rank_for
from patchsvdd.scoring.fusion import SHARES, Fusion, best_share
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.position_statistics import PositionStatistics
from patchsvdd.training.hooks import TrainingHooks
from record import circumstances, write_result

RATES = (0.01, 0.2)
FOLDS = 10
Choice = Callable[[list[int]], Fusion]
"""Indices of held-out images → the fusion chosen with them."""


def scores_of(maps: Tensor) -> Tensor:
    return image_score(maps).double().cpu()


class Maps:
    """Results of a trained encoder and critic on held-out, synthetic and kept-back images."""

    def __init__(self, images: ImageSet, fresh: ImageSet, config: Config, device: torch.device) -> None:
        hooks = TrainingHooks()
        encoder, self.record = learn_encoder(images, config, device, hooks)
        critic, _ = learn_critic(images, config, device, hooks)
        encoder, critic = encoder.to(device).eval().requires_grad_(False), critic.to(device)
        normalization = Normalization.fit(images.pixels, config).to(device)
        with reproducible(), torch.inference_mode():
            good = LeaveOneOutScorer(images, config, encoder, normalization, False, None)
            self.held_out = good.split.held_out
            self.all_products = torch.cat(list(good.products(range(len(images)))))
            self.products = self.all_products[self.held_out]
            self.marked = torch.cat([critic(good._pixels([index])) for index in self.held_out])
            self.validation = ValidationSet.draw(good._pixels(self.held_out), config.seed)
            known = torch.zeros(len(images), dtype=torch.bool)
            known[good.split.trained] = True
            map_builder = MapBuilder(good._kept(good.every_patch.of_images(known)))
            self.drawn_products = map_images(self.validation.images, encoder, normalization, good.grids, map_builder)
            self.drawn_marked = torch.cat([critic(one[None]) for one in self.validation.images])
            embedder = Embedder(encoder, normalization, config, device, "torch")
            whole = MapBuilder(good.memory)
            products, marked = [], []
            for pixels in torch.split(fresh.pixels, 16):
                pixels = pixels.to(device)
                products.append(whole.combine(whole.distances(embedder(pixels), good.grids)).combined)
                marked.append(critic(pixels))
            self.fresh_products, self.fresh_marked = torch.cat(products), torch.cat(marked)

    def share_for(self, fusion: Fusion, held_out: list[int]) -> float:
        """The share that detects synthetic defects in some of the held-out images best."""
        sources = torch.arange(len(self.validation.images)) % len(self.held_out)
        chosen = torch.isin(sources, torch.tensor(held_out))
        part = ValidationSet(self.validation.images[chosen], self.validation.masks[chosen])
        product, marked = self.drawn_products[chosen], self.drawn_marked[chosen]

        def quality(share: float) -> float:
            maps = fusion.with_share(share)(product, marked)
            return part.score(maps, image_score(maps)).criterion

        return best_share({share: quality(share) for share in SHARES})

    def tails(self, held_out: list[int]) -> Fusion:
        return Fusion.fit(self.products[held_out], self.marked[held_out])

    def scores(self, fusion: Fusion, held_out: list[int]) -> Tensor:
        return scores_of(fusion(self.products[held_out], self.marked[held_out]))

    def fresh_scores(self, fusion: Fusion) -> Tensor:
        maps = [
            fusion(a, b)
            for a, b in zip(torch.split(self.fresh_products, 32), torch.split(self.fresh_marked, 32), strict=True)
        ]
        return scores_of(torch.cat(maps))

    def designs(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Name → the scores that set a threshold, and the scores of kept-back images."""
        count = len(self.held_out)
        every = list(range(count))
        tails = self.tails(every)
        share = self.share_for(tails, every)
        whole = tails.with_share(share)
        fresh = self.fresh_scores(whole)
        folds = [every[first :: min(FOLDS, count)] for first in range(min(FOLDS, count))]

        def crossed(choose: Choice) -> Tensor:
            found = torch.zeros(count, dtype=torch.float64)
            for fold in folds:
                found[fold] = self.scores(choose([one for one in every if one not in fold]), fold)
            return found

        half, rest = every[: count // 2], every[count // 2 :]
        apart = self.tails(half)
        apart = apart.with_share(self.share_for(apart, half))
        shares = [
            self.share_for(self.tails(others), others) for others in ([o for o in every if o not in f] for f in folds)
        ]
        self.shares = {"all": share, "folds": shares}
        memory, critic = tails.with_share(1.0), tails.with_share(0.0)
        return {
            "same images": (self.scores(whole, every), fresh),
            "rarity cross-fitted": (crossed(lambda others: self.tails(others).with_share(share)), fresh),
            "rarity and share cross-fitted": (
                crossed(lambda others: self.tails(others).with_share(self.share_for(self.tails(others), others))),
                fresh,
            ),
            "half decides, half calibrates": (self.scores(apart, rest), self.fresh_scores(apart)),
            "equal shares, rarity cross-fitted": (
                crossed(lambda others: self.tails(others).with_share(0.5)),
                self.fresh_scores(tails.with_share(0.5)),
            ),
            "memory alone": (self.scores(memory, every), self.fresh_scores(memory)),
            "critic alone": (self.scores(critic, every), self.fresh_scores(critic)),
            "separate images": (fresh[:count], fresh[count:]),
            **self._positions(),
        }

    def _positions(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Only the memory, divided by the typical value at each position."""
        positions = PositionStatistics.fit(self.all_products)
        fresh = scores_of(positions.apply(self.fresh_products))
        same = scores_of(positions.apply(self.products))
        crossed = torch.zeros_like(same)
        for first in range(FOLDS):
            out = [place for place, index in enumerate(self.held_out) if place % FOLDS == first]
            if out:
                gone = {self.held_out[place] for place in out}
                others = [index for index in range(len(self.all_products)) if index not in gone]
                crossed[out] = scores_of(PositionStatistics.fit(self.all_products[others]).apply(self.products[out]))
        return {"positions, same images": (same, fresh), "positions cross-fitted": (crossed, fresh)}


def row_of(calibrated: Tensor, fresh: Tensor, rate: float) -> dict[str, float]:
    threshold = calibrated.sort().values[rank_for(len(calibrated), rate) - 1]
    return {
        "promised": guarantee_for(len(calibrated), rate).rate,
        "realised": float((fresh > threshold).double().mean()),
    }


def run_split(images: ImageSet, config: Config, split: int, learned: int, device: torch.device) -> dict[str, Any]:
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1000 + split)).tolist()
    start = time.perf_counter()
    chosen = dataclasses.replace(config, seed=split)
    maps = Maps(images.subset(order[:learned]), images.subset(order[learned:]), chosen, device)
    found = {
        name: {f"{rate:g}": row_of(calibrated, fresh, rate) for rate in RATES}
        for name, (calibrated, fresh) in maps.designs().items()
    }
    return {
        "split": split,
        "designs": found,
        "shares": maps.shares,
        "kept_untrained": maps.record.kept_untrained,
        "seconds": round(time.perf_counter() - start, 1),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean rate of each design over all splits, with a 95 % interval for the mean."""
    found: dict[str, Any] = {}
    for name in rows[0]["designs"]:
        for rate in rows[0]["designs"][name]:
            values = [row["designs"][name][rate]["realised"] for row in rows]
            mean = statistics.mean(values)
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            promised = rows[0]["designs"][name][rate]["promised"]
            low, high = mean - 2 * error, mean + 2 * error
            found.setdefault(name, {})[rate] = {
                "promised": promised,
                "realised": mean,
                "interval": [low, high],
                "splits": len(values),
                "keeps_its_promise": low <= promised,
            }
    return found


def work(jobs: Any, out: Any, args: argparse.Namespace, config: Config) -> None:
    torch.set_num_threads(2)
    device = choose_device("auto")
    while time.time() < args.end:
        try:
            name, images, split = jobs.get(timeout=2)
        except queue.Empty:
            return
        out.put((name, run_split(images, config, split, args.images, device)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--categories", default="bottle,screw")
    parser.add_argument("--splits", type=int, default=40)
    parser.add_argument("--images", type=int, default=60, help="good images for training")
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
    sets: dict[str, ImageSet] = {}
    copies: dict[str, int] = {}
    for name in names:
        images = load_good_images(args.dataset / name, config)
        first = find_duplicates(images.pixels)
        sets[name] = images.subset([index for index, one in enumerate(first) if one == index])
        copies[name] = len(images) - len(sets[name])
    for split in range(args.splits):
        for name in names:
            jobs.put((name, sets[name], split))
    processes = [context.Process(target=work, args=(jobs, out, args, config)) for _ in range(args.workers)]
    for process in processes:
        process.start()
    result: dict[str, Any] = {
        "command": "benchmarks/threshold_bias.py",
        **circumstances(choose_device("auto")),
        "images_learned_from": args.images,
        "steps": args.steps,
        "critic_steps": args.critic_steps,
        "copies_left_out": copies,
        "rows": {name: [] for name in names},
    }
    while any(process.is_alive() for process in processes) or not out.empty():
        try:
            name, row = out.get(timeout=1)
        except queue.Empty:
            continue
        result["rows"][name].append(row)
        print(name, json.dumps(row), flush=True)
        rows = result["rows"]
        result["summary"] = {one: summary(rows[one]) for one in names if rows[one]}
        result["together"] = summary([row for one in names for row in rows[one]])
        write_result(args.out, result)


if __name__ == "__main__":
    main()
