"""Experiments on another machine: their stored files are sent there as bytes, and the results come back."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.core.progress import OnStage
from patchsvdd.evaluation.benchmark import Benchmark
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_files import Files
from patchsvdd.evaluation.experiment_store import ExperimentStore


def run_remotely(
    experiment: Experiment, files: Files, *, device: str = "auto", on_stage: OnStage | None = None
) -> Files:
    """Run an experiment from its stored ``files`` and return all of its files; nothing is left on this machine.

    The data set must have the same path here as on the machine that sent the experiment.
    """
    if not experiment.category.is_dir():
        raise ConfigError(
            f"there is no '{experiment.category}' on the machine {platform.node()}; the data set must have the "
            f"same path on every machine of the cluster"
        )
    with TemporaryDirectory(prefix="patchsvdd-") as folder:
        store = ExperimentStore(Path(folder), device=device, on_stage=on_stage)
        if store.name_of(experiment) != files.folder:
            raise ConfigError(
                f"'{experiment.category}' on the machine {platform.node()} has other training images than this one, "
                f"or another version of patchsvdd is installed there; both must be the same on every machine"
            )
        store.put(files)
        result = store.result(experiment)
        return Files.of(result.folder, [path.name for path in result.folder.iterdir()])


@dataclass(frozen=True)
class RemoteRun:
    """One run of a benchmark."""

    benchmark: Benchmark
    experiment: Experiment

    @property
    def key(self) -> tuple[Benchmark, str, int]:
        """Benchmark, category and seed."""
        return self.benchmark, self.experiment.category.name, self.experiment.config.seed

    @property
    def name(self) -> str:
        """Description of the run."""
        return f"{self.key[1]}, seed {self.key[2]}, {self.benchmark.config.preset}"

    @property
    def absolute_experiment(self) -> Experiment:
        """The experiment with the absolute path of its category, for other machines."""
        return Experiment(self.experiment.category.absolute(), self.experiment.config)

    def is_done(self, store: ExperimentStore) -> bool:
        """Whether the store has a result; if so, it is added to the benchmark."""
        result = store.find(self.experiment)
        if result is not None:
            self.benchmark.add(*self.key[1:], result)
        return result is not None

    def end(self, store: ExperimentStore, files: Callable[[], Files]) -> bool:
        """Add the result to the store and the benchmark, or the error to the benchmark; returns False if the category
        has failed already."""
        _, category, seed = self.key
        if category in self.benchmark.failed:
            return False
        try:
            self.benchmark.add(category, seed, store.take(self.experiment, files()))
        except DatasetError as error:
            reason = str(error).replace(str(self.absolute_experiment.category), str(self.experiment.category))
            self.benchmark.fail(category, reason)
        return True


def remote_runs_of(benchmarks: Sequence[tuple[Benchmark, Sequence[Path]]]) -> Iterator[RemoteRun]:
    """Every run of the benchmarks on their category folders, in the order in which one machine runs them."""
    for benchmark, folders in benchmarks:
        for seed in benchmark.seeds:
            for folder in folders:
                yield RemoteRun(benchmark, Experiment(folder, benchmark.config.replace(seed=seed)))


class Running(NamedTuple):
    """Progress of a run, with its machine and process id."""

    stage: str
    done: int
    total: int
    machine: str
    process: int


@dataclass(frozen=True)
class RunResources:
    """The CPUs and GPUs that one run uses."""

    cpus: int
    gpus: float

    @classmethod
    def of(
        cls, machines: Sequence[Mapping[str, float]], cpus: int | None, gpus: float | None, device: str
    ) -> RunResources:
        """The given numbers; by default one GPU if there are any, and as many CPUs as this process would use threads.

        The number of threads changes the last digits of sums: with another number, results are as good but not equal.
        ``machines``: the number of "CPU" and "GPU" of each.
        """
        most_gpus = max(machine.get("GPU", 0.0) for machine in machines)
        gpus = (min(1.0, most_gpus) if device != "cpu" else 0.0) if gpus is None else gpus
        if gpus < 0 or (gpus > 1 and gpus % 1):
            raise ConfigError(f"`gpus_per_run` must be a fraction of a GPU like 0.25, or a whole number; got {gpus:g}")
        if gpus > most_gpus:
            raise ConfigError(f"`gpus_per_run={gpus:g}`: no machine of the cluster has more than {most_gpus:g} GPUs")
        most = int(max(node.get("CPU", 0.0) for node in machines if node.get("GPU", 0.0) >= gpus))
        at_once = int(most_gpus / gpus) if gpus else 1
        cpus = max(1, min(torch.get_num_threads(), most // at_once)) if cpus is None else cpus
        if not 1 <= cpus <= most:
            raise ConfigError(
                f"`cpus_per_run={cpus}`: a machine of the cluster has up to {most} CPUs; give 1 to {most}"
            )
        return cls(cpus, gpus)
