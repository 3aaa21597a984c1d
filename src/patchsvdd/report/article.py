"""HTML articles: sections of text, verdicts, tables and figures."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from patchsvdd.report.html_page import asset, facts_list, link, page_end, page_top, text, write_page

MAX_WITHOUT_CONTENTS = 3
"""Largest number of sections of a page without a table of contents."""
MAX_NARROW = 5
"""Largest number of columns of a table that is placed next to another block."""

_NO_FACTS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class TableBlock:
    """A table of plain text. A row whose first cell starts with "mean" is highlighted."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    is_text: bool = False
    """Whether the cells are sentences, which are aligned to the left and wrapped, instead of numbers."""


@dataclass(frozen=True)
class FigureBlock:
    """A figure. As a file it links to its full size; figures are placed side by side if they fit."""

    path: Path
    """Relative to the page's folder."""
    caption: str
    alt: str
    wide: bool = False
    """Whether the figure has the full width and, on a narrow screen, scrolls instead of shrinking."""


@dataclass(frozen=True)
class Picture:
    """An image that is part of the page."""

    data: bytes
    """A JPEG."""
    caption: str
    detail: str = ""
    alt: str = ""
    """What the picture shows; the caption if empty."""


@dataclass(frozen=True)
class PicturesBlock:
    """Pictures side by side, embedded in the page."""

    caption: str
    pictures: Sequence[Picture]


Block = TableBlock | FigureBlock | PicturesBlock


@dataclass(frozen=True)
class Verdict:
    """A claim and whether it holds, or a remark."""

    holds: bool | None
    """None if the numbers do not decide it, and for a remark."""
    words: str
    is_claim: bool = True
    label: str = ""
    """The word of the badge; that of ``result`` if empty."""

    @classmethod
    def remark(cls, words: str) -> Verdict:
        """Something to know that is no claim of the paper."""
        return cls(None, words, is_claim=False)

    @property
    def result(self) -> str:
        """Whether the claim holds, in a word."""
        if not self.is_claim:
            return "note"
        return {True: "confirmed", False: "refuted", None: "undecided"}[self.holds]


@dataclass(frozen=True)
class Section:
    """One part of an article."""

    title: str
    lead: str = ""
    verdicts: Sequence[Verdict] = ()
    blocks: Sequence[Block] = ()
    anchor: str = ""
    """Anchor of the section in links; derived from its number if empty."""


def write_article(
    path: Path,
    *,
    title: str,
    kind: str,
    intro: str = "",
    facts: Mapping[str, str] = _NO_FACTS,
    sections: Sequence[Section],
    overlays: bool = False,
    self_contained: bool = False,
) -> Path:
    """Write a page with facts, contents (if there are many sections) and the sections; return ``path``.

    ``overlays`` adds the legend of heat maps. In a ``self_contained`` page the figures are part of the page.
    """
    folder = path.parent if self_contained else None
    anchors = [section.anchor or f"section-{number}" for number, section in enumerate(sections, start=1)]

    def pieces() -> Iterator[str]:
        yield page_top(title, kind=kind, intro=intro, content="text", style=asset("article.css"))
        yield f'<div class="panel about-run">{facts_list(facts)}</div>\n' if facts else ""
        yield _contents(sections, anchors)
        yield '<div id="content" class="article">\n'
        for section, anchor in zip(sections, anchors, strict=True):
            yield _section(section, anchor, folder)
        yield "</div>\n"
        yield page_end(overlays=overlays)

    return write_page(path, pieces())


def _contents(sections: Sequence[Section], anchors: Sequence[str]) -> str:
    """Links to the sections; an empty string if there are few."""
    if len(sections) <= MAX_WITHOUT_CONTENTS:
        return ""
    items = "".join(
        f'<li><a href="#{link(anchor)}">{text(section.title)}</a></li>'
        for section, anchor in zip(sections, anchors, strict=True)
    )
    return f'<nav class="contents" aria-label="Contents"><h2>Contents</h2><ul role="list">{items}</ul></nav>\n'


