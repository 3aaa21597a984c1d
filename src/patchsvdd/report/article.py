"""A page of sections: words, verdicts, tables and figures, as results are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from patchsvdd.report.html_page import facts_list, link, page_end, page_top, text, write_page

MAX_WITHOUT_CONTENTS = 3
"""Sections a page may have before it opens with a table of contents."""
MAX_NARROW = 5
"""Columns a table may have and still stand beside another block."""

_NO_FACTS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class TableBlock:
    """A table of plain text. A row whose first cell starts with "mean" is set apart from the others."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class FigureBlock:
    """A picture, linked to its full size. It stands beside its neighbours where there is room."""

    path: Path
    """Relative to the page's folder."""
    caption: str
    alt: str
    wide: bool = False
    """Whether it takes a line of its own and scrolls, rather than shrinks, on a narrow screen."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds; None while that is open."""

    holds: bool | None
    words: str


@dataclass(frozen=True)
class Section:
    """One part of an article."""

    title: str
    lead: str = ""
    verdicts: Sequence[Verdict] = ()
    blocks: Sequence[TableBlock | FigureBlock] = ()
    anchor: str = ""
    """What links to the section end in; its number if empty."""


def write_article(
    path: Path,
    *,
    title: str,
    kind: str,
    intro: str = "",
    facts: Mapping[str, str] = _NO_FACTS,
    sections: Sequence[Section],
) -> Path:
    """``path``, now a page with the facts, a table of contents if there is much, and the sections."""
    anchors = [section.anchor or f"section-{number}" for number, section in enumerate(sections, start=1)]

    def pieces() -> Iterator[str]:
        yield page_top(title, kind=kind, intro=intro, content="text", style=_STYLE)
        yield f'<div class="panel about-run">{facts_list(facts)}</div>\n' if facts else ""
        yield _contents(sections, anchors)
        yield '<div id="content" class="article">\n'
        yield from map(_section, sections, anchors)
        yield "</div>\n"
        yield page_end(overlays=False)

    return write_page(path, pieces())


def _contents(sections: Sequence[Section], anchors: Sequence[str]) -> str:
    """Links to the sections; empty text for few of them."""
    if len(sections) <= MAX_WITHOUT_CONTENTS:
        return ""
    items = "".join(
        f'<li><a href="#{link(anchor)}">{text(section.title)}</a></li>'
        for section, anchor in zip(sections, anchors, strict=True)
    )
    return f'<nav class="contents" aria-label="Contents"><h2>Contents</h2><ul role="list">{items}</ul></nav>\n'


def _section(section: Section, anchor: str) -> str:
    lead = f'<p class="lead">{text(section.lead)}</p>\n' if section.lead else ""
    verdicts = "".join(map(_verdict, section.verdicts))
    verdicts = f'<ul class="verdicts" role="list">{verdicts}</ul>\n' if verdicts else ""
    blocks = "".join(_figure(block) if isinstance(block, FigureBlock) else _table(block) for block in section.blocks)
    blocks = f'<div class="blocks">\n{blocks}</div>\n' if blocks else ""
    return f'<section id="{text(anchor)}"><h2>{text(section.title)}</h2>\n{lead}{verdicts}{blocks}</section>\n'


def _verdict(verdict: Verdict) -> str:
    """The claim after a badge that says by sign and word whether it holds."""
    sign, word = {True: ("✓", "confirmed"), False: ("✕", "refuted"), None: ("?", "open")}[verdict.holds]
    badge = f'<span class="badge"><span aria-hidden="true">{sign}</span>{word}</span>'
    return f'<li class="{word}">{badge}<span class="claim">{text(verdict.words)}</span></li>'


def _figure(figure: FigureBlock) -> str:
    kind = ' class="wide"' if figure.wide else ""
    place = link(figure.path)
    return (
        f'<figure{kind}><a class="frame" href="{place}"><img src="{place}" alt="{text(figure.alt)}" loading="lazy">'
        f"</a><figcaption>{text(figure.caption)}</figcaption></figure>\n"
    )


def _table(table: TableBlock) -> str:
    """The table in a box of its own, in which it scrolls sideways; the keyboard reaches the box too."""
    kind = "table" if len(table.columns) <= MAX_NARROW else "table wide"
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in table.columns)
    rows = "\n".join(map(_row, table.rows))
    notes = "".join(f"<li>{text(note)}</li>" for note in table.notes)
    notes = f'<ul class="notes">{notes}</ul>' if notes else ""
    return (
        f'<figure class="{kind}"><figcaption>{text(table.caption)}</figcaption>'
        f'<div class="scroll" role="region" aria-label="{text(table.caption)}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>{notes}</figure>\n"
    )


