"""An exported model beside the library: time per image, size, verdicts and AUROC on a whole test set.

    python benchmarks/export_speed.py models/bottle mvtec/bottle --out benchmarks/results/export-speed-x86.json

The library and the exported files each run in a process of their own, with the same number of threads. They inspect
every test image in turns, so that the speed of the machine affects all of them equally. Results of several models are
kept in one file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from export_parity import peak_megabytes
from patchsvdd import PatchSVDD
from patchsvdd.evaluation.metrics import auroc
from patchsvdd.export.export import export
from patchsvdd.images.image_set import load_image, load_mask
from patchsvdd.images.mvtec_layout import find_test_images
from record import circumstances, write_result

FORMATS = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}
WARM_UP = 3
"""Inspections of the first image that are not timed."""


def worker(kind: str, path: Path, maps: Path) -> None:
    """Inspect arrays (H, W, 3) named on the standard input, and print a line of JSON for each."""
    if kind == "library":
        library = PatchSVDD.load(path, "cpu")
        threshold = library.threshold

        def inspect(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], float]:
            found = library.anomaly_maps(torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None])
            return found.combined[0].numpy(), float(found.scores[0])
    else:
        from patchsvdd.runtime import Detector

        exported = Detector(path, threads=torch.get_num_threads())
        threshold = exported.threshold

        def inspect(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], float]:
            found, scores, _ = exported.run(pixels[None])
            return found[0], float(scores[0])

    for line in sys.stdin:
        file = Path(line.strip())
        pixels = np.load(file)
        start = time.perf_counter()
        anomaly_map, score = inspect(pixels)
        seconds = time.perf_counter() - start
        np.save(maps / file.name, anomaly_map)
        print(json.dumps({"seconds": seconds, "score": score, "anomalous": score > threshold}), flush=True)


class Worker:
    """A process that inspects one image at a time."""

    def __init__(self, kind: str, path: Path, maps: Path) -> None:
        maps.mkdir()
        self.maps = maps
        self.answers: list[dict[str, Any]] = []
        command = [sys.executable, __file__, str(path), "--worker", kind, "--maps", str(maps)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def inspect(self, file: Path, *, counts: bool = True) -> None:
        """Inspect an array and keep the answer if it ``counts``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{file}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if counts:
            self.answers.append(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def summary(self, labels: NDArray[np.bool_], masks: NDArray[np.bool_], files: list[Path]) -> dict[str, Any]:
        """Times, AUROCs and verdicts."""
        seconds = [answer["seconds"] for answer in self.answers]
        maps = np.stack([np.load(self.maps / file.name) for file in files])
        scores = np.array([answer["score"] for answer in self.answers])
        return {
            "milliseconds_median": round(1000 * float(np.median(seconds)), 1),
            "milliseconds_p95": round(1000 * float(np.quantile(seconds, 0.95)), 1),
            "detection_auroc": round(float(auroc(labels, scores)), 5),
            "segmentation_auroc": round(float(auroc(masks.ravel(), maps.ravel())), 5),
        }


def measure(model: Path, category: Path) -> dict[str, Any]:
    """Export a model and compare both files with the library on all test images."""
    detector = PatchSVDD.load(model, "cpu", engine="torch", search="exact")
    images = find_test_images(category).images
    labels = np.array([not image.is_good for image in images])
    masks = np.zeros((len(images), *detector.image_size), bool)
    for mask, image in zip(masks, images, strict=True):
        if image.mask is not None:
            mask[:] = load_mask(image.mask, detector.image_size, detector.config.resize)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = []
        for index, image in enumerate(images):
            files.append(folder / f"{index:04}.npy")
            np.save(files[-1], load_image(image.file, detector.config, image.file.name).canvas)
        workers = {"library": Worker("library", model, folder / "library")}
        exports: dict[str, dict[str, Any]] = {}
        for wanted in FORMATS:
            start = time.perf_counter()
            done = export(detector, folder / f"part.{wanted}", category / "test", format=wanted)
            exports[wanted] = {
                "search": done.about.search,
                "megabytes": round(done.bytes / 1e6, 1),
                "export_seconds": round(time.perf_counter() - start, 1),
                "runner_peak_megabytes": peak_megabytes(done.path, images[0].file),
                "parity": done.parity.to_json(),
            }
            workers[wanted] = Worker(wanted, done.path, folder / wanted)
        for turn, file in enumerate([*[files[0]] * WARM_UP, *files]):
            for one in workers.values():
                one.inspect(file, counts=turn >= WARM_UP)
        for one in workers.values():
            one.close()
        library = workers["library"].summary(labels, masks, files)
        result: dict[str, Any] = {
            "preset": detector.config.preset,
            "memory_images": len(detector.memory.image_names),
            "patches": {str(scale): len(memory.embeddings) for scale, memory in detector.memory.scales.items()},
            "test_images": len(images),
            "library": library,
        }
        for wanted, about in exports.items():
            one = workers[wanted]
            pairs = list(zip(one.answers, workers["library"].answers, strict=True))
            ratios = [mine["seconds"] / other["seconds"] for mine, other in pairs]
            result[wanted] = {
                **about,
                **one.summary(labels, masks, files),
                "ratio": round(float(np.median(ratios)), 3),
                "same_verdicts": sum(mine["anomalous"] == other["anomalous"] for mine, other in pairs),
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("category", type=Path, nargs="?", help="a category in MVTec layout")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--maps", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        worker(args.worker, args.model, args.maps)
        return
    if args.category is None or args.out is None:
        parser.error("name a model, a category and --out")
    models = json.loads(args.out.read_text())["models"] if args.out.is_file() else {}
    models[args.category.name] = measure(args.model, args.category)
    print(json.dumps(models[args.category.name], indent=1))
    about = {"command": "benchmarks/export_speed.py", **circumstances(torch.device("cpu")), "seed": 0}
    write_result(args.out, {**about, "threads": torch.get_num_threads(), "models": models})


if __name__ == "__main__":
    main()
