"""``patchsvdd evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    EngineOption,
    JsonOption,
    PrecisionOption,
    SearchOption,
    escape,
    load_detector,
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

METRICS = {
    "detection_auroc": "detection AUROC",
    "detection_ap": "AP",
    "detection_f1_max": "F1",
    "segmentation_auroc": "segmentation AUROC",
    "segmentation_ap": "AP",
    "segmentation_f1_max": "F1",
    "aupro": "AUPRO",
}
EXAMPLE = "Example: patchsvdd evaluate models/bottle mvtec/bottle --json"


@one_line_errors
def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    category: Annotated[Path, typer.Argument(metavar="CATEGORY", help="Folder with test/ and ground_truth/ (MVTec).")],
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Evaluate a model on labelled test images: AUROC, AUPRO, average precision, F1, and verdicts at its threshold."""
    from patchsvdd.evaluation.evaluate import evaluate as run

    detector = load_detector(model, device, engine, precision, search)
    with progress_bar() as progress:
        task = progress.add_task("evaluating", total=None)
        result = run(detector, category, lambda done, total: progress.update(task, completed=done, total=total))
    warn_of_skipped(result.warnings)
    if json:
        print_json(result.to_json())
    else:
        _print(result, category)


def _print(result: Evaluation, category: Path) -> None:
    """Print the evaluation as tables."""

    def row(name: str, metrics: dict[str, float]) -> list[str]:
        return [name, *(f"{metrics[metric]:.4f}" if metric in metrics else "–" for metric in METRICS)]

    rows = [row(f"{size} px", values) for size, values in result.scales.items()]
    rows += [row(part, values) for part, values in result.parts.items()]
    print_table(("map", *METRICS.values()), [*rows, row("fused" if result.parts else "product", result.metrics)])
    print_table(
        ("test images", "number", "anomalous"),
        [(defect, str(n["images"]), str(n["anomalous"])) for defect, n in result.verdicts.items()],
    )
    facts = {"images": str(result.images), "seconds per image": f"{result.seconds_per_image:.3f}"}
    if result.confusion is not None:
        for name, rate in (("false alarms", result.confusion.false_alarm_rate), ("missed", result.confusion.miss_rate)):
            facts[name] = "–" if rate is None else f"{rate:.1%}"
    print_facts(f"Evaluated on {category}", facts)
    for metric, reason in result.skipped.items():
        say(f"[yellow]no {metric}:[/] {escape(reason)}")
