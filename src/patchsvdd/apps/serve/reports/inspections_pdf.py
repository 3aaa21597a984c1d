"""Inspections of a filter as a PDF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchsvdd.apps.serve.reports.rows import REVIEWS, VERDICTS, in_words, local, percent
from patchsvdd.apps.serve.store import Filter, Row
from patchsvdd.report.pdf_document import BAD, GOOD, Document

MOST = 500
"""Inspections in one PDF."""
SIDE = 46.0
"""Points of a thumbnail."""
HEAD = ("Picture", "Time", "Image", "Model", "Part", "Verdict", "Score", "Review")
WIDTHS = (54, 54, 104, 60, 76, 62, 42, 76)


def inspections_pdf(
    where: Filter,
    counts: Mapping[str, Mapping[str, int]],
    rows: Sequence[Row],
    pictures: Mapping[str, bytes],
    at: float,
) -> bytes:
    """A report of the latest inspections of a filter. ``counts`` are those of all, by verdict and review."""
    verdicts, reviews = counts["verdict"], counts["review"]
    total, alarms = sum(verdicts.values()), verdicts.get("anomalous", 0)
    document = Document("Inspections", [in_words(where), f"Made {local(at, seconds=False)}"])
    document.figures(
        [
            ("inspected", f"{total:,}", None),
            ("yield (judged good)", percent((total - alarms) / total if total else None), GOOD),
            ("alarms", f"{alarms:,}", BAD),
            ("false alarms", f"{reviews.get('false_alarm', 0):,}", None),
            ("true defects", f"{reviews.get('true_defect', 0):,}", None),
        ]
    )
    document.space()
    if len(rows) < total:
        document.add(
            f"The latest {len(rows):,} of {total:,} inspections are listed; {total - len(rows):,} older ones are left "
            "out. The CSV has all.",
            "lead",
        )
        document.space(6)
    if rows:
        document.table(HEAD, [inspection_cells(document, row, pictures) for row in rows], WIDTHS)
    else:
        document.add("No inspection matches.", "lead")
    return document.data()


def inspection_cells(document: Document, row: Row, pictures: Mapping[str, bytes]) -> list[Any]:
    """The cells of HEAD."""
    anomalous = row["verdict"] == "anomalous"
    data = pictures.get(row["id"])
    where = (("SN", row.get("serial")), ("lot", row.get("lot")), ("line", row.get("line")), ("st.", row.get("station")))
    review = REVIEWS[row["review"]] if row["review"] else ""
    said = [review, f"by {row['reviewed_by']}" if review else "", row["note"] or ""]
    ratio = f"{row['score'] / row['threshold']:.3g}×" if row["threshold"] else f"{row['score']:.3g}"
    return [
        document.image(data, SIDE) if data is not None else "",
        local(row["at"]),
        row["name"],
        row["model"],
        ", ".join(f"{name} {value}" for name, value in where if value),
        document.text(VERDICTS[row["verdict"]], bold=anomalous, colour=BAD if anomalous else GOOD),
        ratio,
        "; ".join(part for part in said if part)[:300],
    ]
