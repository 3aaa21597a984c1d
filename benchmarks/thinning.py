"""Measure AUROC and time against memory size, for the same trained encoders and several coreset methods.

    python benchmarks/thinning.py --data DATASET --encoders RUNS --out benchmarks/results/thinning.json --seconds 150

RUNS contains stored experiments (<category>-<key>/encoder.safetensors); those with the preset "paper" and the given
seed are used. Every distance is exact. Methods whose shorter selection is the start of a longer one are searched part
by part, so that all sizes together cost one search of the largest; the row "all" is the whole memory. Seconds of
selection are the time until this many rows were selected. Milliseconds are the time of an exact search of one image
over this many rows, all scales together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor

from coreset_methods import choose_rows, per_place, random_rows
from patchsvdd import preset
from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device, reproducible
from patchsvdd.core.memory_size import MemorySize, parse_memory_size
from patchsvdd.core.progress import OnProgress
from patchsvdd.encoder.networks import PatchEncoder, build_encoder, grids_for, rows_of
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.images.image_set import load_image_set, load_mask
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.mvtec_layout import TestImage, find_test_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import Memory, ScaleMemory, build_memory, exact_search
from patchsvdd.memory.coreset import k_center, nearest_to_cell_means
from patchsvdd.memory.exact_search import NeighborSearch
from patchsvdd.scoring.anomaly_map import average_over_patches, image_score, multiply_scales
from record import circumstances, write_result

CATEGORIES = "toothbrush,bottle,pill,screw,tile,grid"
SIZES = "100%,50%,25%,10%,5%,1%,0.1%"
SEEDS = 3
"""Number of random selections."""
ALL = MemorySize(100, is_share=True)
REPEATS = 5
Nested = Callable[[ScaleMemory, int, int, OnProgress], Tensor]
NESTED: dict[str, Nested] = {
    "random": lambda scale, count, seed, _: random_rows(scale.embeddings, count, seed),
    "k-center": lambda scale, count, _, progress: k_center(scale.embeddings, count, progress),
    "per-place": lambda scale, count, _, progress: per_place(scale.embeddings, scale.origins, count, progress),
}
"""Methods whose shorter selection is the start of a longer one."""


class TimeIsUp(Exception):
    """The time limit is reached."""


@dataclass(frozen=True)
class Clock:
    """The time left."""

    device: torch.device
    end: float

    def check(self) -> None:
        if time.perf_counter() > self.end:
            raise TimeIsUp

    def now(self) -> float:
        """Seconds, after all work on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@dataclass(frozen=True)
class Subject:
    """One category: its whole memory, and the test images as embeddings."""

    name: str
    memory: Memory
    grids: list[PatchGrid]
    queries: dict[int, Tensor]
    """Patch size → (T, patches, D)."""
    labels: Tensor
    """(T,) bool: defective."""
    masks: Tensor
    """(T, H, W) bool."""

    @classmethod
    def load(cls, folder: Path, encoder: PatchEncoder, config: Config, device: torch.device, limit: Limit) -> Subject:
        good = load_good_images(folder, config)
        train = good.pixels[limit.some(len(good), limit.train)]
        normalization = Normalization.fit(train, config)
        grids = grids_for(encoder, config, good.size)
        images = find_test_images(folder).images
        images = tuple(images[index] for index in limit.some(len(images), limit.test))
        test = load_image_set([(str(image.file), image.file) for image in images], config)
        if test.skipped:
            raise test.skipped[0]
        with torch.inference_mode(), reproducible():
            memory = build_memory(encoder, normalization(train).to(device), [""] * len(train), grids)
            maps = [encoder.dense(normalization(image[None]).to(device), grids) for image in test.pixels]
        sizes = [grid.scale.patch_size for grid in grids]
        queries = {size: torch.cat([rows_of(one[at]) for one in maps]) for at, size in enumerate(sizes)}
        labels = torch.tensor([not image.is_good for image in images], device=device)
        masks = torch.from_numpy(np.stack([_mask(image, good.size, config) for image in images])).to(device)
        return cls(folder.name, memory, grids, queries, labels, masks)

    def auroc(self, distances: dict[int, Tensor]) -> dict[str, float]:
        """Detection and segmentation of the product map of patch distances (T · patches,)."""
        maps = multiply_scales(
            average_over_patches(distances[grid.scale.patch_size].view(len(self.labels), *grid.shape), grid)
            for grid in self.grids
        )
        return {
            "detection_auroc": auroc(self.labels, image_score(maps)),
            "segmentation_auroc": auroc(self.masks.flatten(), maps.flatten()),
        }


@dataclass(frozen=True)
class Limit:
    """Training and test images used, evenly spaced, for a quick test; None for all."""

    train: int | None
    test: int | None

    def some(self, total: int, count: int | None) -> list[int]:
        return [round(place) for place in np.linspace(0, total - 1, min(total, count or total)).tolist()]


def _mask(image: TestImage, size: tuple[int, int], config: Config) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if image.mask is None:
        if not image.is_good:
            raise ValueError(f"{image.file} has no mask")
        return np.zeros(size, dtype=bool)
    return load_mask(image.mask, size, config.resize)


