"""An image of 8,000 × 6,000 pixels inspected at full size: peak memory of the process, time, and the effect of strips.

    python benchmarks/large_image.py --out benchmarks/results/large-image.json

A ``best`` detector is trained for a few steps on demo images of 384 × 384 pixels at native size and keeps 1,000 patches
of each scale: enough to run every part in little time. The large image is a mosaic of such images with dark spots.
``patchsvdd inspect`` runs in a separate process and also writes the overlay. Then a part of the image is inspected in
one pass and in strips of a fraction of the default height, and the maps are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.apps.demo.dataset import GOOD, Shot, render_image
from patchsvdd.core import config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.image_size import MAX_PIXELS
from patchsvdd.critic import network as critic
from patchsvdd.detector import large_images as strips
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.scoring.inspection import Inspection
from record import circumstances, write_result

SIDE = 384
PICTURES = 6
SEED = 0
PART = "weave"


def mosaic(pictures: list[NDArray[np.uint8]], height: int, width: int) -> NDArray[np.uint8]:
    """(height, width, 3) mosaic of the images in turn, flipped at random, with dark spots."""
    rng = np.random.default_rng(SEED)
    whole = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, SIDE):
        for left in range(0, width, SIDE):
            picture = pictures[int(rng.integers(len(pictures)))][:: rng.choice((1, -1)), :: rng.choice((1, -1))]
            room = whole[top : top + SIDE, left : left + SIDE]
            room[:] = picture[: room.shape[0], : room.shape[1]]
    for _ in range(20):
        y, x = int(rng.integers(height - 40)), int(rng.integers(width - 40))
        whole[y : y + 30, x : x + 30] //= 4
    return whole


def inspected(model: Path, image: Path, out: Path) -> dict[str, Any]:
    """Seconds and peak memory of ``patchsvdd inspect`` in a separate process."""
    command = [sys.executable, "-m", "patchsvdd", "inspect", str(model), str(image), "--out", str(out)]
    start = time.perf_counter()
    subprocess.run([*command, "--device", "cpu", "--json"], check=False, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    row = json.loads((out / "results.jsonl").read_text().splitlines()[0])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {"seconds": seconds, "peak_bytes": peak, "peak_gib": peak / 2**30, "regions": len(row["regions"])}


def difference(detector: PatchSVDD, part: NDArray[np.uint8]) -> dict[str, Any]:
    """Largest difference of each map, in strips and in one pass, as a share of the map's largest value."""
    config.LARGE_PIXELS = MAX_PIXELS
    whole = _maps(detector.inspect(part))
    config.LARGE_PIXELS = 0
    strips.STRIP_BYTES["cpu"] //= 12
    critic.TILE_BYTES["cpu"] //= 4
    strips.MAP_ROWS = 100
    cut = _maps(detector.inspect(part))
    return {name: float(np.abs(cut[name] - one).max() / np.abs(one).max()) for name, one in whole.items()}


def _maps(inspection: Inspection) -> dict[str, NDArray[np.float32]]:
    return {
        "combined": inspection.anomaly_map,
        **{f"scale {size}": one for size, one in inspection.scale_maps.items()},
        **dict(inspection.part_maps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="8000x6000", help="width x height")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    width, height = (int(side) for side in args.size.split("x"))
    pictures = [render_image(Shot(SEED, PART, "train", GOOD, index), SIDE).image for index in range(PICTURES)]
    settings = CriticSettings(steps=args.steps, batch_size=2)
    detector = PatchSVDD.fit(
        pictures,
        preset="best",
        device="cpu",
        image_size="native",
        steps=args.steps,
        stop="end",
        critic=settings,
        fusion_share=0.5,
        memory="1000",
        search="exact",
        seed=SEED,
        aim="few-alarms",
        synthetic_defects=0,
    )
    large = mosaic(pictures, height, width)
    with tempfile.TemporaryDirectory() as folder:
        model, image = Path(folder, "model"), Path(folder, "large.png")
        detector.save(model)
        Image.fromarray(large).save(image, compress_level=1)
        run = inspected(model, image, Path(folder, "inspected"))
    print(run)
    seams = difference(detector, np.ascontiguousarray(large[:1500, :2000]))
    result = {
        "command": "benchmarks/large_image.py",
        **circumstances(torch.device("cpu")),
        "seed": SEED,
        "cores": os.cpu_count(),
        "image_size": [height, width],
        "model": {
            "preset": "best",
            "trained_on": f"{PICTURES} pictures of {SIDE} x {SIDE}, {args.steps} steps each of encoder and critic",
            "critic_width": settings.width,
            "patches": {str(size): len(scale.embeddings) for size, scale in detector.memory.scales.items()},
        },
        "inspect": run,
        "seams": {"part": [1500, 2000], "largest_difference_as_share_of_the_maximum": seams},
    }
    write_result(args.out, result)
    print(result)


if __name__ == "__main__":
    main()
