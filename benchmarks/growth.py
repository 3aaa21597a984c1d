"""Time and memory against the number of training images and against the size of an image, with growth exponents.

    python benchmarks/growth.py --out benchmarks/results/growth-cpu.json
    python benchmarks/growth.py --device cuda --out benchmarks/results/growth-gpu.json

It needs no data: images of 256 × 256 pixels are drawn (the demo's woven linen, all different; a texture, whose patches
have many near neighbours, is harder to search). The encoder is untrained, which takes the same time as a trained one;
its weights are drawn so that embeddings spread over −1 … 1 as those of a trained encoder do.

``images``: a whole memory of N images. On a CPU it is searched through graphs, one image at a time; on a GPU exactly,
16 images at a time. ``index_seconds`` is the time to build the graphs, or to sort into cells on a GPU;
``threshold_seconds`` the time to score every image against all others, measured on at most 20 and scaled up.

``sizes``: images of S × S pixels, tiled from drawn images, at their native size, one at a time. All sizes are searched
in one memory of at most 100,000 patches of each scale, so that only the image grows.

``memory_bytes`` is the peak in a fresh process that loads the saved model and inspects image files. On a CPU it is
resident memory (VmHWM, including touched pages of mapped model files) beyond that of a process that imported PyTorch
and ran a convolution; ``process_bytes`` is the total, which should stay below 2 GiB. On a GPU it is the memory that
PyTorch allocated, including loading; ``inspecting_bytes`` excludes loading. The system can reclaim ``mapped_bytes``.
Milliseconds are medians, per image. Exponents are slopes in log-log: of all points by least squares, and of the last
two; against the number of images, and against the number of pixels S². 1 is linear.

The environment variable GROWTH_SIDE draws smaller images (128), of which two cores process 2,000 in minutes.

``--seconds`` applies to each of the two parts: a point that would not finish in time is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from coreset_methods import choose_rows
from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device
from patchsvdd.core.memory_size import MemorySize
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.encoder.networks import HierarchicalEncoder, PatchEncoder, build_encoder
from patchsvdd.evaluation.speed import timed_parts
from patchsvdd.images.image_set import ImageSet, load_image
from patchsvdd.memory.bank import Memory
from record import circumstances, write_result

SIDE = int(os.environ.get("GROWTH_SIDE", "256"))
"""Side of a drawn image in pixels."""
PART = "weave"
SCORED = 20
"""Largest number of images scored against all others."""
KEPT = MemorySize(100_000, is_share=False)
"""Patches of each scale in the memory for images of all sizes."""
MEMORY_SIDE, MEMORY_IMAGES = 1024, 3
"""Side and number of the images of that memory."""
REPEATS, FEWEST, ENOUGH_SECONDS = 12, 3, 25.0
"""Repetitions of a measured inspection: at most, at least, and the seconds after which it stops early."""
BATCH = {"cpu": 1, "cuda": 16}
LIMIT = 2 * 2**30
"""Bytes of memory that should be enough to inspect the largest image."""

Row = dict[str, Any]
Pictures = NDArray[np.uint8]


# Images


def draw(index: int) -> Pictures:
    """Drawn image (SIDE, SIDE, 3) number ``index``."""
    from patchsvdd.apps.demo.dataset import GOOD, Shot, render_image

    return render_image(Shot(0, PART, "train", GOOD, index), SIDE).image


class Drawings:
    """Drawn images by number, created on first use, on all cores."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self._drawn = np.empty((0, SIDE, SIDE, 3), np.uint8)

    def first(self, count: int) -> Pictures:
        """(count, SIDE, SIDE, 3)."""
        missing = range(len(self._drawn), count)
        if missing:
            more = list(self._pool.map(draw, missing, chunksize=4))
            self._drawn = np.concatenate([self._drawn, np.stack(more)])
        return self._drawn[:count]

    def side_by_side(self, size: int, count: int, start: int) -> Pictures:
        """(count, size, size, 3): images tiled from drawn images, starting with number ``start``."""
        across = math.ceil(size / SIDE)
        used = self.first(start + count * across**2)[start:].reshape(count, across, across, SIDE, SIDE, 3)
        return used.transpose(0, 1, 3, 2, 4, 5).reshape(count, across * SIDE, across * SIDE, 3)[:, :size, :size]


