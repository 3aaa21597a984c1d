"""The time that the critic adds to an inspection on a CPU: two models alternating on the same images, one at a time.

    python benchmarks/second_opinion.py CATEGORY PAPER_MODEL BEST_MODEL --out benchmarks/results/second-opinion.json

Both models are first prepared for this machine (``patchsvdd prepare``). The ratio is of medians over images.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.prepare import prepare
from patchsvdd.images.image_set import load_image
from patchsvdd.images.mvtec_layout import find_test_images
from record import circumstances, write_result


def milliseconds(detector: PatchSVDD, pixels: torch.Tensor) -> dict[str, float]:
    """Milliseconds for one image (1, 3, H, W): in total, and for the critic."""
    start = time.perf_counter()
    detector.anomaly_maps(pixels)
    whole = time.perf_counter() - start
    start = time.perf_counter()
    detector.marked(pixels)
    return {"inspect": 1e3 * whole, "critic": 1e3 * (time.perf_counter() - start)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("category", type=Path)
    parser.add_argument("models", type=Path, nargs=2, metavar="MODEL")
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    detectors: list[PatchSVDD] = []
    for model in args.models:
        prepare(model)
        detectors.append(PatchSVDD.load(model, "cpu"))
    files = [image.file for image in find_test_images(args.category).images][: args.images]
    pixels = [[load_image(file, detector.config).tensor[None] for file in files] for detector in detectors]
    times: list[list[dict[str, float]]] = [[] for _ in detectors]
    for index in range(-3, len(files)):  # the first ones warm up
        for detector, images, found in zip(detectors, pixels, times, strict=True):
            measured = milliseconds(detector, images[max(index, 0)])
            if index >= 0:
                found.append(measured)
    rows: list[dict[str, Any]] = []
    for detector, found in zip(detectors, times, strict=True):
        size = (int(pixels[0][0].shape[2]), int(pixels[0][0].shape[3]))
        rows.append(
            {
                "preset": detector.config.preset,
                "engine": detector.embedder.engine_for(size),
                "patches": {str(k): len(scale.embeddings) for k, scale in detector.memory.scales.items()},
                "inspect_milliseconds": statistics.median(one["inspect"] for one in found),
                "critic_milliseconds": statistics.median(one["critic"] for one in found) if detector.critic else None,
            }
        )
    ratio = rows[1]["inspect_milliseconds"] / rows[0]["inspect_milliseconds"]
    about = {"command": "benchmarks/second_opinion.py", **circumstances(detectors[0].device)}
    result = {**about, "category": args.category.name, "images": len(files), "ratio": ratio, "models": rows}
    write_result(args.out, result)
    print(rows, f"ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
