"""``patchsvdd user``: the people who sign in to the service."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from patchsvdd.apps.cli.console import JsonOption, escape, new_password, one_line_errors, print_json, print_table, say
from patchsvdd.apps.cli.serve import DataOption, StoreOption, day, open_store, require_extra
from patchsvdd.core.errors import ConfigError

EXAMPLE = "Example: patchsvdd user add anna --role admin"
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user; upper or lower case.")]

users = typer.Typer(help="Manage the people who sign in to the service.", no_args_is_help=True)


@users.command("add", epilog=EXAMPLE)
@one_line_errors
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the person.")],
    role: Annotated[str, typer.Option(help="inspect, review (inspect and review) or admin (everything).")] = "inspect",
    data: DataOption = Path("patchsvdd-data"),
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Add a user; asks for a password, or a PIN of six or more digits (without a terminal: first line of stdin)."""
    require_extra()
    from patchsvdd.apps.serve.accounts import add_user

    password = new_password()
    with closing(open_store(data, store)) as opened:
        row = add_user(opened, name, role, password)
    if json:
        print_json({"name": row["name"], "role": row["role"]})
    else:
        say(f"added the user '{escape(row['name'])}' with the role {row['role']}")


@users.command("list", epilog="Example: patchsvdd user list")
@one_line_errors
def list_users(data: DataOption = Path("patchsvdd-data"), store: StoreOption = None, json: JsonOption = False) -> None:
    """List all users: name, role, and when they were added, last signed in and were disabled."""
    require_extra()
    with closing(open_store(data, store)) as opened:
        stored = opened.all_users()
    rows = [
        {
            **{"name": row["name"], "role": row["role"], "created": day(row["created"])},
            **{"signed_in": day(row["used"]), "disabled": day(row["disabled"])},
        }
        for row in stored
    ]
    if json:
        print_json({"users": rows})
    else:
        columns = ("name", "role", "created", "signed in", "disabled")
        print_table(columns, [[str(value or "") for value in row.values()] for row in rows])


@users.command("remove", epilog="Example: patchsvdd user remove anna")
@one_line_errors
def remove(name: NameArgument, data: DataOption = Path("patchsvdd-data"), store: StoreOption = None) -> None:
    """Delete a user immediately and end the sessions; reviews keep the name."""
    require_extra()
    with closing(open_store(data, store)) as opened:
        if not opened.delete_user(name):
            raise ConfigError(f"no user is named '{name}'; list all users with patchsvdd user list")
    say(f"deleted the user '{escape(name)}'")


@users.command("reset", epilog="Example: patchsvdd user reset anna")
@one_line_errors
def reset(name: NameArgument, data: DataOption = Path("patchsvdd-data"), store: StoreOption = None) -> None:
    """Give a user a new password or PIN and end the sessions; enables a disabled user."""
    require_extra()
    from patchsvdd.apps.serve.accounts import set_password

    password = new_password()
    with closing(open_store(data, store)) as opened:
        set_password(opened, name, password)
        opened.change_user(name, disabled=None)
    say(f"the user '{escape(name)}' has a new password and is signed out everywhere")
