"""Whether the product in an image is recognised, with a model for each of several sets.

    python benchmarks/product_choice.py DATA... [--rate 0.01] [--steps 20] [--out FILE]

DATA are categories in MVTec layout. A model of each is trained briefly: what is compared comes from the untrained
encoder of larger patches. The choice is calibrated with the models' memories. Every test image, good and defective, is
then compared with all products. "Left out" chooses among the other products, so "none" is right. Which set an image
belongs to, and whether it is good, is read after all distances exist.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from patchsvdd import preset
from patchsvdd.core.device import choose_device
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.product_choice import ProductChoice, ProductChooser, nearest_product
from patchsvdd.detector.product_images import COMPARED
from patchsvdd.images.image_set import decoded
from patchsvdd.images.loading import load_training_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.scoring.conformal import share_interval
from record import RESULTS, circumstances, write_result

OUT = RESULTS / "product-choice.json"
TIMED = 20
"""Images of each set whose choice is timed."""


def train(category: Path, steps: int) -> PatchSVDD:
    config = preset("encoder", steps=steps, stop="end", aim="few-alarms", synthetic_defects=0)
    images, config = load_training_images(category, config)
    model = PatchSVDD.fit_images(images, config, device="cpu", calibrated=False)
    model.identity = category.name  # it is not saved
    return model


def without(choice: ProductChoice, product: str) -> str | None:
    """What is chosen if there were no model of a product."""
    return nearest_product({name: distance for name, distance in choice.distances.items() if name != product})


def share(hits: int, count: int) -> dict[str, Any]:
    low, high = share_interval(hits, count)
    return {"share": round(hits / count, 5) if count else None, "interval": [round(low, 4), round(high, 4)]}


def row_of(name: str, chooser: ProductChooser, choices: dict[Path, ProductChoice], good: set[Path]) -> dict[str, Any]:
    known = chooser.calibrations[name]
    wrong = {path: one.product for path, one in choices.items() if one.product != name}
    none_of_good = sum(choices[path].product is None for path in good)
    left_out = {path: without(one, name) for path, one in choices.items()}
    others = [product for product in left_out.values() if product is not None]
    return {
        "calibration_images": len(known.distances),
        "stated_rate": round(known.rate, 5),
        "images": len(choices),
        "good": len(good),
        "right": share(len(choices) - len(wrong), len(choices)),
        "right_of_good": share(sum(path not in wrong for path in good), len(good)),
        "another_product": sum(product is not None for product in wrong.values()),
        "none_of_good": {"images": none_of_good, **share(none_of_good, len(good))},
        "left_out_none": share(len(choices) - len(others), len(choices)),
        "left_out_taken_for": {product: others.count(product) for product in sorted(set(others))},
        "farthest": round(max(one.distances[name] for one in choices.values()), 3),
        "nearest_other": round(
            min(min(d for n, d in one.distances.items() if n != name) for one in choices.values()), 3
        ),
        "not_recognised": sorted(f"{path.parent.name}/{path.name}" for path in wrong),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    begun = time.perf_counter()
    models = {}
    for category in args.data:
        models[category.name] = train(category, args.steps)
        print(f"{category.name} trained, {time.perf_counter() - begun:.0f} s", flush=True)
    trained = time.perf_counter() - begun
    chooser = ProductChooser(models)
    start = time.perf_counter()
    chooser.calibrate(false_alarm_rate=args.rate)
    calibrated = time.perf_counter() - start
    found: dict[str, dict[Path, ProductChoice]] = {}
    seconds = []
    tests = {category.name: find_test_images(category).images for category in args.data}
    for name, images in tests.items():
        found[name] = {}
        for number, one in enumerate(images):
            pixels = decoded(one.file, str(one.file))
            start = time.perf_counter()
            found[name][one.file] = chooser.choose(pixels)
            if number < TIMED:
                seconds.append((time.perf_counter() - start) / len(models))
        print(f"{name} chosen, {time.perf_counter() - begun:.0f} s", flush=True)
    rows = {
        name: row_of(name, chooser, found[name], {one.file for one in images if one.is_good})
        for name, images in tests.items()
    }
    images = sum(row["images"] for row in rows.values())
    right = sum(round(row["right"]["share"] * row["images"]) for row in rows.values())
    good = sum(row["good"] for row in rows.values())
    none_of_good = sum(row["none_of_good"]["images"] for row in rows.values())
    result = {
        "command": "benchmarks/product_choice.py",
        **circumstances(choose_device("cpu")),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "compared": COMPARED,
        "rate": args.rate,
        "steps": args.steps,
        "training_seconds": round(trained),
        "calibration_seconds": round(calibrated, 1),
        "milliseconds_per_product": round(1000 * statistics.median(seconds), 2),
        "images": images,
        "right": share(right, images),
        "good": good,
        "none_of_good": share(none_of_good, good),
        "stated_for_good": round(sum(row["stated_rate"] * row["good"] for row in rows.values()) / good, 5),
        "sets": rows,
    }
    write_result(args.out, result)
    print({key: value for key, value in result.items() if key != "sets"})


if __name__ == "__main__":
    main()
