"""The library names settings, the command line options that exist, the service fields."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from patchsvdd.apps.cli import app
from patchsvdd.apps.cli.console import with_options
from patchsvdd.apps.serve.problem_details import in_fields
from patchsvdd.apps.serve.settings import Limits
from patchsvdd.core.errors import ConfigError

SOURCE = Path(__file__).parents[2] / "src" / "patchsvdd"
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
OTHERS = {
    "evaluation/run_info.py": {"--always", "--dirty"},  # git's
    "report/report_images.py": {"--fill"},  # a variable of CSS
    "runtime/__main__.py": {"--threshold", "--about", "--json"},  # its own
    "evaluation/speed.py": {"--device", "--out"},  # of a command that it runs
    "report/overview.py": {"--columns"},  # a variable of CSS
    "apps/watch/command.py": {"--line"},  # of a user's command, in an example
}
"""Flags of other programs, by the module that names them."""


def options(command: Any) -> set[str]:
    """Of a command and all below it."""
    found = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    return found.union({"--help"}, *(options(one) for one in getattr(command, "commands", {}).values()))


def flags(source: str) -> Iterator[tuple[int, str]]:
    """Flags that the text of a module names, each with its line; "--{}" for one put together while it runs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "var(--" not in node.value:  # no CSS
            yield from ((node.lineno, flag) for flag in FLAG.findall(node.value))
        if isinstance(node, ast.JoinedStr):
            for before, after in itertools.pairwise(node.values):
                ends = isinstance(before, ast.Constant) and str(before.value).endswith("--")
                if ends and isinstance(after, ast.FormattedValue):
                    yield node.lineno, "--{}"


def test_every_flag_that_is_named_is_an_option() -> None:
    known = options(typer.main.get_command(app))
    assert {"--steps", "--fail-on-drift", "--role", "--version"} <= known
    for path in sorted((SOURCE / "apps" / "cli").rglob("*.py")):
        for line, flag in flags(path.read_text(encoding="utf-8")):
            assert flag in known, f"{path.name}:{line}: {flag}"


def test_only_the_command_line_names_flags() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith("apps/cli/"):
            named = {flag for _, flag in flags(path.read_text(encoding="utf-8"))}
            assert named <= OTHERS.get(name, set()), name


def test_messages_name_settings_as_the_reader_knows_them() -> None:
    message = '`image_size=64` is too small; `crop_size` too; or `overwrite=True`, `lambda_="0.1"`'
    fields = "image_size 64 is too small; crop_size too; or overwrite True, lambda 0.1"
    assert in_fields(message) == fields
    assert with_options(message) == fields.replace("lambda", "lambda_"), "outside a command there are no options"
    with typer.Context(typer.main.get_command(app)):
        shown = with_options(message)
    assert shown == "--image-size 64 is too small; crop_size too; or --overwrite, --lambda 0.1"


def test_flags_are_found() -> None:
    text = "a = f'--{b} must'\nc = ('--clip', f'give {b} --ema')\nd = 'var(--x)'\ne = 'a--b ---'"
    assert sorted(flag for _, flag in flags(text)) == ["--clip", "--ema", "--{}"]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"queue": 0}, "`queue` must be at least 1; got 0"),
        ({"upload_bytes": 0}, "`upload_bytes` must be at least 1"),
        ({"decoders": 0}, "`decoders` must be at least 1"),
        ({"deadline": 0}, "`deadline` must be more than 0 seconds"),
        ({"decode_seconds": 0}, "`decode_seconds` must be more than 0 seconds"),
    ],
    ids=str,
)
def test_limits_name_themselves(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        Limits(**limits)
    assert str(error.value).startswith(words)