def auroc(labels: Tensor, scores: Tensor) -> float:
    """The same number as ``patchsvdd.evaluation.metrics.auroc``, on the device of labels and scores (N,)."""
    good, defects = scores[~labels].sort().values, scores[labels]
    below = torch.searchsorted(good, defects, right=False).sum()
    not_above = torch.searchsorted(good, defects, right=True).sum()
    return int(below + not_above) / (2 * len(good) * len(defects))


def find_encoder(runs: Path, category: str, seed: int) -> Path:
    """The stored encoder of the preset "paper"."""
    wanted = {"preset": "paper", "objective": "patch-svdd", "encoder": "hierarchical", "seed": seed}
    for path in sorted(runs.glob(f"{category}-*/encoder.safetensors")):
        with safetensors.safe_open(path, "pt") as file:
            settings = json.loads(file.metadata()["training"])["settings"]
        if wanted.items() <= settings.items():
            return path
    raise FileNotFoundError(f"'{runs}' contains no encoder of '{category}' with {wanted}")


def load_encoder(path: Path, config: Config, device: torch.device) -> PatchEncoder:
    encoder = build_encoder(config)
    with safetensors.safe_open(path, "pt") as file:
        encoder.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return encoder.to(device).eval().requires_grad_(False)


@dataclass(frozen=True)
class Choice:
    """Rows in the order of selection."""

    orders: dict[int, Tensor]
    """Patch size → rows (count,) int64."""
    stamps: dict[int, list[tuple[int, float]]]
    """Patch size → number of selected rows and the seconds so far."""

    def seconds(self, wanted: dict[int, int]) -> float:
        """Seconds until this many rows of each patch size were selected."""
        return sum(next(at for done, at in self.stamps[k] if done >= count) for k, count in wanted.items())


class Study:
    """The result file, written after every row."""

    def __init__(self, path: Path, clock: Clock, about: dict[str, Any]) -> None:
        self.path = path
        self.clock = clock
        self.rows: list[dict[str, Any]] = []
        self.data = {"command": "benchmarks/thinning.py", **circumstances(clock.device), **about, "rows": self.rows}
        self._milliseconds: dict[tuple[str, int], float] = {}

    def write(self, **more: Any) -> None:
        self.data |= more
        write_result(self.path, self.data)

    def nested(self, subject: Subject, method: str, seed: int, sizes: Sequence[MemorySize]) -> Choice:
        """Measure a method whose shorter selection starts a longer one: searched part by part."""
        ascending = sorted(sizes, key=lambda size: counts(subject, size))
        choice = self._choose(subject, method, seed, ascending[-1])
        before, distances = dict.fromkeys(choice.orders, 0), None
        for size in ascending:
            after = rows_per_scale(subject, size)
            part = {k: order[before[k] : after[k]] for k, order in choice.orders.items()}
            distances = self._search(subject, part, distances)
            rows = {k: min(after[k], len(order)) for k, order in choice.orders.items()}
            name = "all" if rows == rows_per_scale(subject, ALL) else method
            self._add(subject, name, seed, size, choice.seconds(after), rows, distances)
            before = after
        return choice

    def _choose(self, subject: Subject, method: str, seed: int, size: MemorySize) -> Choice:
        choice = Choice({}, {})
        for patch_size, scale in subject.memory.scales.items():
            stamps = choice.stamps[patch_size] = []
            start = self.clock.now()

            def progress(done: int, _: int, stamps: list[tuple[int, float]] = stamps, start: float = start) -> None:
                self.clock.check()
                stamps.append((done, self.clock.now() - start))

            count = size.rows_of(len(scale.embeddings))
            choice.orders[patch_size] = NESTED[method](scale, count, seed, progress)
            progress(count, count)
        return choice

    def settled(self, subject: Subject, size: MemorySize, centers: Choice) -> None:
        """The row of the method of ``--memory``; its seconds include those of the k-centre selection."""
        wanted = rows_per_scale(subject, size)
        start = self.clock.now()
        rows = {
            k: nearest_to_cell_means(scale.embeddings, scale.embeddings[centers.orders[k][: wanted[k]]])
            for k, scale in subject.memory.scales.items()
        }
        self._whole(subject, "settled", size, rows, centers.seconds(wanted) + self.clock.now() - start)

    def other(self, subject: Subject, method: str, size: MemorySize) -> None:
        """The row of any method, computed again for each size."""
        start = self.clock.now()
        rows = {
            k: choose_rows(scale, size.rows_of(len(scale.embeddings)), method, 0, lambda *_: self.clock.check())
            for k, scale in subject.memory.scales.items()
        }
        self._whole(subject, method, size, rows, self.clock.now() - start)

    def _whole(self, subject: Subject, method: str, size: MemorySize, rows: dict[int, Tensor], seconds: float) -> None:
        distances = self._search(subject, rows, None)
        self._add(subject, method, 0, size, seconds, {k: len(one) for k, one in rows.items()}, distances)

    def _search(self, subject: Subject, rows: dict[int, Tensor], nearer: dict[int, Tensor] | None) -> dict[int, Tensor]:
        """Distance (T · patches,) of every query to the nearest of these rows, or the previous distance if smaller."""
        distances = {}
        for patch_size, queries in subject.queries.items():
            found = torch.full(queries.shape[:2], torch.inf, device=queries.device).flatten()
            if len(rows[patch_size]):
                search = exact_search(subject.memory.scales[patch_size].embeddings[rows[patch_size]])
                found = torch.cat([self._nearest(search, part) for part in in_batches(queries)])
            distances[patch_size] = found if nearer is None else torch.minimum(found, nearer[patch_size])
        return distances

    def _nearest(self, search: NeighborSearch, queries: Tensor) -> Tensor:
        self.clock.check()
        return search.nearest(queries)[0]

    def _add(
        self,
        subject: Subject,
        method: str,
        seed: int,
        size: MemorySize,
        seconds: float,
        rows: dict[int, int],
        distances: dict[int, Tensor],
    ) -> None:
        row = {
            "category": subject.name,
            "method": method,
            "seed": seed,
            "size": str(size),
            "rows": {str(k): count for k, count in rows.items()},
            "bytes": sum(count * (4 * subject.queries[k].shape[2] + 12) for k, count in rows.items()),
            **subject.auroc(distances),
            "thinning_seconds": 0.0 if method == "all" else seconds,
            "search_milliseconds": self._search_milliseconds(subject, size),
        }
        self.rows.append(row)
        self.write()
        print(row, flush=True)

    def _search_milliseconds(self, subject: Subject, size: MemorySize) -> float:
        """Median time of an exact search of one image; it does not depend on which rows are searched."""
        key = (subject.name, counts(subject, size))
        if key not in self._milliseconds:
            searches = [
                (exact_search(scale.embeddings[: size.rows_of(len(scale.embeddings))]), subject.queries[k][0])
                for k, scale in subject.memory.scales.items()
            ]
            times = []
            for _ in range(REPEATS + 1):  # the first warms up
                start = self.clock.now()
                for search, queries in searches:
                    search.nearest(queries)
                times.append(1000 * (self.clock.now() - start))
            self._milliseconds[key] = statistics.median(times[1:])
        return self._milliseconds[key]


