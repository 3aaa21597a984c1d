"""Time per image on a CPU: PatchCore and EfficientAD of anomalib beside our models, in turns.

    python benchmarks/peers.py mvtec/toothbrush best=models/best paper=models/paper --out peers.json

Requires anomalib in the environment of this library and its extra ``fast``. Each contestant runs in a process of its
own, with the same number of threads. All inspect the same images in turns, so that the speed of the machine affects all
of them equally. Time is measured from pixels (H, W, 3) uint8 in memory to an anomaly map (H, W) and a score.

Only time and memory of the peers are measured, not their accuracy: their networks have random weights, on which time
does not depend. PatchCore has anomalib's default settings. Its memory has as many rows as anomalib's coreset would
have, 10 % of the patches of all training images. The rows are the patches of a tenth of the images, chosen at random:
time does not depend on which rows are in the memory. Each peer runs in PyTorch and in OpenVINO, which chooses its own
precision. Its output in float32 must agree with PyTorch.

Peak memory is that of a process while it inspects. All processes import PyTorch. Results of several categories are kept
in one file.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from export_parity import evenly
from patchsvdd import PatchSVDD
from patchsvdd.core.errors import ConfigError, PatchSVDDError
from patchsvdd.detector.prepare import find_engines
from patchsvdd.evaluation.naive_reference import inspect_patch_by_patch
from patchsvdd.evaluation.speed import REFERENCE_BATCH
from patchsvdd.images.image_set import load_image
from patchsvdd.images.mvtec_layout import find_good_images, find_test_images
from record import circumstances, write_result

Pixels = NDArray[np.uint8]
"""(H, W, 3)."""
Inspect = Callable[[Pixels], tuple[NDArray[np.float32], float]]
"""Pixels → anomaly map (H, W) and score."""
Opened = tuple[Inspect, dict[str, Any]]
"""A contestant that is ready to inspect, and facts about it."""

SEED = 0
WARM_UP = 3
"""Inspections of the first image that are not timed."""
PAUSE = 0.2
"""Seconds between two inspections: for a while, threads of the process before keep waiting on a core."""
REFERENCE_IMAGES = 3
"""Images that the reference inspects."""
REFERENCE = "reference in batches"
PEERS = {"patchcore-r18": "PatchCore-R18", "patchcore-wrn50": "PatchCore-WRN50", "efficientad-s": "EfficientAD-S"}
BACKBONES = {"patchcore-r18": "resnet18", "patchcore-wrn50": "wide_resnet50_2"}
CORESET = 0.1
"""Fraction of the training patches in PatchCore's memory, anomalib's default."""
NEIGHBORS = 9
ALLOWED_ERROR = 1e-2
"""Of OpenVINO's map in float32, as a fraction of the largest value. PatchCore computes small distances as differences
of large numbers, which amplifies rounding."""
PACKAGES = ("anomalib", "openvino", "torchvision", "onnxruntime", "faiss-cpu")
CPU_INFO = Path("/proc/cpuinfo")
CPU_FLAGS = ("avx512_vnni", "amx_bf16", "avx512_bf16")
MISSING: list[Any] = []
"""Declared operators of torchvision; without a reference to the library they would be removed."""


@dataclass(frozen=True)
class Task:
    """What a worker runs."""

    kind: str
    """A key of ``OPENERS``, or "convert"."""
    path: str
    """The model, the exported file or, for a peer, the training images as an array (N, H, W, 3)."""
    peer: str = ""
    training_images: int = 0
    """Images from which anomalib would choose its coreset."""
    image: str = ""
    """A test image as an array (H, W, 3), for which OpenVINO must agree with PyTorch."""
    converted: str = ""
    """The peer in OpenVINO's format; facts about it and PyTorch's map of ``image`` are stored beside it."""


# What runs in a worker


def open_model(task: Task) -> Opened:
    """One of our models, with its fastest engines."""
    detector = PatchSVDD.load(task.path, "cpu")

    def inspect(pixels: Pixels) -> tuple[NDArray[np.float32], float]:
        found = detector.anomaly_maps(as_batch(pixels))
        return found.combined[0].numpy(), float(found.scores[0])

    return inspect, {"engine": detector.embedder.engine_for(detector.image_size), **facts(detector)}


def open_exported(task: Task) -> Opened:
    """An exported file."""
    from patchsvdd.runtime import Detector

    exported = Detector(task.path, threads=torch.get_num_threads())

    def inspect(pixels: Pixels) -> tuple[NDArray[np.float32], float]:
        maps, scores, _ = exported.run(pixels[None])
        return maps[0], float(scores[0])

    return inspect, {"engine": exported.processor, "search": exported.about.search, "preset": "exported"}


def open_reference(task: Task) -> Opened:
    """The authors' procedure, with one of our models."""
    detector = PatchSVDD.load(task.path, "cpu")

    def inspect(pixels: Pixels) -> tuple[NDArray[np.float32], float]:
        found, _ = inspect_patch_by_patch(detector, as_batch(pixels), REFERENCE_BATCH)
        return found.numpy(), float(found.max())

    return inspect, {"engine": "torch float32", "patches_at_once": REFERENCE_BATCH}


