"""``patchsvdd opcua``: what the OPC UA server of a line needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchsvdd.apps.cli.console import JsonOption, escape, new_password, one_line_errors, print_json, say, stdout

opcua = typer.Typer(
    help="Make a certificate or the hash of a password for the OPC UA server of a line.",
    no_args_is_help=True,
    epilog="Example: patchsvdd opcua certificate --address 192.168.1.5",
)


@opcua.command("certificate", epilog="Example: patchsvdd opcua certificate --address 192.168.1.5 --out certificates")
@one_line_errors
def certificate(
    address: Annotated[
        list[str] | None,
        typer.Option(help="A host name or address by which clients reach the line; repeat for each."),
    ] = None,
    name: Annotated[str, typer.Option(help="`name` of [opcua] in the line's file.")] = "Line",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write to.")] = Path(),
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How long it is valid.")] = 3650,
    json: JsonOption = False,
) -> None:
    """Write a self-signed certificate and its private key, for plants without an authority of their own."""
    from patchsvdd.apps.line.opcua_certificate import create_certificate

    written, key = create_certificate(out, name, address or (), days=days)
    if json:
        print_json({"certificate": str(written), "private_key": str(key)})
        return
    stdout().print(f'certificate = "{written}"\nprivate_key = "{key}"', markup=False, soft_wrap=True)
    say(f"put these lines into \\[opcua] of the line's file; clients must trust {escape(str(written))}")


@opcua.command("password", epilog="Example: patchsvdd opcua password")
@one_line_errors
def password(json: JsonOption = False) -> None:
    """Print the hash of a password for [opcua.users.NAME] (without a terminal: first line of stdin)."""
    from patchsvdd.core.password_hash import hashed

    found = hashed(new_password())
    if json:
        print_json({"password": found})
    else:
        stdout().print(f'password = "{found}"', markup=False, soft_wrap=True)