def image_set(pictures: Pictures) -> ImageSet:
    pixels = torch.from_numpy(np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)))
    return ImageSet(tuple(f"{index:04d}.png" for index in range(len(pictures))), pixels, ())


def untrained_encoder(config: Config) -> PatchEncoder:
    """Initialise weights by He's rule: with PyTorch's default, all embeddings would be nearly the same."""
    encoder = build_encoder(config)
    assert isinstance(encoder, HierarchicalEncoder)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in encoder.named_parameters():
        if parameter.ndim == 1:
            nn.init.zeros_(parameter)
            continue
        nn.init.kaiming_normal_(parameter, a=0.1, generator=generator)
        if name.startswith("small.head") or ".mix." in name:  # before tanh, which should not saturate
            parameter.data *= 0.5
    return encoder


# A fresh process


def resident(field: str) -> int:
    """Memory of this process in bytes from /proc; VmHWM is the peak of resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return 1024 * int(value.split()[0])
    raise ValueError(f"/proc/self/status has no {field}")


def probe(folder: Path, files: Sequence[Path], device: str, engine: Any, batch: int) -> Row:
    """Memory and milliseconds of inspecting image files with a stored model. Call it in a fresh process."""
    detector = PatchSVDD.load(folder, device, engine=engine)
    on_gpu = detector.device.type == "cuda"
    for _ in detector.inspect_many(files[: 2 * batch], batch_size=batch):
        pass
    found: Row = {}
    if on_gpu:
        found["memory_bytes"] = torch.cuda.max_memory_allocated(detector.device)
        torch.cuda.reset_peak_memory_stats(detector.device)
        for _ in detector.inspect_many(files[: 2 * batch], batch_size=batch):
            pass
        found["inspecting_bytes"] = torch.cuda.max_memory_allocated(detector.device)
    else:
        found["process_bytes"] = resident("VmHWM")
        found["mapped_bytes"] = resident("RssFile")
    pixels = torch.stack([load_image(file, detector.config).tensor for file in files])
    found |= milliseconds(detector, pixels, batch)
    size = (int(pixels.shape[2]), int(pixels.shape[3]))
    graphs = any(scale.graph is not None for scale in detector.memory.scales.values())
    return {**found, "engine": detector.embedder.engine_for(size), "search": "graph" if graphs else "exact"}


def milliseconds(detector: PatchSVDD, pixels: Tensor, batch: int) -> Row:
    """Median milliseconds per image, in total and by part, after a warm-up."""
    whole, parts = [], []
    start = time.perf_counter()
    for turn in range(REPEATS):
        if turn >= FEWEST and time.perf_counter() - start > ENOUGH_SECONDS:
            break
        images = pixels[(turn * batch + torch.arange(batch)) % len(pixels)]
        parts.append(timed_parts(detector, images.to(detector.device)))
        whole.append(sum(parts[-1].values()))
        if detector.device.type == "cuda":  # from pixels in host memory to maps in host memory
            before = time.perf_counter()
            for _ in detector.map_batches([images]):
                pass
            whole[-1] = time.perf_counter() - before
    found: Row = {"inspect_milliseconds": 1000 * statistics.median(whole) / batch}
    for name in parts[0]:
        found[f"{name}_milliseconds"] = 1000 * statistics.median(one[name] for one in parts) / batch
    return {**found, "measured": len(whole)}


BARE = """
import json, torch
torch.nn.functional.conv2d(torch.rand(1, 3, 64, 64), torch.rand(8, 3, 3, 3))
fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({name: 1024 * int(fields[name].split()[0]) for name in ("VmHWM", "RssFile")}))
"""


def fresh(*command: str) -> Any:
    """The last line printed by a new Python process, parsed as JSON."""
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# The study


class Enough(Exception):
    """Raised when enough images were scored."""


class Study:
    """The result file, written after every row."""

    def __init__(self, path: Path, device: torch.device, engine: str, drawings: Drawings, scratch: Path) -> None:
        self.path, self.device, self.engine, self.drawings, self.scratch = path, device, engine, drawings, scratch
        self.bare = fresh("-c", BARE)
        self.data: dict[str, Any] = {
            "command": "benchmarks/growth.py",
            **circumstances(device),
            "device": device.type,
            "threads": torch.get_num_threads(),
            "picture": f"{PART}, {SIDE} × {SIDE}",
            "batch": {"images": BATCH[device.type], "sizes": 1},
            "pytorch_bytes": self.bare["VmHWM"],
            "limit_bytes": LIMIT,
            "finished": False,
            "exponents": {},
            "images": [],
            "sizes": [],
        }

    def add(self, part: str, row: Row) -> None:
        against = "images" if part == "images" else "pixels"
        self.data[part].append(row)
        self.data["exponents"][{"images": "images", "sizes": "size"}[part]] = exponents(self.data[part], against)
        write_result(self.path, self.data)
        print({name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}, flush=True)

    def finish(self) -> None:
        self.data["finished"] = True
        write_result(self.path, self.data)

    def images(self, count: int) -> Row:
        """The row of a memory of ``count`` images."""
        batch = BATCH[self.device.type]
        pictures = self.drawings.first(count + 2 * batch)
        config = preset("encoder", encoder="random", image_size=SIDE)
        start = self._now()
        detector = self._fit(pictures[:count], config)
        row: Row = {"images": count, **_rows(detector), "memory_seconds": self._now() - start}
        start = self._now()
        self._index(detector)
        row["index_seconds"] = self._now() - start
        row |= self._threshold(detector)
        return row | self._inspect(detector, "images", pictures[count:], batch)

    def make_memory(self) -> PatchSVDD:
        """The detector that inspects images of all sizes."""
        config = preset("encoder", encoder="random", image_size="native")
        detector = self._fit(self.drawings.side_by_side(MEMORY_SIDE, MEMORY_IMAGES, 0), config)
        whole = detector.memory
        chosen = {
            size: choose_rows(scale, KEPT.rows_of(len(scale.embeddings)), "random").sort().values
            for size, scale in whole.scales.items()
        }
        scales = {size: scale.of_rows(chosen[size]) for size, scale in whole.scales.items()}
        detector.memory = Memory(whole.image_names, scales)
        self._index(detector)
        return detector

    def sizes(self, detector: PatchSVDD, size: int) -> Row:
        """The row of images of ``size`` × ``size`` pixels."""
        used = MEMORY_IMAGES * (MEMORY_SIDE // SIDE) ** 2
        images = self.drawings.side_by_side(size, 3, used)
        patches = sum(math.prod(grid.shape) for grid in detector.embedder.grids((size, size)))
        row = {"size": size, "pixels": size**2, "patches": patches, **_rows(detector)}
        row |= self._inspect(detector, "sizes", images, 1)
        return row | {"within_limit": row.get("process_bytes", row["memory_bytes"]) < LIMIT}

    def _fit(self, pictures: Pictures, config: Config) -> PatchSVDD:
        """A detector with every patch in its memory and no threshold."""
        encoder = untrained_encoder(config)
        name = self.device.type
        return PatchSVDD.fit_images(image_set(pictures), config, device=name, encoder=encoder, calibrated=False)

    def _index(self, detector: PatchSVDD) -> None:
        """Graphs on a CPU, cells on a GPU."""
        if self.device.type == "cpu":
            detector.memory = detector.memory.with_graphs()
        for scale in detector.memory.scales.values():
            _ = scale.search

    def _threshold(self, detector: PatchSVDD) -> Row:
        """Seconds to score every image against all others, extrapolated from the first few."""
        count = len(detector.memory.image_names)
        stamps = [self._now()]

        def stop_in_time(done: int, _: int) -> None:
            stamps.append(self._now())
            if done > min(SCORED, count - 1):
                raise Enough

        with suppress(Enough):
            detector.leave_one_out_scores((SIDE, SIDE), stop_in_time)
        each = (stamps[-1] - stamps[1]) / (len(stamps) - 2)  # the first warms up
        return {"threshold_seconds": each * count, "threshold_measured_on": len(stamps) - 2}

    def _inspect(self, detector: PatchSVDD, name: str, images: Pictures, batch: int) -> Row:
        """The measurements of a fresh process with the saved model."""
        folder = self.scratch / name
        detector.save(folder / "model")
        files = [folder / f"{index}.png" for index in range(len(images))]
        for file, image in zip(files, images, strict=True):
            Image.fromarray(image).save(file, compress_level=1)
        row: Row = {"disk_bytes": sum(file.stat().st_size for file in (folder / "model").iterdir() if file.is_file())}
        flags = ["--device", self.device.type, "--engine", self.engine, "--batch", str(batch)]
        found: Row = fresh(__file__, "--probe", str(folder / "model"), *flags, *map(str, files))
        if self.device.type == "cpu":
            found["memory_bytes"] = found["process_bytes"] - self.bare["VmHWM"]
            found["mapped_bytes"] -= self.bare["RssFile"]
        shutil.rmtree(folder)
        return row | found

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _rows(detector: PatchSVDD) -> Row:
    return {"rows": {str(size): len(scale.embeddings) for size, scale in detector.memory.scales.items()}}


def exponents(rows: Sequence[Row], against: str) -> dict[str, dict[str, float]]:
    """{quantity: {"all": slope by least squares, "last": slope between the last two points}} in log-log."""
    fitted: dict[str, dict[str, float]] = {}
    x = [row[against] for row in rows]
    for name in rows[0] if len(rows) > 1 else ():
        if name.endswith(("_seconds", "_milliseconds", "_bytes")):
            y = [row[name] for row in rows]
            if min(y) > 0:
                fitted[name] = {"all": slope(x, y), "last": slope(x[-2:], y[-2:])}
    return fitted


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """b of y ≈ a · xᵇ."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def in_time(points: Sequence[int], seconds: float, measure: Callable[[int], None], work: Callable[[int], int]) -> bool:
    """Call ``measure`` for each point until the next would take too long; return whether all were measured.

    ``work``: a quantity that is roughly linear in the time of a point.
    """
    start = time.perf_counter()
    took: list[tuple[int, float]] = []
    for point in points:
        before = time.perf_counter()
        if before - start + predicted(took, work(point)) > seconds:
            print(f"{point} and later points would take longer than {seconds:.0f} s", flush=True)
            return False
        measure(point)
        took.append((work(point), time.perf_counter() - before))
    return True


