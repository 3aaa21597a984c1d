"""``patchsvdd prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import (
    JsonOption,
    StageBars,
    escape,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    say,
)

if TYPE_CHECKING:
    from patchsvdd.encoder.engines import EngineChoice

EXAMPLE = "Example: patchsvdd prepare models/part"


@one_line_errors
def prepare(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    bfloat16: Annotated[
        Path | None,
        typer.Option(metavar="IMAGES", help="Let the critic compute in bfloat16 if these images hardly change."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Optimise a model for this machine's CPU: build missing search indexes and choose the fastest engine.

    Run it once for a model trained on a GPU or on another machine. The threshold is recalibrated if the search index
    has changed.

    CPUs with matrix units (Intel AMX) compute the critic faster in bfloat16. With --bfloat16, images of a
    folder are inspected in both formats. bfloat16 is used if no verdict changes and no score changes by
    more than a tenth of the threshold. Without --bfloat16, a prepared model computes in float32.
    """
    from patchsvdd.detector.prepare import prepare as run
    from patchsvdd.images.image_files import find_images
    from patchsvdd.memory.graph_search import has_faiss

    if not has_faiss():
        say('[yellow]note:[/] FAISS is not installed, so the search stays exact: pip install "patchsvdd\\[fast]"')
    images, errors = find_images(bfloat16) if bfloat16 is not None else (None, [])
    with progress_bar() as progress:
        done = run(model, StageBars(progress), images)
    checked = done.bfloat16
    for error in (*errors, *(checked.skipped if checked is not None else ())):
        say(f"[yellow]skipped:[/] {escape(str(error))}")
    encoder, critic = done.engines["encoder"], done.engines.get("critic")
    if json:
        print_json(
            {
                "model": str(model),
                "graphs": list(done.graphs),
                "threshold": None if done.threshold is None else list(done.threshold),
                **_engine_facts(encoder),
                "critic": None if critic is None else _engine_facts(critic),
                "bfloat16": None
                if checked is None
                else {
                    "images": checked.images,
                    "largest_change": checked.largest_change,
                    "median_change": checked.median_change,
                    "changed_verdicts": checked.changed_verdicts,
                },
            }
        )
        return
    print_engines(done.engines)
    facts: dict[str, str] = {
        f"engine of the {name}": f"{choice.engine}, {choice.precision}" for name, choice in done.engines.items()
    }
    if checked is not None:
        facts["bfloat16"] = (
            f"no verdict of {checked.images} images changes; scores change by {checked.median_change:.1%} of the "
            f"threshold in the median, {checked.largest_change:.1%} at most"
        )
    facts["graphs"] = ", ".join(f"{size} px" for size in done.graphs) or "no new ones"
    if done.threshold is not None:
        facts["threshold"] = f"{done.threshold[0]:.4g} before, {done.threshold[1]:.4g} now"
    print_facts(f"Prepared {model}", facts)


def print_engines(choices: dict[str, EngineChoice]) -> None:
    """Print the measured engines of each network and the reasons why others were skipped."""
    print_table(
        ("network", "engine", "precision", "time", "largest difference"),
        [
            (
                network,
                one.engine,
                one.precision,
                f"{one.milliseconds / choice.measured[0].milliseconds:.2f} x",
                f"{one.largest_error:.1e}",
            )
            for network, choice in choices.items()
            for one in choice.measured
        ],
    )
    for name, reason in {name: why for choice in choices.values() for name, why in choice.skipped.items()}.items():
        say(f"[dim]{escape(name)}: {escape(reason)}[/]")


def _engine_facts(choice: EngineChoice) -> dict[str, Any]:
    """The fastest engine and all measurements, fastest first, for the JSON output."""
    rows = [
        {
            "engine": one.engine,
            "precision": one.precision,
            "milliseconds": one.milliseconds,
            "largest_error": one.largest_error,
        }
        for one in choice.measured
    ]
    return {"engine": choice.engine, "precision": choice.precision, "engines": rows, "not_installed": choice.skipped}