def _row(cells: Sequence[str]) -> str:
    first, *others = cells
    kind = ' class="mean"' if first.startswith("mean") else ""
    values = "".join(f"<td>{text(value)}</td>" for value in others)
    return f'<tr{kind}><th scope="row">{text(first)}</th>{values}</tr>'


_STYLE = """
.about-run .facts { margin-top: 0; }
.contents { margin-top: 1.5rem; }
.contents h2 { font-size: .8125rem; font-weight: 400; color: var(--soft); }
.contents ul { display: flex; flex-wrap: wrap; gap: .375rem 1.25rem; margin-top: .25rem; }
.contents li { max-width: 100%; overflow-wrap: anywhere; }
.contents a { color: var(--focus); text-underline-offset: .2em; }
.article > section { margin-top: clamp(2.5rem, 6vw, 4rem); scroll-margin-top: 1rem; }
.article h2 { font-size: 1.5rem; line-height: 1.25; letter-spacing: -.015em; overflow-wrap: anywhere; }
.lead { margin-top: .5rem; max-width: 46rem; color: var(--soft); overflow-wrap: anywhere; }

.verdicts { display: grid; gap: .625rem; margin-top: 1rem; max-width: 52rem; }
.verdicts li { display: flex; flex-wrap: wrap; gap: .25rem .75rem; align-items: baseline; }
.verdicts .badge { flex: none; min-width: 7.25rem; }
.verdicts .claim { flex: 1 1 16rem; overflow-wrap: anywhere; }
.confirmed .badge { color: var(--cool); background: var(--cool-fill); }
.refuted .badge { color: var(--warm); background: var(--warm-fill); }
.open .badge { color: var(--none); background: var(--none-fill); border-style: dashed; }

.blocks { display: grid; gap: 1.5rem 1.25rem; align-items: start; margin-top: 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr)); }
.wide { grid-column: 1 / -1; }
figure { margin: 0; min-width: 0; }
figcaption { color: var(--soft); font-size: .875rem; max-width: 46rem; overflow-wrap: anywhere; }
.frame, .scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 14px; box-shadow: var(--shadow);
  width: fit-content; max-width: 100%; }
.frame { display: block; padding: .75rem; background: #fff; margin-bottom: .5rem; }
.frame img { display: block; max-width: 100%; height: auto; color: #444; font-size: .875rem; }
.wide .frame img { max-width: max(100%, 48rem); }

/* A shade at the right edge, which the end of the table covers: there is more to scroll to. */
.scroll { margin-top: .5rem; background:
    linear-gradient(to left, var(--card) 40%, transparent) right / 3rem 100% no-repeat local,
    linear-gradient(to left, rgb(120 125 130 / .4), transparent) right / .875rem 100% no-repeat scroll,
    var(--card); }
table { border-collapse: collapse; font-size: .9375rem; }
th, td { padding: .4375rem .75rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
th:first-child { position: sticky; left: 0; text-align: left; background: var(--card); padding-left: 1.125rem;
  white-space: normal; overflow-wrap: break-word; max-width: min(16rem, 40vw); }
td:last-child, thead th:last-child { padding-right: 1.125rem; }
thead th { border-top: 0; color: var(--soft); font-size: .8125rem; font-weight: 600; vertical-align: bottom;
  white-space: normal; }
tbody th { font-weight: 500; }
.mean th, .mean td { font-weight: 650; }
tr:not(.mean) + .mean > * { border-top: 2px solid var(--soft); }
.notes { margin-top: .625rem; color: var(--soft); font-size: .8125rem; max-width: 52rem; display: grid; gap: .25rem;
  overflow-wrap: anywhere; }
@media (max-width: 500px) { th, td { padding-inline: .5rem; } }
@media print {
  .article h2, .lead, .table figcaption { break-after: avoid; }
  .article figure:not(.table), tr { break-inside: avoid; }
  .contents { display: none; }
  .scroll, .frame { overflow: visible; padding: 0; border: 0; border-radius: 0; background: none; }
  .wide .frame img { max-width: 100%; }
  table { font-size: .8125rem; }
  th, td { padding: .25rem .375rem; }
  th:first-child { position: static; padding-left: 0; }
}
"""