def open_peer_in_torch(task: Task) -> Opened:
    """A peer in PyTorch."""
    network, about = build_peer(task)

    def inspect(pixels: Pixels) -> tuple[NDArray[np.float32], float]:
        with torch.inference_mode():
            found, score = network(torch.from_numpy(pixels)[None])
        return found[0, 0].numpy(), float(score)

    return inspect, {"engine": "torch", "precision": "float32", **about}


def open_peer_in_openvino(task: Task) -> Opened:
    """A peer in OpenVINO; raises ValueError if it does not agree with PyTorch."""
    image = np.load(task.image)
    expected = np.load(expected_map(task))
    checked, _ = compiled(task, {"INFERENCE_PRECISION_HINT": "f32"})
    error = relative_error(checked(image)[0], expected)
    if error > ALLOWED_ERROR:
        raise ValueError(f"OpenVINO's map differs from PyTorch's by {error:.1e} of the largest value")
    del checked
    inspect, precision = compiled(task, {})
    about = json.loads(Path(task.converted).with_suffix(".json").read_text())
    differs = float(f"{relative_error(inspect(image)[0], expected):.1e}")
    return inspect, {"engine": "openvino", "precision": precision, "difference_from_torch": differs, **about}


def compiled(task: Task, settings: Mapping[str, str]) -> tuple[Inspect, str]:
    """A converted peer on the CPU and its precision."""
    core = import_module("openvino").Core()
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
    network = core.compile_model(task.converted, "CPU", {"PERFORMANCE_HINT": "LATENCY", **threads, **settings})
    request = network.create_infer_request()

    def inspect(pixels: Pixels) -> tuple[NDArray[np.float32], float]:
        request.infer({0: pixels[None]})
        found, score = (request.get_output_tensor(index).data for index in range(2))
        return found[0, 0].copy(), float(score.item())

    return inspect, network.get_property("INFERENCE_PRECISION_HINT").to_string()


OPENERS: dict[str, Callable[[Task], Opened]] = {
    "model": open_model,
    "exported": open_exported,
    "reference": open_reference,
    "torch": open_peer_in_torch,
    "openvino": open_peer_in_openvino,
}


def as_batch(pixels: Pixels) -> Tensor:
    """(1, 3, H, W)."""
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]


def facts(detector: PatchSVDD) -> dict[str, Any]:
    """Preset, search and size of the memory of one of our models."""
    scales = detector.memory.scales
    graphs = any(scale.graph is not None for scale in scales.values())
    unused = detector.critic is not None and detector.map_builder.ignores_memory
    return {
        "preset": detector.config.preset,
        "search": "none: the critic alone decides" if unused else "graph" if graphs else "exact",
        "memory_rows": {str(size): len(scale.embeddings) for size, scale in scales.items()},
    }


