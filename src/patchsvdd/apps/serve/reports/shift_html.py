"""The report of a shift as one HTML file that needs nothing else, for reading and printing."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from patchsvdd.apps.serve.reports.rows import REVIEWS, local, percent, share_in_words
from patchsvdd.apps.serve.store import Row
from patchsvdd.report.html_page import page_end, page_top, text

STYLE = """
main > section { margin-top: 1rem; }
table { border-collapse: collapse; width: 100%; margin-top: .5rem; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th.n, td.n { text-align: right; }
.bars { display: block; width: 100%; height: auto; }
.bars .g { fill: var(--cool-bar); } .bars .b { fill: var(--warm-bar); }
.bars text { fill: var(--soft); font-size: 11px; }
.alarms { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .8rem; }
.alarms, .bars { margin-top: .75rem; }
.alarms li { border: 1px solid var(--line); border-radius: 8px; overflow: hidden; break-inside: avoid; }
.alarms img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--sheet); }
.alarms p { padding: .3rem .6rem; font-size: .8125rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.scroll { overflow-x: auto; }
@media print {
  body { background: none; padding: 0; max-width: none; font-size: 11px; }
  .panel, .total { box-shadow: none; break-inside: avoid-page; }
  .alarms { grid-template-columns: repeat(6, 1fr); }
  .skip { display: none; }
}
"""


def clock(at: str) -> str:
    """An ISO time as local time."""
    return local(datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp(), seconds=False)


def shift_html(facts: Mapping[str, Any], alarms: Sequence[Row], pictures: Mapping[str, bytes]) -> str:
    """The whole file."""
    return "".join(_pieces(facts, alarms, pictures))


def _pieces(facts: Mapping[str, Any], alarms: Sequence[Row], pictures: Mapping[str, bytes]) -> Iterator[str]:
    span = f"{clock(facts['start'])} to {clock(facts['end'])}"
    yield page_top("Shift report", kind="patchsvdd", intro=span, content="figures", style=STYLE)
    yield '<dl class="totals" id="content">'
    for kind, name, value in figures(facts):
        yield f'<div class="total {kind}"><dt>{text(name)}</dt><dd>{text(value)}</dd></div>'
    yield "</dl>"
    yield from _section("Over time", [_bars(facts["buckets"])])
    head = ("Model", "Inspected", "Yield", "Alarms", "To review")
    rows = [(one["name"], *_numbers(one), one["to_review"]) for one in facts["models"]]
    yield from _section("Models", [_table(head, rows)])
    if facts["stations"]:
        places = [(one["line"] or "–", one["station"] or "–", *_numbers(one)) for one in facts["stations"]]
        yield from _section(
            "Lines and stations", [_table(("Line", "Station", "Inspected", "Yield", "Alarms"), places, 2)]
        )
    yield from _section("False alarms and misses", [_paragraph(line) for line in quality(facts)])
    if facts["reviews"]:
        said = [(one["by"], REVIEWS[one["verdict"]], one["count"]) for one in facts["reviews"]]
        yield from _section("Reviews", [_table(("Person", "Verdict", "Parts"), said, 2)])
    yield from _section("Changes", [_paragraph(line) for line in changes(facts)])
    yield from _section("Alarms", _alarms(facts, alarms, pictures))
    yield page_end(overlays=False)


def figures(facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Key figures: kind, name and value."""
    return [
        ("", "inspected", f"{facts['inspected']:,}"),
        ("good", "yield (judged good)", percent(facts["yield"])),
        ("anomalous", "alarms", f"{facts['anomalous']:,}"),
        ("", "alarms per hour", f"{facts['alarms_per_hour']:.1f}"),
        ("", "alarms to review", f"{facts['to_review']:,}"),
    ]


def quality(facts: Mapping[str, Any]) -> list[str]:
    """False alarms and misses in words."""
    estimate = facts["estimate"]
    return [
        f"False alarms among the reviewed alarms of this shift: {share_in_words(facts['false_alarms'])}.",
        f"Defects among the sampled good parts, last {estimate['days']} days: {share_in_words(estimate['misses'])}.",
        f"Share of all defects that are missed, last {estimate['days']} days: "
        f"{share_in_words(estimate['missed_defects'])}.",
    ]


def changes(facts: Mapping[str, Any]) -> list[str]:
    """Changes of models and images in words."""
    said = [
        f"{clock(one['at'])}: {one['model']} {one['change']}{' by ' + one['by'] if one['by'] else ''}."
        for one in facts["changes"]
    ]
    said += [
        f"Images for {model['name']} have changed since calibration: {change['meaning']} is {change['direction']}."
        for model in facts["models"]
        for change in model["drift"]
    ]
    return said or ["No model was changed, and images are as at calibration."]


def _numbers(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{one['inspected']:,}", percent(one["yield"]), f"{one['anomalous']:,}"


def _section(title: str, pieces: Sequence[str]) -> Iterator[str]:
    yield f'<section class="panel"><h2>{text(title)}</h2>'
    yield from pieces
    yield "</section>\n"


def _paragraph(words: str) -> str:
    return f"<p>{text(words)}</p>"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], words: int = 1) -> str:
    """A table whose first columns hold words and the others numbers."""

    def line(tag: str, cells: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{'' if index < words else ' class=n'}>{text(cell)}</{tag}>" for index, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{line("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _bars(buckets: Sequence[Mapping[str, Any]]) -> str:
    """Inspected parts per bucket, alarms on top."""
    most = max((one["inspected"] for one in buckets), default=0) or 1
    step, drawn = 1000 / max(1, len(buckets)), []
    for index, one in enumerate(buckets):
        x, width = index * step + 1, step - 2
        good, bad = 110 * one["good"] / most, 110 * one["anomalous"] / most
        bad = max(bad, 2.0) if one["anomalous"] else 0
        drawn.append(f'<rect class="g" x="{x:.1f}" width="{width:.1f}" y="{120 - good:.1f}" height="{good:.1f}"/>')
        drawn.append(f'<rect class="b" x="{x:.1f}" width="{width:.1f}" y="{120 - good - bad:.1f}" height="{bad:.1f}"/>')
        if index % max(1, len(buckets) // 8) == 0:
            drawn.append(f'<text x="{x:.1f}" y="136">{text(clock(one["start"])[11:])}</text>')
    label = f"Inspected parts over time, at most {most:,} at once; alarms are on top of the bars"
    return (
        f'<svg class="bars" viewBox="0 0 1000 140" role="img" aria-label="{text(label)}">'
        f"{''.join(drawn)}</svg><p class=soft>At most {most:,} parts per bar; alarms on top.</p>"
    )


def _alarms(facts: Mapping[str, Any], alarms: Sequence[Row], pictures: Mapping[str, bytes]) -> list[str]:
    if not alarms:
        return [_paragraph("No alarm.")]
    pieces = ['<ul class="alarms">']
    for row in alarms:
        data = pictures.get(row["id"])
        image = ""
        if data is not None:
            code = base64.b64encode(data).decode()
            image = f'<img src="data:image/jpeg;base64,{code}" alt="{text(row["name"])}" loading="lazy">'
        ratio = f"{row['score'] / row['threshold']:.3g}×" if row["threshold"] else f"{row['score']:.3g}"
        trace = [f"{name} {row[name]}" for name in ("serial", "lot", "line", "station") if row.get(name)]
        said = REVIEWS[row["review"] or "none"]
        lines = [local(row["at"]), row["name"], f"{row['model']}, {ratio}", *trace, said]
        pieces.append(f"<li>{image}<p>{'<br>'.join(text(line) for line in lines)}</p></li>")
    pieces.append("</ul>")
    if facts["left_out"]:
        pieces.append(_paragraph(f"{facts['left_out']:,} older alarms are not shown; the history has them."))
    return pieces
