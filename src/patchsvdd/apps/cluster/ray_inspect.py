"""Inspect archives on all workers of a cluster."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from patchsvdd.apps.cluster.chunk_inspection import ChunkSummary, OutputOptions, inspect_chunk
from patchsvdd.apps.cluster.job import CHUNK, Chunk, Job
from patchsvdd.apps.cluster.ray_connection import answer_of, first_line, machines, ray, resources
from patchsvdd.apps.cluster.ray_shards import memory_in_shards, sharded_detector
from patchsvdd.apps.cluster.storage import StoragePath
from patchsvdd.core.errors import ClusterError, ConfigError, PatchSVDDError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import read_model
from patchsvdd.detector.stored_memory import Search
from patchsvdd.encoder.embedder import Engine
from patchsvdd.encoder.engines import Precision
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.segments import is_memory

LOOK_SECONDS = 0.5
"""Seconds between two polls of the progress."""
MOST_BLOCKS = 4096
"""Maximum number of Ray Data blocks; with more chunks, a block holds several."""


@dataclass(frozen=True)
class Loading:
    """How every worker loads the model."""

    model: str
    engine: str = "auto"
    precision: str = "float32"
    search: str = "auto"
    min_area: int | None = None

    def load(self, device: str, memory: Memory | None = None) -> PatchSVDD:
        """Return the detector; with a sharded ``memory``, it does not load the model's own."""
        detector = self._load(device) if memory is None else self._load_with(device, memory)
        return detector if self.min_area is None else detector.with_min_area(self.min_area)

    def _load_with(self, device: str, memory: Memory) -> PatchSVDD:
        engine, precision = cast(Engine, self.engine), cast(Precision, self.precision)
        return sharded_detector(self.model, memory, device=device, engine=engine, precision=precision)

    def _load(self, device: str) -> PatchSVDD:
        return PatchSVDD.load(
            self.model,
            device,
            engine=cast(Engine, self.engine),
            precision=cast(Precision, self.precision),
            search=cast(Search, self.search),
        )


def identity_of(loading: Loading) -> str | None:
    """The model's short hash; raises an error for an unusable model now, rather than in a worker."""
    bundle = None if StoragePath.of(loading.model).local else _bundle(loading.model)
    return read_model(Path(_unpacked(loading.model, bundle)), without=is_memory).identity


def shards_of(loading: Loading, shards: int) -> Memory:
    """The model's memory in ``shards`` shards, for all workers."""
    folder = StoragePath.of(loading.model).local
    if folder is None:
        raise ConfigError(f"`shards` requires a model folder that every machine can read; got '{loading.model}'")
    about = read_model(folder, without=is_memory).about
    return memory_in_shards(folder, about, shards)


