"""Table 3 at K = 64 only: what changes the results of the random encoder and of raw patches.

    python benchmarks/baselines.py DATASET --exact FOLDER --out benchmarks/results/baselines-k64.json

DATASET/<category> are copies in MVTec layout; FOLDER/<category> are the same images as used by the authors (256 × 256,
nearest neighbour of the originals). Random encoder: the spread over seeds. Raw patches: with the mean image subtracted
(the preset) and without; one mean per channel instead would not change any distance between patches, so it is not
measured. "stretched" is not the paper's map: the grid of patch distances is interpolated bilinearly over the whole
image, where the paper gives each pixel the mean over its patches. It was tried after the other values were seen.
Values in an existing result file are not measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd import preset
from patchsvdd.core.config import Config
from patchsvdd.core.scales import Scale
from patchsvdd.encoder.networks import RawPixels, build_encoder, rows_of
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.evaluation.metrics import auroc
from patchsvdd.evaluation.published import published
from patchsvdd.images.image_set import load_image_set, load_mask
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.mvtec_layout import TestImage, find_test_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import build_memory
from patchsvdd.memory.exact_search import ExactSearch
from patchsvdd.scoring.anomaly_map import average_over_patches, image_score
from record import circumstances, write_result

CATEGORIES = "bottle,toothbrush,pill,screw,tile,grid"
SIZE, STRIDE = 64, 16
POOL = 4
"""Candidates for raw patches are found by the means of POOL × POOL pixels."""
CANDIDATES = 32
"""Candidates per query; the nearest is chosen by the exact distance."""
CHECKED = 2
"""Patches of each test image whose distance is compared with an exact search."""
TABLES = {"random": "random_encoder", "raw": "raw_patch"}
"""Encoder → its table of published values."""
TASKS = ("detection_auroc", "segmentation_auroc")

Normalize = Callable[[Tensor], Tensor]
Values = dict[str, Any]


@dataclass(frozen=True)
class Category:
    """Training and test images of one category, decoded."""

    name: str
    config: Config
    train: Tensor
    """(N, 3, H, W) uint8."""
    test: Tensor
    """(T, 3, H, W) uint8."""
    images: tuple[TestImage, ...]
    """(T,) the files of ``test``."""

    @classmethod
    def load(cls, folder: Path) -> Category:
        config = preset("paper")
        images = find_test_images(folder).images
        test = load_image_set([(str(image.file), image.file) for image in images], config)
        if test.skipped:
            raise test.skipped[0]
        return cls(folder.name, config, load_good_images(folder, config).pixels, test.pixels, images)

    def grid(self, scale: Scale) -> PatchGrid:
        return PatchGrid((self.train.shape[2], self.train.shape[3]), scale, alignment=2)

    @cached_property
    def mean_image(self) -> Normalization:
        """Normalised as in the preset."""
        return Normalization.fit(self.train, self.config)

    def measure(self, distances: Tensor, grid: PatchGrid) -> Values:
        """AUROC of the maps of patch distances (T, rows, columns), and of these maps interpolated over the image."""
        stretched = F.interpolate(distances[:, None], grid.image_size, mode="bilinear")[:, 0]
        return {**self._auroc(average_over_patches(distances, grid)), "stretched": self._auroc(stretched)}

    def _auroc(self, maps: Tensor) -> Values:
        """Detection and segmentation of maps (T, H, W), if there are good images and masks."""
        values: Values = {}
        labels = np.array([not image.is_good for image in self.images])
        if labels.any() and not labels.all():
            values["detection_auroc"] = auroc(labels, image_score(maps).numpy())
        if all(image.mask or image.is_good for image in self.images):
            masks = np.stack([self._mask(image) for image in self.images])
            values["segmentation_auroc"] = auroc(masks.ravel(), maps.numpy().ravel())
        return values

    def _mask(self, image: TestImage) -> NDArray[np.bool_]:
        size = (int(self.test.shape[2]), int(self.test.shape[3]))
        if image.mask is None:
            return np.zeros(size, dtype=bool)
        return load_mask(image.mask, size, self.config.resize)


def random_features(category: Category, seed: int) -> Values:
    """The random encoder of one seed."""
    grid = category.grid(Scale(SIZE, STRIDE))
    encoder = build_encoder(preset("paper", encoder="random", seed=seed)).eval()
    normalized = category.mean_image(category.train)
    memory = build_memory(encoder, normalized, [""] * len(normalized), [grid]).scales[SIZE]
    distances = []
    with torch.inference_mode():
        for image in category.test:
            queries = rows_of(encoder.dense(category.mean_image(image[None]), [grid])[0])[0]
            distances.append(memory.nearest(queries)[0].view(grid.shape))
    return category.measure(torch.stack(distances), grid)


def raw_patches(category: Category, normalize: Normalize, stride: int) -> Values:
    """Raw patches: candidates by the means of POOL × POOL pixels, then the nearest by all pixels."""
    grid = category.grid(Scale(SIZE, stride))
    memory = _patches(normalize(category.train), SIZE, stride)
    coarse = _patches(F.avg_pool2d(normalize(category.train), POOL), SIZE // POOL, stride // POOL)
    center = coarse.mean(0)
    coarse -= center
    half = 0.5 * coarse.square().sum(1)
    generator = torch.Generator().manual_seed(0)
    distances, checked, found = [], [], []
    for image in category.test:
        normalized = normalize(image[None])
        queries = _patches(normalized, SIZE, stride)
        about = _patches(F.avg_pool2d(normalized, POOL), SIZE // POOL, stride // POOL) - center
        rows = torch.addmm(-half, about, coarse.T).topk(CANDIDATES, dim=1).indices  # (rows · columns, CANDIDATES)
        nearest = torch.stack([(memory[row] - one).norm(dim=1).min() for row, one in zip(rows, queries, strict=True)])
        distances.append(nearest.view(grid.shape))
        some = torch.randperm(len(queries), generator=generator)[:CHECKED]
        checked.append(queries[some])
        found.append(nearest[some])
    exact, _ = ExactSearch(memory).nearest(torch.cat(checked))
    excess = torch.cat(found) / exact.clamp_min(1e-6) - 1
    check = {
        "queries": len(excess),
        "nearest_found": float((excess < 1e-5).double().mean()),
        "mean_excess_of_distance": float(excess.mean()),
    }
    return {**category.measure(torch.stack(distances), grid), "check": check}


def _patches(images: Tensor, size: int, stride: int) -> Tensor:
    """(N · rows · columns, 3 · size²) of images (N, 3, H, W)."""
    grid = PatchGrid((images.shape[2], images.shape[3]), Scale(size, stride), alignment=1)
    return build_memory(RawPixels([size]), images, [""] * len(images), [grid]).scales[size].embeddings


def plain(pixels: Tensor) -> Tensor:
    """Pixels without normalisation."""
    return pixels.float() / 255


def spread(runs: dict[str, Values]) -> Values:
    """Mean, sample standard deviation, minimum and maximum of each metric over the seeds."""
    summary: Values = {}
    for task in TASKS:
        values = [run[task] for run in runs.values() if task in run]
        if len(values) > 1:
            summary[task] = {
                "mean": statistics.mean(values),
                "std": statistics.stdev(values),
                "least": min(values),
                "largest": max(values),
            }
    return summary


class Results:
    """The result file, written after every measurement."""

    def __init__(self, path: Path) -> None:
        self.path = path
        now = circumstances(torch.device("cpu"))
        self.data: dict[str, Any] = {"command": "benchmarks/baselines.py", **now, "patch_size": SIZE, "categories": {}}
        if path.is_file():
            before = json.loads(path.read_text())
            commits = sorted({*before["commit"].split(", "), now["commit"]})
            self.data |= {"commit": ", ".join(commits), "categories": before["categories"]}

    def add(self, category: str, data: str, encoder: str, name: str, measure: Callable[[], Values]) -> None:
        """Measure, unless the result file has the value."""
        theirs = {kind: published(table, category) for kind, table in TABLES.items()}
        entry = self.data["categories"].setdefault(category, {"published": theirs})
        runs = entry.setdefault(data, {}).setdefault(encoder, {})
        if name not in runs:
            start = time.perf_counter()
            runs[name] = measure()
            runs[name]["seconds"] = round(time.perf_counter() - start, 1)
            if encoder == "random":
                stretched = {name: run["stretched"] for name, run in runs.items()}
                entry[data]["random over seeds"] = {**spread(runs), "stretched": spread(stretched)}
            write_result(self.path, self.data)
            print(category, data, encoder, name, runs[name], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--exact", type=Path, help="folder of the exact images, for the categories that have them")
    parser.add_argument("--categories", default=CATEGORIES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--strides", default="16", help="strides of raw patches with the mean image, e.g. 8,16,32")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    results = Results(args.out)
    for name in args.categories.split(","):
        folders = {"copies": args.dataset / name}
        if args.exact is not None and (args.exact / name).is_dir():
            folders["exact"] = args.exact / name
        for data, folder in folders.items():
            category = Category.load(folder)
            measure_category(category, data, args.seeds, [int(stride) for stride in args.strides.split(",")], results)


def measure_category(category: Category, data: str, seeds: int, strides: list[int], results: Results) -> None:
    for stride in strides:
        word = "" if stride == STRIDE else f", stride {stride}"

        def with_mean(stride: int = stride) -> Values:
            return raw_patches(category, category.mean_image, stride)

        results.add(category.name, data, "raw", f"mean image{word}", with_mean)
    results.add(category.name, data, "raw", "plain", lambda: raw_patches(category, plain, STRIDE))
    for seed in range(seeds):

        def of_seed(seed: int = seed) -> Values:
            return random_features(category, seed)

        results.add(category.name, data, "random", f"seed {seed}", of_seed)


if __name__ == "__main__":
    main()
