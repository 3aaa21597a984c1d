"""CPU engines for networks: PyTorch, OpenVINO and ONNX Runtime, chosen by measurement.

OpenVINO and ONNX Runtime read the same ONNX graph (``Network.graph``). Writing the graph takes milliseconds and
compiling it in OpenVINO a tenth of a second, so neither is cached. Only the choice is, because measuring takes seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
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
from patchsvdd.core.progress import OnProgress
from patchsvdd.core.signals import openvino_core, signals_held

EngineName = Literal["torch", "openvino", "onnxruntime"]
Precision = Literal["float32", "float16"]
"""Number formats of the encoder's layers that a user can choose."""
LayerPrecision = Literal["float32", "float16", "bfloat16"]
"""Number formats of a network's layers."""

CHOICES = "choice.json"
"""File in the cache folder that stores the choices."""
KEPT_CHOICES = 32
KEPT_SHAPES = 2
"""Image shapes for which OpenVINO keeps a compiled network; at 256 × 256 each needs about 110 MB."""
SAMPLE_SIDE = 512
"""Largest side of the measured image, in pixels; larger images take longer without changing the result."""
ROUNDS = 7
ALLOWED_ERROR: dict[LayerPrecision, float] = {"float32": 1e-3, "float16": math.inf, "bfloat16": math.inf}
"""An engine that deviates more from PyTorch's output is never chosen."""
WITH_BFLOAT16: tuple[LayerPrecision, ...] = ("float32", "bfloat16")
"""Candidates for a network that may compute in bfloat16."""
_OPENVINO_NAMES: dict[LayerPrecision, str] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_CAPABILITIES = {"float16": "FP16", "bfloat16": "BF16"}
"""What OpenVINO calls the ability of a CPU to compute in a format."""


class Network(Protocol):
    """What engines compute: a network that PyTorch runs, and the same as a graph."""

    @property
    def has_graph(self) -> bool:
        """Whether engines other than PyTorch can compute it."""

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images (N, 3, h, w) → output, by PyTorch."""

    def graph(self) -> bytes:
        """ONNX file "images" (N, 3, h, w) float32 → the output; raise ConfigError if there is none."""


class Engine(Protocol):
    """Computes one network."""

    @property
    def name(self) -> EngineName:
        """The software that computes."""

    @property
    def precision(self) -> LayerPrecision:
        """Number format of the layers."""

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images (N, 3, h, w) float32 on the CPU → a new output (N, …) float32."""


@dataclass(frozen=True)
class Measurement:
    """Speed of an engine, and its deviation from PyTorch's float32 output."""

    engine: EngineName
    precision: LayerPrecision
    milliseconds: float
    """Shortest round, which is the least disturbed by other processes."""
    median: float
    """Median of all rounds, in milliseconds."""
    largest_error: float
    rms_error: float


@dataclass(frozen=True)
class EngineChoice:
    """The fastest engine on this machine."""

    engine: EngineName
    precision: LayerPrecision
    measured: tuple[Measurement, ...]
    """Fastest first; empty if PyTorch is the only engine."""
    skipped: dict[str, str]
    """Engine and precision → why it was not measured."""
    stored: bool = False
    """Whether the choice was read from the cache."""


def open_engine(name: EngineName, precision: LayerPrecision, network: Network) -> Engine:
    """Open an engine; raise ConfigError if it is not installed or does not support this network."""
    if name not in get_args(EngineName):
        raise ConfigError(f"the engine must be one of {', '.join(get_args(EngineName))}; got '{name}'")
    if precision not in (get_args(LayerPrecision) if name == "openvino" else ("float32",)):
        raise ConfigError(f"the engine {name} does not compute in '{precision}'; use float32")
    if name == "torch":
        return TorchEngine(network)
    graph = network.graph()
    return OpenVinoEngine(graph, precision) if name == "openvino" else OnnxRuntimeEngine(graph)


class TorchEngine:
    """PyTorch: the network itself."""

    name: EngineName = "torch"
    precision: LayerPrecision = "float32"

    def __init__(self, network: Network) -> None:
        self._network = network

    def __call__(self, images: Tensor) -> Tensor:
        """(N, 3, h, w) → (N, …)."""
        with torch.inference_mode():
            return self._network(images)


