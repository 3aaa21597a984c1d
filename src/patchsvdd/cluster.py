"""On many machines: Ray runs what the rest of the package computes. No other module imports Ray."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from patchsvdd.detector import PatchSVDD
from patchsvdd.device import choose_device
from patchsvdd.embedder import Engine
from patchsvdd.engines import Precision
from patchsvdd.errors import ConfigError, Interrupted, ModelError, PatchSVDDError
from patchsvdd.evaluation.benchmark import Benchmark
from patchsvdd.evaluation.errand import Running, Share, errands_of, run_errand
from patchsvdd.evaluation.experiment import Experiment, ExperimentStore
from patchsvdd.evaluation.stored_parts import Files
from patchsvdd.memory import Memory
from patchsvdd.model_file import read_model
from patchsvdd.neighbors import Span
from patchsvdd.segments import is_memory
from patchsvdd.sharding import Shard, plan, read_shards, sharded_memory

INSTALL = 'pip install "patchsvdd[cluster]"'

try:
    import ray
except ImportError as error:
    raise ConfigError(f"--cluster takes Ray ({error}); install it: {INSTALL}") from None


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connected to a cluster inside the block.

    "auto" is the cluster that RAY_ADDRESS names or that runs on this machine, and where there is none as many processes
    as this machine has cores; "local" is always the latter; "ray://host:10001" and "host:6379" are clusters elsewhere.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is ever sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if ray.is_initialized():  # the caller's own
        yield
        return
    try:
        ray.init(
            None if address == "auto" else address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"no cluster answers at '{address}' ({_first_line(error)}); give --cluster auto, local or the address "
            f"of a running one, such as ray://host:10001"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def answer_of(reference: Any) -> Any:
    """What a task or an actor answers; an error of this package as it was raised there."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PatchSVDDError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise ModelError(
            f"what a machine of the cluster held was lost with it, again and again ({_first_line(error)}); add "
            f"machines or memory, and run this again: what is done is kept"
        ) from None


def _here() -> tuple[str, int]:
    """This machine and process."""
    return str(ray.util.get_node_ip_address()), os.getpid()  # type: ignore[no-untyped-call]


def _machines() -> list[dict[str, float]]:
    """What each machine of the cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _resources() -> dict[str, float]:
    """What all machines together have."""
    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]


# A memory in shards


@ray.remote(num_cpus=0, max_restarts=20, max_task_retries=20, scheduling_strategy="SPREAD")
class _ShardHolder:
    """Some rows of a model's memory. Lost with its machine, it is made anew on another and reads them again."""

    def __init__(self, folder: Path, about: Mapping[str, Any], spans: Mapping[int, Span], threads: int) -> None:
        torch.set_num_threads(threads)
        self._read = partial(read_shards, folder, about, spans)
        self._shards: dict[int, Shard] = {}

    def ready(self) -> tuple[str, int]:
        """Machine and process, once the rows are read."""
        if not self._shards:  # not in the constructor, whose errors would not come back as they were raised
            self._shards = self._read(choose_device("auto" if ray.get_gpu_ids() else "cpu"))
        return _here()

    def ask(self, size: int, what: str, *arguments: Any) -> Any:
        self.ready()
        return getattr(self._shards[size], what)(*arguments)


@dataclass(frozen=True)
class RemoteShard:
    """A shard that an actor holds."""

    holder: Any
    size: int
    span: Span

    def begin(self, what: str, *arguments: Any) -> Callable[[], Any]:
        """What waits for the answer, which the actor is at work on."""
        reference = self.holder.ask.remote(self.size, what, *arguments)
        return lambda: answer_of(reference)


