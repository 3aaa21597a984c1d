"""A sharded memory whose shards are held by Ray actors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from patchsvdd.apps.cluster.ray_connection import answer_of, here, ray, resources
from patchsvdd.apps.cluster.shards import Shard, plan, read_shards, sharded_memory
from patchsvdd.core.device import choose_device
from patchsvdd.core.errors import ConfigError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import read_model
from patchsvdd.encoder.embedder import Engine
from patchsvdd.encoder.engines import Precision
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.exact_search import Span
from patchsvdd.memory.segments import is_memory


@ray.remote(num_cpus=0, max_restarts=20, max_task_retries=20, scheduling_strategy="SPREAD")
class _ShardHolder:
    """An actor that holds some rows of a model's memory. If its machine is lost, Ray restarts it on another."""

    def __init__(self, folder: Path, about: Mapping[str, Any], spans: Mapping[int, Span], threads: int) -> None:
        torch.set_num_threads(threads)
        self._read = partial(read_shards, folder, about, spans)
        self._shards: dict[int, Shard] = {}

    def ready(self) -> tuple[str, int]:
        """Read the rows, if not done yet; returns machine and process id."""
        if not self._shards:  # not in the constructor, whose errors Ray would replace with its own
            self._shards = self._read(choose_device("auto" if ray.get_gpu_ids() else "cpu"))
        return here()

    def call(self, size: int, method: str, *arguments: Any) -> Any:
        self.ready()
        return getattr(self._shards[size], method)(*arguments)


@dataclass(frozen=True)
class RemoteShard:
    """A shard that an actor holds."""

    holder: Any
    size: int
    span: Span

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Start a method of ``Shard`` in the actor; returns a function that waits for its result."""
        reference = self.holder.call.remote(self.size, method, *arguments)
        return lambda: answer_of(reference)


def memory_in_shards(folder: Path, about: Mapping[str, Any], shards: int, *, gpus_per_shard: float = 0.0) -> Memory:
    """The memory of a model folder in shards, each held by an actor that reads its rows from the folder.

    Every machine must have the folder under this path. The actors live as long as the memory is referenced.
    """
    folder, spans = folder.resolve(), plan(folder, about, shards)
    total = resources()
    share = sum(about["files"][part]["bytes"] for part in about["files"] if is_memory(part)) // len(spans)
    if share * len(spans) > total.get("memory", float("inf")):
        raise ConfigError(
            f"the memory needs {share * len(spans) / 2**30:.1f} GiB and the cluster has {total['memory'] / 2**30:.1f}; "
            f"add machines, or train with a smaller `memory`"
        )
    if gpus_per_shard * len(spans) > total.get("GPU", 0):
        raise ConfigError(f"{len(spans)} shards × {gpus_per_shard:g} GPUs, but the cluster has {total.get('GPU', 0):g}")
    threads = max(1, int(total.get("CPU", 1)) // len(spans))
    actor = _ShardHolder.options(memory=share, num_gpus=gpus_per_shard)  # type: ignore[attr-defined]
    holders = [actor.remote(folder, dict(about), own, threads) for own in spans]
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
    """Return the detector of a model folder with its memory in ``shards`` shards on the cluster, not in this process.

    ``shards`` may also be a sharded memory that another process of the cluster has created.
    """
    stored = read_model(Path(folder), without=is_memory)
    memory = shards
    if not isinstance(memory, Memory):
        memory = memory_in_shards(Path(folder), stored.about, memory, gpus_per_shard=gpus_per_shard)
    return PatchSVDD.from_stored(stored, folder, device, engine=engine, precision=precision, memory=memory)
