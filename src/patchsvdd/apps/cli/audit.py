"""``patchsvdd audit``: who did what, and whether the record of it is whole."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import JsonOption, escape, one_line_errors, print_json, print_table, say, stdout
from patchsvdd.apps.cli.serve import DataOption, StoreOption, open_store, require_extra
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.files import atomic_write

if TYPE_CHECKING:
    from patchsvdd.apps.serve.audit_chain import Entry, Head, Verification
    from patchsvdd.apps.serve.store import Store

SHOWN = 100
"""Characters of an entry's details in a list."""

audit = typer.Typer(help="Show, export and verify who did what.", no_args_is_help=True)


@audit.command("verify", epilog="Example: patchsvdd audit verify patchsvdd-data")
@one_line_errors
def verify(
    target: Annotated[
        Path, typer.Argument(metavar="[DATA_OR_EXPORT]", help="Data folder of a service, or an exported .jsonl file.")
    ] = Path("patchsvdd-data"),
    store: StoreOption = None,
    head: Annotated[
        list[str] | None,
        typer.Option(help="NUMBER:HASH that must be in the chain, or an earlier export; may be given several times."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check every entry of the audit chain; exits with code 1 and names the first entry that is wrong."""
    known = {f"--head {text}": _head(text) for text in head or ()}
    found = _verified_export(target, known) if target.is_file() else _verified_store(target, store, known)
    if json:
        print_json(found.to_json())
    elif found.fault is None:
        stdout().print(f"the chain of {found.head.number:,} entries is whole; its head is {found.head}", markup=False)
    else:
        say(f"the first {found.head.number:,} entries are right; the last of them is {found.head}")
        say(f"[red]error:[/] {escape(found.fault)}")
    if found.fault is not None:
        raise typer.Exit(1)


def _verified_export(path: Path, known: dict[str, Head]) -> Verification:
    from patchsvdd.apps.serve.audit_chain import parse_header, parse_lines, verify

    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        header = parse_header(file.readline())
        return verify(parse_lines(file), {"the first line of the file": header, **known}, header)


def _verified_store(data: Path, store: str | None, known: dict[str, Head]) -> Verification:
    require_extra()
    from patchsvdd.apps.serve.audit_head_file import NAME, read_head

    with _existing_store(data, store) as opened:
        kept = read_head(data / NAME)
        heads = known if kept is None else {"the data folder": kept, **known}
        return opened.verify_audit(heads)


def _head(text: str) -> Head:
    """A head given as NUMBER:HASH or as the path of an export."""
    from patchsvdd.apps.serve.audit_chain import Head, parse_header

    if Path(text).is_file():
        with Path(text).open(encoding="utf-8", errors="replace") as file:
            return parse_header(file.readline())
    return Head.parse(text)


@audit.command("list", epilog="Example: patchsvdd audit list --action review")
@one_line_errors
def list_entries(
    data: DataOption = Path("patchsvdd-data"),
    store: StoreOption = None,
    model: Annotated[str | None, typer.Option(help="Only entries about this model.")] = None,
    who: Annotated[str | None, typer.Option(help="Only entries of this user or key.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, such as review.given, or group of actions, such as review.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of entries; the latest are shown.")] = 50,
    json: JsonOption = False,
) -> None:
    """List the latest entries: number, time, who, action, model, subject and details."""
    require_extra()
    from patchsvdd.apps.serve.audit_store import AuditFilter

    with _existing_store(data, store) as opened:
        found = opened.audit_entries(AuditFilter(model, who, action), limit)
    if json:
        print_json({"entries": [json_module.loads(entry.line()) for entry in found]})
    else:
        columns = ("number", "time", "who", "action", "model", "subject", "details")
        print_table(columns, [_cells(entry) for entry in found])


def _cells(entry: Entry) -> list[str]:
    details = entry.details if len(entry.details) <= SHOWN else f"{entry.details[:SHOWN]}…"
    at = datetime.fromtimestamp(entry.at / 1000).strftime("%Y-%m-%d %H:%M:%S")
    who = f"{entry.who_kind} {entry.who}"
    return [str(entry.number), at, who, entry.action, entry.model or "", entry.subject, details]


@audit.command("export", epilog="Example: patchsvdd audit export audit.jsonl")
@one_line_errors
def export(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The .jsonl file to write.")],
    data: DataOption = Path("patchsvdd-data"),
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write the whole chain as lines of JSON, which `audit verify` checks anywhere."""
    require_extra()
    from patchsvdd.apps.serve.reports.audit_report import jsonl_chunks

    if out.suffix.lower() != ".jsonl":
        raise ConfigError(f"an audit export is a .jsonl file; got '{out}'")
    with _existing_store(data, store) as opened, atomic_write(out) as file:
        for chunk in jsonl_chunks(opened):
            file.write(chunk)
    facts: dict[str, Any] = {"file": str(out), "head": str(_head(str(out)))}
    if json:
        print_json(facts)
    else:
        say(f"wrote {escape(facts['file'])}; the head is {facts['head']}")


@contextmanager
def _existing_store(data: Path, store: str | None) -> Iterator[Store]:
    """The database of a service; raises ConfigError instead of creating one."""
    if store is None and not (data / "inspections.sqlite").is_file():
        raise ConfigError(f"there is no service's data in '{data}'; name its data folder, or its database by `store`")
    with closing(open_store(data, store)) as opened:
        yield opened
