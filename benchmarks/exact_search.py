"""Exact search on a CPU: skipping cells against comparing with every patch, in turns.

    python benchmarks/exact_search.py MODEL IMAGE... --out benchmarks/results/exact-search.json

Each image is embedded once. Both searches then find the nearest normal patches of each scale, one after the other, and
their results are compared bit by bit. Sorting the memory into cells is timed separately.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchsvdd import PatchSVDD
from patchsvdd.images.image_set import load_image_set
from patchsvdd.memory.cell_search import PAYS_AFTER, CellSearch, cell_search_runs_on
from patchsvdd.memory.exact_search import ExactSearch
from record import circumstances, write_result


def timed(search: Callable[[Tensor], tuple[Tensor, Tensor]], queries: Tensor) -> tuple[float, tuple[Tensor, Tensor]]:
    start = time.perf_counter()
    found = search(queries)
    return time.perf_counter() - start, found


def measure(vectors: Tensor, queries: list[Tensor]) -> dict[str, Any]:
    """Seconds per image of both searches over one scale's vectors (M, D), and whether they agree."""
    every, cells = ExactSearch(vectors), CellSearch(vectors)
    enough = torch.cat(queries)[:PAYS_AFTER]
    building, _ = timed(cells.nearest, enough)
    again, _ = timed(cells.nearest, enough)
    times: dict[str, list[float]] = {"every": [], "cells": []}
    equal = []
    for one in queries:
        seconds, expected = timed(every.nearest, one)
        times["every"].append(seconds)
        seconds, found = timed(cells.nearest, one)
        times["cells"].append(seconds)
        equal.append(all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)))
        print(f"{times['every'][-1]:.2f} s, {seconds:.2f} s, {'equal' if equal[-1] else 'DIFFERENT'}", flush=True)
    ratios = [a / b for a, b in zip(times["every"], times["cells"], strict=True)]
    return {
        "rows": len(vectors),
        "queries_per_image": len(queries[0]),
        "seconds": {name: round(statistics.median(values), 4) for name, values in times.items()},
        "building_seconds": round(building - again, 2),
        "ratio": round(statistics.median(ratios), 1),
        "lowest_ratio": round(min(ratios), 1),
        "images_with_equal_results": sum(equal),
        "images": len(equal),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="result file")
    args = parser.parse_args()
    detector = PatchSVDD.load(args.model, "cpu", search="exact")
    images = load_image_set([(str(path), path) for path in args.images], detector.config)
    if images.skipped:
        raise images.skipped[0]
    grids = detector.embedder.grids(images.size)
    embedded = [detector.embedder(pixels[None]) for pixels in images.pixels]
    scales = {}
    for number, grid in enumerate(grids):
        memory = detector.memory.scales[grid.scale.patch_size]
        if cell_search_runs_on(memory.embeddings):
            queries = [one[number].flatten(0, 1) for one in embedded]
            scales[str(grid.scale.patch_size)] = measure(memory.embeddings, queries)
    about = circumstances(detector.device)
    write_result(
        args.out,
        {"command": "benchmarks/exact_search.py", **about, "threads": torch.get_num_threads(), "scales": scales},
    )


if __name__ == "__main__":
    main()