def predicted(took: Sequence[tuple[int, float]], work: int) -> float:
    """Seconds of the next point: a straight line through the last two (work, seconds), plus 10 %."""
    if len(took) < 2:
        return 0.0
    (x1, y1), (x2, y2) = took[-2:]
    return 1.1 * (y2 + max(0.0, (y2 - y1) / (x2 - x1)) * (work - x2))


def ascending(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",") if part]
    if any(after <= before for before, after in pairwise(numbers)):
        raise argparse.ArgumentTypeError(f"the numbers must ascend; got {text}")
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--engine", default="auto", help="engine for embeddings: auto, torch, openvino, onnxruntime")
    parser.add_argument("--images", type=ascending, default="50,100,200,500,1000,2000", help="numbers of images")
    parser.add_argument("--sizes", type=ascending, default="256,512,1024,2048", help="sides in pixels")
    parser.add_argument("--seconds", type=float, default=420.0, help="time limit of each part")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--probe", type=Path, help=argparse.SUPPRESS)  # a fresh process of this script
    parser.add_argument("--batch", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("files", type=Path, nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe is not None:
        print(json.dumps(probe(args.probe, args.files, args.device, args.engine, args.batch)))
        return
    if args.out is None:
        parser.error("--out is missing")
    start = time.perf_counter()
    pool = ProcessPoolExecutor(min(16, os.cpu_count() or 1), multiprocessing.get_context("spawn"))
    with pool, tempfile.TemporaryDirectory() as scratch:
        study = Study(args.out, choose_device(args.device), args.engine, Drawings(pool), Path(scratch))
        study.drawings.first(1)  # the pool starts
        if study.device.type == "cuda" and args.images:
            study.images(2)  # kernels are compiled
        all_done = in_time(args.images, args.seconds, lambda n: study.add("images", study.images(n)), lambda n: n)
        if args.sizes:
            detector = study.make_memory()
            all_done &= in_time(
                args.sizes, args.seconds, lambda s: study.add("sizes", study.sizes(detector, s)), lambda s: s**2
            )
        if all_done:
            study.finish()
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
