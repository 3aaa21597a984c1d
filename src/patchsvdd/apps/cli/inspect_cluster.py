"""``patchsvdd inspect --cluster``."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from patchsvdd.apps.cli.console import escape, print_json, print_table, progress_bar, say, stdout
from patchsvdd.core.errors import ConfigError, DatasetError, Interrupted

if TYPE_CHECKING:
    from patchsvdd.apps.cluster.inspect import ClusterProgress


class HeatMaps(StrEnum):
    """The images of an archive that get an overlay."""

    none = "none"
    anomalous = "anomalous"
    all = "all"


def inspect_archive(*arguments: Any, unsupported: dict[str, bool], json: bool, **options: Any) -> int:
    """Call ``inspect_on_cluster`` and print its summary; returns the number of anomalous images.

    ``unsupported``: flag that does not work with --cluster → whether it was given.
    """
    given = [name for name, is_given in unsupported.items() if is_given]
    if given:
        raise ConfigError(f"{' and '.join(given)} cannot be used with --cluster; omit one of them")
    import patchsvdd.apps.cluster.ray_connection  # noqa: F401  # a missing Ray is reported before the bar is drawn
    from patchsvdd.apps.cluster.inspect import inspect_on_cluster
    from patchsvdd.apps.cluster.storage import StoragePath

    out = StoragePath.of(arguments[2])
    with progress_bar("{task.fields[note]}") as bar:
        task = bar.add_task("finding", total=None, note="")

        def on_progress(now: ClusterProgress) -> None:
            note = f"{now.anomalous} anomalous, {now.workers} workers" if now.workers else ""
            stage = "finding" if now.total is None else "inspecting"
            bar.update(task, description=stage, completed=now.done, total=now.total, note=note)

        try:
            summary = inspect_on_cluster(*arguments, **options, on_progress=on_progress)
        except KeyboardInterrupt:
            raise Interrupted(f"finished results are in {out}; run the same command to continue") from None
    if json:
        print_json(summary.to_json())
    else:
        print_table(
            ("image (worst first)", "verdict", "score"),
            [(row["image"], row["verdict"], f"{row['score']:.4g}") for row in summary.worst],
        )
        if summary.already_done:
            say(f"{summary.already_done} images were already inspected (--overwrite inspects them again)")
        stdout().print(
            f"{summary.images} images: {summary.anomalous} anomalous, {summary.good} good, {summary.unreadable} "
            f"unreadable. Results: {escape(str(out / 'results'))}"
        )
    if summary.images == summary.unreadable:
        raise DatasetError(f"none of the {summary.images} images could be read; see the column 'error' in {out}")
    return summary.anomalous
