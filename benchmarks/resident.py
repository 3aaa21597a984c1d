"""Resident memory of inspection in fresh processes, beyond a process that imported PyTorch and ran a convolution.

python benchmarks/resident.py IMAGES MODEL [MODEL ...] --out benchmarks/results/resident.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation.speed import measure_process
from patchsvdd.images.image_files import find_images
from record import circumstances, write_result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    images = find_images(args.images)[0]
    result: dict[str, Any] = {"command": "benchmarks/resident.py", **circumstances(torch.device("cpu")), "rows": []}
    for model in args.models:
        for engine in ("auto", "torch"):
            start_up, memory = measure_process(model, images, "cpu", "torch" if engine == "torch" else "auto")
            kept = PatchSVDD.load(model, "cpu").config.memory
            row = {"memory": kept, "engine": engine, "megabytes": memory, "start_up_seconds": start_up}
            result["rows"].append(row)
            print(row, flush=True)
    write_result(args.out, result)


if __name__ == "__main__":
    main()
