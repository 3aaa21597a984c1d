"""A model's speed on this machine: latency, throughput, memory, start-up time and the bottleneck."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.core.progress import OnStage
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.prepare import find_engines
from patchsvdd.detector.stored_memory import Search
from patchsvdd.encoder.embedder import Engine
from patchsvdd.encoder.engines import Precision
from patchsvdd.evaluation.naive_reference import inspect_patch_by_patch
from patchsvdd.evaluation.run_info import circumstances
from patchsvdd.scoring.anomaly_map import average_over_patches, image_score, multiply_scales

REFERENCE_BATCH = 2048
"""Patches per batch in the authors' code."""
ROUNDS = 20
"""Measurements of each setup, taken in turn with the others."""
BATCHES = {"cpu": (1, 8), "cuda": (1, 16, 64)}


@dataclass(frozen=True)
class Setup:
    """Engine, precision, search and batch size to measure."""

    engine: Engine
    precision: Precision
    search: Search
    batch: int


@dataclass
class Timing:
    """Measured times of one setup."""

    setup: Setup
    engine: str
    """Inference engine and precision, such as "openvino float32"."""
    search: str
    """Nearest-neighbour search: "graph" or "exact"."""
    seconds: list[float] = field(default_factory=list)
    """Of each measured batch, from pixels in host memory to maps in host memory."""
    parts: dict[str, list[float]] = field(default_factory=dict)

    @property
    def images_per_second(self) -> float:
        """Throughput, from the median batch."""
        return self.setup.batch / float(np.median(self.seconds))

    @property
    def latency(self) -> dict[str, float]:
        """Percentiles of the milliseconds per batch."""
        return {f"p{q}": 1000 * float(np.percentile(self.seconds, q)) for q in (50, 90, 99)}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "engine": self.engine,
            "search": self.search,
            "batch": self.setup.batch,
            "images_per_second": self.images_per_second,
            "latency_ms": self.latency,
            "parts_ms_per_image": {
                name: 1000 * float(np.median(times)) / self.setup.batch for name, times in self.parts.items()
            },
            "measured": len(self.seconds),
        }


@dataclass(frozen=True)
class Speed:
    """All measurements of a model."""

    about: dict[str, Any]
    timings: list[Timing]
    start_up: dict[str, float]
    memory: dict[str, float]
    reference: dict[str, Any] | None

    @property
    def default(self) -> Timing:
        """The default setup of ``inspect``, one image at a time."""
        return self.timings[0]

    @property
    def bottleneck(self) -> str:
        """The slowest part of the default setup and its fraction of the time, as text."""
        parts = {name: float(np.median(times)) for name, times in self.default.parts.items()}
        slowest = max(parts, key=lambda name: parts[name])
        return f"{slowest} ({parts[slowest] / sum(parts.values()):.0%} of the time)"

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        data: dict[str, Any] = {
            **self.about,
            "setups": [timing.to_json() for timing in self.timings],
            "bottleneck": self.bottleneck,
            "start_up_seconds": self.start_up,
            "memory_mb": self.memory,
        }
        if self.reference is not None:
            data["reference"] = self.reference
            data["speedup_over_reference"] = self.reference["speedup"]
        return data


def measure_speed(
    folder: Path,
    images: Sequence[Path],
    *,
    device: str = "auto",
    rounds: int = ROUNDS,
    against_reference: bool = False,
    on_stage: OnStage = lambda *_: None,
) -> Speed:
    """Measure the model of ``folder`` on image files; setups alternate, so that other load affects all equally."""
    default = PatchSVDD.load(folder, device)
    if against_reference and default.device.type != "cpu":
        raise ConfigError("`against_reference` compares on the CPU; use `device=cpu`")
    if default.device.type == "cpu":
        find_engines(default, folder, on_stage)
    pixels = _pixels(default, images)
    timings: list[Timing] = []
    detectors: list[PatchSVDD] = []
    for setup in _setups(default.device):
        detector = _open(folder, device, setup)
        if detector is None:
            continue
        size = (int(pixels.shape[2]), int(pixels.shape[3]))
        graphs = any(scale.graph is not None for scale in detector.memory.scales.values())
        search = "graph" if graphs else "exact"
        if setup.search == "exact" and search == timings[0].search and setup != timings[0].setup:
            continue  # the model has no graph, so this setup equals the default
        timings.append(Timing(setup, detector.embedder.engine_for(size), search))
        detectors.append(detector)
    _measure(timings, detectors, pixels, rounds, on_stage)
    reference = _measure_reference(default, timings[0], pixels, on_stage) if against_reference else None
    start_up, memory = measure_process(folder, images, device)
    return Speed(_about(folder, default, len(images)), timings, start_up, memory, reference)


