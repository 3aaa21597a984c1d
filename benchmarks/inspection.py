"""Inspection on a CPU: every engine and search against the patch-by-patch procedure, and their effect on AUROC.

    python benchmarks/inspection.py CATEGORY MODEL [MODEL ...] --out benchmarks/results/inspection.json

MODEL: folders written by ``patchsvdd import-reference`` or ``train`` on the category. The first one is also compared
with the procedure of the authors' code in the same run. Exact search of a large memory takes seconds per image, so its
AUROC is only measured with --exact; for the authors' checkpoints, see parity.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.stored_memory import Search
from patchsvdd.encoder.engines import Precision
from patchsvdd.evaluation.collected_results import inspect_test_images
from patchsvdd.evaluation.evaluate import measure
from patchsvdd.evaluation.speed import measure_speed
from patchsvdd.images.mvtec_layout import find_test_images
from record import write_result


def auroc(model: Path, category: Path, precision: Precision, search: Search) -> dict[str, Any]:
    detector = PatchSVDD.load(model, "cpu", precision=precision, search=search)
    results = inspect_test_images(detector, category)
    metrics = measure(results, detector).metrics
    size = detector.embedder.engine_for((256, 256))
    return {
        "engine": size,
        "search": search,
        "detection_auroc": metrics["detection_auroc"],
        "segmentation_auroc": metrics["segmentation_auroc"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("category", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    images = [image.file for image in find_test_images(args.category).images]
    result: dict[str, Any] = {"command": "benchmarks/inspection.py", "category": args.category.name, "models": []}
    for index, model in enumerate(args.models):
        speed = measure_speed(model, images, device="cpu", rounds=args.rounds, against_reference=index == 0)
        entry: dict[str, Any] = {**speed.to_json(), "memory": PatchSVDD.load(model, "cpu").config.memory}
        entry["auroc"] = [
            auroc(model, args.category, "float32", "auto"),
            auroc(model, args.category, "float16", "auto"),
            *([auroc(model, args.category, "float32", "exact")] if args.exact else []),
        ]
        result["models"].append(entry)
        result |= {name: entry[name] for name in ("hardware", "date", "commit", "versions", "threads")}
        write_result(args.out, result)
        print(entry, flush=True)


if __name__ == "__main__":
    main()
