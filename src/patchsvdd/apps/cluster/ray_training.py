"""Data-parallel training and embedding on a cluster: workers share every batch."""

from __future__ import annotations

import copy
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd.apps.cluster.ray_connection import connected, machines, ray, resources
from patchsvdd.core.device import reproducible
from patchsvdd.core.errors import ClusterError, ConfigError, Interrupted, PatchSVDDError
from patchsvdd.core.files import atomic_write
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.training_backend import CPU, Trained, TrainingBackend, Work
from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import embed_image
from patchsvdd.training.checkpoint import CarriedFile
from patchsvdd.training.hooks import TrainingHooks
from patchsvdd.training.process_group import ProcessGroup

LOSSES = 5
"""How many times a training may lose workers and continue from its last checkpoint."""
LOOK_SECONDS = 0.2
"""Seconds between two polls of the relay."""
IMAGES_AT_ONCE = 16
"""Maximum number of images that one task embeds."""


@contextmanager
def backend_on(address: str, workers: int | None = None, device: str = "auto") -> Iterator[TrainingBackend]:
    """A training backend on the cluster at ``address``: ``workers`` processes train, the whole cluster embeds.

    Each worker uses one GPU of the cluster, if it has any and ``device`` is not "cpu". ``workers`` defaults to the
    number of GPUs, or without GPUs to the number of machines.
    """
    with connected(address):
        nodes = machines()
        kind = "GPU" if device != "cpu" and any("GPU" in node for node in nodes) else "CPU"
        units = [int(node.get(kind, 0)) for node in nodes]
        count = workers if workers is not None else sum(units) if kind == "GPU" else len(nodes)
        each = 1 if kind == "GPU" else max(units)  # the most CPUs per worker with which all of them fit
        while each > 1 and sum(unit // each for unit in units) < count:
            each -= 1
        if not 1 <= count <= sum(units):
            raise ConfigError(
                f"`workers={count}`: the cluster has {sum(units)} {kind}s, and every worker needs at least one; use "
                f"1 to {sum(units)} `workers`, or add machines"
            )
        placement = _Workers(count, kind, each, TrainingHooks().seconds_between_checkpoints)
        yield TrainingBackend(placement.train, placement.embed, count, placement.device)


@dataclass(frozen=True)
class _Workers:
    """Number and resources of the workers."""

    count: int
    kind: str
    """ "GPU" or "CPU"."""
    each: int
    """Units of that kind for each worker."""
    checkpoint_seconds: float

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.kind == "GPU" else "cpu")

    def train(self, work: Work, pixels: Tensor, hooks: TrainingHooks, on_progress: OnProgress | None) -> Trained:
        """Train on the workers and return the result; their checkpoints are written where ``hooks`` say."""
        home = hooks.checkpoint.path.parent if hooks.checkpoint is not None else None
        earlier = home.glob("training*.safetensors") if home is not None and hooks.resume else ()
        kept = {path.name: path.read_bytes() for path in earlier}
        relay: Any = ray.remote(_TrainingRelay).options(num_cpus=0, max_concurrency=8).remote(kept)
        running = relay.train.remote(self, work, [ray.put(pixels.numpy())])
        stop, ended = False, False
        answer: Trained | PatchSVDDError | None = None
        try:
            while not ended:
                ended = bool(ray.wait([running], timeout=LOOK_SECONDS)[0])
                stop = stop or hooks.should_stop()
                reports, new = ray.get(relay.exchange.remote(stop))
                answer = reports.get("answer", answer)
                for name, data in new.items() if home is not None else ():
                    with atomic_write(home / name) as file:
                        file.write(data)
                try:
                    if "progress" in reports and hooks.on_progress is not None:
                        hooks.on_progress(reports["progress"])
                    if "steps" in reports and on_progress is not None:
                        on_progress(*reports["steps"])
                except Interrupted:
                    stop = True  # the workers save a checkpoint before they stop
            ray.get(running)
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"training on the cluster failed ({_last_line(error)}); run it again with `resume=True` to continue "
                f"from the last checkpoint, with fewer `workers` if machines are gone"
            ) from None
        if isinstance(answer, PatchSVDDError):
            raise answer
        assert answer is not None
        return answer

    def embed(
        self, encoder: PatchEncoder, pixels: Tensor, normalization: Normalization, grids: Sequence[PatchGrid]
    ) -> Iterator[list[Tensor]]:
        """Embed images on the whole cluster, a few per task; the result is bit-identical to one machine's."""
        model = ray.put((copy.deepcopy(encoder).to(CPU), normalization.to(CPU), list(grids), self.device))
        images = ray.put(pixels.numpy())
        slots = int(resources()[self.kind])
        stride = min(IMAGES_AT_ONCE, -(-len(pixels) // slots))
        task: Any = ray.remote(num_cpus=int(self.kind == "CPU"), num_gpus=int(self.kind == "GPU"))(_embed)
        parts = (task.remote(model, images, slice(first, first + stride)) for first in range(0, len(pixels), stride))
        waiting = deque(islice(parts, 2 * slots))
        while waiting:
            for rows in ray.get(waiting.popleft()):
                yield [torch.from_numpy(embeddings.copy()) for embeddings in rows]
            waiting.extend(islice(parts, 1))


class _TrainingRelay:
    """An actor that runs a training and passes reports and checkpoints from the workers to the calling process."""

    def __init__(self, kept: dict[str, bytes]) -> None:
        self._kept, self._new, self._reports, self._stop = kept, dict[str, bytes](), dict[str, Any](), False
        self._lock = threading.Lock()

    def train(self, workers: _Workers, work: Work, pixels: list[Any]) -> None:
        """Train on workers; if some are lost, they are replaced and all continue from the last checkpoint."""
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        relay = ray.get_runtime_context().current_actor
        size = {workers.kind: float(workers.each)}
        with tempfile.TemporaryDirectory() as folder:
            TorchTrainer(
                _work,
                train_loop_config={"workers": workers, "work": work, "pixels": pixels, "relay": relay},
                scaling_config=ScalingConfig(
                    num_workers=workers.count, use_gpu=workers.kind == "GPU", resources_per_worker=size
                ),
                run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=LOSSES)),
            ).fit()

    def exchange(self, stop: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the reports and checkpoints since the last call, and pass ``stop`` on to the workers."""
        with self._lock:
            reports, new, self._reports, self._new, self._stop = self._reports, self._new, {}, {}, stop
            return reports, new

    def report(self, **values: Any) -> bool:
        """Store values for the calling process; returns whether to stop."""
        with self._lock:
            self._reports |= values
            return self._stop

    def keep(self, name: str, data: bytes) -> None:
        """Store a checkpoint."""
        with self._lock:
            self._kept[name] = self._new[name] = data

    def kept(self) -> dict[str, bytes]:
        """File name → content of the last checkpoints."""
        return self._kept


def _work(job: dict[str, Any]) -> None:
    """Train as one of the workers."""
    from ray.train.torch import get_device

    workers, relay = job["workers"], job["relay"]
    if workers.kind == "CPU":
        torch.set_num_threads(workers.each)
    group = ProcessGroup.here(get_device())
    last_poll, stop = time.monotonic(), False

    def should_stop() -> bool:
        nonlocal last_poll, stop
        if group.is_leader and time.monotonic() - last_poll > LOOK_SECONDS:
            last_poll, stop = time.monotonic(), ray.get(relay.report.remote())
        return stop

    with tempfile.TemporaryDirectory() as folder:
        for name, data in ray.get(relay.kept.remote()).items():
            Path(folder, name).write_bytes(data)
        checkpoint = CarriedFile(Path(folder), lambda name, data: ray.get(relay.keep.remote(name, data)))
        hooks = TrainingHooks(
            lambda now: relay.report.remote(progress=now),
            should_stop,
            checkpoint,
            resume=True,
            checkpoint_seconds=workers.checkpoint_seconds,
            group=group,
        )
        try:
            pixels = torch.from_numpy(ray.get(job["pixels"][0]).copy())
            answer = job["work"](pixels, group.device, hooks, lambda *steps: relay.report.remote(steps=steps))
        except PatchSVDDError as error:
            answer = error
    if group.is_leader:
        ray.get(relay.report.remote(answer=answer))


def _embed(model: Any, pixels: NDArray[Any], part: slice) -> list[list[NDArray[Any]]]:
    """Embeddings (P, D) of each image of a part, one array per grid."""
    encoder, normalization, grids, device = model
    with reproducible(), torch.inference_mode():
        encoder = encoder.to(device)
        images = normalization(torch.from_numpy(pixels[part].copy()).to(device))
        return [[rows.cpu().numpy() for rows in embed_image(encoder, image, grids)] for image in images]


def _last_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[-1] if lines else type(error).__name__
