"""On many machines: Ray runs what the rest of the package computes. No other module imports Ray."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from patchsvdd.archive.inspecting import ChunkSummary, Wanted, inspect_chunk
from patchsvdd.archive.job import CHUNK, Chunk, Job
from patchsvdd.archive.places import Place
from patchsvdd.detector import PatchSVDD
from patchsvdd.embedder import Engine
from patchsvdd.engines import Precision
from patchsvdd.errors import ClusterError, ConfigError, PatchSVDDError
from patchsvdd.searching import Search

INSTALL = 'pip install "patchsvdd[cluster]"'

MOST_BLOCKS = 4096
"""Blocks of orders that Ray Data is handed; with more chunks a block holds several."""

try:
    import ray
    import ray.data
    import ray.util.client
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
    _require_answer(address)
    with _quiet_stdout():
        yield from _joined(address)


def _joined(address: str) -> Iterator[None]:
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


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """What Ray and its workers print goes to stderr: stdout is for results."""
    sys.stdout.flush()
    try:
        before = os.dup(1)
    except OSError:  # there is none
        yield
        return
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)


def _require_answer(address: str) -> None:
    """Nothing, or a ConfigError where nobody listens at the address: Ray itself would try again for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigError(
            f"no cluster answers at '{address}' ({error}); give --cluster auto, local or the address of a running one"
        ) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@dataclass(frozen=True)
class Loading:
    """How every worker loads the model."""

    model: str
    engine: str = "auto"
    precision: str = "float32"
    search: str = "auto"
    min_area: int | None = None

    def load(self, device: str) -> PatchSVDD:
        """The detector."""
        detector = PatchSVDD.load(
            self.model,
            device,
            engine=cast(Engine, self.engine),
            precision=cast(Precision, self.precision),
            search=cast(Search, self.search),
        )
        return detector if self.min_area is None else detector.with_min_area(self.min_area)


def identity_of(loading: Loading) -> str | None:
    """The model's short hash; the errors of a model that cannot be used come now rather than from a worker."""
    bundle = None if Place.of(loading.model).local else _bundle(loading.model)
    return replace(loading, model=_unpacked(loading.model, bundle), engine="torch").load("cpu").identity


def workers_for(images: int) -> tuple[int, int]:
    """How many workers the cluster has room for, and images per chunk that keep all of them busy to the end."""
    resources = ray.cluster_resources()
    workers = max(1, int(resources.get("GPU", 0)) or int(resources.get("CPU", 1)))
    return workers, max(1, min(CHUNK, -(-images // (8 * workers))))


def inspect_archive(
    job: Job, loading: Loading, wanted: Wanted, workers: int, on_chunk: Callable[[ChunkSummary], None]
) -> None:
    """Inspect every chunk of a job that has no results yet, on all workers; ``on_chunk`` hears of each that is done.

    Ray Data keeps as many chunks under way as there are workers, gives those of a lost worker to another, and starts
    workers where machines are added.
    """
    to_do = job.to_do()
    if not to_do:
        return
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with_gpu = ray.cluster_resources().get("GPU", 0) > 0
    orders = [{"plan": chunk.plan, "index": chunk.index, "images": chunk.images} for chunk in to_do]
    blocks = min(len(orders), MOST_BLOCKS)
    told = ray.data.from_items(orders, override_num_blocks=blocks).map_batches(
        _Inspector,
        fn_constructor_args=(job, loading, wanted, "cuda" if with_gpu else "cpu", _bundle(loading.model)),
        batch_size=1,
        num_cpus=1,
        num_gpus=1 if with_gpu else 0,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers, initial_size=workers),
    )
    try:
        for row in told.iter_rows():
            on_chunk(ChunkSummary(int(row["images"]), int(row["anomalous"]), int(row["unreadable"])))
    except ray.exceptions.RayError as error:
        raise _cause(error) from None


class _Inspector:
    """A worker: it loads the model once."""

    def __init__(self, job: Job, loading: Loading, wanted: Wanted, device: str, bundle: dict[str, bytes] | None):
        torch.set_num_threads(1)
        self._job, self._wanted = job, wanted
        self._detector = replace(loading, model=_unpacked(loading.model, bundle)).load(device)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Inspect the chunks of a batch."""
        found = []
        for order in zip(batch["plan"], batch["index"], batch["images"], strict=True):
            chunk = Chunk(*map(int, order))
            found.append(inspect_chunk(self._detector, self._job, chunk, self._wanted))
        names = ("images", "anomalous", "unreadable")
        return {name: np.array([getattr(one, name) for one in found]) for name in names}


def _bundle(model: str) -> dict[str, bytes] | None:
    """The files of a model, for machines that do not have it; None where this is the only machine."""
    here = not ray.util.client.ray.is_connected() and sum(node["Alive"] for node in ray.nodes()) == 1
    place = Place.of(model)
    if here and place.local is not None:
        return None
    return {name: (place / name).read_bytes() for name in place.below()}


def _unpacked(model: str, bundle: dict[str, bytes] | None) -> str:
    """A folder of this machine that holds the model."""
    if bundle is None:
        return model
    digest = hashlib.sha256()
    for name, content in sorted(bundle.items()):
        digest.update(f"{name}:{len(content)}".encode() + content)
    folder = Path(tempfile.gettempdir(), f"patchsvdd-{digest.hexdigest()[:16]}")
    if not folder.is_dir():
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, content in bundle.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        try:
            fresh.rename(folder)
        except OSError:  # another worker of this machine was quicker
            shutil.rmtree(fresh)
    return str(folder)


def _cause(error: BaseException) -> BaseException:
    """The error of ours that ended a task, or what Ray says."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PatchSVDDError):
            return seen
        seen = getattr(seen, "cause", None) or seen.__cause__
    return ClusterError(f"the cluster gave up: {_first_line(error)}; the same command goes on from where it stopped")
