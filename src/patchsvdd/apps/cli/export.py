"""``patchsvdd export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.apps.cli.console import (
    JsonOption,
    StageBars,
    load_detector,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    say,
)

if TYPE_CHECKING:
    from patchsvdd.export.export import Exported
    from patchsvdd.export.parity import Parity

EXAMPLE = "Example: patchsvdd export models/part --format onnx --images photos/new --out part.onnx"

SEARCHES = {"exact": "exact", "cells": "the nearest cells of the memory"}


@one_line_errors
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write, such as part.onnx or part.openvino.")],
    images: Annotated[Path, typer.Option(metavar="DIR", help="Real images to verify the file with, good or not.")],
    format: Annotated[str, typer.Option(help="onnx or openvino.")] = "onnx",  # noqa: A002
    memory: Annotated[
        str | None,
        typer.Option(help="Normal patches to export: a fraction such as 10% or a number; fewer make a faster file."),
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            help="exact compares with every normal patch; cells visits only the most promising ones of a large memory; "
            "auto: cells unless the results differ too much."
        ),
    ] = "auto",
    count: Annotated[int | None, typer.Option(help="Images to verify with, evenly chosen (default: 8).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
    json: JsonOption = False,
) -> None:
    """Export a model to one ONNX or OpenVINO file: pixels in; anomaly map, score and verdict out.

    The file is compared with the model on real images and is written only if the results agree.
    """
    from patchsvdd.core.errors import OutputError
    from patchsvdd.core.memory_size import parse_memory_size
    from patchsvdd.export.export import COUNT, as_export_search
    from patchsvdd.export.export import export as run
    from patchsvdd.export.formats import as_format

    as_format(format)
    as_export_search(search)
    size = parse_memory_size(memory) if memory is not None else None
    if out.exists() and not overwrite:
        raise OutputError(f"'{out}' exists; choose another --out, or add --overwrite to replace it")
    detector = load_detector(model, "cpu", "torch", "float32", "exact")
    with progress_bar() as progress:
        done = run(
            detector,
            out,
            images,
            format=format,
            memory=size,
            search=search,
            count=COUNT if count is None else count,
            on_stage=StageBars(progress),
            on_compared=None if json else print_comparison,
        )
    if json:
        print_json(_to_json(done, model, format))
        return
    if size is not None and not size.is_whole:
        say(
            "[yellow]note:[/] the threshold was calibrated with a larger memory; with a smaller one, scores are "
            "slightly higher. Override the threshold, or train with the same --memory"
        )
    facts = {
        "format": format,
        "images": f"{done.about.image_size[1]} x {done.about.image_size[0]}",
        "memory": done.about.memory,
        "search": SEARCHES[done.about.search],
        "threshold": f"{done.about.threshold:.6g}",
        "largest error": f"{done.parity.largest_error:.1e} of a map's maximum, "
        f"{done.parity.largest_score_error:.1e} of a score",
        "verdicts": f"{done.parity.same_verdicts} of {len(done.parity.images)} agree",
        "size": f"{done.bytes / 1e6:,.1f} MB",
    }
    print_facts(f"Exported {model} to {done.path}", facts)


def print_comparison(parity: Parity) -> None:
    """Print the results of the model and of the exported file for each image."""
    from patchsvdd.export.parity import verdict

    print_table(
        ("image", "score", "exported", "map error", "verdict", "exported"),
        [
            (
                one.name,
                f"{one.score:.6g}",
                f"{one.exported_score:.6g}",
                f"{one.error:.1e}",
                verdict(one.is_anomalous),
                verdict(one.exported_is_anomalous) + (" (a tie)" if one.is_tie else ""),
            )
            for one in parity.images
        ],
    )


def _to_json(done: Exported, model: Path, format: str) -> dict[str, object]:  # noqa: A002
    about = done.about
    return {
        "model": str(model),
        "file": str(done.path),
        "format": format,
        "bytes": done.bytes,
        "identity": about.identity,
        "image_size": list(about.image_size),
        "memory": about.memory,
        "search": about.search,
        "threshold": None if about.calibration is None else about.threshold,
        "parity": done.parity.to_json(),
        "compared": [one.to_json() for one in done.parity.images],
    }
