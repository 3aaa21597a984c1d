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
    load_any_detector,
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
AT_THRESHOLD = {
    "balanced accuracy": "balanced_accuracy",
    "F1 of the verdicts": "detection_f1",
    "F1 of the regions": "region_f1",
}
"""Name → metric at the shipped threshold; its ``_lost`` is what another threshold would have gained."""
EXAMPLE = "Example: patchsvdd evaluate models/bottle mvtec/bottle --json"


@one_line_errors
def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    category: Annotated[
        Path,
        typer.Argument(
            metavar="CATEGORY", help="Folder with test/ and ground_truth/ (MVTec); with --labels any folder of images."
        ),
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE_OR_DIR",
            help="Labels to use instead of the folders' names and masks: COCO, LabelMe or Label Studio JSON.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Evaluate a model on labelled test images: AUROC, AUPRO, average precision, F1, and verdicts at its threshold.

    With --labels, a file from a labelling tool says which images are good and where defects are, for example:
    patchsvdd evaluate models/part photos --labels annotations.json
    """
    from patchsvdd.evaluation.evaluate import evaluate as run

    detector = load_any_detector(model, device, engine, precision, search)
    with progress_bar() as progress:
        task = progress.add_task("evaluating", total=None)
        result = run(
            detector,
            category,
            lambda done, total: progress.update(task, completed=done, total=total),
            labels=labels,
        )
    warn_of_skipped(result.warnings)
    if json:
        print_json(result.to_json())
    else:
        _print(result, category)


def _print(result: Evaluation, category: Path) -> None:
    """Print the evaluation as tables."""
    from patchsvdd.evaluation.operating_point import intervals

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
        stated = intervals(result.confusion)
        for name, metric in (("false alarms", "false_alarm_rate"), ("missed", "miss_rate")):
            rate, interval = getattr(result.confusion, metric), stated[f"{metric}_interval"]
            facts[name] = "–" if interval is None else f"{rate:.1%} (95 %: {interval[0]:.1%} to {interval[1]:.1%})"
    for name, metric in AT_THRESHOLD.items():
        if metric in result.at_threshold:
            value, lost = result.at_threshold[metric], result.at_threshold[f"{metric}_lost"]
            facts[name] = f"{value:.3f} (best threshold in hindsight: {value + lost:.3f})"
    print_facts(f"Evaluated on {category}", facts)
    for metric, reason in result.skipped.items():
        say(f"[yellow]no {metric}:[/] {escape(reason)}")
