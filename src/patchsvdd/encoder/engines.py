"""CPU engines for ``PatchEncoder.features``: PyTorch, OpenVINO, ONNX Runtime; the fastest is found by measuring.

Both other engines read one ONNX graph (``onnx_graph``). The graph takes milliseconds to write and OpenVINO a
tenth of a second to compile, so neither is kept on disk; only the choice is, because measuring takes seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from patchsvdd.core.errors import ConfigError, OutputError
from patchsvdd.core.extras import require
from patchsvdd.core.files import atomic_write
from patchsvdd.core.signals import openvino_core, signals_held
from patchsvdd.encoder.networks import FlatEncoder, HierarchicalEncoder, PatchEncoder
from patchsvdd.encoder.onnx_features import features_graph

EngineName = Literal["torch", "openvino", "onnxruntime"]
Precision = Literal["float32", "float16"]

CHOICES = "choice.json"
"""File of the cache folder that holds the choices made so far."""
KEPT_CHOICES = 32
KEPT_SHAPES = 2
"""Image shapes for which OpenVINO keeps a compiled network; at 256 × 256 each takes about 110 MB."""
SAMPLE = 512
"""Pixels on a side of the largest image that is measured; a larger one takes longer and says no more."""
ROUNDS = 7
ALLOWED_ERROR: dict[Precision, float] = {"float32": 1e-3, "float16": math.inf}
"""An engine farther from PyTorch's features computes something else, and is never chosen."""


class Engine(Protocol):
    """Computes ``encoder.features(images, step)`` for the encoder and the step it was opened with."""

    @property
    def name(self) -> EngineName:
        """Which software computes."""

    @property
    def precision(self) -> Precision:
        """Which numbers the layers hold."""

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images (N, 3, h, w) float32 on the CPU → a map (N, C, h', w') float32 that is the caller's."""


@dataclass(frozen=True)
class Measurement:
    """How fast an engine was, and how far from PyTorch's float32 features."""

    engine: EngineName
    precision: Precision
    milliseconds: float
    """Shortest of the rounds: the one other work disturbed least."""
    median: float
    """Of all rounds, in milliseconds."""
    largest_error: float
    rms_error: float


@dataclass(frozen=True)
class EngineChoice:
    """The fastest engine of this machine."""

    engine: EngineName
    precision: Precision
    measured: tuple[Measurement, ...]
    """Fastest first; empty where PyTorch is the only engine."""
    skipped: dict[str, str]
    """Engine and precision → why it was not a candidate."""
    stored: bool = False
    """Whether an earlier process measured."""


def open_engine(name: EngineName, precision: Precision, encoder: PatchEncoder, step: int) -> Engine:
    """The engine, ready to compute; ConfigError where it is not installed or cannot compute this."""
    if name not in get_args(EngineName):
        raise ConfigError(f"the engine must be one of {', '.join(get_args(EngineName))}; got '{name}'")
    if precision not in (get_args(Precision) if name == "openvino" else ("float32",)):
        raise ConfigError(f"the engine {name} does not compute in '{precision}'; use float32")
    if name == "torch":
        return TorchEngine(encoder, step)
    graph = features_graph(encoder, step)
    return OpenVinoEngine(graph, precision) if name == "openvino" else OnnxRuntimeEngine(graph)


class TorchEngine:
    """The encoder itself."""

    name: EngineName = "torch"
    precision: Precision = "float32"

    def __init__(self, encoder: PatchEncoder, step: int) -> None:
        self._encoder = encoder
        self._step = step

    def __call__(self, images: Tensor) -> Tensor:
        """(N, 3, h, w) → (N, C, h', w')."""
        with torch.inference_mode():
            return self._encoder.features(images, self._step)


