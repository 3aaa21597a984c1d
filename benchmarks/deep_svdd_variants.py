"""Deep SVDD on whole images: which of its choices explain the distance from the published average.

    python benchmarks/deep_svdd_variants.py CATEGORY... --out benchmarks/results/deep-svdd-variants.json

Each variant changes the preset ``deep-svdd`` in one respect, the last one in three. Only detection is measured: there
is no map. Values in an existing result file are not measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd import preset
from patchsvdd.baselines import deep_svdd, training
from patchsvdd.core.baseline_settings import Boundary
from patchsvdd.core.device import choose_device, reproducible
from patchsvdd.evaluation.metrics import auroc
from patchsvdd.images.image_set import load_image_set
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.training.hooks import TrainingHooks
from record import circumstances, write_result


@dataclass(frozen=True)
class Variant:
    """A change of the preset."""

    side: int = deep_svdd.SIDE
    contrast: bool = True
    """Whether the contrast of every image is normalised."""
    pretraining: int | None = None
    """Epochs as an autoencoder; None for the preset's."""
    boundary: Boundary = "hard"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Build and train networks of this variant."""
        changed: dict[str, Any] = {"SIDE": self.side}
        if not self.contrast:
            changed["normalized_contrast"] = lambda images: images
        with ExitStack() as stack:
            for module in (deep_svdd, training):
                stack.enter_context(patch.multiple(module, **changed))
            yield


VARIANTS = {
    "as built": Variant(),
    "32 px": Variant(side=32),
    "contrast as it is": Variant(contrast=False),
    "no pretraining": Variant(pretraining=0),
    "soft boundary": Variant(boundary="soft"),
    "32 px, contrast as it is, no pretraining": Variant(32, contrast=False, pretraining=0),
}


@dataclass(frozen=True)
class Category:
    """Images (N, 3, H, W) in 0 … 255, and which of the test images are abnormal."""

    name: str
    train: Tensor
    test: Tensor
    anomalous: tuple[bool, ...]

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Category:
        config = preset("deep-svdd")
        images = find_test_images(folder).images
        test = load_image_set([(str(image.file), image.file) for image in images], config)
        if test.skipped:
            raise test.skipped[0]
        pixels = (load_good_images(folder, config).pixels.to(device), test.pixels.to(device))
        return cls(folder.name, *pixels, tuple(not image.is_good for image in images))

    def measure(self, variant: Variant, seed: int) -> dict[str, float]:
        """Detection AUROC and training time of one training."""
        settings = preset("deep-svdd").baseline
        assert settings is not None
        settings = dataclasses.replace(settings, boundary=variant.boundary)
        if variant.pretraining is not None:
            settings = dataclasses.replace(settings, pretraining=variant.pretraining)
        start = time.time()
        with variant.applied():
            # Images are shrunk once; shrinking them again to the same size changes nothing.
            network, _ = training.train_baseline(
                shrunk(self.train, variant.side), settings, seed, self.name, TrainingHooks()
            )
            assert isinstance(network, deep_svdd.DeepSvdd)
            with reproducible(), torch.inference_mode():
                scores = network.scores(shrunk(self.test, variant.side) / 255)
        value = auroc(np.array(self.anomalous), scores.cpu().numpy())
        return {"detection_auroc": value, "seconds": round(time.time() - start, 1)}


def shrunk(images: Tensor, side: int) -> Tensor:
    """Return images (N, 3, side, side), as the network shrinks them."""
    parts = [
        F.interpolate(part.float(), (side, side), mode="bilinear", antialias=True, align_corners=False)
        for part in torch.split(images, 64)
    ]
    return torch.cat(parts)


def measure(folder: Path, name: str, seed: int, device: str) -> dict[str, float]:
    """Train and test one variant."""
    torch.set_num_threads(2)
    return Category.load(folder, choose_device(device)).measure(VARIANTS[name], seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="result file")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    about = circumstances(choose_device(args.device))
    result: dict[str, Any] = {"command": "benchmarks/deep_svdd_variants.py", **about, "categories": {}}
    if args.out.is_file():
        result["categories"] = json.loads(args.out.read_text())["categories"]
    rows = {folder.name: result["categories"].setdefault(folder.name, {}) for folder in args.categories}
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        futures = {}
        for folder, name, seed in product(args.categories, VARIANTS, args.seeds.split(",")):
            if seed not in rows[folder.name].setdefault(name, {}):
                futures[pool.submit(measure, folder, name, int(seed), args.device)] = (folder.name, name, seed)
        for future in as_completed(futures):
            category, name, seed = futures[future]
            rows[category][name][seed] = future.result()
            print(category, name, seed, rows[category][name][seed], flush=True)
            write_result(args.out, result)
    result["means"] = {
        name: statistics.fmean(one["detection_auroc"] for row in rows.values() for one in row[name].values())
        for name in VARIANTS
    }
    write_result(args.out, result)


if __name__ == "__main__":
    main()
