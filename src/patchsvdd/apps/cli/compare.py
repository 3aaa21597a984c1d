"""``patchsvdd compare``."""

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
    StageBars,
    load_any_detector,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    warn_of_skipped,
)
from patchsvdd.core.errors import OutputError

if TYPE_CHECKING:
    from patchsvdd.evaluation.comparison import Comparison

EXAMPLE = "Example: patchsvdd compare models/part models/part-2 photos/this-week --out comparison"
SHOWN = 10
"""Disagreements printed."""


@one_line_errors
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Model folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another model folder.")],
    images: Annotated[
        Path,
        typer.Argument(metavar="IMAGES", help="Folder of images, or with test/ (MVTec), whose folders are labels."),
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE_OR_DIR",
            help="Labels to use instead of the folders' names: COCO, LabelMe or Label Studio JSON.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write the report index.html to.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index.html in --out.")] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Compare two models on the same images: where their verdicts differ, and whether one raises more alarms.

    Rates are compared in pairs: the difference has Tango's 95 % interval, and McNemar's exact test says whether it may
    be chance. If it is known what the images show, misses and false alarms are compared as well.
    """
    from patchsvdd.core.files import require_writable
    from patchsvdd.evaluation.comparison import STAGES, check_models
    from patchsvdd.evaluation.comparison import compare as run
    from patchsvdd.evaluation.comparison_page import write_comparison_page

    page = None if out is None else out / "index.html"
    if page is not None and page.exists() and not overwrite:
        raise OutputError(f"'{page}' exists; choose another --out, or add --overwrite to replace it")
    names = (str(first), str(second))
    detectors = (
        load_any_detector(first, device, engine, precision, search),
        load_any_detector(second, device, engine, precision, search),
    )
    check_models(*detectors, names)
    if out is not None:
        require_writable(out)
    with progress_bar() as progress:
        bars = StageBars(progress)
        found = run(*detectors, images, names=names, labels=labels, on_progress=bars)
        if page is not None:
            bars.clear(but=STAGES)
            write_comparison_page(found, detectors, page, lambda done, total: bars("pictures", done, total))
    warn_of_skipped(found.skipped)
    if json:
        print_json({**found.to_json(), "report": None if page is None else str(page)})
    else:
        _print(found, page)


def _print(found: Comparison, page: Path | None) -> None:
    """Print the comparison as tables."""
    from patchsvdd.evaluation.comparison_page import NAMES, conclusion, difference_in_words, p_in_words

    rows = [
        (one.name, f"{one.first.verdict}, {one.first.ratio:.2f}", f"{one.second.verdict}, {one.second.ratio:.2f}")
        for one in found.disagreements[:SHOWN]
    ]
    if rows:
        print_table(("disagreement", "A, score ÷ threshold", "B, score ÷ threshold"), rows)
    rates = []
    for name, counted in found.rates.items():
        if counted.images:
            both = [f"{count} of {counted.images}" for count in (counted.first, counted.second)]
            rates.append([NAMES[name], *both, difference_in_words(counted), p_in_words(counted.p_value())])
    print_table(("", "A", "B", "B − A (95 %)", "McNemar"), rates)
    alarms = found.alarms
    facts = {
        "A": f"{found.first.name} ({found.first.identity or 'not saved'})",
        "B": f"{found.second.name} ({found.second.identity or 'not saved'})",
        "disagreements": f"{alarms.only_first + alarms.only_second} of {alarms.images} images",
    }
    facts |= {NAMES[name].lower(): conclusion(name, counted) for name, counted in found.rates.items() if counted.images}
    if page is not None:
        facts["report"] = str(page)
    print_facts("Comparison", facts)
