"""The command line: one module per command, each a thin layer over the library."""

from __future__ import annotations

import gc
import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer

from patchsvdd.core.version import __version__

COMMANDS = {
    "train": "train",
    "inspect": "inspect",
    "watch": "watch",
    "serve": "serve",
    "run": "run",
    "cameras": "cameras",
    "calibrate": "calibrate",
    "update": "update",
    "drift": "drift",
    "accept": "accept",
    "evaluate": "evaluate",
    "compare": "compare",
    "benchmark": "benchmark",
    "paper": "paper",
    "import-reference": "import_reference",
    "info": "info",
    "prepare": "prepare",
    "check": "check",
    "export": "export",
    "speed": "speed",
    "defects": "defects",
    "demo": "demo",
}
"""Command → its module, which has a function of the same name, and an EXAMPLE."""
GROUPS = {
    "key": ("serve", "keys"),
    "user": ("user", "users"),
    "audit": ("audit", "audit"),
    "labels": ("labels", "labels"),
    "part": ("part", "part"),
    "product": ("product", "product"),
    "opcua": ("opcua", "opcua"),
}
"""Group of commands → its module, and the name of the group there."""


@cache
def program(only: str | None = None) -> typer.Typer:
    """The program with all its commands, or with a single command or group, which is faster to build."""
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
    app.callback()(_program)
    for name, place in COMMANDS.items():
        if only in (None, name):
            module = import_module(f"{__name__}.{place}")
            app.command(name, epilog=module.EXAMPLE)(getattr(module, place))
    for name, (place, group) in GROUPS.items():
        if only in (None, name):
            app.add_typer(getattr(import_module(f"{__name__}.{place}"), group), name=name)
    return app


def __getattr__(name: str) -> Any:
    """``app``: the program with all its commands."""
    if name == "app":
        return program()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


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
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    program(first if first in COMMANDS or first in GROUPS else None)()
