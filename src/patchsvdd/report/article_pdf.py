"""An article as a PDF: the sections of ``article``, without figures that are files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from patchsvdd.report.article import PicturesBlock, Section, TableBlock, Verdict
from patchsvdd.report.pdf_document import BAD, GOOD, QUIET, Document

PER_ROW = 2
"""Pictures side by side."""
FIRST_COLUMN = 2.0
"""Width of the first of several columns, in widths of the others."""


def article_pdf(title: str, *, intro: str, facts: Mapping[str, str], sections: Sequence[Section]) -> bytes:
    """The whole file."""
    document = Document(title, [intro] if intro else [])
    if facts:
        document.space()
        document.table(("About", ""), [(name, value) for name, value in facts.items()], (1, 4))
    for section in sections:
        document.section(section.title)
        if section.lead:
            document.add(section.lead, "lead")
        if section.verdicts:
            document.space(4)
            document.table(("Result", ""), [_verdict(document, one) for one in section.verdicts], (1, 6))
        for block in section.blocks:
            if isinstance(block, TableBlock):
                _table(document, block)
            elif isinstance(block, PicturesBlock):
                _pictures(document, block)
    return document.data()


def _verdict(document: Document, verdict: Verdict) -> tuple[object, str]:
    colour = {True: GOOD, False: BAD, None: QUIET}[verdict.holds]
    return document.text(verdict.label or verdict.result, bold=True, colour=colour), verdict.words


def _table(document: Document, table: TableBlock) -> None:
    document.add(table.caption, "caption")
    others = len(table.columns) - 1
    widths = (FIRST_COLUMN if others > 1 else 1.0, *[1.0] * others)
    document.table(table.columns, table.rows, widths)
    for note in table.notes:
        document.space(2)
        document.add(note, "label")


def _pictures(document: Document, block: PicturesBlock) -> None:
    document.add(block.caption, "caption")
    side = document.width / PER_ROW - 12
    cells = [
        [document.image(one.data, side), document.text(one.caption, bold=True), document.text(one.detail)]
        for one in block.pictures
    ]
    document.grid(cells, PER_ROW)
