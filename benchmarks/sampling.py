"""Dense sampling against cut patches at equal wall time: AUROC after given seconds of training.

    python benchmarks/sampling.py --data DATASET --out benchmarks/results/sampling.json --seconds 560

Cut patches are the preset "paper" (constant learning rate): one run, evaluated at the end of each budget. Dense
sampling is the preset "encoder" (cosine schedule): one run per budget, with as many steps as fit, from a step time
measured before. Training seconds exclude compiling kernels and recording the CUDA graph, which are reported
separately. Detection and segmentation are those of the product map at the end of the budget; labels are not used for
any choice. Rows are written immediately, all categories of one seed before the next seed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchsvdd import preset
from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device, reproducible
from patchsvdd.encoder.networks import PatchEncoder, build_encoder, grids_for, rows_of
from patchsvdd.images.image_set import load_image_set, load_mask
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import build_memory, exact_search
from patchsvdd.training.step import Trainer
from record import circumstances, write_result
from thinning import Clock, Limit, Subject, TimeIsUp, in_batches

CUT, DENSE = "paper", "encoder"
"""The presets compared."""
SIZE = 256
"""Both see the same images."""
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Pictures:
    """A category loaded for a preset: normalised images (N, 3, H, W) on the device, labels and masks."""

    name: str
    train: Tensor
    test: Tensor
    labels: Tensor
    """(T,) bool: defective."""
    masks: Tensor
    """(T, H, W) bool."""

    @classmethod
    def load(cls, folder: Path, config: Config, device: torch.device, limit: Limit) -> Pictures:
        good = load_good_images(folder, config)
        train = good.pixels[limit.some(len(good), limit.train)]
        normalization = Normalization.fit(train, config)
        images = find_test_images(folder).images
        images = tuple(images[index] for index in limit.some(len(images), limit.test))
        test = load_image_set([(str(image.file), image.file) for image in images], config)
        if test.skipped:
            raise test.skipped[0]
        nothing = np.zeros(good.size, dtype=bool)
        masks = [load_mask(image.mask, good.size, config.resize) if image.mask else nothing for image in images]
        return cls(
            folder.name,
            normalization(train).to(device),
            normalization(test.pixels).to(device),
            torch.tensor([not image.is_good for image in images], device=device),
            torch.from_numpy(np.stack(masks)).to(device),
        )

    def auroc(self, config: Config, weights: Weights) -> dict[str, float]:
        """Detection and segmentation of the product map with these encoder weights."""
        encoder = build_encoder(config)
        encoder.load_state_dict(weights)
        encoder = encoder.to(self.train.device).eval().requires_grad_(False)
        grids = grids_for(encoder, config, (int(self.train.shape[2]), int(self.train.shape[3])))
        with torch.inference_mode(), reproducible():
            memory = build_memory(encoder, self.train, [""] * len(self.train), grids)
            maps = [encoder.dense(image[None], grids) for image in self.test]
            sizes = [grid.scale.patch_size for grid in grids]
            queries = {size: torch.cat([rows_of(one[at]) for one in maps]) for at, size in enumerate(sizes)}
            distances = {}
            for size, rows in queries.items():
                search = exact_search(memory.scales[size].embeddings)
                distances[size] = torch.cat([search.nearest(part)[0] for part in in_batches(rows)])
            return Subject(self.name, memory, grids, queries, self.labels, self.masks).auroc(distances)


@dataclass(frozen=True)
class Trained:
    """Weights at the end of a budget."""

    budget: float
    steps: int
    seconds: float
    compile_seconds: float
    weights: Weights


class Runs:
    """Trainings with a time budget."""

    def __init__(self, clock: Clock, with_kernels: bool, timed_steps: int) -> None:
        self.clock, self.with_kernels, self.timed_steps = clock, with_kernels, timed_steps

    def cut(self, images: Tensor, config: Config, budgets: list[float]) -> Iterator[Trained]:
        """One run, with its weights at the end of each budget."""
        with reproducible(allow_tf32=True):
            trainer, prepared = self._trainer(images, config, config.total_steps(len(images)))
            seconds = 0.0
            for budget in sorted(budgets):
                while seconds < budget:
                    start = self.clock.now()
                    # Several steps between readings of the clock, because reading it waits for the device.
                    for _ in range(100 if images.is_cuda else 1):
                        trainer.advance()
                    seconds += self.clock.now() - start
                    self.clock.check()
                yield Trained(budget, trainer.step, seconds, prepared, copied(trainer.encoder))

    def dense(self, images: Tensor, config: Config, budgets: list[float]) -> Iterator[Trained]:
        """One run per budget, whose schedule ends with the budget."""
        with reproducible(allow_tf32=True):
            step_seconds, compiled = self._step_seconds(images, config)
            for budget in sorted(budgets):
                steps = max(1, round(budget / step_seconds))
                trainer, prepared = self._trainer(images, config, steps)
                start = self.clock.now()
                while trainer.step < steps:
                    trainer.advance()
                    self.clock.check()
                seconds = self.clock.now() - start
                # The timed run has already compiled the kernels.
                yield Trained(budget, steps, seconds, max(compiled, prepared), copied(trainer.encoder))

    def _step_seconds(self, images: Tensor, config: Config) -> tuple[float, float]:
        """Seconds per step, and seconds until the first step."""
        trainer, compiled = self._trainer(images, config, 2 * self.timed_steps)
        for _ in range(self.timed_steps // 4):
            trainer.advance()
        start = self.clock.now()
        for _ in range(self.timed_steps):
            trainer.advance()
        return (self.clock.now() - start) / self.timed_steps, compiled

    def _trainer(self, images: Tensor, config: Config, steps: int) -> tuple[Trainer, float]:
        """A prepared trainer, and the seconds of preparation."""
        start = self.clock.now()
        trainer = Trainer(build_encoder(config), images, config, steps, with_kernels=self.with_kernels)
        trainer.prepare()
        return trainer, self.clock.now() - start


def copied(encoder: PatchEncoder) -> Weights:
    return {name: value.detach().clone() for name, value in encoder.state_dict().items()}


class Study:
    """The result file, written after every row."""

    def __init__(self, path: Path, runs: Runs, about: dict[str, Any]) -> None:
        self.path, self.runs, self.clock = path, runs, runs.clock
        self.rows: list[dict[str, Any]] = []
        about = {"with_kernels": runs.with_kernels, "finished": False, **about}
        self.data = {"command": "benchmarks/sampling.py", **circumstances(self.clock.device), **about}
        self._longest = 0.0

    def write(self, **more: Any) -> None:
        self.data |= more | {"rows": self.rows}
        write_result(self.path, self.data)

    def compare(self, pictures: dict[str, Pictures], seed: int, budgets: list[float]) -> None:
        """Measure all rows of one category and seed, if there is enough time."""
        start = self.clock.now()
        if start + max(self._longest, 2 * sum(budgets)) > self.clock.end:
            raise TimeIsUp
        for name, seen in pictures.items():
            config = preset(name, seed=seed, image_size=SIZE)
            train = self.runs.cut if name == CUT else self.runs.dense
            for trained in list(train(seen.train, config, budgets)):
                self._add(seen, config, trained)
        self._longest = max(self._longest, self.clock.now() - start)

    def _add(self, seen: Pictures, config: Config, trained: Trained) -> None:
        start = self.clock.now()
        row = {
            "category": seen.name,
            "seed": config.seed,
            "sampling": config.sampling,
            "preset": config.preset,
            "budget": trained.budget,
            "steps": trained.steps,
            "train_seconds": trained.seconds,
            "ms_per_step": 1000 * trained.seconds / trained.steps,
            "compile_seconds": trained.compile_seconds,
            **seen.auroc(config, trained.weights),
        }
        row["evaluation_seconds"] = self.clock.now() - start
        self.rows.append(row)
        self.write()
        print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--categories", default="bottle,toothbrush,pill", help="comma-separated")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--budgets", default="5,20", help="seconds of training, comma-separated")
    parser.add_argument("--seconds", type=float, default=560, help="time limit; rows measured so far are kept")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plain", action="store_true", help="without the Triton kernels")
    parser.add_argument("--image-count", type=int, help="training images used, for a quick test")
    parser.add_argument("--test-count", type=int, help="test images used, for a quick test")
    parser.add_argument("--timed-steps", type=int, default=200, help="dense steps timed before each comparison")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    start = time.perf_counter()
    device = choose_device(args.device)
    budgets = [float(text) for text in args.budgets.split(",")]
    limit = Limit(args.image_count, args.test_count)
    runs = Runs(Clock(device, start + args.seconds), not args.plain, args.timed_steps)
    about = {"budgets": budgets, "image_count": args.image_count, "test_count": args.test_count}
    study = Study(args.out, runs, about)
    pictures: dict[str, dict[str, Pictures]] = {}
    try:
        for seed in map(int, args.seeds.split(",")):
            for name in args.categories.split(","):
                if name not in pictures:
                    both = (preset(CUT, image_size=SIZE), preset(DENSE, image_size=SIZE))
                    pictures[name] = {
                        config.preset: Pictures.load(args.data / name, config, device, limit) for config in both
                    }
                study.compare(pictures[name], seed, budgets)
        study.write(finished=True)
    except TimeIsUp:
        study.write()
        print(f"stopped after {time.perf_counter() - start:.0f} s")
    print(f"{time.perf_counter() - start:.1f} s, {len(study.rows)} rows")


if __name__ == "__main__":
    main()
