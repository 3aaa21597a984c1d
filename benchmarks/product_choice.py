"""Whether the product in an image is recognised, among several sets.

    python benchmarks/product_choice.py DATA... [--rate 0.01] [--out FILE]

DATA are categories in MVTec layout. No model is trained: products are recognised by the pictures that a model stores of
its good images, and these are made as training makes them. Every test image, good and defective, is compared with all
products. "Left out" chooses among the other products, calibrated without the one left out, so "none" is right. Which
set an image belongs to, and whether it is good, is read after all choices were made.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from patchsvdd import preset
from patchsvdd.core.device import choose_device
from patchsvdd.detector.product_choice import ProductChoice, ProductChooser
from patchsvdd.detector.product_images import COMPARED, ProductImages
from patchsvdd.images.image_set import decoded
from patchsvdd.images.loading import load_training_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.scoring.conformal import share_interval
from record import RESULTS, circumstances, write_result

OUT = RESULTS / "product-choice.json"


def pictures_of(category: Path) -> ProductImages:
    """What a model trained on a category stores."""
    images, config = load_training_images(category, preset("best"))
    return ProductImages(config, Thumbnails.from_images(images.pixels), frozenset(images.digests()), category.name)


def share(hits: int, count: int) -> dict[str, Any]:
    low, high = share_interval(hits, count)
    return {"share": round(hits / count, 5) if count else None, "interval": [round(low, 4), round(high, 4)]}


def row_of(
    name: str,
    chooser: ProductChooser,
    choices: dict[Path, ProductChoice],
    left_out: dict[Path, ProductChoice],
    good: set[Path],
) -> dict[str, Any]:
    known = chooser.calibrations[name]
    wrong = {path: one.product for path, one in choices.items() if one.product != name}
    none_of_good = sum(choices[path].product is None for path in good)
    others = [one.product for one in left_out.values() if one.product is not None]
    relative = [one.distances[name] / known.limit for one in choices.values()]
    return {
        "calibration_images": len(known.distances),
        "stated_rate": round(known.rate, 5),
        "limit_above_the_guaranteed": round(known.limit / known.guaranteed_limit, 3),
        "images": len(choices),
        "good": len(good),
        "right": share(len(choices) - len(wrong), len(choices)),
        "right_of_good": share(sum(path not in wrong for path in good), len(good)),
        "another_product": sum(product is not None for product in wrong.values()),
        "none_of_good": {"images": none_of_good, **share(none_of_good, len(good))},
        "above_the_guaranteed_limit": sum(choices[path].distances[name] > known.guaranteed_limit for path in good),
        "left_out_none": share(len(choices) - len(others), len(choices)),
        "left_out_taken_for": {product: others.count(product) for product in sorted(set(others))},
        "farthest_in_limits": round(max(relative), 3),
        "not_recognised": sorted(f"{path.parent.name}/{path.name}" for path in wrong),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    images = {category.name: pictures_of(category) for category in args.data}
    chooser = ProductChooser(images)
    chooser.calibrate(false_alarm_rate=args.rate)
    fewer = {name: ProductChooser({one: images[one] for one in images if one != name}) for name in images}
    for other in fewer.values():
        other.calibrate(false_alarm_rate=args.rate)
    tests = {category.name: find_test_images(category).images for category in args.data}
    rows, seconds = {}, []
    for name, of_set in tests.items():
        choices, left_out = {}, {}
        for one in of_set:
            pixels = decoded(one.file, str(one.file))
            start = time.process_time()
            choices[one.file] = chooser.choose(pixels)
            seconds.append((time.process_time() - start) / len(images))
            left_out[one.file] = fewer[name].choose(pixels)
        good = {one.file for one in of_set if one.is_good}
        rows[name] = row_of(name, chooser, choices, left_out, good)
        print(f"{name}: {rows[name]}", flush=True)
    count, right, good_count, none_of_good, above = (
        sum(values)
        for values in zip(
            *(
                (
                    row["images"],
                    row["images"] - len(row["not_recognised"]),
                    row["good"],
                    row["none_of_good"]["images"],
                    row["above_the_guaranteed_limit"],
                )
                for row in rows.values()
            ),
            strict=True,
        )
    )
    result = {
        "command": "benchmarks/product_choice.py",
        **circumstances(choose_device("cpu")),
        "rate": args.rate,
        "compared": COMPARED,
        "processor_milliseconds_per_product": round(1000 * statistics.median(seconds), 2),
        "images": count,
        "right": share(right, count),
        "good": good_count,
        "none_of_good": {"images": none_of_good, **share(none_of_good, good_count)},
        "above_the_guaranteed_limit": {"images": above, **share(above, good_count)},
        "stated_for_good": round(sum(row["stated_rate"] * row["good"] for row in rows.values()) / good_count, 5),
        "sets": rows,
    }
    write_result(args.out, result)
    print({key: value for key, value in result.items() if key != "sets"})


if __name__ == "__main__":
    main()
