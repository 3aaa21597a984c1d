"""``patchsvdd prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    json: JsonOption = False,
) -> None:
    """Optimise a model for this machine's CPU: build missing search indexes and choose the fastest engine.

    Run it once for a model trained on a GPU or on another machine. The threshold is recalibrated if the search index
    has changed.
    """
    from patchsvdd.detector.prepare import prepare as run
    from patchsvdd.memory.graph_search import has_faiss

    if not has_faiss():
        say('[yellow]note:[/] FAISS is not installed, so the search stays exact: pip install "patchsvdd\\[fast]"')
    with progress_bar() as progress:
        done = run(model, StageBars(progress))
    if json:
        print_json(
            {
                "model": str(model),
                "graphs": list(done.graphs),
                "threshold": None if done.threshold is None else list(done.threshold),
                "engine": done.engine.engine,
                "engines": engine_rows(done.engine),
                "not_installed": done.engine.skipped,
            }
        )
        return
    print_engines(done.engine)
    facts: dict[str, str] = {"engine": done.engine.engine}
    facts["graphs"] = ", ".join(f"{size} px" for size in done.graphs) or "no new ones"
    if done.threshold is not None:
        facts["threshold"] = f"{done.threshold[0]:.4g} before, {done.threshold[1]:.4g} now"
    print_facts(f"Prepared {model}", facts)


def print_engines(choice: EngineChoice) -> None:
    """Print the measured engines and the reasons why others were skipped."""
    fastest = choice.measured[0].milliseconds if choice.measured else 1.0
    print_table(
        ("engine", "precision", "time", "largest difference"),
        [
            (one.engine, one.precision, f"{one.milliseconds / fastest:.2f} x", f"{one.largest_error:.1e}")
            for one in choice.measured
        ],
    )
    for name, reason in choice.skipped.items():
        say(f"[dim]{escape(name)}: {escape(reason)}[/]")


def engine_rows(choice: EngineChoice) -> list[dict[str, float | str]]:
    """JSON-ready measurements, fastest first."""
    return [
        {
            "engine": one.engine,
            "precision": one.precision,
            "milliseconds": one.milliseconds,
            "largest_error": one.largest_error,
        }
        for one in choice.measured
    ]
