"""The documentation builds, its links resolve, its lines are short, and its words are plain."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from patchsvdd.apps.cli import app
from support.parts import ROOT

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, *DOCS]
LINKED = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md"))]
LONGEST_LINE = 120

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- table: \S+ -->.*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
ONLY_A_LINK = re.compile(r"\s*(?:[-*] )?!?\[.*\]\(\S+\)[.,:;]?\s*")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
DURATION = (
    r"about|up to|at most|as long|longer|less|only|some|seconds|minutes|hours|days|an? \w+ (?:second|minute|hour)|\d"
)

WORDS = {
    r"\banew\b": "again, or re-…",
    r"\btold\b": "reported",
    rf"\btakes\b(?! (?:{DURATION}|place|effect|over|part in|account))": "requires, accepts or needs",
    r"\bwhoever\b": "anyone, the client or the user",
    r"\bdrawn defects?\b": "synthetic defects",
    r"\bpass(?:es|ed|ing)? over\b": "ignore",
    r"\bthinn(?:ed|ing)\b": "coreset",
    r"\bin earnest\b|\bin vain\b|\bfor want of\b|\blest\b|\bsave for\b|\bat hand\b": "a plain phrase",
}
"""Words to avoid → what to write instead."""


def of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def written(text: str) -> str:
    """The text without code blocks and generated tables; lines keep their numbers."""
    for pattern in (FENCE, GENERATED):
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    return text


def prose(text: str) -> str:
    """The words of a text, without code, tables that are generated, and addresses of links."""
    return re.sub(r"\]\(\S+\)", "]", CODE.sub("code", written(text)))


def plain(text: str) -> list[str]:
    """Words of a text to avoid, each with its replacement."""
    found = ((match[0], better) for word, better in WORDS.items() for match in re.finditer(word, text, re.IGNORECASE))
    return [f"'{word}': write {better}" for word, better in found]


def test_the_readme_is_a_landing_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    assert len(text.split()) <= 900
    assert len(GENERATED.findall(text)) == 1


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_lines_are_short(page: Path) -> None:
    lines = written(page.read_text(encoding="utf-8")).splitlines()
    free = ("|", "<!--")  # a table's row and a comment cannot be wrapped
    long = [
        f"{of(page)}:{number} has {len(line)} characters"
        for number, line in enumerate(lines, 1)
        if len(line) > LONGEST_LINE and not line.lstrip().startswith(free) and not ONLY_A_LINK.fullmatch(line)
    ]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_words_are_plain(page: Path) -> None:
    lines = prose(page.read_text(encoding="utf-8")).splitlines()
    assert [f"{of(page)}:{number} {said}" for number, line in enumerate(lines, 1) for said in plain(line)] == []


def help_texts(command: Any, name: str = "patchsvdd") -> Iterator[tuple[str, str]]:
    """Every help text of a command and of those below it, with its place."""
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.opts[-1]}", getattr(parameter, "help", None) or ""
    for inner in getattr(command, "commands", {}).values():
        yield from help_texts(inner, f"{name} {inner.name}")


def test_help_texts_are_plain() -> None:
    texts = list(help_texts(typer.main.get_command(app)))
    assert len(texts) > 100
    assert [f"{place}: {said}" for place, text in texts for said in plain(" ".join(text.split()))] == []


def test_the_word_list_allows_durations() -> None:
    assert plain("It takes a folder and is set anew.")
    assert not plain("It takes 3 s, takes about as long, and takes effect at once; it requires a folder.")


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it."""
    words = re.sub(r"[^\w\s-]", "", heading.encode("ascii", "ignore").decode()).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


@functools.cache
def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("page", LINKED, ids=of)
def test_links_resolve(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(CODE.sub("code", text)):
        if link.startswith(("https://", "http://", "../../actions/")):  # other hosts, and the badge of the tests
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{of(page)}: {link}"
        if page in DOCS:
            assert target.is_relative_to(ROOT / "docs"), f"{of(page)}: {link} is not part of the site"
        if anchor:
            assert anchor in anchors(target), f"{of(page)}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_python_in_the_docs_is_valid_and_imports_what_exists(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("patchsvdd"):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), f"{of(page)}: {ast.unparse(node)}"


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *DOCS], ids=of)
def test_modules_that_are_named_exist(page: Path) -> None:
    places = (ROOT, ROOT / "src" / "patchsvdd", ROOT / "src" / "patchsvdd" / "apps", ROOT / "benchmarks")
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z0-9_]+\.py)`", text))
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


def test_the_reference_of_the_command_line_is_that_of_the_help_texts() -> None:
    checked = _run("scripts/cli_reference.py", "--check")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    built = _run("-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site"))
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    page = (tmp_path / "site" / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="patchsvdd.{name}"' in page for name in ("PatchSVDD", "Config", "Inspection", "Roi"))


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
