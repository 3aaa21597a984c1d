"""The overview page of several reports: a section per category, with a link to its report."""

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
    """Path of the category's report, relative to the page's folder."""


def write_overview(folder: Path, entries: Sequence[OverviewEntry], *, title: str, intro: str) -> Path:
    """Write ``folder``/index.html with one section per category; return its path."""

    def pieces() -> Iterator[str]:
        yield page_top(title, kind="Overview", intro=intro)
        yield '<div id="content">\n'
        yield from map(_category, entries)
        yield "</div>\n"
        yield page_end()

    return write_page(folder / "index.html", pieces())


def _category(entry: OverviewEntry) -> str:
    """One section of the overview."""
    samples = "".join(_linked_overlay(overlay, f"{entry.name}: {overlay.name}") for overlay in entry.pictures)
    columns = 4 if len(entry.pictures) % 4 == 0 else 3
    return (
        f'<section class="panel category"><div class="head"><h2>{text(entry.name)}</h2>'
        f'<a href="{link(entry.link)}">All images<span aria-hidden="true"> →</span></a></div>'
        f'{facts_list(entry.facts)}<div class="samples" style="--columns:{columns}">{samples}</div></section>\n'
    )


def _linked_overlay(path: Path, alt: str) -> str:
    url = link(path)
    return f'<a class="picture" href="{url}"><img src="{url}" alt="{text(alt)}" loading="lazy" decoding="async"></a>'