def _section(section: Section, anchor: str, folder: Path | None) -> str:
    """A section, with the figures below ``folder`` in it; None for links to them."""
    lead = f'<p class="lead">{text(section.lead)}</p>\n' if section.lead else ""
    verdicts = "".join(map(_verdict, section.verdicts))
    verdicts = f'<ul class="verdicts" role="list">{verdicts}</ul>\n' if verdicts else ""
    blocks = "".join(_block(block, folder) for block in section.blocks)
    blocks = f'<div class="blocks">\n{blocks}</div>\n' if blocks else ""
    return f'<section id="{text(anchor)}"><h2>{text(section.title)}</h2>\n{lead}{verdicts}{blocks}</section>\n'


def _block(block: Block, folder: Path | None) -> str:
    if isinstance(block, FigureBlock):
        return _figure(block, folder)
    return _table(block) if isinstance(block, TableBlock) else _pictures(block)


def _pictures(block: PicturesBlock) -> str:
    """Cards with a picture and its caption."""
    cards = "".join(
        f'<li class="card"><div class="picture"><img src="data:image/jpeg;base64,'
        f'{base64.b64encode(one.data).decode("ascii")}" alt="{text(one.alt or one.caption)}" decoding="async"></div>'
        f'<div class="about"><p class="name">{text(one.caption)}</p><p class="detail">{text(one.detail)}</p></div>'
        f"</li>\n"
        for one in block.pictures
    )
    return (
        f'<figure class="wide"><figcaption>{text(block.caption)}</figcaption>'
        f'<ul class="cards" role="list">{cards}</ul></figure>\n'
    )


def _verdict(verdict: Verdict) -> str:
    """The claim after a badge that shows, by symbol and word, whether it holds."""
    sign = {True: "✓", False: "✕", None: "?" if verdict.is_claim else "i"}[verdict.holds]
    badge = f'<span class="badge"><span aria-hidden="true">{sign}</span>{text(verdict.label or verdict.result)}</span>'
    return f'<li class="{verdict.result}">{badge}<span class="claim">{text(verdict.words)}</span></li>'


def _figure(figure: FigureBlock, folder: Path | None) -> str:
    kind = ' class="wide"' if figure.wide else ""
    if folder is None:
        url = link(figure.path)
        opened, closed = f'<a class="frame" href="{url}">', "</a>"
    else:
        url, opened, closed = _data_uri(folder / figure.path), '<div class="frame">', "</div>"
    return (
        f'<figure{kind}>{opened}<img src="{url}" alt="{text(figure.alt)}" loading="lazy">{closed}'
        f"<figcaption>{text(figure.caption)}</figcaption></figure>\n"
    )


def _data_uri(path: Path) -> str:
    """The file as it is."""
    kind = mimetypes.guess_type(path.name)[0]
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _table(table: TableBlock) -> str:
    """The table in a box that scrolls sideways and can be focused with the keyboard."""
    kind = "table" if len(table.columns) <= MAX_NARROW and not table.is_text else "table wide"
    cells = ' class="sentences"' if table.is_text else ""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in table.columns)
    rows = "\n".join(map(_row, table.rows))
    notes = "".join(f"<li>{text(note)}</li>" for note in table.notes)
    notes = f'<ul class="notes">{notes}</ul>' if notes else ""
    return (
        f'<figure class="{kind}"><figcaption>{text(table.caption)}</figcaption>'
        f'<div class="scroll" role="region" aria-label="{text(table.caption)}" tabindex="0">'
        f"<table{cells}><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>{notes}</figure>\n"
    )


def _row(cells: Sequence[str]) -> str:
    first, *others = cells
    kind = ' class="mean"' if first.startswith("mean") else ""
    values = "".join(f"<td>{text(value)}</td>" for value in others)
    return f'<tr{kind}><th scope="row">{text(first)}</th>{values}</tr>'
