"""The command line: one small file per command, each a thin skin on the library."""

from __future__ import annotations

from typing import Annotated

import typer

from patchsvdd import __version__
from patchsvdd.cli import benchmark, demo, evaluate, info, inspect, paper, reference, train


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


app = typer.Typer(
    name="patchsvdd",
    help="Find defects in images when all you have is pictures of good parts.",
    epilog="Example: patchsvdd train photos/good --out models/part && "
    "patchsvdd inspect models/part photos/new --out inspected",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", epilog=train.EXAMPLE)(train.train)
app.command("inspect", epilog=inspect.EXAMPLE)(inspect.inspect)
app.command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.evaluate)
app.command("benchmark", epilog=benchmark.EXAMPLE)(benchmark.benchmark)
app.command("paper", epilog=paper.EXAMPLE)(paper.paper)
app.command("import-reference", epilog=reference.EXAMPLE)(reference.import_reference)
app.command("info", epilog=info.EXAMPLE)(info.info)
app.command("demo", epilog=demo.EXAMPLE)(demo.demo)


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the ``patchsvdd`` command."""
    app()
