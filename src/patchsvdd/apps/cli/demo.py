"""``patchsvdd demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchsvdd.apps.cli.console import (
    JsonOption,
    StageBars,
    escape,
    one_line_errors,
    print_json,
    print_table,
    progress_bar,
    stdout,
)

EXAMPLE = "Example: patchsvdd demo --out demo"


@one_line_errors
def demo(
    out: Annotated[Path, typer.Option(help="Folder for data, models, overlays and index.html.")] = Path("demo"),
    steps: Annotated[int, typer.Option(help="Training steps per category.")] = 30,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    json: JsonOption = False,
) -> None:
    """Draw a small data set, train on its good images, inspect the rest and report the accuracy."""
    from patchsvdd.apps.demo.run import run_demo
    from patchsvdd.core.files import require_writable

    require_writable(out)
    with progress_bar() as progress:
        bars = StageBars(progress)
        result = run_demo(out, steps=steps, seed=seed, on_stage=bars)
    if json:
        print_json(result.to_json())
        return
    print_table(
        ("category", "good images", "training", "detection AUROC", "segmentation AUROC"),
        [
            (one.name, str(one.images), f"{one.train_seconds:.0f} s", f"{one.detection:.3f}", f"{one.segmentation:.3f}")
            for one in result.categories
        ],
    )
    stdout().print(f"report: {escape(str(result.page))}")
    stdout().print(
        f"To train on your own images: patchsvdd train GOOD_IMAGES --out {escape(str(out / 'models' / 'mine'))}"
    )