def relative_error(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference, as a fraction of the largest expected value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


class FromPixels(nn.Module):
    """A network of anomalib that starts from pixels (1, H, W, 3) uint8; returns a map (1, 1, H, W) and a score."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, *, normalized: bool) -> None:
        super().__init__()
        self.network = network
        self.normalized = normalized
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def prepared(self, pixels: Tensor) -> Tensor:
        """(1, 3, H, W) in 0 … 1, or normalised with mean and standard deviation of ImageNet."""
        images = pixels.permute(0, 3, 1, 2).float() / 255
        return (images - self.mean) / self.std if self.normalized else images

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Map and score."""
        found = self.network(self.prepared(pixels))
        return found.anomaly_map, found.pred_score.flatten()


def build_peer(task: Task) -> tuple[FromPixels, dict[str, Any]]:
    """A peer with random weights, and facts about it."""
    define_missing_operators()
    torch.manual_seed(SEED)
    if task.peer not in BACKBONES:
        return efficient_ad(), {}
    network = patchcore(BACKBONES[task.peer], np.load(task.path), task.training_images)
    return network, {"memory_rows": len(network.network.get_buffer("memory_bank"))}


def define_missing_operators() -> None:
    """Declare two operators of torchvision if its compiled part does not load.

    That part requires the PyTorch that it was built for: one with CUDA does not load in a PyTorch without. torchvision
    and with it anomalib then cannot be imported at all, for the operators' shapes are registered on import. No peer
    computes them.
    """
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        library = import_module("torch.library").Library("torchvision", "DEF")  # not typed
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        MISSING.append(library)
        import_module("torchvision")


def efficient_ad() -> FromPixels:
    """EfficientAD-S; it normalises its input itself."""
    network = import_module("anomalib.models.image.efficient_ad.torch_model").EfficientAdModel()
    for value in (network.mean_std["std"], network.quantiles["qb_st"], network.quantiles["qb_ae"]):
        nn.init.ones_(value)  # what a training would measure; zeros mean that there was none
    return FromPixels(network.eval(), normalized=False).eval()


def patchcore(backbone: str, images: NDArray[np.uint8], training_images: int) -> FromPixels:
    """PatchCore with the patches of images (N, H, W, 3) in its memory, as many as a coreset of all has."""
    module = import_module("anomalib.models.image.patchcore.torch_model")
    network = module.PatchcoreModel(["layer2", "layer3"], backbone, pre_trained=False, num_neighbors=NEIGHBORS)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)  # without weights, some are zero and nothing of a block remains
    whole = FromPixels(network.train(), normalized=True)
    with torch.no_grad():
        patches = [network(whole.prepared(torch.from_numpy(one)[None])) for one in images]
    network.embedding_store.clear()
    rows = int(CORESET * training_images * len(patches[0]))
    network.memory_bank = torch.cat(patches)[:rows].clone()
    return whole.eval()


def convert(task: Task) -> None:
    """Write a peer in OpenVINO's format, with facts about it and PyTorch's map of an image."""
    openvino = import_module("openvino")
    network, about = build_peer(task)
    pixels = torch.from_numpy(np.load(task.image))[None]
    with torch.inference_mode():
        np.save(expected_map(task), network(pixels)[0][0, 0].numpy())
    converted = openvino.convert_model(network, example_input=pixels, input=list(pixels.shape))
    openvino.save_model(converted, task.converted, compress_to_fp16=False)
    Path(task.converted).with_suffix(".json").write_text(json.dumps(about))


def expected_map(task: Task) -> Path:
    """The file of PyTorch's map."""
    return Path(task.converted).with_suffix(".npy")


def work(task: Task) -> None:
    """Inspect arrays named on the standard input; print facts about the contestant, then a line of JSON for each."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a package prints is not an answer
    if task.kind == "convert":
        convert(task)
        return
    inspect, about = OPENERS[task.kind](task)
    forget_peak()
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        pixels = np.load(line.strip())
        start = time.perf_counter()
        anomaly_map, score = inspect(pixels)
        seconds = time.perf_counter() - start
        if anomaly_map.shape != pixels.shape[:2] or not math.isfinite(score):
            raise ValueError(f"a map {anomaly_map.shape} and a score of {score} for pixels {pixels.shape}")
        print(json.dumps({"seconds": seconds, "peak_megabytes": peak_megabytes()}), file=answers, flush=True)


def forget_peak() -> None:
    """Let the peak memory of this process start at its present memory (Linux only)."""
    file = Path("/proc/self/clear_refs")
    if file.exists():
        file.write_text("5")


def peak_megabytes() -> int | None:
    """Peak resident memory of this process (Linux only)."""
    lines = _lines(Path("/proc/self/status"))
    found = [int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if name == "VmHWM"]
    return round(found[0] * 1024 / 1e6) if found else None


# What runs in the parent


@dataclass
class Worker:
    """A contestant in a process of its own."""

    name: str
    task: Task
    answers: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._process = subprocess.Popen(command(self.task), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()

    def inspect(self, file: Path, *, counts: bool = True) -> None:
        """Inspect an array and keep the answer if it ``counts``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{file}\n")
        self._process.stdin.flush()
        answer = self._answer()
        if counts:
            self.answers.append(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    @property
    def seconds(self) -> list[float]:
        """Of each timed inspection."""
        return [answer["seconds"] for answer in self.answers]

    def summary(self) -> dict[str, Any]:
        """Times, memory and facts."""
        return {
            "milliseconds_median": round(1000 * float(np.median(self.seconds)), 1),
            "milliseconds_p95": round(1000 * float(np.quantile(self.seconds, 0.95)), 1),
            "inspections": len(self.answers),
            "peak_megabytes": self.answers[-1]["peak_megabytes"],
            **self.about,
        }

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"error: the process of '{self.name}' ended with exit code {self._process.wait()}; see above")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


