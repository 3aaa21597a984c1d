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
    out: Annotated[Path, typer.Option(help="Folder for data, models, pictures and index.html.")] = Path("demo"),
    steps: Annotated[int, typer.Option(help="Training steps per category.")] = 30,
    seed: Annotated[int, typer.Option(help="Draws another data set and trains otherwise.")] = 0,
    json: JsonOption = False,
) -> None:
    """Draw a data set, learn from its good images, inspect the rest, and show how well that went."""
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
    stdout().print(f"Look at {escape(str(result.page))}")
    stdout().print(
        f"Inspect your own: patchsvdd train FOLDER_OF_GOOD_IMAGES --out {escape(str(out / 'models' / 'mine'))}"
    )
