"""The pages people look at: one report per run, worst image first, and an overview of several runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from patchsvdd.output.chart import ScoreHistogram, short_ratio
from patchsvdd.output.page import facts_list, link, page_end, page_top, text, write_page

Row = dict[str, Any]
Rows = Callable[[], Iterator[Row]]
"""Starts a new pass over the rows of a run, worst first."""

MAX_CARDS = 20_000
"""Pictures a browser still scrolls through with ease; the images with the lowest scores are left out."""

_STATUSES = {"anomalous": "Anomalous", "good": "Good", "unjudged": "Not calibrated", "unreadable": "Unreadable"}
_SIGNS = {"anomalous": "▲", "good": "✓", "unjudged": "–", "unreadable": "✕"}


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


def write_report(
    folder: Path,
    rows: Rows,
    *,
    title: str,
    facts: Mapping[str, str],
    summary: Mapping[str, str] | None = None,
) -> Path:
    """The path of ``folder``/index.html, written row by row.

    ``rows`` is called once per pass and yields the rows of results.jsonl, worst first. ``summary`` adds
    figures to the totals at the top; ``facts`` says how the run was made.
    """
    counts: Counter[str] = Counter()
    histogram = ScoreHistogram()
    for row in rows():
        status = _status(row)
        counts[status] += 1
        if status != "unreadable":
            histogram.add(float(row["score"]), row.get("threshold"))

    def pieces() -> Iterator[str]:
        yield page_top(title, kind="Inspection report")
        yield _totals(counts, summary or {})
        yield _run(histogram, facts)
        yield _tools(counts)
        yield from _cards(rows, counts)
        yield from _unreadable(rows, counts)
        yield page_end(script=_SCRIPT)

    return write_page(folder / "index.html", pieces())


def write_overview(folder: Path, entries: Sequence[OverviewEntry], *, title: str, intro: str) -> Path:
    """The path of ``folder``/index.html, one section per category."""

    def pieces() -> Iterator[str]:
        yield page_top(title, kind="Overview", intro=intro)
        yield '<div id="content">\n'
        yield from map(_category, entries)
        yield "</div>\n"
        yield page_end()

    return write_page(folder / "index.html", pieces())


def _status(row: Row) -> str:
    """One of ``_STATUSES``."""
    if "error" in row or row.get("score") is None:
        return "unreadable"
    if row.get("threshold") is None:
        return "unjudged"
    return "anomalous" if row.get("is_anomalous", row.get("verdict") == "anomalous") else "good"


def _totals(counts: Counter[str], summary: Mapping[str, str]) -> str:
    """The figures at the top."""
    tiles = [("", "Images", f"{counts.total():,}")]
    tiles += [(status, _STATUSES[status], f"{counts[status]:,}") for status in _offered(counts)]
    tiles += [("", name, value) for name, value in summary.items()]
    cells = "".join(
        f'<div class="total {kind}"><dt>{text(name)}</dt><dd>{text(value)}</dd></div>' for kind, name, value in tiles
    )
    return f'<dl class="totals">{cells}</dl>\n'


def _offered(counts: Counter[str]) -> list[str]:
    """The statuses worth a total and a button: "not calibrated" takes the place of the verdicts."""
    verdicts = ["anomalous", "good"] if counts["anomalous"] + counts["good"] or not counts["unjudged"] else []
    return verdicts + ["unjudged"] * bool(counts["unjudged"]) + ["unreadable"]


def _run(histogram: ScoreHistogram, facts: Mapping[str, str]) -> str:
    """The score chart beside the facts."""
    chart = histogram.to_html()
    panels = ""
    if chart:
        panels += f'<section class="panel"><h2>Scores</h2>{chart}</section>'
    if facts:
        panels += f'<section class="panel"><h2>This run</h2>{facts_list(facts)}</section>'
    return f'<div class="overview">{panels}</div>\n' if panels else ""


def _tools(counts: Counter[str]) -> str:
    """The filter buttons; hidden until the script that serves them runs."""
    buttons = _button("all", "All", counts.total(), pressed=True)
    buttons += "".join(_button(status, _STATUSES[status], counts[status]) for status in _offered(counts))
    return (
        f'<div class="tools" role="group" aria-label="Filter the images" hidden>{buttons}'
        '<input type="search" placeholder="Find a file name" aria-label="Find a file name">'
        '<span class="shown" role="status"></span></div>\n'
    )


def _button(status: str, words: str, count: int, *, pressed: bool = False) -> str:
    disabled = "" if count or status == "all" else " disabled"
    return (
        f'<button type="button" data-show="{status}" aria-pressed="{str(pressed).lower()}"{disabled}>'
        f"{words} <small>{count:,}</small></button>"
    )


def _cards(rows: Rows, counts: Counter[str]) -> Iterator[str]:
    """The grid of images that were read."""
    yield '<h2 class="skip">Images</h2>\n<ul class="cards" id="content" role="list">\n'
    readable = (row for row in rows() if _status(row) != "unreadable")
    for index, row in enumerate(islice(readable, MAX_CARDS)):
        yield _card(row, index)
    yield "</ul>\n"
    left_out = counts.total() - counts["unreadable"] - MAX_CARDS
    if left_out > 0:
        yield (
            f'<p class="rest">Not shown, for their scores are the lowest: {left_out:,}. All are in '
            '<a href="results.csv">results.csv</a>.</p>\n'
        )
    yield '<p class="empty" hidden>No image matches.</p>\n'


def _card(row: Row, index: int) -> str:
    status = _status(row)
    score, threshold = float(row["score"]), row.get("threshold")
    regions = len(row.get("regions", ()))
    detail = [f"score {score:.3g}", "1 region" if regions == 1 else f"{regions} regions"]
    ratio = gauge = ""
    if threshold is not None:
        multiple = score / threshold if threshold > 0 else math.inf
        if math.isfinite(multiple):
            ratio = f'<span class="ratio">{short_ratio(multiple)}× threshold</span>'
        gauge = f'<span class="gauge" style="--fill:{min(100.0, 100 / 3 * multiple):.1f}%" aria-hidden="true"></span>'
    return (
        f'<li class="card {status}">{_picture(row, status, index)}<div class="about">{_name(row["image"])}'
        f'<p class="verdict">{_badge(status)}{ratio}</p>'
        f'<p class="detail">{" · ".join(detail)}</p>{gauge}</div></li>\n'
    )


def _picture(row: Row, status: str, index: int) -> str:
    if not row.get("overlay"):
        return ""
    words = f"{row['image']}: {_STATUSES[status].lower()}; outlined regions and heat map"
    return _linked_picture(row["overlay"], words, lazy=index >= 4)


def _linked_picture(path: str | Path, words: str, *, lazy: bool = True) -> str:
    loading = ' loading="lazy" decoding="async"' if lazy else ""
    return f'<a class="picture" href="{link(path)}"><img src="{link(path)}" alt="{text(words)}"{loading}></a>'


def _name(image: str) -> str:
    path = PurePosixPath(image)
    parent = "" if str(path.parent) == "." else f"<span>{text(path.parent)}/</span><wbr>"
    return f'<h3 class="name">{parent}{text(path.name)}</h3>'


def _badge(status: str) -> str:
    return f'<span class="badge"><span aria-hidden="true">{_SIGNS[status]}</span>{_STATUSES[status]}</span>'


def _unreadable(rows: Rows, counts: Counter[str]) -> Iterator[str]:
    """The list of images that could not be read, with the reason of each."""
    if not counts["unreadable"]:
        return
    yield '<section class="broken"><h2>Images that could not be read</h2><ul role="list">\n'
    for row in islice((row for row in rows() if _status(row) == "unreadable"), MAX_CARDS):
        reason = text(row.get("error", "no score"))
        yield f'<li class="card unreadable">{_name(row["image"])}<p class="detail">{reason}</p></li>\n'
    yield "</ul></section>\n"


def _category(entry: OverviewEntry) -> str:
    """One section of the overview."""
    samples = "".join(_linked_picture(picture, f"{entry.name}: {picture.name}") for picture in entry.pictures)
    columns = 4 if len(entry.pictures) % 4 == 0 else 3
    return (
        f'<section class="panel category"><div class="head"><h2>{text(entry.name)}</h2>'
        f'<a href="{link(entry.link)}">All images<span aria-hidden="true"> →</span></a></div>'
        f'{facts_list(entry.facts)}<div class="samples" style="--columns:{columns}">{samples}</div></section>\n'
    )


_SCRIPT = """
const tools = document.querySelector('.tools'), search = tools.querySelector('input');
const buttons = [...tools.querySelectorAll('button')], cards = [...document.querySelectorAll('.card')];
const names = cards.map(card => card.querySelector('.name').textContent.toLowerCase());
let show = 'all';
function update() {
  const wanted = search.value.trim().toLowerCase();
  let shown = 0;
  cards.forEach((card, index) => {
    card.hidden = !((show === 'all' || card.classList.contains(show)) && names[index].includes(wanted));
    shown += !card.hidden;
  });
  buttons.forEach(button => button.setAttribute('aria-pressed', button.dataset.show === show));
  const broken = document.querySelector('.broken');
  if (broken) broken.hidden = !broken.querySelector('.card:not([hidden])');
  document.querySelector('.empty').hidden = shown > 0;
  tools.querySelector('.shown').textContent =
    shown === cards.length ? '' : `${shown.toLocaleString('en')} of ${cards.length.toLocaleString('en')} images`;
}
function follow() {
  const asked = buttons.find(button => button.dataset.show === location.hash.slice(1) && !button.disabled);
  show = asked ? asked.dataset.show : 'all';
  update();
}
buttons.forEach(button => button.addEventListener('click', () => {
  show = button.dataset.show;
  history.replaceState(null, '', show === 'all' ? location.pathname + location.search : '#' + show);
  update();
}));
search.addEventListener('input', update);
addEventListener('hashchange', follow);
tools.hidden = false;
follow();
"""
