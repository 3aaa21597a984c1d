"""The tables in README and docs are what the result files say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.parts import ROOT
from tables import DOCUMENTS, MARKER, TABLES, fill, typed_by_hand


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_table_differs_from_its_result_file(document: Path) -> None:
    text = document.read_text()
    assert fill(text) == text, "run python benchmarks/tables.py"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_result_is_typed_by_hand(document: Path) -> None:
    assert typed_by_hand(document.read_text()) == [], "give it a marker and a function in benchmarks/tables.py"


@pytest.mark.parametrize(
    "cell", ["0.98", "3,548", "1.2e-04", "1e-3", "5 %", "51%", "405 ms", "0.8 s", "204 MB", "40 minutes"]
)
def test_a_number_that_looks_measured_needs_a_marker(cell: str) -> None:
    table = f"| part | value |\n|---|---|\n| bottle | {cell} |\n"
    assert typed_by_hand(f"Some text.\n\n{table}\nMore text.\n") == ["| part | value |"]
    assert typed_by_hand(f"<!-- typed: a setting, no result -->\n\n{table}") == []
    assert typed_by_hand(f"<!-- table: parity -->\n\n{table}\n<!-- end -->\n") == []
    assert typed_by_hand(f"```\n{table}```\n") == []
    assert typed_by_hand(f"<!-- typed: a setting, no result -->\n\nSome text.\n\n{table}") == ["| part | value |"]


@pytest.mark.parametrize("cell", ["127.0.0.1", "503", "SHA-256", "float32", "Fig. 3, 9", "`--deadline 0.5`", "K = 64"])
def test_other_numbers_need_none(cell: str) -> None:
    assert typed_by_hand(f"| part | value |\n|---|---|\n| bottle | {cell} |\n") == []


def test_every_table_is_shown_somewhere() -> None:
    shown = {match[2] for document in DOCUMENTS for match in MARKER.finditer(document.read_text())}
    assert shown == set(TABLES)


def test_a_changed_number_is_put_right() -> None:
    document = next(path for path in DOCUMENTS if path.name == "results.md")
    text = document.read_text()
    changed = text.replace("| bottle | 0.998 |", "| bottle | 1.000 |")
    assert changed != text
    assert fill(changed) == text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_result_file_that_is_named_exists_and_says_how_it_came_about(document: Path) -> None:
    named = set(re.findall(r"`(?:results/)?([a-z0-9-]+\.json)`", document.read_text()))
    for name in named - {"results.json", "model.json", "about.json", "published.json", "part.json"}:
        data = json.loads((ROOT / "benchmarks" / "results" / name).read_text())
        assert {"hardware", "date", "commit"} <= set(data), name
