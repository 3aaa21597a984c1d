"""An experiment run on another machine: its stored files go there as bytes, and its results come back."""

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
    """The files of the experiment once it has a result, from those it had before; nothing is left on this machine.

    The data set must lie here under the path it has where the errand came from.
    """
    if not experiment.category.is_dir():
        raise ConfigError(
            f"there is no '{experiment.category}' on the machine {platform.node()}; the data set must lie under the "
            f"same path on every machine of the cluster"
        )
    with TemporaryDirectory(prefix="patchsvdd-") as folder:
        store = ExperimentStore(Path(folder), device=device, on_stage=on_stage)
        if store.name_of(experiment) != files.folder:
            raise ConfigError(
                f"'{experiment.category}' on the machine {platform.node()} holds other training images than here, or "
                f"another version of patchsvdd is installed there; every machine of the cluster needs the same of both"
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
    def told(self) -> tuple[Benchmark, str, int]:
        """Benchmark, category and seed."""
        return self.benchmark, self.experiment.category.name, self.experiment.config.seed

    @property
    def name(self) -> str:
        """The run in words."""
        return f"{self.told[1]}, seed {self.told[2]}, {self.benchmark.config.preset}"

    @property
    def away(self) -> Experiment:
        """The experiment as it is known elsewhere: by its whole path."""
        return Experiment(self.experiment.category.absolute(), self.experiment.config)

    def is_done(self, store: ExperimentStore) -> bool:
        """Whether the store has a result; it then is in the benchmark."""
        found = store.find(self.experiment)
        if found is not None:
            self.benchmark.add(*self.told[1:], found)
        return found is not None

    def end(self, store: ExperimentStore, files: Callable[[], Files]) -> bool:
        """Take the result into store and benchmark, or the reason why there is none; False where the category was
        given up already."""
        _, category, seed = self.told
        if category in self.benchmark.failed:
            return False
        try:
            self.benchmark.add(category, seed, store.take(self.experiment, files()))
        except DatasetError as error:
            reason = str(error).replace(str(self.away.category), str(self.experiment.category))
            self.benchmark.fail(category, reason)
        return True


def remote_runs_of(benchmarks: Sequence[tuple[Benchmark, Sequence[Path]]]) -> Iterator[RemoteRun]:
    """Every run of benchmarks over the folders of their categories, in the order in which one machine runs them."""
    for benchmark, folders in benchmarks:
        for seed in benchmark.seeds:
            for folder in folders:
                yield RemoteRun(benchmark, Experiment(folder, benchmark.config.replace(seed=seed)))


class Running(NamedTuple):
    """How far a run is, and where."""

    stage: str
    done: int
    total: int
    machine: str
    process: int


@dataclass(frozen=True)
class RunResources:
    """What of a machine one run takes."""

    cpus: int
    gpus: float

    @classmethod
    def of(
        cls, machines: Sequence[Mapping[str, float]], cpus: int | None, gpus: float | None, device: str
    ) -> RunResources:
        """What was asked for; else one GPU where there are any, and as many CPUs as this process would use threads.

        The number of threads changes the last digits of sums: with another one results are as good and not the same.
        ``machines``: the "CPU" and "GPU" that each has.
        """
        most_gpus = max(one.get("GPU", 0.0) for one in machines)
        gpus = (min(1.0, most_gpus) if device != "cpu" else 0.0) if gpus is None else gpus
        if gpus < 0 or (gpus > 1 and gpus % 1):
            raise ConfigError(f"`gpus_per_run` must be a fraction of a GPU like 0.25, or a whole number; got {gpus:g}")
        if gpus > most_gpus:
            raise ConfigError(f"`gpus_per_run={gpus:g}`: no machine of the cluster has more than {most_gpus:g} GPUs")
        most = int(max(one.get("CPU", 0.0) for one in machines if one.get("GPU", 0.0) >= gpus))
        at_once = int(most_gpus / gpus) if gpus else 1
        cpus = max(1, min(torch.get_num_threads(), most // at_once)) if cpus is None else cpus
        if not 1 <= cpus <= most:
            raise ConfigError(
                f"`cpus_per_run={cpus}`: a machine of the cluster has up to {most} CPUs; give 1 to {most}"
            )
        return cls(cpus, gpus)
