"""The cost of adding images to the memory of a stored model, compared with rebuilding the memory.

    python benchmarks/upkeep.py MODEL CATEGORY --out benchmarks/results/upkeep.json

The model, which was trained on the category, is copied. The category's good test images are added to the copy, removed
one by one, and all changes are undone. A rebuild embeds all training images and the added ones and builds new graphs.
Both memories must be identical to the last bit, and so must maps by exact search. Times are ratios within one run.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from patchsvdd.core.device import choose_device, reproducible
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.memory_update import add_images, remove_images, undo
from patchsvdd.images.image_files import find_images
from patchsvdd.images.image_set import load_image_set
from patchsvdd.images.mvtec_layout import find_good_images
from patchsvdd.memory.bank import Memory, build_memory
from record import circumstances, write_result

INSPECTED = 5


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    found = work()
    return found, time.perf_counter() - start


def rebuild(detector: PatchSVDD, category: Path, added: list[Path]) -> Memory:
    """The memory of the category's training images and the added ones, with graphs."""
    sources = [*find_good_images(category).named(), *((path.name, path) for path in added)]
    images = load_image_set(sources, detector.config)
    with reproducible(), torch.inference_mode():
        pixels = detector.normalization(images.pixels)
        memory = build_memory(detector.encoder, pixels, images.names, detector.embedder.grids(images.size))
    return memory.with_graphs()


def compare(model: Path, whole: Memory, images: list[Path]) -> dict[str, Any]:
    """The difference of a model's memory and maps from those of a rebuilt memory."""
    grown = PatchSVDD.load(model, device="cpu", search="exact")
    scales = grown.memory.scales
    same = all(torch.equal(scales[size].embeddings, one.embeddings) for size, one in whole.scales.items())
    maps = [torch.from_numpy(grown.inspect(path).anomaly_map) for path in images]
    grown.memory = whole.without_graphs()
    others = [torch.from_numpy(grown.inspect(path).anomaly_map) for path in images]
    largest = max(float((one - other).abs().max()) for one, other in zip(maps, others, strict=True))
    return {"memory_is_the_same": same, "images": len(images), "largest_difference_of_maps": largest}


def inspection_seconds(model: Path, images: list[Path]) -> float:
    detector = PatchSVDD.load(model, device="cpu")
    detector.inspect(images[0])
    return min(timed(lambda path=path: detector.inspect(path))[1] for path in images)  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("category", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    added = find_images(args.category / "test" / "good")[0]
    bad = [path for path in find_images(args.category / "test")[0] if path not in added][:INSPECTED]
    with tempfile.TemporaryDirectory() as temporary:
        model = Path(temporary) / "model"
        shutil.copytree(args.model, model)
        before = PatchSVDD.load(model, device="cpu")
        rows = {size: len(scale.embeddings) for size, scale in before.memory.scales.items()}
        seconds = {"inspection_before": inspection_seconds(model, bad)}
        done, seconds["add"] = timed(lambda: add_images(model, added, device="cpu"))
        whole, seconds["rebuild"] = timed(lambda: rebuild(before, args.category, added))
        equal = compare(model, whole, bad)
        seconds["inspection_after_adding"] = inspection_seconds(model, bad)
        _, seconds["remove_one"] = timed(lambda: remove_images(model, [done.images[0]], device="cpu"))
        seconds["inspection_after_removing"] = inspection_seconds(model, bad)
        _, seconds["undo"] = timed(lambda: undo(model))
        undo(model)
        restored = PatchSVDD.load(model, device="cpu").identity == before.identity
    result = {
        "command": "benchmarks/upkeep.py",
        **circumstances(choose_device("cpu")),
        "seed": before.config.seed,
        "preset": before.config.preset,
        "patches": rows,
        "added_images": len(done.images),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "add_is_a_share_of_the_rebuild": round(seconds["add"] / seconds["rebuild"], 4),
        "against_a_rebuild": equal,
        "undone_is_the_same_model": restored,
    }
    write_result(args.out, result)
    print(result)


if __name__ == "__main__":
    main()