def workers_for(images: int) -> tuple[int, int]:
    """Number of workers the cluster has room for, and a chunk size that keeps all of them busy to the end."""
    total = resources()
    workers = max(1, int(total.get("GPU", 0)) or int(total.get("CPU", 1)))
    return workers, max(1, min(CHUNK, -(-images // (8 * workers))))


def inspect_archive(
    job: Job,
    loading: Loading,
    options: OutputOptions,
    workers: int,
    on_chunk: Callable[[ChunkSummary], None],
    memory: Memory | None = None,
) -> None:
    """Inspect every chunk of a job that has no results yet, on all workers, and call ``on_chunk`` after each.

    With a sharded ``memory``, workers search it instead of loading the model's.
    Ray Data keeps as many chunks in progress as there are workers, and gives those of a lost worker to another.
    """
    if _is_ray_client():
        _inspect_on_cluster(on_chunk, job, loading, options, workers, memory)
        return
    to_do = job.to_do()
    if not to_do:
        return
    from ray import data

    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with_gpu = resources().get("GPU", 0) > 0
    bundle = _bundle(loading.model)
    bundle_ref = None if bundle is None else ray.put(bundle)
    task = _WorkerTask(job, loading, options, "cuda" if with_gpu else "cpu", bundle_ref, memory)
    chunks = [{"plan": chunk.plan, "index": chunk.index, "images": chunk.images} for chunk in to_do]
    blocks = min(len(chunks), MOST_BLOCKS)
    summaries = data.from_items(chunks, override_num_blocks=blocks).map_batches(
        _Inspector,
        fn_constructor_args=(task,),
        batch_size=1,
        num_cpus=1,
        num_gpus=1 if with_gpu else 0,
        compute=data.ActorPoolStrategy(min_size=1, max_size=workers, initial_size=workers),
    )
    try:
        for row in summaries.iter_rows():
            on_chunk(ChunkSummary(int(row["images"]), int(row["anomalous"]), int(row["unreadable"])))
    except ray.exceptions.RayError as error:
        raise _cause(error) from None


def _is_ray_client() -> bool:
    """Whether this process is connected through ray:// and is therefore not part of the cluster."""
    from ray.util.client import ray as client

    return bool(client.is_connected())


class _RemoteDriver:
    """An actor that drives Ray Data on the cluster, because Ray Data does not work through ray://."""

    def __init__(self) -> None:
        self._summaries: list[ChunkSummary] = []

    def inspect(self, *arguments: Any) -> None:
        job, loading, options, workers, memory = arguments
        inspect_archive(job, loading, options, workers, self._summaries.append, memory)

    def new_summaries(self) -> list[ChunkSummary]:
        """The chunks finished since the last call."""
        count = len(self._summaries)
        new, self._summaries[:count] = self._summaries[:count], []
        return new


def _inspect_on_cluster(on_chunk: Callable[[ChunkSummary], None], *arguments: Any) -> None:
    driver: Any = ray.remote(_RemoteDriver).options(num_cpus=0, max_concurrency=2).remote()
    running, ended = driver.inspect.remote(*arguments), False
    while not ended:
        ended = bool(ray.wait([running], timeout=LOOK_SECONDS)[0])
        for summary in answer_of(driver.new_summaries.remote()):
            on_chunk(summary)
    try:
        answer_of(running)
    except ray.exceptions.RayError as error:
        raise _cause(error) from None


@dataclass(frozen=True, eq=False)  # Ray Data hashes it, which is slow with all fields
class _WorkerTask:
    """What every worker needs to inspect chunks."""

    job: Job
    loading: Loading
    options: OutputOptions
    device: str
    bundle: Any
    """Ray reference to the model's files; None if every worker can read the model folder."""
    memory: Memory | None = field(repr=False)


class _Inspector:
    """A worker, which loads the model once."""

    def __init__(self, task: _WorkerTask) -> None:
        torch.set_num_threads(1)
        self._job, self._options = task.job, task.options
        bundle = None if task.bundle is None else ray.get(task.bundle)
        loading = replace(task.loading, model=_unpacked(task.loading.model, bundle))
        self._detector = loading.load(task.device, task.memory)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Inspect the chunks of a batch."""
        summaries = []
        for row in zip(batch["plan"], batch["index"], batch["images"], strict=True):
            chunk = Chunk(*map(int, row))
            summaries.append(inspect_chunk(self._detector, self._job, chunk, self._options))
        names = ("images", "anomalous", "unreadable")
        return {name: np.array([getattr(summary, name) for summary in summaries]) for name in names}


def _bundle(model: str) -> dict[str, bytes] | None:
    """The files of a model, for machines that do not have it; None if this machine is the only one."""
    only_machine = not _is_ray_client() and len(machines()) == 1
    place = StoragePath.of(model)
    if only_machine and place.local is not None:
        return None
    return {name: (place / name).read_bytes() for name in place.below()}


def _unpacked(model: str, bundle: dict[str, bytes] | None) -> str:
    """Return a local folder that holds the model."""
    if bundle is None:
        return model
    digest = hashlib.sha256()
    for name, content in sorted(bundle.items()):
        digest.update(f"{name}:{len(content)}".encode() + content)
    folder = Path(tempfile.gettempdir(), f"patchsvdd-{digest.hexdigest()[:16]}")
    if not _is_ours(folder):
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, content in bundle.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        try:
            fresh.rename(folder)
        except OSError:  # another worker here was faster, or another user owns the name
            if not _is_ours(folder):
                return str(fresh)
            shutil.rmtree(fresh)
    return str(folder)


def _is_ours(folder: Path) -> bool:
    """Whether this user owns the folder: anyone may create files in the temporary folder."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "getuid") or status.st_uid == os.getuid())


def _cause(error: BaseException) -> BaseException:
    """The error of this package that ended a task, or a ClusterError with Ray's message."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PatchSVDDError):
            return seen
        seen = getattr(seen, "cause", None) or seen.__cause__
    return ClusterError(f"the cluster gave up: {first_line(error)}; run the same command again to continue")
