"""The command line: one module per command, each a thin layer over the library."""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from patchsvdd.apps.cli import (
    benchmark,
    calibrate,
    defects,
    demo,
    drift,
    evaluate,
    export,
    info,
    inspect,
    paper,
    prepare,
    serve,
    speed,
    train,
    update,
    user,
    watch,
)
from patchsvdd.apps.cli import import_reference as reference
from patchsvdd.core.version import __version__


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


app = typer.Typer(
    name="patchsvdd",
    help="Find defects in images when all you have are images of good parts.",
    epilog="Example: patchsvdd train photos/good --out models/part && "
    "patchsvdd inspect models/part photos/new --out inspected",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", epilog=train.EXAMPLE)(train.train)
app.command("inspect", epilog=inspect.EXAMPLE)(inspect.inspect)
app.command("watch", epilog=watch.EXAMPLE)(watch.watch)
app.command("serve", epilog=serve.EXAMPLE)(serve.serve)
app.add_typer(serve.keys, name="key")
app.add_typer(user.users, name="user")
app.command("calibrate", epilog=calibrate.EXAMPLE)(calibrate.calibrate)
app.command("update", epilog=update.EXAMPLE)(update.update)
app.command("drift", epilog=drift.EXAMPLE)(drift.drift)
app.command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.evaluate)
app.command("benchmark", epilog=benchmark.EXAMPLE)(benchmark.benchmark)
app.command("paper", epilog=paper.EXAMPLE)(paper.paper)
app.command("import-reference", epilog=reference.EXAMPLE)(reference.import_reference)
app.command("info", epilog=info.EXAMPLE)(info.info)
app.command("prepare", epilog=prepare.EXAMPLE)(prepare.prepare)
app.command("export", epilog=export.EXAMPLE)(export.export)
app.command("speed", epilog=speed.EXAMPLE)(speed.speed)
app.command("defects", epilog=defects.EXAMPLE)(defects.defects)
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
    # PyTorch creates half a million objects: collect garbage less often while they are imported.
    gc.set_threshold(100_000, 50, 50)
    app()