def make_noise_images(folder: Path, scratch: Path, count: int = 8) -> list[Path]:
    """Write image files of the model's mean image plus noise to ``scratch``, as a substitute for real images."""
    detector = PatchSVDD.load(folder, "cpu", engine="torch", search="exact")
    generator = torch.Generator().manual_seed(0)
    files = []
    for index in range(count):
        noise = torch.randn((3, *detector.image_size), generator=generator)
        pixels = (detector.normalization.mean + 10 * noise).clamp(0, 255).byte()
        files.append(scratch / f"{index}.png")
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(files[-1])
    return files


def timed_parts(detector: PatchSVDD, pixels: Tensor) -> dict[str, float]:
    """Seconds of encoding, search, map and, if the model has one, critic, for pixels (N, 3, H, W)."""
    grids = detector.embedder.grids((int(pixels.shape[2]), int(pixels.shape[3])))
    clock = _Clock(detector.device)
    with torch.inference_mode():
        queries = detector.embedder(pixels)
        encoded = clock.lap()
        distances = [
            detector.memory.scales[grid.scale.patch_size].nearest(query.flatten(0, 1), shape=grid.shape)[0]
            for grid, query in zip(grids, queries, strict=True)
        ]
        searched = clock.lap()
        maps = [
            average_over_patches(distance.view(len(pixels), *grid.shape), grid)
            for grid, distance in zip(grids, distances, strict=True)
        ]
        image_score(multiply_scales(maps)).cpu()
        parts = {"encode": encoded, "search": searched, "map": clock.lap()}
        if detector.critic is not None:
            detector.marked(pixels)
            parts["critic"] = clock.lap()
        return parts


def _setups(device: torch.device) -> Iterator[Setup]:
    one, *larger = BATCHES[device.type]
    yield Setup("auto", "float32", "auto", one)
    if device.type == "cpu":
        for engine in ("torch", "openvino", "onnxruntime"):
            yield Setup(engine, "float32", "auto", one)
        yield Setup("openvino", "float16", "auto", one)
    else:
        yield Setup("torch", "float32", "auto", one)
    yield Setup("auto", "float32", "exact", one)
    for batch in larger:
        yield Setup("auto", "float32", "auto", batch)


def _open(folder: Path, device: str, setup: Setup) -> PatchSVDD | None:
    """The detector of a setup; None if its engine is not installed or does not support this machine."""
    try:
        detector = PatchSVDD.load(folder, device, engine=setup.engine, precision=setup.precision, search=setup.search)
        detector.embedder.features(detector.image_size)
        return detector
    except (ConfigError, RuntimeError):
        return None


def _measure(timings: list[Timing], detectors: list[PatchSVDD], pixels: Tensor, rounds: int, on_stage: OnStage) -> None:
    slow = 1.0  # seconds; slower setups are measured only a few times
    for turn in range(rounds + 1):  # the first round warms up
        for timing, detector in zip(timings, detectors, strict=True):
            if timing.seconds and timing.seconds[0] > slow and len(timing.seconds) >= 3:
                continue
            batch = _batch(pixels, turn, timing.setup.batch)
            start = time.perf_counter()
            for _ in detector.map_batches([batch]):
                pass
            seconds = time.perf_counter() - start
            parts = timed_parts(detector, batch)
            if turn > 0 or seconds > slow:
                timing.seconds.append(seconds)
                for name, value in parts.items():
                    timing.parts.setdefault(name, []).append(value)
        on_stage("measuring", turn, rounds)