class OpenVinoEngine:
    """OpenVINO, with one compiled network per shape; safe to call from several threads."""

    name: EngineName = "openvino"

    def __init__(self, graph: bytes, precision: LayerPrecision) -> None:
        self.precision: LayerPrecision = precision
        self._openvino = require("openvino", "fast", "this engine")
        self._core = openvino_core()
        required = _CAPABILITIES.get(precision)
        if required is not None and required not in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise ConfigError(f"this CPU does not compute in {precision}, so openvino cannot either; use float32")
        self._graph = graph
        self._compiled = lru_cache(maxsize=KEPT_SHAPES)(self._compile)

    def __call__(self, images: Tensor) -> Tensor:
        """(N, 3, h, w) → (N, …), one image at a time to limit memory."""
        images = images.detach().float().contiguous()
        with signals_held():
            network = self._compiled(images.shape[2], images.shape[3])
            maps = torch.empty((len(images), *network.output(0).shape[1:]))
            request = network.create_infer_request()  # one per call: requests are not thread-safe
            for index in range(len(images)):
                batch = slice(index, index + 1)
                request.set_input_tensor(self._openvino.Tensor(images[batch].numpy(), shared_memory=True))
                request.set_output_tensor(self._openvino.Tensor(maps[batch].numpy(), shared_memory=True))
                request.infer()
        return maps

    def _compile(self, height: int, width: int) -> Any:
        model = self._core.read_model(self._graph)
        model.reshape([1, 3, height, width])
        settings = {
            "INFERENCE_PRECISION_HINT": _OPENVINO_NAMES[self.precision],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        return self._core.compile_model(model, "CPU", settings)


class OnnxRuntimeEngine:
    """ONNX Runtime, with one session for all shapes; safe to call from several threads."""

    name: EngineName = "onnxruntime"
    precision: LayerPrecision = "float32"

    def __init__(self, graph: bytes) -> None:
        runtime = require("onnxruntime", "fast", "this engine")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Otherwise its threads keep spinning after a run and slow down the search that follows in PyTorch.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        with signals_held():
            self._session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def __call__(self, images: Tensor) -> Tensor:
        """(N, 3, h, w) → (N, …)."""
        pixels = images.detach().float().contiguous().numpy()
        with signals_held():
            return torch.from_numpy(self._session.run(None, {"images": pixels})[0])


# Choosing


def sample_size(size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of the sample that engines are measured with, for images of (height, width)."""
    return min(size[0], SAMPLE_SIDE), min(size[1], SAMPLE_SIDE)


def choose_engine(
    network: Network,
    size: tuple[int, int],
    cache: Path | None = None,
    precisions: Sequence[LayerPrecision] = ("float32",),
    on_progress: OnProgress | None = None,
) -> EngineChoice:
    """The fastest engine for images of (height, width), read from the folder ``cache`` or measured now with noise.

    Other formats than float32 are candidates only if they are in ``precisions``: the caller decides whether their
    error is acceptable.
    """
    if not network.has_graph:
        return EngineChoice("torch", "float32", (), {})
    cache_key = _cache_key(network.graph(), size, precisions)
    stored = _stored_choice(cache, cache_key) if cache is not None else None
    if stored is not None:
        return stored
    image = torch.randn((1, 3, *size), generator=torch.Generator().manual_seed(0))
    engines, skipped = _candidates(network, image, precisions)
    if len(engines) == 1:
        return EngineChoice("torch", "float32", (), skipped)
    measured = _measure(engines, image, on_progress)
    fastest = next(timing for timing in measured if timing.largest_error <= ALLOWED_ERROR[timing.precision])
    choice = EngineChoice(fastest.engine, fastest.precision, tuple(measured), skipped)
    if cache is not None:
        _store_choice(cache, cache_key, choice)
    return choice


def stored_choice(
    network: Network, size: tuple[int, int], cache: Path, precisions: Sequence[LayerPrecision] = ("float32",)
) -> EngineChoice | None:
    """The stored choice among ``precisions`` for images of (height, width) on this machine, or None."""
    if not network.has_graph or not (cache / CHOICES).is_file():
        return None
    return _stored_choice(cache, _cache_key(network.graph(), size, precisions))


def forget_choice(network: Network, size: tuple[int, int], cache: Path, precisions: Sequence[LayerPrecision]) -> None:
    """Remove a stored choice, if there is one."""
    if stored_choice(network, size, cache, precisions) is not None:
        _write_entries(cache, _other_entries(cache, _cache_key(network.graph(), size, precisions)))


def fastest_known(network: Network, size: tuple[int, int], cache: Path | None) -> tuple[EngineName, LayerPrecision]:
    """The engine and precision that the folder ``cache`` names for images of (height, width), otherwise PyTorch's.

    A choice that allows bfloat16 comes before one that does not.
    """
    if cache is not None and network.has_graph and (cache / CHOICES).is_file():
        graph = network.graph()
        allowed: tuple[tuple[LayerPrecision, ...], ...] = (WITH_BFLOAT16, ("float32",))
        for precisions in allowed:
            choice = _stored_choice(cache, _cache_key(graph, sample_size(size), precisions))
            if choice is not None:
                return choice.engine, choice.precision
    return "torch", "float32"


def _candidates(
    network: Network, image: Tensor, precisions: Sequence[LayerPrecision]
) -> tuple[list[Engine], dict[str, str]]:
    """Engines that can process the image, PyTorch first, and the reasons why others cannot."""
    engines: list[Engine] = [TorchEngine(network)]
    skipped = {}
    candidates: list[tuple[EngineName, LayerPrecision]] = [("openvino", precision) for precision in precisions]
    candidates += [("onnxruntime", "float32")] if "float32" in precisions else []
    for name, precision in candidates:
        try:
            engine = open_engine(name, precision, network)
            engine(image)
            engines.append(engine)
        except (ConfigError, RuntimeError) as error:  # RuntimeError: unsupported CPU
            skipped[f"{name} {precision}"] = " ".join(str(error).split())
    return engines, skipped


def _measure(engines: Sequence[Engine], image: Tensor, on_progress: OnProgress | None) -> list[Measurement]:
    """Measurements, fastest first. Engines alternate, so that other load on the machine affects all of them equally."""
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
    return sorted(measured, key=lambda timing: timing.milliseconds)


# Storing the choice


def _cache_key(graph: bytes, size: tuple[int, int], precisions: Sequence[LayerPrecision]) -> dict[str, Any]:
    """Everything that affects which engine is fastest, JSON-ready."""
    return {
        "graph": hashlib.sha256(graph).hexdigest()[:16],  # with the weights
        "image": list(size),
        "precisions": sorted(precisions),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in get_args(EngineName)},
    }


def _stored_choice(cache: Path, cache_key: Mapping[str, Any]) -> EngineChoice | None:
    """The choice stored for this key, if any."""
    for entry in _entries(cache):
        with suppress(TypeError, KeyError, ValueError, StopIteration):  # edited by hand: measure again
            if entry["situation"] == cache_key:
                choice = entry["choice"]
                measured = tuple(Measurement(**timing) for timing in choice["measured"])
                fastest = next(t for t in measured if (t.engine, t.precision) == tuple(choice["chosen"]))
                return EngineChoice(fastest.engine, fastest.precision, measured, dict(choice["skipped"]), stored=True)
    return None


def _store_choice(cache: Path, cache_key: Mapping[str, Any], choice: EngineChoice) -> None:
    """Add the choice to the file; if that fails, the next process measures again."""
    content = {
        "chosen": [choice.engine, choice.precision],
        "measured": [dataclasses.asdict(timing) for timing in choice.measured],
        "skipped": choice.skipped,
    }
    entries = [*_other_entries(cache, cache_key), {"situation": dict(cache_key), "choice": content}]
    with suppress(OutputError):
        _write_entries(cache, entries[-KEPT_CHOICES:])


def _other_entries(cache: Path, cache_key: Mapping[str, Any]) -> list[Any]:
    """The entries of all other keys."""
    return [entry for entry in _entries(cache) if not isinstance(entry, dict) or entry.get("situation") != cache_key]


def _write_entries(cache: Path, entries: Sequence[Any]) -> None:
    with atomic_write(cache / CHOICES) as file:
        file.write(json.dumps(list(entries), indent=1).encode())


def _entries(cache: Path) -> list[Any]:
    """Entries of the file of choices; empty if it is missing or damaged."""
    try:
        entries = json.loads((cache / CHOICES).read_bytes())
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def _cpu() -> str:
    """Name of the processor, or the ID numbers that ARM reports instead."""
    fields = ("model name", "CPU implementer", "CPU part", "CPU variant", "CPU revision")
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        values = dict.fromkeys(" ".join(line.split()) for line in lines if line.startswith(fields))
        if values:
            return ", ".join(values)
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
