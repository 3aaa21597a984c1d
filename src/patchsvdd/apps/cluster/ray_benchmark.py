"""Benchmarks on a cluster: each run is a Ray task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from patchsvdd.apps.cluster.ray_connection import answer_of, first_line, here, machines, ray
from patchsvdd.core.errors import ClusterError, Interrupted
from patchsvdd.evaluation.benchmark import Benchmark
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_files import Files
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.evaluation.remote_run import Running, RunResources, remote_runs_of, run_remotely


@ray.remote(num_cpus=0)
class _ProgressBoard:
    """The progress of every run."""

    def __init__(self) -> None:
        self._runs: dict[str, Running] = {}

    def report(self, name: str, now: Running) -> None:
        self._runs[name] = now

    def read(self) -> dict[str, Running]:
        return self._runs


@ray.remote(max_retries=3)
def _run_task(experiment: Experiment, files: Files, device: str, name: str, board: Any, cpus: int) -> Files:
    torch.set_num_threads(cpus)
    location, last = here(), ("", 0.0)

    def on_stage(stage: str, done: int, total: int) -> None:
        nonlocal last
        if stage != last[0] or done == total or time.monotonic() > last[1] + 0.2:
            last = (stage, time.monotonic())
            board.report.remote(name, Running(stage, done, total, *location))

    return run_remotely(experiment, files, device=device, on_stage=on_stage)


def share_of_run(cpus: int | None, gpus: float | None, device: str) -> RunResources:
    """The CPUs and GPUs that one run on this cluster uses."""
    return RunResources.of(machines(), cpus, gpus, device)


def run_benchmarks(
    benchmarks: Sequence[tuple[Benchmark, Sequence[Path]]],
    store: ExperimentStore,
    share: RunResources,
    *,
    device: str = "auto",
    on_running: Callable[[dict[str, Running]], None] = lambda _: None,
) -> Iterator[tuple[Benchmark, str, int]]:
    """Yield (benchmark, category, seed) as soon as the run's result is in its benchmark, like ``run_benchmark``.

    Results in the store are reused. All other runs start as soon as the cluster has room for them. A run that is lost
    with its machine is repeated. Raises Interrupted if the store's ``should_stop`` is true.
    """
    board, waiting, total = _ProgressBoard.remote(), {}, 0  # type: ignore[attr-defined]
    task = _run_task.options(num_cpus=share.cpus, num_gpus=share.gpus)
    device = "cpu" if device == "auto" and not share.gpus else device
    try:
        for remote in remote_runs_of(benchmarks):
            total += 1
            if remote.is_done(store):
                yield remote.key
                continue
            files = store.files_for(remote.experiment)
            waiting[task.remote(remote.absolute_experiment, files, device, remote.name, board, share.cpus)] = remote
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=0.2)
            running = answer_of(board.read.remote())
            on_running({run.name: running[run.name] for run in waiting.values() if run.name in running})
            if store.should_stop():
                raise Interrupted(f"stopped with {total - len(waiting)} of {total} runs done")
            for reference in ready:
                remote = waiting.pop(reference)
                if remote.end(store, partial(_files_of, reference, remote.name)):
                    yield remote.key
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)


def _files_of(reference: Any, name: str) -> Files:
    try:
        files: Files = answer_of(reference)
    except ray.exceptions.RayTaskError:  # a bug in this package
        raise
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"'{name}' lost its worker repeatedly ({first_line(error)}); run fewer at a time per "
            f"machine, with higher `cpus_per_run` or `gpus_per_run`"
        ) from None
    return files