def _measure_reference(detector: PatchSVDD, default: Timing, pixels: Tensor, on_stage: OnStage) -> dict[str, Any]:
    """Measure the authors' procedure and the default setup in turn, on the same images."""
    turns = 3
    reference: dict[str, list[dict[str, float]]] = {"in batches": [], "one by one": []}
    ours: list[float] = []
    for turn in range(turns):
        image = _batch(pixels, turn, 1)
        for name, batch in (("in batches", REFERENCE_BATCH), ("one by one", 1)):
            reference[name].append(inspect_patch_by_patch(detector, image, batch)[1])
            on_stage("reference", 2 * turn + (name != "in batches") + 1, 2 * turns)
            start = time.perf_counter()
            detector.anomaly_maps(image)
            ours.append(time.perf_counter() - start)
    ours_seconds = float(np.median(ours))
    seconds = {name: float(np.median([sum(parts.values()) for parts in runs])) for name, runs in reference.items()}
    return {
        "seconds_per_image": seconds,
        "parts": {
            name: {part: float(np.median([one[part] for one in runs])) for part in runs[0]}
            for name, runs in reference.items()
        },
        "patches_at_once": {"in batches": REFERENCE_BATCH, "one by one": 1},
        "our_seconds_per_image": ours_seconds,
        "our_engine": default.engine,
        "our_search": default.search,
        "speedup": seconds["one by one"] / ours_seconds,
        "speedup_over_batches": seconds["in batches"] / ours_seconds,
    }


PROCESS = """
import json, sys, time
start = time.perf_counter()
import torch
torch.nn.functional.conv2d(torch.rand(1, 3, 64, 64), torch.rand(8, 3, 3, 3))
imported = time.perf_counter() - start
def memory():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return [int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")]
before, _ = memory()
from patchsvdd import PatchSVDD
start = time.perf_counter()
detector = PatchSVDD.load(sys.argv[1], sys.argv[2], engine=sys.argv[3])
loaded = time.perf_counter() - start
start = time.perf_counter()
detector.inspect(sys.argv[4])
first = time.perf_counter() - start
for image in sys.argv[5:]:
    detector.inspect(image)
after, peak = memory()
print(json.dumps({"import torch": imported, "load model": loaded, "first image": first,
                  "pytorch": before, "beyond pytorch": after - before, "peak beyond pytorch": peak - before}))
"""


def measure_process(
    folder: Path, images: Sequence[Path], device: str, engine: Engine = "auto"
) -> tuple[dict[str, float], dict[str, float]]:
    """Start-up times in seconds and resident memory in megabytes, measured in new processes."""
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        command = [sys.executable, "-m", "patchsvdd", "inspect", str(folder), str(images[0]), "--device", device]
        done = subprocess.run([*command, "--out", scratch], capture_output=True, text=True, check=False)
        whole = time.perf_counter() - start
    files = [str(image) for image in images[:30]]
    measured = subprocess.run(
        [sys.executable, "-c", PROCESS, str(folder), device, engine, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or measured.returncode:
        return {}, {}
    values = json.loads(measured.stdout.splitlines()[-1])
    start_up = {name: values[name] for name in ("import torch", "load model", "first image")}
    memory = {name: values[name] for name in ("pytorch", "beyond pytorch", "peak beyond pytorch")}
    return {**start_up, "inspect command, one image": whole}, memory


def _pixels(detector: PatchSVDD, images: Sequence[Path]) -> Tensor:
    """Pixels (N, 3, H, W) of the images that have the size of the first."""
    from patchsvdd.images.image_set import load_image

    if not images:
        raise DatasetError("there is no image to inspect; check `images`")
    loaded = [load_image(image, detector.config).tensor for image in images]
    same = [one for one in loaded if one.shape == loaded[0].shape]
    return torch.stack(same)


def _batch(pixels: Tensor, turn: int, count: int) -> Tensor:
    """The next ``count`` images at every turn, cycling through them."""
    return pixels[(turn * count + torch.arange(count)) % len(pixels)]


def _about(folder: Path, detector: PatchSVDD, images: int) -> dict[str, Any]:
    scales = detector.memory.scales
    rows = {str(size): len(scale.embeddings) for size, scale in scales.items()}
    return {
        "model": folder.resolve().name,
        **circumstances(detector.device),
        "threads": torch.get_num_threads(),
        "images": images,
        "image_size": list(detector.image_size),
        "memory_rows": rows,
        "memory_bytes": sum(math.prod(scale.embeddings.shape) * 4 for scale in scales.values()),
    }


class _Clock:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap, after the device has finished its work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed
