"""PDF documents: fonts for any script, styles, tables and page numbers (with reportlab)."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from patchsvdd.core.errors import ConfigError

GOOD, BAD, INK, QUIET, LINE, SUNK = "#0b6b73", "#b23a09", "#14202a", "#51606b", "#d3dade", "#f1f4f6"
FOLDERS = (Path("/usr/share/fonts/truetype/dejavu"), Path("/usr/share/fonts/dejavu"))
MARGIN = 42
"""Points; a frame of reportlab adds 6 on each side."""
ASIAN = {"kana": "HeiseiKakuGo-W5", "hangul": "HYGothic-Medium", "han": "STSong-Light"}
"""Fonts that PDF readers bring along."""


def require_reportlab() -> None:
    """Raise ConfigError if PDFs cannot be written."""
    if find_spec("reportlab") is None:
        raise ConfigError(
            "PDF reports need the package reportlab, which is not installed: pip install 'patchsvdd[serve]'"
        )


@cache
def _fonts() -> tuple[str, frozenset[int]]:
    """Register the fonts; returns the family's name and the characters it has."""
    from reportlab.lib.fonts import addMapping
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont
    from reportlab.pdfbase.ttfonts import TTFont

    files = [("Vera.ttf", "VeraBd.ttf")]  # part of reportlab: Latin only
    files[:0] = [(str(one / "DejaVuSans.ttf"), str(one / "DejaVuSans-Bold.ttf")) for one in FOLDERS]
    files = [pair for pair in files if not pair[0].startswith("/") or all(Path(one).is_file() for one in pair)]
    plain, bold = files[0]
    font = TTFont("Report", plain)
    pdfmetrics.registerFont(font)
    pdfmetrics.registerFont(TTFont("Report-Bold", bold))
    for weight, name in ((0, "Report"), (1, "Report-Bold")):
        addMapping("Report", weight, 0, name)
        addMapping("Report", weight, 1, name)
    for name in ASIAN.values():
        pdfmetrics.registerFont(UnicodeCIDFont(name))
    return "Report", frozenset(font.face.charToGlyph)


def marked(text: object, *, colour: str | None = None, bold: bool = False) -> str:
    """Text as markup of a paragraph: every character in a font that has it, or as a question mark."""
    text = str(text)
    pieces: list[tuple[str | None, str]] = [(None, text)] if text.isascii() and text.isprintable() else []
    for letter in unicodedata.normalize("NFC", text) if not pieces else "":
        font, letter = _font_of(letter)
        if pieces and pieces[-1][0] == font:
            pieces[-1] = (font, pieces[-1][1] + letter)
        else:
            pieces.append((font, letter))
    words = "".join(
        escape(part) if font is None else f'<font name="{font}">{escape(part)}</font>' for font, part in pieces
    )
    words = f"<b>{words}</b>" if bold else words
    return f'<font color="{colour}">{words}</font>' if colour else words


def _font_of(letter: str) -> tuple[str | None, str]:
    _, known = _fonts()
    code = ord(letter)
    if code in known:
        return None, letter
    name = unicodedata.name(letter, "")
    if name.startswith(("HIRAGANA", "KATAKANA")):
        return ASIAN["kana"], letter
    if name.startswith("HANGUL"):
        return ASIAN["hangul"], letter
    if code < 0x10000 and name.startswith(("CJK", "FULLWIDTH", "IDEOGRAPHIC", "GREEK", "CYRILLIC")):
        return ASIAN["han"], letter
    return None, "?"


