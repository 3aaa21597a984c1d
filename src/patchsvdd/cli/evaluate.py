"""``patchsvdd evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.cli.console import (
    DeviceOption,
    JsonOption,
    escape,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    say,
    warn_of_skipped,
)

if TYPE_CHECKING:
    from patchsvdd.evaluation.evaluate import Evaluation

EXAMPLE = "Example: patchsvdd evaluate models/bottle mvtec/bottle --json"


@one_line_errors
def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    category: Annotated[Path, typer.Argument(metavar="CATEGORY", help="Category in MVTec layout: test, ground_truth.")],
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Measure a model on labelled test images: detection and segmentation AUROC, per scale as well."""
    from patchsvdd.detector import PatchSVDD
    from patchsvdd.evaluation.evaluate import evaluate as run

    detector = PatchSVDD.load(model, device)
    with progress_bar() as progress:
        task = progress.add_task("evaluating", total=None)
        result = run(detector, category, lambda done, total: progress.update(task, completed=done, total=total))
    warn_of_skipped(result.warnings)
    if json:
        print_json(result.to_json())
    else:
        _print(result, category)


def _print(result: Evaluation, category: Path) -> None:
    """The evaluation as tables."""

    def row(name: str, metrics: dict[str, float]) -> tuple[str, str, str]:
        values = [metrics.get(metric) for metric in ("detection_auroc", "segmentation_auroc")]
        detection, segmentation = ("–" if value is None else f"{value:.4f}" for value in values)
        return name, detection, segmentation

    rows = [row(f"{size} px", values) for size, values in result.scales.items()]
    print_table(("map", "detection AUROC", "segmentation AUROC"), [*rows, row("product", result.metrics)])
    print_table(
        ("test images", "number", "called anomalous"),
        [(defect, str(n["images"]), str(n["anomalous"])) for defect, n in result.verdicts.items()],
    )
    print_facts(
        f"Evaluated on {category}",
        {"images": str(result.images), "seconds per image": f"{result.seconds_per_image:.3f}"},
    )
    for metric, reason in result.skipped.items():
        say(f"[yellow]no {metric}:[/] {escape(reason)}")