def rows_per_scale(subject: Subject, size: MemorySize) -> dict[int, int]:
    return {k: size.rows_of(len(scale.embeddings)) for k, scale in subject.memory.scales.items()}


def counts(subject: Subject, size: MemorySize) -> int:
    """Rows of all scales."""
    return sum(rows_per_scale(subject, size).values())


def in_batches(queries: Tensor) -> Iterator[Tensor]:
    """Queries (images · patches, D) of a batch of images, from (T, patches, D)."""
    for part in torch.split(queries, 16 if queries.is_cuda else 1):
        yield part.flatten(0, 1)


def measure(
    study: Study, subject: Subject, methods: Sequence[str], sizes: list[MemorySize], largest: MemorySize
) -> None:
    """Measure all rows of one category, the most important first."""
    some = [size for size in sizes if counts(subject, size) <= counts(subject, largest)]
    if "random" in methods:
        study.nested(subject, "random", 0, sizes)
    choices = {
        method: study.nested(subject, method, 0, some) for method in methods if method in NESTED and method != "random"
    }
    for method in methods:
        for size in some:
            if method == "settled" and "k-center" in choices:
                study.settled(subject, size, choices["k-center"])
            elif method not in NESTED:
                study.other(subject, method, size)
    if "random" in methods:
        for seed in range(1, SEEDS):
            study.nested(subject, "random", seed, some)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoders", type=Path, required=True)
    parser.add_argument("--categories", default=CATEGORIES)
    parser.add_argument("--methods", default="random,k-center,settled,per-place")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--largest", default="25%", help="largest size, except for random rows and the whole memory")
    parser.add_argument("--seed", type=int, default=0, help="seed of the encoders")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit; rows measured so far are kept")
    parser.add_argument("--image-count", type=int, help="training images used, for a quick test")
    parser.add_argument("--test-count", type=int, help="test images used, for a quick test")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    start = time.perf_counter()
    device = choose_device(args.device)
    config = preset("paper", seed=args.seed)
    limit = Limit(args.image_count, args.test_count)
    about = {"seed": args.seed, "image_count": args.image_count, "test_count": args.test_count, "finished": False}
    study = Study(args.out, Clock(device, start + args.seconds), about)
    sizes = [parse_memory_size(text) for text in args.sizes.split(",")]
    try:
        for name in args.categories.split(","):
            study.clock.check()
            encoder = load_encoder(find_encoder(args.encoders, name, args.seed), config, device)
            subject = Subject.load(args.data / name, encoder, config, device, limit)
            measure(study, subject, args.methods.split(","), sizes, parse_memory_size(args.largest))
        study.write(finished=True)
    except TimeIsUp:
        study.write()
        print(f"stopped after {time.perf_counter() - start:.0f} s")
    print(f"{time.perf_counter() - start:.1f} s, {len(study.rows)} rows")


if __name__ == "__main__":
    main()