class Document:
    """A PDF that is filled from top to bottom."""

    def __init__(self, title: str, lead: Sequence[str]) -> None:
        require_reportlab()
        from reportlab.lib.styles import ParagraphStyle

        family, _ = _fonts()
        base = ParagraphStyle("base", fontName=family, fontSize=8.5, leading=11, textColor=INK, splitLongWords=1)
        self._styles = {
            "base": base,
            "cell": ParagraphStyle("cell", base, fontSize=7.5, leading=9.2),
            "any": ParagraphStyle("any", base, fontSize=7.5, leading=9.2, wordWrap="CJK"),
            "head": ParagraphStyle("head", base, fontSize=7.5, leading=9.2, textColor=QUIET),
            "title": ParagraphStyle("title", base, fontSize=18, leading=23, spaceAfter=2),
            "section": ParagraphStyle(
                "section", base, fontSize=11.5, leading=15, spaceBefore=12, spaceAfter=5, keepWithNext=1
            ),
            "lead": ParagraphStyle("lead", base, textColor=QUIET, fontSize=9, leading=12.5),
            "caption": ParagraphStyle("caption", base, textColor=QUIET, spaceBefore=6, spaceAfter=4, keepWithNext=1),
            "figure": ParagraphStyle("figure", base, fontSize=16, leading=20),
            "label": ParagraphStyle("label", base, fontSize=7.5, leading=9.5, textColor=QUIET),
        }
        self._title = title
        self._story: list[Any] = [self.text(title, "title", bold=True)]
        self._story += [self.text(line, "lead") for line in lead]

    def text(self, words: object, style: str = "cell", **how: Any) -> Any:
        """A paragraph."""
        from reportlab.platypus import Paragraph

        if style == "cell" and not str(words).isascii():
            style = "any"  # breaks lines anywhere, as Chinese and Japanese do; slower
        return Paragraph(marked(words, **how), self._styles[style])

    def add(self, words: object, style: str = "base", **how: Any) -> None:
        """Add a paragraph."""
        self._story.append(self.text(words, style, **how))

    def section(self, title: str) -> None:
        """Add a heading."""
        self.add(title, "section", bold=True)

    def space(self, points: float = 8) -> None:
        """Add an empty line."""
        from reportlab.platypus import Spacer

        self._story.append(Spacer(1, points))

    def figures(self, figures: Sequence[tuple[str, str, str | None]]) -> None:
        """Add key figures in one row: label, value, colour."""
        from reportlab.platypus import Table

        cells = [
            [self.text(value, "figure", bold=True, colour=colour), self.text(label, "label")]
            for label, value, colour in figures
        ]
        width = self.width / len(cells)
        style: list[tuple[Any, ...]] = [("BACKGROUND", (0, 0), (-1, -1), SUNK), ("VALIGN", (0, 0), (-1, -1), "TOP")]
        style += [("TOPPADDING", (0, 0), (-1, -1), 7), ("BOTTOMPADDING", (0, 0), (-1, -1), 8)]
        style += [("LINEAFTER", (0, 0), (-2, -1), 3, "#ffffff")]
        self.space()
        self._story.append(Table([cells], colWidths=[width] * len(cells), style=style))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Any]], widths: Sequence[float]) -> None:
        """Add a table; its head is repeated on every page. ``widths`` are shares of the page's width."""
        from reportlab.platypus import Table

        style: list[tuple[Any, ...]] = [("VALIGN", (0, 0), (-1, -1), "MIDDLE")]
        style += [("LINEBELOW", (0, 0), (-1, -1), 0.4, LINE)]
        style += [("BACKGROUND", (0, 0), (-1, 0), SUNK), ("LEFTPADDING", (0, 0), (-1, -1), 4)]
        style += [("RIGHTPADDING", (0, 0), (-1, -1), 4), ("TOPPADDING", (0, 0), (-1, -1), 2.5)]
        style += [("BOTTOMPADDING", (0, 0), (-1, -1), 3)]
        cells = [[self.text(name, "head", bold=True) for name in head]]
        for row in rows:
            cells.append([self.text(cell) if isinstance(cell, str | int) else cell for cell in row])
        scale = self.width / sum(widths)
        self._story.append(Table(cells, colWidths=[scale * width for width in widths], style=style, repeatRows=1))

    def grid(self, cells: Sequence[Any], columns: int) -> None:
        """Add cells from left to right, in rows of ``columns``; rows are not split across pages."""
        from reportlab.platypus import Table

        rows = [list(cells[start : start + columns]) for start in range(0, len(cells), columns)]
        style: list[tuple[Any, ...]] = [("VALIGN", (0, 0), (-1, -1), "TOP"), ("LEFTPADDING", (0, 0), (-1, -1), 0)]
        style += [("RIGHTPADDING", (0, 0), (-1, -1), 8), ("BOTTOMPADDING", (0, 0), (-1, -1), 8)]
        for row in rows:  # a table each, so that a heading stays with the first row and not with all of them
            row += [""] * (columns - len(row))
            self._story.append(Table([row], colWidths=[self.width / columns] * columns, style=style))

    def image(self, data: bytes, side: float) -> Any:
        """A JPEG, at most ``side`` points wide and high; an empty cell if it cannot be read."""
        from reportlab.platypus import Image

        try:
            image = Image(io.BytesIO(data))
        except OSError:
            return ""
        scale = side / max(image.imageWidth, image.imageHeight)
        image.drawWidth, image.drawHeight = scale * image.imageWidth, scale * image.imageHeight
        return image

    @property
    def width(self) -> float:
        """Points between the margins."""
        return 595.0 - 2 * MARGIN

    def data(self) -> bytes:
        """The finished file."""
        from reportlab.platypus import SimpleDocTemplate

        file = io.BytesIO()
        document = SimpleDocTemplate(
            file, pagesize=(595.28, 841.89), leftMargin=MARGIN - 6, rightMargin=MARGIN - 6, topMargin=44,
            bottomMargin=50, title=self._title, author="patchsvdd", creator="patchsvdd",
        )  # fmt: skip
        document.build(self._story, canvasmaker=_numbered(self._title))
        return file.getvalue()


def _numbered(title: str) -> Callable[..., Any]:
    """A canvas that writes "page 1 of 3", which is known only at the end."""
    from reportlab.pdfgen.canvas import Canvas

    class Numbered(Canvas):  # type: ignore[misc, unused-ignore]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._states: list[dict[str, Any]] = []

        def showPage(self) -> None:  # noqa: N802  # reportlab's name
            self._states.append(dict(self.__dict__))
            self._startPage()

        def save(self) -> None:
            for number, state in enumerate(self._states, 1):
                self.__dict__.update(state)
                self.setFont("Report", 7.5)
                self.setFillColor(QUIET)
                self.drawString(MARGIN, 28, "".join(letter for letter in title if _font_of(letter)[0] is None))
                self.drawRightString(595 - MARGIN, 28, f"page {number} of {len(self._states)}")
                super().showPage()
            super().save()

    return Numbered
