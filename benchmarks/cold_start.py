"""Time of `patchsvdd inspect` for one image, from the start of the process to its end: model folder and exported file.

    python benchmarks/cold_start.py models/part photos/one.png --out benchmarks/results/cold-start-x86.json

Both take turns. The file is exported first, in both formats.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from patchsvdd import PatchSVDD
from patchsvdd.export.export import export
from record import circumstances, write_result


def seconds(model: Path, image: Path, out: Path) -> float:
    """Time to inspect an image in a new process."""
    command = [sys.executable, "-m", "patchsvdd", "inspect", str(model), str(image), "--out", str(out)]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--name", help="name of the model in the result file; default: that of its folder")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    detector = PatchSVDD.load(args.model, "cpu", engine="torch", search="exact")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        models = {"model folder": args.model}
        for wanted in ("onnx", "openvino"):
            models[wanted] = export(detector, folder / f"part.{wanted}", [args.image], format=wanted).path
        times: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(args.rounds + 1):  # the first round fills the page cache
            for number, (name, model) in enumerate(models.items()):
                taken = seconds(model, args.image, folder / f"out-{turn}-{number}")
                if turn:
                    times[name].append(round(taken, 3))
        sizes = {name: round(path.stat().st_size / 1e6, 1) for name, path in models.items() if path.is_file()}
    entries = json.loads(args.out.read_text())["models"] if args.out.is_file() else {}
    medians = {name: round(float(np.median(values)), 3) for name, values in times.items()}
    entries[args.name or args.model.name] = {"median_seconds": medians, "seconds": times, "megabytes": sizes}
    print(json.dumps(entries, indent=1))
    about = {"command": "benchmarks/cold_start.py", **circumstances(torch.device("cpu")), "seed": 0}
    write_result(args.out, {**about, "models": entries})


if __name__ == "__main__":
    main()
