"""The report of a shift as a PDF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchsvdd.apps.serve.reports.inspections_pdf import HEAD, WIDTHS, inspection_cells
from patchsvdd.apps.serve.reports.rows import REVIEWS, percent
from patchsvdd.apps.serve.reports.shift_html import changes, clock, figures, quality
from patchsvdd.apps.serve.store import Row
from patchsvdd.report.pdf_document import BAD, GOOD, Document

COLOURS = {"good": GOOD, "anomalous": BAD}


def shift_pdf(facts: Mapping[str, Any], alarms: Sequence[Row], pictures: Mapping[str, bytes]) -> bytes:
    """The whole file."""
    document = Document("Shift report", [f"{clock(facts['start'])} to {clock(facts['end'])}"])
    document.figures([(name, value, COLOURS.get(kind)) for kind, name, value in figures(facts)])
    document.section("False alarms and misses")
    for line in quality(facts):
        document.add(line)
    document.section("Models")
    rows = [(one["name"], *_numbers(one), f"{one['to_review']:,}") for one in facts["models"]]
    document.table(("Model", "Inspected", "Yield", "Alarms", "To review"), rows, (200, 70, 70, 70, 70))
    if facts["stations"]:
        document.section("Lines and stations")
        places = [(one["line"] or "–", one["station"] or "–", *_numbers(one)) for one in facts["stations"]]
        document.table(("Line", "Station", "Inspected", "Yield", "Alarms"), places, (120, 120, 70, 70, 70))
    document.section("Over time")
    times = [(f"{clock(one['start'])} – {clock(one['end'])[11:]}", *_numbers(one)) for one in facts["buckets"]]
    document.table(("From – to", "Inspected", "Yield", "Alarms"), times, (200, 70, 70, 70))
    if facts["reviews"]:
        document.section("Reviews")
        said = [(one["by"], REVIEWS[one["verdict"]], f"{one['count']:,}") for one in facts["reviews"]]
        document.table(("Person", "Verdict", "Parts"), said, (200, 120, 70))
    document.section("Changes")
    for line in changes(facts):
        document.add(line)
    document.section("Alarms")
    if alarms:
        document.table(HEAD, [inspection_cells(document, row, pictures) for row in alarms], WIDTHS)
    else:
        document.add("No alarm.")
    if facts["left_out"]:
        document.add(f"{facts['left_out']:,} older alarms are not listed; the history has them.", "lead")
    return document.data()


def _numbers(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{one['inspected']:,}", percent(one["yield"]), f"{one['anomalous']:,}"
