"""Training by workers of a cluster that share every batch, and memories that all of it embeds."""

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
"""How often a training may lose workers and go on from its last checkpoint."""
LOOK_SECONDS = 0.2
"""Time between two looks at what the other side says."""
IMAGES_AT_ONCE = 16
"""Most images that one task embeds."""


@contextmanager
def backend_on(address: str, workers: int | None = None, device: str = "auto") -> Iterator[TrainingBackend]:
    """A crew on a cluster, as ``connected`` names it: so many workers train, and all of it embeds good images.

    They compute on the cluster's GPUs, one each, if it has any and ``device`` is not "cpu". Without a number there is a
    worker for every GPU, or else for every machine.
    """
    with connected(address):
        nodes = machines()
        kind = "GPU" if device != "cpu" and any("GPU" in node for node in nodes) else "CPU"
        units = [int(node.get(kind, 0)) for node in nodes]
        count = workers if workers is not None else sum(units) if kind == "GPU" else len(nodes)
        each = 1 if kind == "GPU" else max(units)  # as many CPUs as let all workers find a place
        while each > 1 and sum(unit // each for unit in units) < count:
            each -= 1
        if not 1 <= count <= sum(units):
            raise ConfigError(
                f"`workers={count}`: the cluster has {sum(units)} {kind}s, and every worker needs at least one; use "
                f"1 to {sum(units)} `workers`, or add machines"
            )
        crowd = _Workers(count, kind, each, TrainingHooks().seconds_between_checkpoints)
        yield TrainingBackend(crowd.run_team, crowd.embed, count, crowd.device)


@dataclass(frozen=True)
class _Workers:
    """Where a crew computes."""

    count: int
    kind: str
    """ "GPU" or "CPU"."""
    each: int
    """Units of that kind for each worker."""
    checkpoint_seconds: float

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.kind == "GPU" else "cpu")

    def run_team(self, work: Work, pixels: Tensor, hooks: TrainingHooks, on_progress: OnProgress | None) -> Trained:
        """What the workers train; checkpoints come to where ``hooks`` want them, from whatever machine."""
        home = hooks.checkpoint.path.parent if hooks.checkpoint is not None else None
        begun = home.glob("training*.safetensors") if home is not None and hooks.resume else ()
        kept = {path.name: path.read_bytes() for path in begun}
        office: Any = ray.remote(_TrainingRelay).options(num_cpus=0, max_concurrency=8).remote(kept)
        running = office.train.remote(self, work, [ray.put(pixels.numpy())])
        stop, ended = False, False
        answer: Trained | PatchSVDDError | None = None
        try:
            while not ended:
                ended = bool(ray.wait([running], timeout=LOOK_SECONDS)[0])
                stop = stop or hooks.should_stop()
                said, new = ray.get(office.exchange.remote(stop))
                answer = said.get("answer", answer)
                for name, data in new.items() if home is not None else ():
                    with atomic_write(home / name) as file:
                        file.write(data)
                try:
                    if "progress" in said and hooks.on_progress is not None:
                        hooks.on_progress(said["progress"])
                    if "steps" in said and on_progress is not None:
                        on_progress(*said["steps"])
                except Interrupted:
                    stop = True  # once the workers have saved
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
        """Embeddings by all of the cluster, a few images at a time; bit for bit what one machine embeds."""
        known = ray.put((copy.deepcopy(encoder).to(CPU), normalization.to(CPU), list(grids), self.device))
        seen = ray.put(pixels.numpy())
        slots = int(resources()[self.kind])
        stride = min(IMAGES_AT_ONCE, -(-len(pixels) // slots))
        task: Any = ray.remote(num_cpus=int(self.kind == "CPU"), num_gpus=int(self.kind == "GPU"))(_embed)
        parts = (task.remote(known, seen, slice(first, first + stride)) for first in range(0, len(pixels), stride))
        waiting = deque(islice(parts, 2 * slots))
        while waiting:
            for rows in ray.get(waiting.popleft()):
                yield [torch.from_numpy(one.copy()) for one in rows]
            waiting.extend(islice(parts, 1))


class _TrainingRelay:
    """Runs a training, and is where workers and the process that wants it tell each other things."""

    def __init__(self, kept: dict[str, bytes]) -> None:
        self._kept, self._new, self._said, self._stop = kept, dict[str, bytes](), dict[str, Any](), False
        self._lock = threading.Lock()

    def train(self, workers: _Workers, work: Work, pixels: list[Any]) -> None:
        """Train on workers; those that are lost are replaced, and all go on from the last checkpoint."""
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        office = ray.get_runtime_context().current_actor
        size = {workers.kind: float(workers.each)}
        with tempfile.TemporaryDirectory() as folder:
            TorchTrainer(
                _work,
                train_loop_config={"workers": workers, "work": work, "pixels": pixels, "office": office},
                scaling_config=ScalingConfig(
                    num_workers=workers.count, use_gpu=workers.kind == "GPU", resources_per_worker=size
                ),
                run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=LOSSES)),
            ).fit()

    def exchange(self, stop: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
        """What workers said and the checkpoints they made since the last time; from now on they hear ``stop``."""
        with self._lock:
            said, new, self._said, self._new, self._stop = self._said, self._new, {}, {}, stop
            return said, new

    def say(self, **what: Any) -> bool:
        """Note it; whether to stop."""
        with self._lock:
            self._said |= what
            return self._stop

    def keep(self, name: str, data: bytes) -> None:
        """Note a checkpoint."""
        with self._lock:
            self._kept[name] = self._new[name] = data

    def kept(self) -> dict[str, bytes]:
        """The last checkpoints, by name of file."""
        return self._kept


def _work(job: dict[str, Any]) -> None:
    """One worker of a training."""
    from ray.train.torch import get_device

    workers, office = job["workers"], job["office"]
    if workers.kind == "CPU":
        torch.set_num_threads(workers.each)
    group = ProcessGroup.here(get_device())
    looked, stop = time.monotonic(), False

    def should_stop() -> bool:
        nonlocal looked, stop
        if group.is_leader and time.monotonic() - looked > LOOK_SECONDS:
            looked, stop = time.monotonic(), ray.get(office.say.remote())
        return stop

    with tempfile.TemporaryDirectory() as folder:
        for name, data in ray.get(office.kept.remote()).items():
            Path(folder, name).write_bytes(data)
        checkpoint = CarriedFile(Path(folder), lambda name, data: ray.get(office.keep.remote(name, data)))
        hooks = TrainingHooks(
            lambda now: office.say.remote(progress=now),
            should_stop,
            checkpoint,
            resume=True,
            checkpoint_seconds=workers.checkpoint_seconds,
            group=group,
        )
        try:
            pixels = torch.from_numpy(ray.get(job["pixels"][0]).copy())
            answer = job["work"](pixels, group.device, hooks, lambda *steps: office.say.remote(steps=steps))
        except PatchSVDDError as error:
            answer = error
    if group.is_leader:
        ray.get(office.say.remote(answer=answer))


def _embed(known: Any, seen: NDArray[Any], part: slice) -> list[list[NDArray[Any]]]:
    """The embeddings (P, D) on each grid of some images, one after the other."""
    encoder, normalization, grids, device = known
    with reproducible(), torch.inference_mode():
        encoder = encoder.to(device)
        images = normalization(torch.from_numpy(seen[part].copy()).to(device))
        return [[rows.cpu().numpy() for rows in embed_image(encoder, image, grids)] for image in images]


def _last_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[-1] if lines else type(error).__name__