class OpenVinoEngine:
    """Compiles the network for each shape it meets; safe to call from several threads."""

    name: EngineName = "openvino"

    def __init__(self, graph: bytes, precision: Precision) -> None:
        self.precision: Precision = precision
        self._openvino = require("openvino", "fast", "this engine")
        self._core = openvino_core()
        if precision == "float16" and "FP16" not in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise ConfigError("this CPU does not compute in float16, so openvino cannot either; use float32")
        self._graph = graph
        self._compiled = lru_cache(maxsize=KEPT_SHAPES)(self._compile)

    def __call__(self, images: Tensor) -> Tensor:
        """(N, 3, h, w) → (N, C, h', w'), one image after another: memory for the layers of one."""
        images = images.detach().float().contiguous()
        with signals_held():
            network = self._compiled(images.shape[2], images.shape[3])
            maps = torch.empty((len(images), *network.output(0).shape[1:]))
            request = network.create_infer_request()  # of this call alone, so that threads do not meet in it
            for index in range(len(images)):
                one = slice(index, index + 1)
                request.set_input_tensor(self._openvino.Tensor(images[one].numpy(), shared_memory=True))
                request.set_output_tensor(self._openvino.Tensor(maps[one].numpy(), shared_memory=True))
                request.infer()
        return maps

    def _compile(self, height: int, width: int) -> Any:
        model = self._core.read_model(self._graph)
        model.reshape([1, 3, height, width])
        settings = {
            "INFERENCE_PRECISION_HINT": "f16" if self.precision == "float16" else "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        return self._core.compile_model(model, "CPU", settings)


class OnnxRuntimeEngine:
    """One session for all shapes; safe to call from several threads."""

    name: EngineName = "onnxruntime"
    precision: Precision = "float32"

    def __init__(self, graph: bytes) -> None:
        runtime = require("onnxruntime", "fast", "this engine")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Its threads would go on spinning after a run and take the cores from PyTorch's search that follows.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        with signals_held():
            self._session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def __call__(self, images: Tensor) -> Tensor:
        """(N, 3, h, w) → (N, C, h', w')."""
        pixels = images.detach().float().contiguous().numpy()
        with signals_held():
            return torch.from_numpy(self._session.run(None, {"images": pixels})[0])


# Choosing


def choose_engine(
    encoder: PatchEncoder,
    step: int,
    image: Tensor,
    cache: Path | None = None,
    precisions: Sequence[Precision] = ("float32",),
    on_progress: Callable[[int, int], None] | None = None,
) -> EngineChoice:
    """The engine fastest for a normalised image (1, 3, h, w), as stored in the folder ``cache`` or measured now.

    float16 takes part only if ``precisions`` names it: whether its error matters is for the caller to judge.
    """
    sample = image[:1, :, :SAMPLE, :SAMPLE]
    if not isinstance(encoder, HierarchicalEncoder | FlatEncoder):
        return EngineChoice("torch", "float32", (), {})
    situation = _situation(features_graph(encoder, step), sample, precisions)
    stored = _stored_choice(cache, situation) if cache is not None else None
    if stored is not None:
        return stored
    engines, skipped = _candidates(encoder, step, sample, precisions)
    if len(engines) == 1:
        return EngineChoice("torch", "float32", (), skipped)
    measured = _measure(engines, sample, on_progress)
    fastest = next(one for one in measured if one.largest_error <= ALLOWED_ERROR[one.precision])
    choice = EngineChoice(fastest.engine, fastest.precision, tuple(measured), skipped)
    if cache is not None:
        _store_choice(cache, situation, choice)
    return choice


def stored_choice(encoder: PatchEncoder, step: int, size: tuple[int, int], cache: Path) -> EngineChoice | None:
    """What ``choose_engine`` found in float32 for images of (height, width) on this machine, if it ever ran."""
    if not isinstance(encoder, HierarchicalEncoder | FlatEncoder) or not (cache / CHOICES).is_file():
        return None
    sample = torch.empty((1, 3, min(size[0], SAMPLE), min(size[1], SAMPLE)))
    return _stored_choice(cache, _situation(features_graph(encoder, step), sample, ("float32",)))


def _candidates(
    encoder: PatchEncoder, step: int, image: Tensor, precisions: Sequence[Precision]
) -> tuple[list[Engine], dict[str, str]]:
    """Engines that compute the image, PyTorch first, and why the others do not."""
    engines: list[Engine] = [TorchEngine(encoder, step)]
    skipped = {}
    wanted: list[tuple[EngineName, Precision]] = [("openvino", precision) for precision in precisions]
    wanted += [("onnxruntime", "float32")] if "float32" in precisions else []
    for name, precision in wanted:
        try:
            engine = open_engine(name, precision, encoder, step)
            engine(image)
            engines.append(engine)
        except (ConfigError, RuntimeError) as error:  # RuntimeError: a CPU the engine does not know
            skipped[f"{name} {precision}"] = " ".join(str(error).split())
    return engines, skipped


def _measure(
    engines: Sequence[Engine], image: Tensor, on_progress: Callable[[int, int], None] | None
) -> list[Measurement]:
    """Measurements, fastest first. Engines take turns, so that other work on the machine disturbs all alike."""
    reference = engines[0](image)  # PyTorch's
    errors = [engine(image) - reference for engine in engines]
    seconds: list[list[float]] = [[] for _ in engines]
    for done in range(ROUNDS * len(engines)):
        turn = done % len(engines)
        start = time.perf_counter()
        engines[turn](image)
        seconds[turn].append(time.perf_counter() - start)
        if on_progress is not None:
            on_progress(done + 1, ROUNDS * len(engines))
    measured = [
        Measurement(
            engine.name,
            engine.precision,
            1000 * min(times),
            1000 * float(np.median(times)),
            float(error.abs().max()),
            float(error.square().mean().sqrt()),
        )
        for engine, times, error in zip(engines, seconds, errors, strict=True)
    ]
    return sorted(measured, key=lambda one: one.milliseconds)


# Remembering a choice


def _situation(graph: bytes, image: Tensor, precisions: Sequence[Precision]) -> dict[str, Any]:
    """All that decides which engine is fastest; JSON."""
    return {
        "graph": hashlib.sha256(graph).hexdigest()[:16],  # weights and step
        "image": list(image.shape[2:]),
        "precisions": sorted(precisions),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in get_args(EngineName)},
    }


