"""The tables in README and docs are what the result files say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conftest import ROOT
from tables import DOCUMENTS, MARKER, TABLES, fill


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_table_differs_from_its_result_file(document: Path) -> None:
    text = document.read_text()
    assert fill(text) == text, "run python benchmarks/tables.py"


def test_every_table_is_shown_somewhere() -> None:
    shown = {match[2] for document in DOCUMENTS for match in MARKER.finditer(document.read_text())}
    assert shown == set(TABLES)


def test_a_changed_number_is_put_right() -> None:
    document = next(path for path in DOCUMENTS if path.name == "README.md")
    text = document.read_text()
    changed = text.replace("| bottle | 0.998 |", "| bottle | 1.000 |")
    assert changed != text
    assert fill(changed) == text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_result_file_that_is_named_exists_and_says_how_it_came_about(document: Path) -> None:
    named = set(re.findall(r"`(?:results/)?([a-z0-9-]+\.json)`", document.read_text()))
    for name in named - {"results.json", "model.json", "about.json", "published.json"}:
        data = json.loads((ROOT / "benchmarks" / "results" / name).read_text())
        assert {"hardware", "date", "commit"} <= set(data), name
