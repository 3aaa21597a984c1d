"""The HTML report of a run: one self-contained file, worst image first, for screen and print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from patchsvdd.report.embedded_images import ROOM, EmbeddedImages, embed
from patchsvdd.report.html_page import asset, facts_list, page_end, page_top, text, write_page
from patchsvdd.report.model_card import ModelCard
from patchsvdd.report.report_images import STATUSES, ImageItems, Row, name_of, status_of
from patchsvdd.report.score_histogram import ScoreHistogram
from patchsvdd.report.trade_off_chart import chart, class_table, threshold_table

Rows = Callable[[], Iterator[Row]]
"""Returns a new iterator over the rows of a run, worst first."""

MAX_CASES = 100
"""Largest number of anomalous images shown with overlay, regions and reasons; the rest are rows of a table."""
MAX_CARDS = 48
"""Largest number of other images shown with an overlay: those nearest to the threshold."""
MAX_LINES = 20_000
"""Largest number of table rows, so that browsers still scroll smoothly; the lowest scores are left out."""


def write_report(
    folder: Path,
    rows: Rows,
    *,
    title: str,
    facts: Mapping[str, str],
    model: ModelCard | None = None,
    summary: Mapping[str, str] | None = None,
) -> Path:
    """Write ``folder``/index.html row by row; return its path.

    ``rows`` is called once per pass and yields the rows of results.jsonl, worst first. Their overlays are
    read from ``folder`` and embedded. ``summary`` adds numbers to the totals; ``facts`` describes the run.
    """
    model = model or ModelCard()
    counts: Counter[str] = Counter()
    histogram = ScoreHistogram()
    for row in rows():
        status = status_of(row)
        counts[status] += 1
        if status != "unreadable":
            histogram.add(float(row["score"]), row.get("threshold"))
    items = ImageItems(EmbeddedImages(folder, ROOM), model.p_value)

    def pieces() -> Iterator[str]:
        yield page_top(title, kind="Inspection report", style=asset("report.css"))
        yield _totals(counts, summary or {})
        yield _guarantee(counts, model)
        yield _run(histogram, facts)
        yield _trade_off(model)
        yield _tools(counts)
        yield '<div id="content">\n'
        yield from _images(rows, counts, items)
        yield '<p class="empty" hidden>No image matches.</p>\n'
        yield from _unreadable(rows, counts)
        yield "</div>\n"
        yield from _unusual(model)
        yield _provenance(model)
        yield page_end(script=asset("report.js"))

    return write_page(folder / "index.html", pieces())


def _totals(counts: Counter[str], summary: Mapping[str, str]) -> str:
    """The numbers at the top."""
    tiles = [("", "Images", f"{counts.total():,}")]
    tiles += [(status, STATUSES[status], f"{counts[status]:,}") for status in _offered(counts)]
    judged = counts["anomalous"] + counts["good"]
    if judged:
        tiles.append(("", "Anomalous verdicts", f"{counts['anomalous'] / judged:.1%}"))
    tiles += [("", name, value) for name, value in summary.items()]
    cells = "".join(
        f'<div class="total {kind}"><dt>{text(name)}</dt><dd>{text(value)}</dd></div>' for kind, name, value in tiles
    )
    return f'<dl class="totals">{cells}</dl>\n'


def _guarantee(counts: Counter[str], model: ModelCard) -> str:
    """What to expect of the threshold, and the expected false alarms if every image were good."""
    if not model.promise:
        return ""
    judged = counts["anomalous"] + counts["good"]
    topic = "False alarms and misses" if model.trade_off is not None else "False alarms"
    words = f"<strong>{topic}.</strong> {text(model.promise)}"
    if judged and model.rate is not None:
        expected = model.rate * judged
        alarms = f"at most {expected:,.0f}" if expected >= 1 else "fewer than one"
        words += f" If all {judged:,} images were good, {alarms} would be called anomalous on average."
    if model.caveat:
        words += f' <span class="caveat">Note: {text(model.caveat)}.</span>'
    return f'<p class="promise panel">{words}</p>\n'


def _offered(counts: Counter[str]) -> list[str]:
    """The statuses that get a total and a button: "not calibrated" replaces the verdicts."""
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


def _trade_off(model: ModelCard) -> str:
    """The chart of false alarms against misses, and its numbers."""
    if model.trade_off is None or model.curve is None:
        return ""
    return (
        f'<section class="panel trade-off"><h2>False alarms and misses over the threshold</h2>{chart(model.curve)}'
        f'<details class="numbers"><summary>The chart as a table</summary>{threshold_table(model.trade_off)}</details>'
        "</section>\n"
    )


def _tools(counts: Counter[str]) -> str:
    """The filter buttons; hidden until the script has loaded."""
    buttons = _button("all", "All", counts.total(), pressed=True)
    buttons += "".join(_button(status, STATUSES[status], counts[status]) for status in _offered(counts))
    return (
        f'<div class="tools" role="group" aria-label="Filter the images" hidden>{buttons}'
        '<button type="button" class="expand" aria-pressed="false">Expand all reasons</button>'
        '<input type="search" placeholder="Find a file name" aria-label="Find a file name">'
        '<span class="shown" role="status"></span></div>\n'
    )


def _button(status: str, words: str, count: int, *, pressed: bool = False) -> str:
    disabled = "" if count or status == "all" else " disabled"
    return (
        f'<button type="button" data-show="{status}" aria-pressed="{str(pressed).lower()}"{disabled}>'
        f"{words} <small>{count:,}</small></button>"
    )


def _images(rows: Rows, counts: Counter[str], items: ImageItems) -> Iterator[str]:
    """Three sections: anomalous images in detail, some others with overlays, and a table of the rest."""
    if counts["anomalous"]:
        yield _section_top("Anomalous images, worst first", "cases", items.note())
        yield from map(items.case, islice(_having(rows, anomalous=True), MAX_CASES))
        yield "</ul></section>\n"
    others = counts["good"] + counts["unjudged"]
    if others:
        words = "Good images, nearest to the threshold first" if counts["good"] else "Images, highest score first"
        yield _section_top(words, "cards")
        yield from map(items.card, islice(_having(rows, anomalous=False), MAX_CARDS))
        yield "</ul></section>\n"
    yield from _lines(rows, counts, items)


def _section_top(words: str, kind: str, note: str = "") -> str:
    lead = f'<p class="caption">{note}</p>' if note else ""
    return f'<section class="images"><h2>{words}</h2>{lead}\n<ul class="{kind}" role="list">\n'


def _lines(rows: Rows, counts: Counter[str], items: ImageItems) -> Iterator[str]:
    """The table of the images that are not shown above, worst first."""
    left = max(0, counts["anomalous"] - MAX_CASES) + max(0, counts["good"] + counts["unjudged"] - MAX_CARDS)
    if not left:
        return
    yield (
        f'<section class="images"><h2>The other {left:,} images</h2><table class="lines"><thead><tr>'
        '<th scope="col">Image</th><th scope="col">Verdict</th><th scope="col">Score</th>'
        '<th scope="col">÷ threshold</th><th scope="col">p</th><th scope="col">Regions</th></tr></thead><tbody>\n'
    )
    yield from map(items.line, islice(_not_shown(rows), MAX_LINES))
    yield "</tbody></table></section>\n"
    if left > MAX_LINES:
        yield (
            f'<p class="rest">Not listed: {left - MAX_LINES:,} images with the lowest scores. '
            "All images are in results.csv, in the same folder.</p>\n"
        )


def _having(rows: Rows, *, anomalous: bool) -> Iterator[Row]:
    statuses = ("anomalous",) if anomalous else ("good", "unjudged")
    return (row for row in rows() if status_of(row) in statuses)


def _not_shown(rows: Rows) -> Iterator[Row]:
    """The rows shown neither as a case nor as a card."""
    room = {"anomalous": MAX_CASES, "other": MAX_CARDS}
    for row in rows():
        status = status_of(row)
        kind = "anomalous" if status == "anomalous" else "other"
        if status == "unreadable":
            continue
        if room[kind]:
            room[kind] -= 1
        else:
            yield row


def _unreadable(rows: Rows, counts: Counter[str]) -> Iterator[str]:
    """The list of images that could not be read, with reasons."""
    if not counts["unreadable"]:
        return
    yield '<section class="images broken"><h2>Images that could not be read</h2><ul role="list">\n'
    for row in islice((row for row in rows() if status_of(row) == "unreadable"), MAX_LINES):
        reason = text(row.get("error", "no score"))
        yield f'<li class="item card unreadable">{name_of(row["image"])}<p class="detail">{reason}</p></li>\n'
    yield "</ul></section>\n"


def _unusual(model: ModelCard) -> Iterator[str]:
    """The good images that are least like the others."""
    if not model.unusual:
        return
    note = "A ring marks where each differs most. If one shows a defect, train again without it."
    if not any(each.image.stands_out for each in model.unusual):
        note = f"None of them stands out. {note}"
    yield (
        '<section class="panel unusual"><h2>Training images least like the others</h2>'
        f'<p class="caption">{note}</p><ul class="thumbs" role="list">\n'
    )
    for each in model.unusual:
        name = text(each.image.name)
        picture = embed(each.picture).to_html(f"{name}: {each.words}")
        yield f'<li class="thumb">{picture}<p class="name">{name}</p><p class="detail">{each.words}</p></li>\n'
    yield "</ul></section>\n"


def _provenance(model: ModelCard) -> str:
    """The description of the model."""
    if not model.facts:
        return ""
    table = class_table(model.trade_off) if model.trade_off is not None else ""
    return f'<section class="panel model"><h2>The model</h2>{facts_list(model.facts)}{table}</section>\n'
