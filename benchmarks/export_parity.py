"""Exported files in ONNX Runtime and OpenVINO against PyTorch, on real categories and one with non-square images.

python benchmarks/export_parity.py mvtec --nonsquare nonsquare/tire --models models --out benchmarks/results/export.json

``models`` may contain model folders named after categories. A category without one is trained briefly, on a few images:
agreement does not depend on how long a model was trained. Results are kept in the result file, and a second run
measures only the missing ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patchsvdd import CriticSettings, ExportRefused, PatchSVDD
from patchsvdd.export.export import export
from patchsvdd.images.image_files import find_images
from patchsvdd.images.mvtec_layout import find_good_images
from record import circumstances, write_result

CATEGORIES = ("bottle", "pill", "screw", "toothbrush")
FORMATS = ("onnx", "openvino")
SEED = 0
KINDS: dict[str, dict[str, Any]] = {
    "pill": {"preset": "best", "critic": CriticSettings(width=8, steps=20, batch_size=2), "fusion_share": 0.5},
    "screw": {"preset": "encoder", "local_scaling": True},
}
"""Settings trained without a given model; all others use the preset "encoder" with position normalisation."""


def evenly(files: Sequence[Path], count: int) -> list[Path]:
    """``count`` of the files, evenly spaced from the first to the last."""
    places = np.linspace(0, len(files) - 1, min(count, len(files))).round().astype(int)
    return [files[place] for place in places]


def quick_model(folder: Path, args: argparse.Namespace, size: str) -> PatchSVDD:
    good = evenly(find_good_images(folder).files, args.train_images)
    kind = KINDS.get(folder.name, {"preset": "encoder", "position_normalization": True})
    settings = {"steps": args.steps, "image_size": size, "stop": "end", "seed": SEED}
    settings |= {"aim": "few-alarms", "synthetic_defects": 0, **kind}
    return PatchSVDD.fit(good, device="cpu", search="exact", **settings)


def model_of(folder: Path, args: argparse.Namespace, size: str) -> PatchSVDD:
    stored = args.models / folder.name if args.models is not None else None
    if stored is not None and stored.is_dir():
        return PatchSVDD.load(stored, "cpu", engine="torch", search="exact")
    return quick_model(folder, args, size)


def peak_megabytes(exported: Path, image: Path) -> float:
    """Peak memory of the runner without PyTorch for one image, in a separate process (Linux only)."""
    code = (
        "import re, sys; from pathlib import Path; from patchsvdd.runtime.__main__ import main\n"
        "failed = main(sys.argv[1:])\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
        "sys.exit(failed)"
    )
    command = [sys.executable, "-c", code, str(exported), str(image)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return round(int(done.stdout.splitlines()[-1]) * 1024 / 1e6)


def measure(detector: PatchSVDD, folder: Path, wanted: str, count: int) -> dict[str, Any]:
    images = evenly(find_images(folder / "test")[0], count)
    told: list[Any] = []
    refused = None
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, f"part.{wanted}")
        try:
            options: dict[str, Any] = {"format": wanted, "search": "exact", "count": count}
            size = export(detector, out, images, **options, on_compared=told.append).bytes
            peak = peak_megabytes(out, images[0])
        except ExportRefused as error:
            refused, size, peak = str(error), None, None
    parity = told[0]
    return {
        **parity.to_json(),
        "refused": refused,
        "bytes": size,
        "runner_peak_megabytes": peak,
        "seconds_pytorch": round(parity.seconds, 3),
        "seconds_exported": round(parity.exported_seconds, 3),
        "compared": [{**one.to_json(), "image": one.name.removeprefix(f"{folder}/")} for one in parity.images],
    }


def facts(detector: PatchSVDD) -> dict[str, Any]:
    config = detector.config
    return {
        "preset": config.preset,
        "image_size": list(config.image_size or ()),
        "critic": config.critic is not None,
        "critic_steps": None if config.critic is None else config.critic.steps,
        "local_scaling": config.local_scaling,
        "position_normalization": config.position_normalization,
        "patches": {str(size): len(scale.embeddings) for size, scale in detector.memory.scales.items()},
        "memory_images": len(detector.memory.image_names),
        "steps": detector.provenance.get("training", {}).get("steps"),
        "threshold": detector.threshold,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--nonsquare", type=Path, required=True, help="a category whose images are not square")
    parser.add_argument("--nonsquare-size", default="336x448", help="width x height")
    parser.add_argument("--models", type=Path, help="folder of model folders")
    parser.add_argument("--train-images", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--images", type=int, default=6, help="test images of each category")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(SEED)
    found: dict[str, Any] = json.loads(args.out.read_text())["categories"] if args.out.is_file() else {}
    folders = [(args.dataset / name, "256") for name in CATEGORIES] + [(args.nonsquare, args.nonsquare_size)]
    for folder, size in folders:
        missing = [wanted for wanted in FORMATS if wanted not in found.get(folder.name, {})]
        if not missing:
            continue
        detector = model_of(folder, args, size)
        entry = found.setdefault(folder.name, {"model": facts(detector)})
        for wanted in missing:
            entry[wanted] = measure(detector, folder, wanted, args.images)
            about = entry[wanted]
            print(folder.name, wanted, f"{about['largest_map_error']:.1e}", about["same_verdicts"], about["images"])
            about = {"command": "benchmarks/export_parity.py", **circumstances(torch.device("cpu")), "seed": SEED}
            write_result(args.out, {**about, "threads": torch.get_num_threads(), "categories": found})


if __name__ == "__main__":
    main()
