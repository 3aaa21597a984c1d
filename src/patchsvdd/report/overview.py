"""The page above several reports: a section per category, with a link to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchsvdd.report.html_page import facts_list, link, page_end, page_top, text, write_page


@dataclass(frozen=True)
class OverviewEntry:
    """One category on the overview page."""

    name: str
    facts: Mapping[str, str]
    """Short facts, such as "Detection AUROC" → "0.98"."""
    pictures: Sequence[Path]
    """Three to six overlays, relative to the page's folder."""
    link: str
    """The category's own report, as a path relative to the page's folder."""


def write_overview(folder: Path, entries: Sequence[OverviewEntry], *, title: str, intro: str) -> Path:
    """The path of ``folder``/index.html, one section per category."""

    def pieces() -> Iterator[str]:
        yield page_top(title, kind="Overview", intro=intro)
        yield '<div id="content">\n'
        yield from map(_category, entries)
        yield "</div>\n"
        yield page_end()

    return write_page(folder / "index.html", pieces())


def _category(entry: OverviewEntry) -> str:
    """One section of the overview."""
    samples = "".join(_linked_picture(picture, f"{entry.name}: {picture.name}") for picture in entry.pictures)
    columns = 4 if len(entry.pictures) % 4 == 0 else 3
    return (
        f'<section class="panel category"><div class="head"><h2>{text(entry.name)}</h2>'
        f'<a href="{link(entry.link)}">All images<span aria-hidden="true"> →</span></a></div>'
        f'{facts_list(entry.facts)}<div class="samples" style="--columns:{columns}">{samples}</div></section>\n'
    )


def _linked_picture(path: Path, words: str) -> str:
    place = link(path)
    return (
        f'<a class="picture" href="{place}"><img src="{place}" alt="{text(words)}" loading="lazy" decoding="async"></a>'
    )
