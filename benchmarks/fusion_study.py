"""How the maps of memory and critic are best made one: every share, and other rules, on runs that are done.

    python benchmarks/fusion_study.py DATASET --cache RUNS --seeds 0,1,2 --out benchmarks/results/fusion.json

Reads trained encoders and critics from the folder that ``patchsvdd benchmark`` or ``side_by_side.py`` filled. For each
run: what drawn defects in held-out images say of each share (``validation``), and what the test set says (``test``:
detection, segmentation). A run reads test labels for its report alone. The rule for the share was changed by people who
had read these reports (NOTES, entries 25 and 33).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchsvdd import PatchSVDD
from patchsvdd.core.presets import preset, with_critic_steps
from patchsvdd.evaluation.dataset import find_categories
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.images.image_set import load_image_set, load_mask
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.scoring.fusion import SHARES, Fusion, critic_scale, memory_scale
from patchsvdd.scoring.ranking import rank_tensors
from record import circumstances, write_result

BATCH = 16


def rules(fusion: Fusion, product: Tensor, marked: Tensor) -> dict[str, Tensor]:
    """Name → maps (N, H, W) by every share of the memory, and by the larger of both rarities."""
    maps = {f"{share:g}": fusion.with_share(share)(product, marked) for share in SHARES}
    larger = torch.maximum(fusion.memory(memory_scale(product)), fusion.critic(critic_scale(marked)))
    return {**maps, "larger": larger}


def parts_of(detector: PatchSVDD, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Product maps and critic maps (N, H, W) of pixels (N, 3, H, W)."""
    found = [detector.anomaly_maps(batch.to(detector.device)).parts for batch in torch.split(pixels, BATCH)]
    return torch.cat([one["memory"] for one in found]), torch.cat([one["critic"] for one in found])


def tested(detector: PatchSVDD, category: Path) -> dict[str, dict[str, float | None]]:
    """Rule → detection and segmentation AUROC on the test set; None where there are no labels for it."""
    images = find_test_images(category).images
    loaded = load_image_set([(str(image.file), image.file) for image in images], detector.config)
    if loaded.skipped:
        raise loaded.skipped[0]
    product, marked = parts_of(detector, loaded.pixels)
    labels = torch.tensor([not image.is_good for image in images], device=product.device)
    known = torch.tensor([image.is_good or image.mask is not None for image in images], device=product.device)
    size = (int(product.shape[1]), int(product.shape[2]))
    masks = torch.from_numpy(
        np.stack(
            [load_mask(i.mask, size, detector.config.resize) if i.mask else np.zeros(size, dtype=bool) for i in images]
        )
    ).to(product.device)
    assert detector.map_builder.fusion is not None
    found: dict[str, dict[str, float | None]] = {}
    for name, maps in rules(detector.map_builder.fusion, product, marked).items():
        mixed = bool(labels.any()) and not bool(labels.all())
        masked = bool(masks[known].any())
        found[name] = {
            "detection_auroc": rank_tensors(labels, image_score(maps)).area() if mixed else None,
            "segmentation_auroc": rank_tensors(masks[known], maps[known]).area() if masked else None,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="best")
    parser.add_argument("--categories")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--critic-steps", type=int)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    config = with_critic_steps(preset(args.preset, steps=args.steps), args.critic_steps)
    store = ExperimentStore(args.cache, device=args.device)
    rows: list[dict[str, Any]] = []
    for folder in find_categories(args.dataset, args.categories.split(",") if args.categories else None):
        for seed in map(int, args.seeds.split(",")):
            experiment = Experiment(folder, config.replace(seed=seed))
            if store.find(experiment) is None:
                print(f"{folder.name}, seed {seed}: not run yet")
                continue
            detector, training = store.detector(experiment)
            row = {"category": folder.name, "seed": seed, "chosen": training["fusion_share"]}
            rows.append({**row, "validation": training["fusion_tried"], "test": tested(detector, folder)})
            print(json.dumps(rows[-1]), flush=True)
            write_result(args.out, {**circumstances(store.device), "settings": config.to_json(), "rows": rows})


if __name__ == "__main__":
    main()
