"""``patchsvdd speed``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    JsonOption,
    StageBars,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    say,
)

if TYPE_CHECKING:
    from patchsvdd.evaluation.speed import Speed

EXAMPLE = "Example: patchsvdd speed models/part --images photos/new --against-reference"


@one_line_errors
def speed(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    images: Annotated[
        Path | None, typer.Option(help="Image or folder to inspect (default: noise around the mean image).")
    ] = None,
    against_reference: Annotated[
        bool,
        typer.Option("--against-reference", help="Also measure the authors' patch-by-patch procedure (minutes)."),
    ] = False,
    rounds: Annotated[int, typer.Option(help="Measurements of each configuration.", min=1)] = 20,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Measure a model's speed on this machine: throughput, latency, memory, start-up time and the bottleneck."""
    import tempfile

    from patchsvdd.evaluation.speed import make_noise_images, measure_speed
    from patchsvdd.images.image_files import find_images

    with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
        if images is None:
            say("[yellow]note:[/] without --images, noise is inspected; the search may be slower than on real images")
            files = make_noise_images(model, Path(scratch))
        else:
            files = [images] if images.is_file() else find_images(images)[0]
        result = measure_speed(
            model,
            files,
            device=device,
            rounds=rounds,
            against_reference=against_reference,
            on_stage=StageBars(progress),
        )
    if json:
        print_json(result.to_json())
    else:
        _print(result)


def _print(result: Speed) -> None:
    data = result.to_json()
    print_table(
        ("engine", "search", "batch", "images/s", "p50 ms", "p99 ms", *data["setups"][0]["parts_ms_per_image"]),
        [
            (
                row["engine"],
                row["search"],
                str(row["batch"]),
                f"{row['images_per_second']:.1f}",
                f"{row['latency_ms']['p50']:.1f}",
                f"{row['latency_ms']['p99']:.1f}",
                *(f"{value:.2f}" for value in row["parts_ms_per_image"].values()),
            )
            for row in data["setups"]
        ],
    )
    facts = {"hardware": f"{data['hardware']}, {data['threads']} threads"}
    facts["patches in memory"] = ", ".join(f"{rows:,} of {size} px" for size, rows in data["memory_rows"].items())
    facts |= {name: f"{seconds:.2f} s" for name, seconds in data["start_up_seconds"].items()}
    facts |= {f"memory, {name}": f"{value:.0f} MB" for name, value in data["memory_mb"].items()}
    facts["bottleneck"] = data["bottleneck"]
    if result.reference is not None:
        facts["patch by patch"] = (
            f"{result.reference['speedup']:.0f} times slower one patch at a time, "
            f"{result.reference['speedup_over_batches']:.0f} times in the authors' batches of 2,048"
        )
    print_facts(f"Speed of {data['model']}", facts)