def memory_in_shards(folder: Path, about: Mapping[str, Any], shards: int, *, gpus_per_shard: float = 0.0) -> Memory:
    """The memory of a model folder, each shard held by an actor, which reads its rows from the folder on its machine.

    The actors live as long as the memory is referred to.
    """
    folder, spans = folder.resolve(), plan(folder, about, shards)
    there = _resources()
    share = sum(about["files"][part]["bytes"] for part in about["files"] if is_memory(part)) // len(spans)
    if share * len(spans) > there.get("memory", float("inf")):
        raise ConfigError(
            f"the memory takes {share * len(spans) / 2**30:.1f} GiB and the cluster has {there['memory'] / 2**30:.1f}; "
            f"add machines, or thin it: patchsvdd train --memory"
        )
    if gpus_per_shard * len(spans) > there.get("GPU", 0):
        raise ConfigError(f"{len(spans)} shards of {gpus_per_shard:g} GPUs: the cluster has {there.get('GPU', 0):g}")
    threads = max(1, int(there.get("CPU", 1)) // len(spans))
    placed = _ShardHolder.options(memory=share, num_gpus=gpus_per_shard)  # type: ignore[attr-defined]
    holders = [placed.remote(folder, dict(about), own, threads) for own in spans]
    for reading in [holder.ready.remote() for holder in holders]:
        answer_of(reading)
    own_shards = [
        {size: RemoteShard(holder, size, span) for size, span in own.items()}
        for holder, own in zip(holders, spans, strict=True)
    ]
    return sharded_memory(folder, about, own_shards)


def sharded_detector(
    folder: str | os.PathLike[str],
    shards: int | Memory,
    *,
    device: str = "auto",
    engine: Engine = "auto",
    precision: Precision = "float32",
    gpus_per_shard: float = 0.0,
) -> PatchSVDD:
    """The detector of a model folder whose memory lies in so many shards on the cluster, and never in this process.

    Given a memory in shards instead, as another process of the cluster made it, the detector uses those.
    """
    stored = read_model(Path(folder), without=is_memory)
    memory = shards
    if not isinstance(memory, Memory):
        memory = memory_in_shards(Path(folder), stored.about, memory, gpus_per_shard=gpus_per_shard)
    return PatchSVDD.of_stored(stored, folder, device, engine=engine, precision=precision, memory=memory)


# Benchmarks


@ray.remote(num_cpus=0)
class _Board:
    """What every run is at."""

    def __init__(self) -> None:
        self._runs: dict[str, Running] = {}

    def report(self, name: str, now: Running) -> None:
        self._runs[name] = now

    def read(self) -> dict[str, Running]:
        return self._runs


@ray.remote(max_retries=3)
def _errand(experiment: Experiment, files: Files, device: str, fuse: bool, name: str, board: Any, cpus: int) -> Files:
    torch.set_num_threads(cpus)
    here, last = _here(), ("", 0.0)

    def on_stage(stage: str, done: int, total: int) -> None:
        nonlocal last
        if stage != last[0] or done == total or time.monotonic() > last[1] + 0.2:
            last = (stage, time.monotonic())
            board.report.remote(name, Running(stage, done, total, *here))

    return run_errand(experiment, files, device=device, fuse=fuse, on_stage=on_stage)


def share_of_run(cpus: int | None, gpus: float | None, device: str) -> Share:
    """What of a machine of this cluster one run takes."""
    return Share.of(_machines(), cpus, gpus, device)


def run_benchmarks(
    benchmarks: Sequence[tuple[Benchmark, Sequence[Path]]],
    store: ExperimentStore,
    share: Share,
    *,
    device: str = "auto",
    on_running: Callable[[dict[str, Running]], None] = lambda _: None,
) -> Iterator[tuple[Benchmark, str, int]]:
    """(benchmark, category, seed) of each run as soon as it is in its benchmark, as ``run_benchmark`` does on one
    machine: what the store holds is taken from it, all else is run wherever the cluster has room, at once.

    A run that is lost with its machine is run again. Asked to stop, the store raises Interrupted.
    """
    board, waiting, total = _Board.remote(), {}, 0  # type: ignore[attr-defined]
    placed = _errand.options(num_cpus=share.cpus, num_gpus=share.gpus)
    device = "cpu" if device == "auto" and not share.gpus else device
    try:
        for errand in errands_of(benchmarks):
            total += 1
            if errand.is_done(store):
                yield errand.told
                continue
            files = store.files_for(errand.experiment)
            waiting[placed.remote(errand.away, files, device, store.fuse, errand.name, board, share.cpus)] = errand
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=0.2)
            running = answer_of(board.read.remote())
            on_running({one.name: running[one.name] for one in waiting.values() if one.name in running})
            if store.should_stop():
                raise Interrupted(f"stopped with {total - len(waiting)} of {total} runs done")
            for reference in ready:
                errand = waiting.pop(reference)
                if errand.end(store, partial(_files_of, reference, errand.name)):
                    yield errand.told
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)


def _files_of(reference: Any, name: str) -> Files:
    try:
        files: Files = answer_of(reference)
    except ray.exceptions.RayTaskError:  # a mistake of ours
        raise
    except ray.exceptions.RayError as error:
        raise ConfigError(
            f"'{name}' was lost with its worker again and again ({_first_line(error)}); let fewer runs share a "
            f"machine: --cpus-per-run, --gpus-per-run"
        ) from None
    return files


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
