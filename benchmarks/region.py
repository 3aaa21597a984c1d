"""The time that a region of interest saves: the same encoder and critic on the whole image and on a part, alternating.

    python benchmarks/region.py CATEGORY MODEL --roi "0,0 511,511" --out benchmarks/results/region.json

MODEL is a stored model of the category. "Learned" is a memory of only the region, as in ``train --roi``; "inspected" is
the whole model restricted to the region, as in ``inspect --roi``. Ratios are of medians over images, relative to the
whole model in the same run. All use the search of the stored model.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.images.image_set import load_image
from patchsvdd.images.loading import good_sources, load_good_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.images.roi_input import roi_for
from record import circumstances, write_result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("category", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--roi", required=True)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    whole = PatchSVDD.load(args.model, "cpu", engine="torch")
    roi = roi_for(args.roi, good_sources(args.category))
    config = dataclasses.replace(whole.config, roi=roi)
    learned = PatchSVDD.fit_images(
        load_good_images(args.category, config),
        config,
        device="cpu",
        encoder=whole.encoder,
        critic=whole.critic,
        search="auto",
    )
    detectors = {"whole": whole, "learned": learned, "inspected": whole.with_roi(roi)}
    files = [image.file for image in find_test_images(args.category).images][: args.images]
    times: dict[str, list[float]] = {name: [] for name in detectors}
    for index in range(-2, len(files)):  # the first ones warm up
        for name, detector in detectors.items():
            pixels = load_image(files[max(index, 0)], detector.config).tensor[None]
            start = time.perf_counter()
            detector.anomaly_maps(pixels)
            if index >= 0:
                times[name].append(time.perf_counter() - start)
    reference = statistics.median(times["whole"])
    rows: dict[str, Any] = {}
    for name, detector in detectors.items():
        size = detector.config.frame.size if detector.config.frame is not None else whole.config.image_size
        assert size is not None
        rows[name] = {
            "time_ratio": statistics.median(times[name]) / reference,
            "patches_searched": {str(grid.scale.patch_size): grid.count for grid in detector.embedder.grids(size)},
            "patches_in_memory": {str(k): len(scale.embeddings) for k, scale in detector.memory.scales.items()},
        }
        print(name, rows[name], flush=True)
    about = {"command": "benchmarks/region.py", **circumstances(whole.device), "category": args.category.name}
    write_result(args.out, {**about, "roi": args.roi, "share": roi.share, "images": len(files), "rows": rows})


if __name__ == "__main__":
    main()
