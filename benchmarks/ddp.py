"""Workers that share each batch against one process with the whole batch: gradients, loss curves, time.

    python benchmarks/ddp.py [FOLDER] --out benchmarks/results/ddp.json

FOLDER contains good images; without it, boards of the demo are drawn. ``gradient``: the largest difference between the
gradients of the first step, relative to the largest gradient. ``curves``: loss of every step (L_SSL + λ L_SVDD', all
scales) with one process, with the workers, and with one process and another seed: compare the effect of the workers
with the effect of a seed. ``difference``: mean absolute difference from the curve of one process.

``step_ratio``: time per step of the workers, as a multiple of the time of one process with all their threads.
Workers are processes of this machine (gloo); on several machines a step also waits for the network.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.presets import preset
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.training.process_group import ProcessGroup, check_shares
from patchsvdd.training.step import Trainer
from record import circumstances, write_result

CPU = torch.device("cpu")
DRAWN = 12
"""Number of images drawn without a folder."""


def drawn(config: Config) -> ImageSet:
    """Images of the demo's board."""
    from patchsvdd.apps.demo.dataset import GOOD, Shot, render_image

    assert config.image_size is not None
    side = config.image_size[0]
    return load_good_images(
        [render_image(Shot(0, "board", "train", GOOD, n), side).image for n in range(DRAWN)], config
    )


def trained(pixels: Tensor, config: Config, steps: int, group: ProcessGroup | None) -> dict[str, Any]:
    """Gradients of the first step; loss and seconds of every step."""
    trainer = Trainer(build_encoder(config), Normalization.fit(pixels, config)(pixels), config, steps, group=group)
    losses, seconds, gradients = [], [], list[Tensor]()
    for _ in range(steps):
        start = time.perf_counter()
        trainer.advance()
        seconds.append(time.perf_counter() - start)
        rows = trainer.read_metrics(reset=True).values()
        losses.append(sum(row["position_loss"] + config.lambda_ * row["svdd_loss"] for row in rows))
        if not gradients:
            found = [one.grad for one in trainer.optimizer.param_groups[0]["params"]]
            gradients = [one.clone() for one in found if one is not None]
    return {"gradients": gradients, "losses": losses, "seconds": seconds}


def work(rank: int, workers: int, threads: int, folder: str, config: Config, steps: int) -> None:
    """Run one worker; the first one writes the results."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=workers)
    found = trained(torch.load(f"{folder}/pixels.pt"), config, steps, ProcessGroup.here(CPU))
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def by_workers(pixels: Tensor, config: Config, steps: int, workers: int, threads: int) -> dict[str, Any]:
    """The results of ``trained`` with processes that share each batch."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        torch.save(pixels, f"{folder}/pixels.pt")
        given = (workers, threads, folder, config, steps)
        processes = [context.Process(target=work, args=(rank, *given)) for rank in range(workers)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit("a worker failed")
        found: dict[str, Any] = torch.load(f"{folder}/found.pt")
        return found


def difference(ours: list[float], theirs: list[float]) -> float:
    return statistics.fmean(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--preset", default="encoder")
    parser.add_argument("--image-size", default="128")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of all workers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    check_shares("--batch-size", args.batch_size, args.workers)
    settings = {"image_size": args.image_size, "batch_size": args.batch_size, "steps": args.steps, "seed": args.seed}
    config = preset(args.preset, **settings, clip=0.0)
    images = drawn(config) if args.folder is None else load_good_images(args.folder, config)
    each = max(1, args.threads // args.workers)
    torch.set_num_threads(each)
    alone = trained(images.pixels, config, args.steps, None)
    other = trained(images.pixels, dataclasses.replace(config, seed=args.seed + 1), args.steps, None)
    group = by_workers(images.pixels, config, args.steps, args.workers, each)
    torch.set_num_threads(each * args.workers)
    quick = trained(images.pixels, config, min(args.steps, 20), None)
    largest = max(float(one.abs().max()) for one in alone["gradients"])
    farthest = max(float((a - b).abs().max()) for a, b in zip(group["gradients"], alone["gradients"], strict=True))
    medians = {name: statistics.median(one["seconds"][1:]) for name, one in (("workers", group), ("one", quick))}
    result = {
        "command": "benchmarks/ddp.py",
        **circumstances(CPU),
        "images": args.folder.name if args.folder is not None else "the demo's boards",
        "count": len(images),
        "image_size": args.image_size,
        "preset": args.preset,
        "batch_size": args.batch_size,
        "workers": args.workers,
        "threads": each * args.workers,
        "seed": args.seed,
        "gradient": {"largest": largest, "difference": farthest, "relative": farthest / largest},
        "difference": {
            "workers": difference(group["losses"], alone["losses"]),
            "seed": difference(other["losses"], alone["losses"]),
        },
        "step_ratio": medians["workers"] / medians["one"],
        "curves": {"one": alone["losses"], "workers": group["losses"], "another seed": other["losses"]},
    }
    write_result(args.out, result)
    print({name: result[name] for name in ("gradient", "difference", "step_ratio")})


if __name__ == "__main__":
    main()
