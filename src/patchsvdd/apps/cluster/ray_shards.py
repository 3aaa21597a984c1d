"""A memory in shards, each held by an actor."""

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
    """Some rows of a model's memory. Lost with its machine, it is made anew on another and reads them again."""

    def __init__(self, folder: Path, about: Mapping[str, Any], spans: Mapping[int, Span], threads: int) -> None:
        torch.set_num_threads(threads)
        self._read = partial(read_shards, folder, about, spans)
        self._shards: dict[int, Shard] = {}

    def ready(self) -> tuple[str, int]:
        """Machine and process, once the rows are read."""
        if not self._shards:  # not in the constructor, whose errors would not come back as they were raised
            self._shards = self._read(choose_device("auto" if ray.get_gpu_ids() else "cpu"))
        return here()

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
    there = resources()
    share = sum(about["files"][part]["bytes"] for part in about["files"] if is_memory(part)) // len(spans)
    if share * len(spans) > there.get("memory", float("inf")):
        raise ConfigError(
            f"the memory needs {share * len(spans) / 2**30:.1f} GiB and the cluster has {there['memory'] / 2**30:.1f}; "
            f"add machines, or train with a smaller `memory`"
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
    return PatchSVDD.from_stored(stored, folder, device, engine=engine, precision=precision, memory=memory)
