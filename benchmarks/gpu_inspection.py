"""Inspection on a GPU: images per second from host memory to maps in host memory, and the difference of the maps.

    python benchmarks/gpu_inspection.py --data DATASET --encoders RUNS --out benchmarks/results/gpu-inspection.json

The encoder comes from a stored run (preset "paper"); the memory contains all training images of the category.
"Plain" is the implementation that the fused kernels replace: PyTorch's float32 convolutions and ``ExactSearch``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchsvdd import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation.collected_results import inspect_test_images
from patchsvdd.evaluation.evaluate import measure
from patchsvdd.images.image_set import load_image
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.exact_search import ExactSearch
from patchsvdd.scoring.anomaly_map import average_over_patches, multiply_scales
from record import circumstances, write_result
from thinning import find_encoder, load_encoder

PEAK_BF16 = {"NVIDIA H200": 989.5e12}
"""Operations per second of dense bfloat16 products, from the data sheet."""


def throughput(detector: PatchSVDD, pixels: Tensor, batch: int, images: int) -> dict[str, Any]:
    """Images per second over ``images`` images, the fastest and the median of three passes."""

    def batches() -> Iterator[Tensor]:
        for start in range(0, images, batch):
            yield pixels[torch.arange(start, start + batch) % len(pixels)]

    rates = []
    for turn in range(4):
        made = list(batches())  # timing starts with decoded images in host memory
        start = time.perf_counter()
        for _ in detector.map_batches(made):
            pass
        if turn:
            rates.append(len(made) * batch / (time.perf_counter() - start))
    return {"batch": batch, "images": images, "images_per_second": statistics.median(rates), "best": max(rates)}


def parts(detector: PatchSVDD, pixels: Tensor, batch: int) -> dict[str, float]:
    from patchsvdd.evaluation.speed import timed_parts

    on_device = pixels[:batch].to(detector.device)
    measured = [timed_parts(detector, on_device) for _ in range(12)][2:]
    return {name: 1000 * statistics.median(one[name] for one in measured) / batch for name in measured[0]}


def plain_twin(detector: PatchSVDD) -> PatchSVDD:
    """The same detector without any fused kernel."""
    memory = Memory(detector.memory.image_names, {k: s.without_graph() for k, s in detector.memory.scales.items()})
    twin = PatchSVDD(detector.config, detector.learned, detector.device, engine="torch")
    twin.memory = memory
    for scale in twin.memory.scales.values():
        scale.__dict__["search"] = ExactSearch(scale.embeddings)
    return twin


def compare(fused: PatchSVDD, plain: PatchSVDD, pixels: Tensor) -> dict[str, Any]:
    """Largest differences of maps and scores, relative to the threshold and to the plain map."""
    relative, of_threshold, scores, verdicts = [], [], [], []
    for image in torch.split(pixels, 8):
        ours, theirs = fused.anomaly_maps(image), plain.anomaly_maps(image)
        difference = (ours.combined - theirs.combined).abs()
        seen = theirs.combined > 1e-3 * plain.threshold
        relative.append(float((difference / theirs.combined)[seen].amax()))
        of_threshold.append(float(difference.amax()) / plain.threshold)
        scores.append(float(((ours.scores - theirs.scores).abs() / theirs.scores).amax()))
        verdicts.append(bool(((ours.scores > fused.threshold) == (theirs.scores > plain.threshold)).all()))
    return {
        "map_relative": max(relative),
        "map_relative_to_threshold": max(of_threshold),
        "score_relative": max(scores),
        "same_verdicts": all(verdicts),
    }


def compare_searches(fused: PatchSVDD, pixels: Tensor) -> dict[str, Any]:
    """The fused search against the plain exact search for the same queries."""
    found: dict[str, Any] = {}
    queries = fused.embedder(pixels[:16])
    grids = fused.embedder.grids((int(pixels.shape[2]), int(pixels.shape[3])))
    maps: list[Tensor] = []
    plain_maps: list[Tensor] = []
    for grid, query in zip(grids, queries, strict=True):
        size = grid.scale.patch_size
        scale = fused.memory.scales[size]
        distance, row = scale.nearest(query.flatten(0, 1))
        plain_distance, plain_row = ExactSearch(scale.embeddings).nearest(query.flatten(0, 1))
        tied = (row == plain_row) | ((distance - plain_distance).abs() <= 1e-6 * (1 + plain_distance))
        found[str(size)] = {
            "largest_difference": float((distance - plain_distance).abs().amax()),
            "same_or_tied": float(tied.float().mean()),
        }
        for into, distances in ((maps, distance), (plain_maps, plain_distance)):
            into.append(average_over_patches(distances.view(len(query), *grid.shape), grid))
    product, plain = multiply_scales(maps), multiply_scales(plain_maps)
    found["map_relative"] = float(((product - plain).abs() / plain.clamp_min(1e-6)).amax())
    return found


def auroc(detector: PatchSVDD, category: Path) -> dict[str, float]:
    metrics = measure(inspect_test_images(detector, category), detector).metrics
    return {name: metrics[name] for name in ("detection_auroc", "segmentation_auroc")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoders", type=Path, required=True)
    parser.add_argument("--category", default="bottle")
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    config = preset("paper")
    category = args.data / args.category
    good = load_good_images(category, config)
    pixels = torch.stack([load_image(image.file, config).tensor for image in find_test_images(category).images])
    encoder = load_encoder(find_encoder(args.encoders, args.category, 0), config, torch.device("cpu"))
    result: dict[str, Any] = {"command": "benchmarks/gpu_inspection.py", "category": args.category, "memories": []}
    for size in ("100%", "10%"):
        start = time.perf_counter()
        detector = PatchSVDD.fit_images(good, config.replace(memory=size), device=args.device, encoder=encoder)
        fitted = time.perf_counter() - start
        rows = {str(k): len(scale.embeddings) for k, scale in detector.memory.scales.items()}
        entry: dict[str, Any] = {"memory": size, "rows": rows, "memory_and_threshold_seconds": fitted}
        entry["throughput"] = [throughput(detector, pixels, batch, args.images) for batch in (16, 32, 64, 128)]
        one = [detector.map_batches([pixels[:1]]) for _ in range(30)]
        times = []
        for waiting in one:
            start = time.perf_counter()
            list(waiting)
            times.append(1000 * (time.perf_counter() - start))
        entry["latency_ms_of_one_image"] = statistics.median(times[5:])
        entry["parts_ms_per_image"] = {str(batch): parts(detector, pixels, batch) for batch in (1, 64)}
        entry["auroc"] = auroc(detector, category)
        if size == "100%":
            plain = plain_twin(detector)
            entry["plain_parts_ms_per_image"] = parts(plain, pixels, 8)
            entry["plain_auroc"] = auroc(plain, category)
            entry["against_plain"] = compare(detector, plain, pixels)
            entry["searches"] = compare_searches(detector, pixels)
            patches = {str(g.scale.patch_size): g.shape[0] * g.shape[1] for g in detector.embedder.grids((256, 256))}
            operations = sum(2 * rows[k] * patches[k] * config.embedding_dim for k in rows)
            where = circumstances(detector.device)
            if where["hardware"] in PEAK_BF16:
                floor = 1000 * operations / PEAK_BF16[where["hardware"]]
                entry["floor_ms_of_all_products_in_bf16"] = floor
                entry["search_share_of_floor"] = floor / entry["parts_ms_per_image"]["64"]["search"]
        result["memories"].append(entry)
        result |= circumstances(detector.device)
        write_result(args.out, result)
        print(entry, flush=True)


if __name__ == "__main__":
    main()
