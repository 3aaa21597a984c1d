"""An experiment that is run somewhere else: what is known of it goes there as bytes, what came out comes back."""

from __future__ import annotations

import platform
from pathlib import Path
from tempfile import TemporaryDirectory

from patchsvdd.errors import ConfigError
from patchsvdd.evaluation.experiment import Experiment, ExperimentStore
from patchsvdd.evaluation.stored_parts import Files
from patchsvdd.loading import OnStage


def run_errand(
    experiment: Experiment, files: Files, *, device: str = "auto", fuse: bool = False, on_stage: OnStage | None = None
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
        store = ExperimentStore(Path(folder), device=device, fuse=fuse, on_stage=on_stage)
        if store.name_of(experiment) != files.folder:
            raise ConfigError(
                f"'{experiment.category}' on the machine {platform.node()} holds other training images than here, or "
                f"another version of patchsvdd is installed there; every machine of the cluster needs the same of both"
            )
        store.put(files)
        result = store.result(experiment)
        return Files.of(result.folder, [path.name for path in result.folder.iterdir()])
