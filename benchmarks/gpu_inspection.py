"""Inspection on a GPU: images per second from host memory to maps in host memory, and the difference of the maps.

    python benchmarks/gpu_inspection.py DATASET/CATEGORY --out benchmarks/results/gpu-inspection.json --keep WEIGHTS

``paper`` and ``best`` are trained in full, in images of 256×256; weights that WEIGHTS contains are not trained again.
The memory contains all training images of the category. "Plain" is the implementation that the fused kernels replace:
PyTorch's float32 convolutions and ``ExactSearch``. "Computed" is inspection without a recorded CUDA graph.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from patchsvdd import preset
from patchsvdd.core.config import Config
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.detector import recorded_inspection
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.encoder.untrained import inspection_encoder
from patchsvdd.evaluation.collected_results import inspect_test_images
from patchsvdd.evaluation.evaluate import measure
from patchsvdd.images.image_set import ImageSet, load_image
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.exact_search import ExactSearch
from patchsvdd.scoring.anomaly_map import average_over_patches, multiply_scales
from record import circumstances, write_result

PEAK_BF16 = {"NVIDIA H200": 989.5e12}
"""Operations per second of dense bfloat16 products, from the data sheet."""
SINGLE, WARM_UP = 500, 50
"""Inspections of one image, for its percentiles."""


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


def one_by_one(detector: PatchSVDD, pixels: Tensor) -> dict[str, float]:
    """Milliseconds of single images, host to host."""
    spent = []
    for index in range(SINGLE + WARM_UP):
        batch = pixels[index % len(pixels)][None]
        start = time.perf_counter()
        for _ in detector.map_batches([batch]):
            pass
        spent.append(1000 * (time.perf_counter() - start))
    spent = sorted(spent[WARM_UP:])
    return {"p50": statistics.median(spent), "p99": spent[int(0.99 * len(spent))]}


def computed(detector: PatchSVDD, pixels: Tensor) -> dict[str, float]:
    """``one_by_one`` without a recorded graph."""
    before, recorded_inspection.BEFORE = recorded_inspection.BEFORE, 1 << 60
    detector._recording = None
    try:
        return one_by_one(detector, pixels)
    finally:
        recorded_inspection.BEFORE = before
        detector._recording = None


def plain_twin(detector: PatchSVDD) -> PatchSVDD:
    """The same detector without any fused kernel or recorded graph."""
    memory = Memory(detector.memory.image_names, {k: s.without_graph() for k, s in detector.memory.scales.items()})
    twin = PatchSVDD(detector.config, detector.learned, detector.device, engine="torch")
    twin.memory = memory
    for scale in twin.memory.scales.values():
        scale.__dict__["search"] = ExactSearch(scale.embeddings)
    if twin.critic_inference is not None and twin.critic is not None:
        twin.critic_inference.critic = twin.critic
    return twin


def compare(fused: PatchSVDD, plain: PatchSVDD, pixels: Tensor) -> dict[str, Any]:
    """Largest differences of maps and scores, relative to the threshold and to the plain map."""
    relative, of_threshold, scores, verdicts = [], [], [], []
    parts: dict[str, list[float]] = {}
    for image in torch.split(pixels, 8):
        ours, theirs = fused.anomaly_maps(image), plain.anomaly_maps(image)
        for name, values in theirs.parts.items():
            largest = (ours.parts[name] - values).abs().amax() / values.abs().amax()
            parts.setdefault(name, []).append(float(largest))
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
        "parts_relative_to_highest": {name: max(values) for name, values in parts.items()},
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


def trained(name: str, images: ImageSet, config: Config, device: str, keep: Path) -> PatchSVDD:
    """A detector with the weights kept under this name; they are trained and kept if there are none."""
    files = {part: keep / f"{name}-{part}.safetensors" for part in ("encoder", "critic")}
    if not files["encoder"].exists():
        detector = PatchSVDD.fit_images(images, config, device=device)
        keep.mkdir(parents=True, exist_ok=True)
        if detector.critic is not None:
            tensors = {key: value.cpu().contiguous() for key, value in detector.critic.state().items()}
            save_file(tensors, files["critic"])
        save_file(
            {key: value.cpu().contiguous() for key, value in detector.encoder.state_dict().items()}, files["encoder"]
        )
        return detector
    encoder = inspection_encoder(build_encoder(config), config)
    encoder.load_state_dict(load_file(files["encoder"]))
    critic = None
    if config.critic is not None:
        critic = TrainedCritic.from_state(load_file(files["critic"]), config.critic)
    return PatchSVDD.fit_images(images, config, device=device, encoder=encoder, critic=critic)


def auroc(detector: PatchSVDD, category: Path) -> dict[str, float]:
    metrics = measure(inspect_test_images(detector, category), detector).metrics
    return {name: metrics[name] for name in ("detection_auroc", "segmentation_auroc")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("category", type=Path)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="train for fewer steps, to try the command")
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    settings: dict[str, Any] = {} if args.steps is None else {"steps": args.steps}
    config = preset("paper", **settings)
    category = args.category
    good = load_good_images(category, config)
    pixels = torch.stack([load_image(image.file, config).tensor for image in find_test_images(category).images])
    result: dict[str, Any] = {"command": "benchmarks/gpu_inspection.py", "category": category.name, "seed": config.seed}
    result["memories"] = []
    for size in ("100%", "10%"):
        start = time.perf_counter()
        detector = trained("paper", good, config.replace(memory=size), args.device, args.keep)
        fitted = time.perf_counter() - start
        rows = {str(k): len(scale.embeddings) for k, scale in detector.memory.scales.items()}
        entry: dict[str, Any] = {"memory": size, "rows": rows, "memory_and_threshold_seconds": fitted}
        entry["throughput"] = [throughput(detector, pixels, batch, args.images) for batch in (16, 32, 64, 128)]
        entry["one_image_ms"] = {"recorded": one_by_one(detector, pixels), "computed": computed(detector, pixels)}
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
    config = preset("best", image_size=256, **settings)
    if args.steps is not None and config.critic is not None:
        config = config.replace(critic=dataclasses.replace(config.critic, steps=args.steps, check_steps=0))
    best = trained("best", load_good_images(category, config), config, args.device, args.keep)
    assert best.map_builder.fusion is not None
    assert best.config.critic is not None
    measured = {
        "throughput": [throughput(best, pixels, batch, args.images) for batch in (16, 32, 64, 128)],
        "one_image_ms": {"recorded": one_by_one(best, pixels), "computed": computed(best, pixels)},
        "parts_ms_per_image": {str(batch): parts(best, pixels, batch) for batch in (1, 64)},
        "auroc": auroc(best, category),
        "share_of_memory": best.map_builder.fusion.share,
        "critic_width": best.config.critic.width,
    }
    measured["against_plain"] = compare(best, plain_twin(best), pixels)
    result["best"] = measured
    write_result(args.out, result)
    print(measured, flush=True)


if __name__ == "__main__":
    main()
