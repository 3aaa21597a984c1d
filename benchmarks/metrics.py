"""Pixel metrics of 100 and of 2,000 maps of 256 × 256: exact and streaming, seconds, memory and errors.

python benchmarks/metrics.py --out benchmarks/results/metrics.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.evaluation.metrics import aupro, auroc, average_precision
from patchsvdd.evaluation.streaming_metrics import PixelCurves
from record import circumstances, write_result

SIZE = 256
SEED = 0
NOTE = (
    "Made-up maps: gamma noise, raised by 2 in the spots of every other image. Seconds are the best of 3 runs on a "
    "shared machine and vary between runs; making the maps is not counted. Peak memory is that of a process of its own "
    "and includes Python, numpy and torch, which 'after imports' shows; errors are against the exact values."
)


def images(count: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.bool_]]]:
    """Map and mask (H, W), one image at a time; every other image has four spots where the map is higher."""
    rng = np.random.default_rng(SEED)
    for i in range(count):
        mask = np.zeros((SIZE, SIZE), dtype=bool)
        for y, x in rng.integers(0, SIZE, (4, 2)) if i % 2 else ():
            mask[y : y + SIZE // 6, x : x + SIZE // 6] = True
        yield (rng.standard_gamma(2, (SIZE, SIZE), np.float32) + 2 * mask).astype(np.float32), mask


def stream(count: int) -> tuple[PixelCurves, float]:
    """The curves of ``count`` images, and the seconds without creating the images."""
    curves, seconds = PixelCurves(), 0.0
    for one, mask in images(count):
        start = time.perf_counter()
        curves.add(one, mask)
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    curves.auroc(), curves.average_precision(), curves.best_f1(), curves.aupro()
    return curves, seconds + time.perf_counter() - start


def best_seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def megabytes() -> float:
    """Peak resident memory of this process so far, on Linux; getrusage would also count its parent."""
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024 / 1e6


def child(count: int) -> None:
    """Print the seconds and memory of streaming ``count`` images in this process."""
    before = megabytes()
    _, seconds = stream(count)
    print(json.dumps({"seconds": seconds, "megabytes": {"after imports": before, "peak": megabytes()}}))


def in_own_process(count: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(count)]
    taken: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return taken


def errors(curves: PixelCurves, exact: dict[str, float]) -> dict[str, dict[str, float]]:
    """Metric → exact value, streamed value, their difference and its bound."""
    streamed = {
        "auroc": (curves.auroc(), curves.auroc_error()),
        "average_precision": (curves.average_precision(), curves.average_precision_error()),
        "aupro": (curves.aupro(), curves.aupro_error()),
    }
    return {
        name: {"exact": exact[name], "streamed": value, "error": abs(value - exact[name]), "bound": bound}
        for name, (value, bound) in streamed.items()
    }


def measure() -> dict[str, Any]:
    pairs = list(images(100))
    maps, masks = [one for one, _ in pairs], [mask for _, mask in pairs]
    scores, labels = np.stack(maps), np.stack(masks)
    exact = {
        "auroc": auroc(labels, scores),
        "average_precision": average_precision(labels, scores),
        "aupro": aupro(maps, masks),
    }
    curves, _ = stream(100)
    thousands = in_own_process(2000)
    return {
        "seconds": {
            "exact AUROC, 100 images": best_seconds(lambda: auroc(labels, scores)),
            "exact AUPRO, 100 images": best_seconds(lambda: aupro(maps, masks)),
            "streaming, all metrics, 100 images": min(stream(100)[1] for _ in range(3)),
            "streaming, all metrics, 2000 images (one run)": thousands["seconds"],
        },
        "megabytes_streaming_2000_images": thousands["megabytes"],
        "defect_pixels": curves.defect_pixels / (curves.defect_pixels + curves.good_pixels),
        "regions": curves.regions,
        "errors_100_images": errors(curves, exact),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        return child(args.child)
    if args.out is None:
        parser.error("--out is required")
    result = {
        "command": "benchmarks/metrics.py",
        **circumstances(torch.device("cpu")),
        "numpy": np.__version__,
        "seed": SEED,
        **measure(),
        "note": NOTE,
    }
    write_result(args.out, result)
    print(result)


if __name__ == "__main__":
    main()
