"""Inspect an archive of images on a cluster; `patchsvdd inspect` calls this if it is given a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from patchsvdd.apps.cluster.chunk_inspection import OVERLAYS, ChunkSummary, OutputOptions
from patchsvdd.apps.cluster.image_listing import find_archive
from patchsvdd.apps.cluster.job import Job
from patchsvdd.apps.cluster.job_summary import JobSummary, summarise
from patchsvdd.apps.cluster.storage import StoragePath
from patchsvdd.core.errors import ConfigError

PathLike = str | os.PathLike[str]
LISTED = 1000
"""Images between two progress reports while listing."""


@dataclass(frozen=True)
class ClusterProgress:
    """Progress of a run."""

    done: int
    """Images inspected, including those of earlier runs; images found so far while ``total`` is None."""
    total: int | None
    """Number of images; None while listing them."""
    anomalous: int = 0
    """Anomalous images of this run."""
    workers: int = 0


def inspect_on_cluster(
    model: PathLike,
    images: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    address: str = "auto",
    overlays: str = "anomalous",
    save_maps: bool = False,
    overwrite: bool = False,
    engine: str = "auto",
    precision: str = "float32",
    search: str = "auto",
    min_area: int | None = None,
    shards: int | None = None,
    worst: int = 10,
    on_progress: Callable[[ClusterProgress], None] = lambda _: None,
) -> JobSummary:
    """Inspect images on every machine of a Ray cluster and write the results as Parquet below ``out``.

    ``images`` are folders, patterns such as "photos/**/*.png", Parquet or CSV files of paths, or image files; they,
    ``model`` and ``out`` may be in an object store ("s3://bucket/folder"). The same call continues an earlier one that
    was interrupted, and inspects only images that were added since; ``overwrite`` starts over.

    ``address`` is "auto" (the cluster that RAY_ADDRESS names or that runs on this machine, else this machine's cores),
    "local", "host:6379" or "ray://host:10001". ``overlays`` are written for "none", "anomalous" or "all" images.
    ``shards`` splits a memory that is too large for one machine. The summary lists the ``worst`` images.

        summary = inspect_on_cluster("models/part", "photos", "inspected", address="ray://head:10001")
        print(summary.anomalous, "of", summary.images)
    """
    if overlays not in OVERLAYS:
        raise ConfigError(f"overlays must be one of {', '.join(OVERLAYS)}; got '{overlays}'")
    inputs = [os.fspath(path) for path in ([images] if isinstance(images, str | os.PathLike) else images)]
    if not inputs:
        raise ConfigError("no images were given; give at least one folder, pattern, list or image")
    from patchsvdd.apps.cluster.ray_connection import connected
    from patchsvdd.apps.cluster.ray_inspect import Loading, identity_of, inspect_archive, shards_of, workers_for

    loading = Loading(os.fspath(model), engine, precision, search, min_area)
    job = Job(StoragePath.of(out))
    options = OutputOptions(overlays, save_maps)
    with connected(address):
        about = {"model": identity_of(loading), "min_area": min_area, "precision": precision}
        job.open({**about, **asdict(options)}, overwrite=overwrite)
        listed = []
        for image in find_archive(inputs):
            listed.append(image)
            if len(listed) % LISTED == 0:
                on_progress(ClusterProgress(len(listed), None))
        workers, chunk_size = workers_for(len(listed))
        job.extend(listed, chunk_size)
        total = sum(chunk.images for chunk in job.chunks())
        done = already_done = total - sum(chunk.images for chunk in job.to_do())
        anomalous = 0
        on_progress(ClusterProgress(done, total, anomalous, workers))

        def on_chunk(chunk: ChunkSummary) -> None:
            nonlocal done, anomalous
            done, anomalous = done + chunk.images, anomalous + chunk.anomalous
            on_progress(ClusterProgress(done, total, anomalous, workers))

        memory = shards_of(loading, shards) if shards is not None else None
        inspect_archive(job, loading, options, workers, on_chunk, memory)
        return summarise(job, worst, already_done)