def _stored_choice(cache: Path, situation: Mapping[str, Any]) -> EngineChoice | None:
    """The choice stored for this very situation, if the file holds one."""
    for entry in _entries(cache):
        with suppress(TypeError, KeyError, ValueError, StopIteration):  # someone edited the file: measure again
            if entry["situation"] == situation:
                choice = entry["choice"]
                measured = tuple(Measurement(**one) for one in choice["measured"])
                fastest = next(one for one in measured if (one.engine, one.precision) == tuple(choice["chosen"]))
                return EngineChoice(fastest.engine, fastest.precision, measured, dict(choice["skipped"]), stored=True)
    return None


def _store_choice(cache: Path, situation: Mapping[str, Any], choice: EngineChoice) -> None:
    """Add the choice to the file; a folder that cannot be written to only means measuring again."""
    content = {
        "chosen": [choice.engine, choice.precision],
        "measured": [dataclasses.asdict(one) for one in choice.measured],
        "skipped": choice.skipped,
    }
    others = [entry for entry in _entries(cache) if not isinstance(entry, dict) or entry.get("situation") != situation]
    entries = [*others, {"situation": dict(situation), "choice": content}][-KEPT_CHOICES:]
    with suppress(OutputError), atomic_write(cache / CHOICES) as file:
        file.write(json.dumps(entries, indent=1).encode())


def _entries(cache: Path) -> list[Any]:
    """What the file of choices holds; nothing where it is missing or damaged."""
    try:
        entries = json.loads((cache / CHOICES).read_bytes())
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def _cpu() -> str:
    """The processor in words, or in the numbers that ARM has instead."""
    fields = ("model name", "CPU implementer", "CPU part", "CPU variant", "CPU revision")
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        found = dict.fromkeys(" ".join(line.split()) for line in lines if line.startswith(fields))
        if found:
            return ", ".join(found)
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
