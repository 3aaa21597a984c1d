"""``patchsvdd inspect --cluster``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from patchsvdd.apps.cli.console import escape, print_json, print_table, progress_bar, say, stdout
from patchsvdd.core.errors import ConfigError, DatasetError, Interrupted

if TYPE_CHECKING:
    from patchsvdd.apps.cluster.job import Job

SHOWN = 10
"""Images listed in the terminal, worst first."""


class HeatMaps(StrEnum):
    """Of which images of an archive pictures are written."""

    none = "none"
    anomalous = "anomalous"
    all = "all"


@dataclass(frozen=True)
class ClusterInspectRequest:
    """What is to be inspected, and how."""

    model: str
    inputs: Sequence[str]
    out: str
    heat_maps: HeatMaps
    maps: bool
    overwrite: bool
    shards: int | None
    how: dict[str, Any]


def inspect_on_cluster(order: ClusterInspectRequest, address: str, refused: Sequence[str], json: bool) -> int:
    """Inspect an archive and say what was found; returns how many images are anomalous."""
    if refused:
        raise ConfigError(f"{' and '.join(refused)} cannot be had with --cluster; leave it out, or --cluster")
    from patchsvdd.apps.cluster.chunk_inspection import ChunkSummary, OutputOptions
    from patchsvdd.apps.cluster.image_listing import find_archive
    from patchsvdd.apps.cluster.job import Job
    from patchsvdd.apps.cluster.job_summary import summarise
    from patchsvdd.apps.cluster.ray_connection import connected
    from patchsvdd.apps.cluster.ray_inspect import Loading, identity_of, inspect_archive, shards_of, workers_for
    from patchsvdd.apps.cluster.storage import StoragePath

    loading = Loading(order.model, **order.how)
    job = Job(StoragePath.of(order.out))
    with progress_bar("{task.fields[note]}") as progress, connected(address):
        task = progress.add_task("finding", total=None, note="")
        identity = identity_of(loading)
        wanted = OutputOptions(order.heat_maps.value, order.maps)
        about = {"model": identity, "min_area": order.how["min_area"], "precision": order.how["precision"]}
        job.open({**about, **asdict(wanted)}, overwrite=order.overwrite)
        found = []
        for one in find_archive(order.inputs):
            found.append(one)
            if len(found) % 1000 == 0:
                progress.update(task, completed=len(found))
        workers, size = workers_for(len(found))
        job.extend(found, size)
        total = sum(chunk.images for chunk in job.chunks())
        done = before = total - sum(chunk.images for chunk in job.to_do())
        anomalous = 0
        progress.update(task, description="inspecting", completed=done, total=total)

        def on_chunk(one: ChunkSummary) -> None:
            nonlocal done, anomalous
            done, anomalous = done + one.images, anomalous + one.anomalous
            progress.update(task, completed=done, note=f"{anomalous} anomalous, {workers} workers")

        try:
            memory = shards_of(loading, order.shards) if order.shards is not None else None
            inspect_archive(job, loading, wanted, workers, on_chunk, memory)
        except KeyboardInterrupt:
            raise Interrupted(f"what is inspected is kept in {job.out}; the same command continues") from None
        summary = summarise(job, SHOWN)
    _report(job, summary.to_json() | {"already_done": before, "out": str(job.out)}, summary.worst, json)
    if summary.images == summary.unreadable:
        raise DatasetError(f"none of the {summary.images} images could be read; see the column 'error' in {job.out}")
    return summary.anomalous


def _report(job: Job, told: dict[str, Any], worst: Sequence[dict[str, Any]], json: bool) -> None:
    if json:
        print_json(told)
        return
    print_table(
        ("image (worst first)", "verdict", "score"),
        [(one["image"], one["verdict"], f"{one['score']:.4g}") for one in worst],
    )
    if told["already_done"]:
        say(f"{told['already_done']} images were done before (--overwrite inspects them again)")
    stdout().print(
        f"{told['images']} images: {told['anomalous']} anomalous, {told['good']} good, {told['unreadable']} "
        f"unreadable. Results: {escape(str(job.out / 'results'))}"
    )
