"""One 256 × 256 image: one dense pass against encoding patch by patch, both in one run on this machine.

python benchmarks/encode.py --out benchmarks/results/encode.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from patchsvdd import preset
from patchsvdd.encoder.networks import PatchEncoder, build_encoder, grids_for
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.training.pair_sampler import cut_patches
from record import circumstances, write_result


def patch_by_patch(encoder: PatchEncoder, image: torch.Tensor, grid: PatchGrid, batch: int) -> torch.Tensor:
    """Embeddings (rows · columns, D): every patch cut out and encoded, ``batch`` at a time."""
    corners = torch.cartesian_prod(torch.tensor(grid.rows), torch.tensor(grid.columns))
    size = grid.scale.patch_size
    embeddings = []
    for start in range(0, len(corners), batch):
        part = corners[start : start + batch]
        patches = cut_patches(image, torch.zeros(len(part), dtype=torch.long), part, size)
        embeddings.append(encoder.encode({size: patches})[size])
    return torch.cat(embeddings)


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    config = preset("paper")
    encoder = build_encoder(config).eval()
    image = torch.rand((1, 3, 256, 256), generator=torch.Generator().manual_seed(0)) - 0.5
    grids = grids_for(encoder, config, (256, 256))
    with torch.inference_mode():
        dense = encoder.dense(image, grids)
        differences = []
        for grid, one in zip(grids, dense, strict=True):
            cut = patch_by_patch(encoder, image, grid, 64)
            differences.append(float((one[0].flatten(1).T - cut).abs().max()))
        seconds = {
            "dense": median_seconds(lambda: encoder.dense(image, grids), 5 * args.repeats),
            "patch by patch": median_seconds(
                lambda: [patch_by_patch(encoder, image, grid, 1) for grid in grids], args.repeats
            ),
            "patches in batches of 64": median_seconds(
                lambda: [patch_by_patch(encoder, image, grid, 64) for grid in grids], args.repeats
            ),
        }
    result = {
        "command": "benchmarks/encode.py",
        **circumstances(torch.device("cpu")),
        "seed": config.seed,
        "patches": {str(grid.scale.patch_size): grid.shape[0] * grid.shape[1] for grid in grids},
        "seconds": seconds,
        "speedup_over_patch_by_patch": seconds["patch by patch"] / seconds["dense"],
        "speedup_over_batches_of_64": seconds["patches in batches of 64"] / seconds["dense"],
        "largest_difference": max(differences),
    }
    write_result(args.out, result)
    print(result)


if __name__ == "__main__":
    main()
