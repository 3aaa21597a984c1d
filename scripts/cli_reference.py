"""The reference of the command line, docs/reference/cli.md, from the help texts.

python scripts/cli_reference.py            # rewrite it
python scripts/cli_reference.py --check    # fail if it differs from the help texts
"""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from patchsvdd.apps.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
WIDTH = 120
HEAD = """\
# Command line

<!-- Generated from the help texts: python scripts/cli_reference.py -->

`patchsvdd COMMAND --help` prints the same text. Most commands accept `--json` and then print one JSON object on stdout;
progress and warnings go to stderr. [Usage](../usage.md) explains the commands in depth.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | an error, reported in one line on stderr |
| 2 | wrong usage |
| 3 | `--fail-on-anomaly` or `--fail-on-drift` found something, or `accept --require` is not met |
| 130 | interrupted by Ctrl-C |
"""


def page() -> str:
    """The Markdown of the page."""
    root: Any = typer.main.get_command(app)
    found = [section for name, command in root.commands.items() for section in sections(name, command)]
    return "\n".join([HEAD, *found])


def sections(name: str, command: Any) -> Iterator[str]:
    """A section for a command, or for each command of a group."""
    if hasattr(command, "commands"):
        for inner, one in command.commands.items():
            yield from sections(f"{name} {inner}", one)
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    usage = " ".join(("patchsvdd", name, *map(metavar, arguments), "[OPTIONS]"))
    parts = [f"## {name}", paragraphs(command.help or ""), f"```\n{usage}\n```"]
    parts.append("\n".join(item(one) for one in [*arguments, *options]))
    if command.epilog:
        parts.append(f"```\n{command.epilog.removeprefix('Example: ')}\n```")
    yield "\n\n".join(parts) + "\n"


def paragraphs(text: str) -> str:
    """The text with its paragraphs wrapped."""
    blocks = inspect.cleandoc(text).replace("\b", "").split("\n\n")
    return "\n\n".join(wrapped(block) for block in blocks)


def item(parameter: Any) -> str:
    """One line, wrapped, for an argument or option."""
    text = parameter.help or ""
    if parameter.param_type_name == "argument":
        return wrapped(f"- `{metavar(parameter)}`: {text}", indent="  ")
    label = parameter.opts[-1] if parameter.is_flag else f"{parameter.opts[-1]} {metavar(parameter)}"
    if parameter.required:
        text += " Required."
    elif not parameter.is_flag and parameter.default not in (None, "", ()):
        text += f" Default: `{parameter.default}`."
    return wrapped(f"- `{label}`: {text}", indent="  ")


def metavar(parameter: Any) -> str:
    """What stands for the value."""
    return str(parameter.metavar or parameter.name.strip("_").upper().replace("_", "-"))


def wrapped(text: str, indent: str = "") -> str:
    """The text in lines of at most WIDTH characters."""
    return textwrap.fill(
        " ".join(text.split()), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the page differs, and write nothing")
    if parser.parse_args().check:
        if PAGE.read_text(encoding="utf-8") != page():
            raise SystemExit("docs/reference/cli.md differs from the help texts; run python scripts/cli_reference.py")
    else:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