def command(task: Task) -> list[str]:
    """The command of a worker."""
    return [sys.executable, "-W", "ignore", __file__, "--worker", json.dumps(asdict(task))]


def median_ratio(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """Median of their times divided by ours, of the same images."""
    return round(float(np.median([their / our for our, their in zip(ours, theirs, strict=True)])), 3)


def comparisons(times: Mapping[str, Sequence[float]], ours: Sequence[str], referred: str | None) -> dict[str, Any]:
    """Ratios of the contestants' times; ``referred`` is the model that the reference runs."""
    peers = [name for name in times if name not in ours and name != REFERENCE]
    result: dict[str, Any] = {
        "ratios": {own: {peer: median_ratio(times[own], times[peer]) for peer in peers} for own in ours}
    }
    if {"best", "paper"} <= set(ours):
        result["best_over_paper"] = median_ratio(times["paper"], times["best"])
    if referred is not None:
        same_images = times[referred][: len(times[REFERENCE])]
        result["times_faster_than_batched_reference"] = median_ratio(same_images, times[REFERENCE])
    return result


def measure(category: Path, ours: dict[str, Path], peers: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Inspect the test images of a category with all contestants."""
    models = {name: PatchSVDD.load(path, "cpu") for name, path in ours.items() if path.is_dir()}
    first = next(iter(models.values()))
    _require_equal_sizes(models)
    engines = {name: _critic_engine(model, ours[name]) for name, model in models.items()}
    referred = ("paper" if "paper" in models else next(iter(models))) if args.reference else None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = _save_images(folder, [image.file for image in find_test_images(category).images], first, args.images)
        workers = _start_ours(ours, referred) + _start_peers(folder, category, first, files[0], peers)
        _take_turns(workers, files, args.rounds)
    return {
        "images": len(files),
        "rounds": args.rounds,
        "image_size": list(first.image_size),
        "contestants": {worker.name: {**worker.summary(), **engines.get(worker.name, {})} for worker in workers},
        **comparisons({worker.name: worker.seconds for worker in workers}, list(ours), referred),
    }


def _critic_engine(model: PatchSVDD, folder: Path) -> dict[str, str]:
    """Store the fastest engines in the model's folder, as ``patchsvdd prepare`` does; the critic's, if it has one.

    The critic computes in bfloat16 if the model was prepared with ``--bfloat16`` before.
    """
    find_engines(model, folder)
    if model.critic_inference is None:
        return {}
    engine = model.critic_inference.engine(model.image_size)
    return {"critic_engine": f"{engine.name} {engine.precision}"}


def _start_ours(ours: Mapping[str, Path], referred: str | None) -> list[Worker]:
    """Our models, and the reference after the model that it runs."""
    workers = []
    for name, path in ours.items():
        workers.append(Worker(name, Task("model" if path.is_dir() else "exported", str(path))))
        if name == referred:
            workers.append(Worker(REFERENCE, Task("reference", str(path))))
            workers[-1].about["model"] = name
    return workers


def _start_peers(folder: Path, category: Path, model: PatchSVDD, image: Path, peers: Sequence[str]) -> list[Worker]:
    """Each peer in PyTorch and in OpenVINO."""
    if not peers:
        return []
    good = find_good_images(category).files
    chosen = np.random.default_rng(SEED).permutation(len(good))[: math.ceil(CORESET * len(good))]
    training = folder / "training.npy"
    np.save(training, np.stack([load_image(good[index], model.config).canvas for index in chosen]))
    workers = []
    for peer in peers:
        task = Task("convert", str(training), peer, len(good), str(image), str(folder / f"{peer}.xml"))
        if subprocess.run(command(task), check=False).returncode:
            sys.exit(f"error: '{peer}' could not be converted to OpenVINO; see above")
        for kind, name in (("torch", "PyTorch"), ("openvino", "OpenVINO")):
            workers.append(Worker(f"{PEERS[peer]} {name}", replace(task, kind=kind)))
    return workers


def _take_turns(workers: Sequence[Worker], files: list[Path], rounds: int) -> None:
    """Inspect every image with every worker, and the first images with the reference."""
    for turn, file in enumerate([*[files[0]] * WARM_UP, *files * rounds]):
        for worker in workers:
            if worker.name == REFERENCE and not 0 <= turn - WARM_UP < min(REFERENCE_IMAGES, len(files)):
                continue
            time.sleep(PAUSE)
            worker.inspect(file, counts=turn >= WARM_UP)
    for worker in workers:
        worker.close()


def _save_images(folder: Path, images: Sequence[Path], model: PatchSVDD, count: int) -> list[Path]:
    """Arrays (H, W, 3) of some of the images, as the model resizes them."""
    files = []
    for index, image in enumerate(evenly(images, count)):
        files.append(folder / f"{index:04}.npy")
        np.save(files[-1], load_image(image, model.config).canvas)
    return files


def _require_equal_sizes(models: Mapping[str, PatchSVDD]) -> None:
    sizes = {name: "{1}x{0}".format(*model.image_size) for name, model in models.items()}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        sys.exit(f"error: all models must have the same image size; got {found}")


def _cpu() -> dict[str, Any]:
    """Name of the processor and its instructions for networks."""
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in _lines(CPU_INFO))}
    flags = known.get("flags", "").split()
    return {"cpu": known.get("model name", platform.machine()), "flags": [one for one in CPU_FLAGS if one in flags]}


def _lines(file: Path) -> list[str]:
    return file.read_text(errors="replace").splitlines() if file.is_file() else []


def _versions() -> dict[str, str]:
    installed = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


def _ours(texts: Sequence[str]) -> dict[str, Path]:
    """Models by name; raises ConfigError for a text that is not NAME=PATH."""
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or name in found or not Path(path).exists():
            raise ConfigError(f"'{text}' must be NAME=PATH of a model or an exported file, with another name for each")
        found[name] = Path(path)
    if not any(path.is_dir() for path in found.values()):
        raise ConfigError("name at least one model folder, as NAME=FOLDER: images are resized as its model requires")
    return found


def _peers(text: str) -> list[str]:
    """Names of peers; raises ConfigError for an unknown one or without anomalib."""
    found = [one for one in text.split(",") if one]
    unknown = [one for one in found if one not in PEERS]
    if unknown:
        raise ConfigError(f"there is no peer '{unknown[0]}'; choose of {', '.join(PEERS)}")
    missing = [one for one in ("anomalib", "torchvision", "openvino") if util.find_spec(one) is None]
    if found and missing:
        raise ConfigError(
            f"not installed: {', '.join(missing)}; pip install anomalib torchvision openvino, "
            f"or leave out the peers with --peers ''"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--worker"]:
        work(Task(**json.loads(arguments[1])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("category", type=Path, help="a category in MVTec layout")
    parser.add_argument("ours", nargs="+", metavar="NAME=PATH", help="a model folder or an exported file of ours")
    parser.add_argument("--images", type=int, default=30, help="test images")
    parser.add_argument("--rounds", type=int, default=1, help="times that every image is inspected")
    parser.add_argument("--peers", default=",".join(PEERS), help="separated by commas; '' for none")
    parser.add_argument("--reference", action="store_true", help="also the authors' procedure, on three images")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    try:
        measured = measure(args.category, _ours(args.ours), _peers(args.peers), args)
    except PatchSVDDError as error:
        sys.exit(f"error: {error}")
    categories = json.loads(args.out.read_text())["categories"] if args.out.is_file() else {}
    categories[args.category.name] = measured
    print(json.dumps(measured, indent=1))
    about = {"command": "benchmarks/peers.py", **circumstances(torch.device("cpu")), "seed": SEED}
    about["versions"] = {**about["versions"], **_versions()}
    write_result(args.out, {**about, **_cpu(), "threads": torch.get_num_threads(), "categories": categories})


if __name__ == "__main__":
    main()
