"""False alarms against missed synthetic defects over the threshold: inline SVG, and the same as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from patchsvdd.report.html_page import text
from patchsvdd.report.score_histogram import chart_label
from patchsvdd.scoring.trade_off_table import TradeOff, TradeOffRow

TICKS = (0.25, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.5)
"""Labels of the axis, as ratios to the threshold."""
APART = 0.09
"""Labels nearer than this share of the axis are left out."""
LINES = {"alarms": "false alarms", "missed": "missed synthetic defects"}


def chart(fine: TradeOff) -> str:
    """Both shares as lines that scale with the page, labels that do not, and a summary in words."""
    rows, current = fine.rows, fine.current
    summary = text(summary_of(fine))
    low, high = (math.log(rows[end].threshold / current.threshold) for end in (0, -1))

    def across(ratio: float) -> float:
        return (math.log(ratio) - low) / (high - low)

    places = [100 * across(row.threshold / current.threshold) for row in rows]
    here = across(1.0)
    lines = _line("alarms", places, [row.false_alarms for row in rows])
    lines += _line("missed", places, [row.missed for row in rows])
    grid = "".join(f'<path class="grid" d="M0 {100 - share}H100"/>' for share in (50, 100))
    return (
        '<div class="chart trade"><svg role="img" aria-labelledby="trade-title trade-words" viewBox="0 0 100 100" '
        'preserveAspectRatio="none"><title id="trade-title">False alarms and missed defects over the threshold</title>'
        f'<desc id="trade-words">{summary}</desc>{grid}<path class="limit" d="M{100 * here:.2f} -3V100"/>{lines}</svg>'
        f"{_dot('alarms', here, current.false_alarms)}{_dot('missed', here, current.missed)}"
        f"{_labels(across, here)}</div>{_legend()}"
        f'<p class="caption">{summary}</p>\n'
    )


def summary_of(shown: TradeOff) -> str:
    """What the chart shows at the current threshold and at both ends."""
    first, current, last = shown.rows[0], shown.current, shown.rows[-1]

    def shares(row: TradeOffRow) -> str:
        return f"{row.false_alarms:.0%} false alarms and {row.missed:.0%} missed"

    return (
        f"At the threshold of {current.threshold:.4g}: {shares(current)}. At {first.threshold:.4g}: {shares(first)}; "
        f"at {last.threshold:.4g}: {shares(last)}. Estimated with {shown.good} good images, their light, place, focus "
        f"and grain varied, and {shown.visible} visible synthetic defects (of {shown.defects})."
    )


def threshold_table(shown: TradeOff) -> str:
    """The shares at some thresholds as a table, for screen readers and for exact numbers."""
    marks = {True: (' class="current"', " (current)"), False: ("", "")}
    rows = "".join(
        f"<tr{marks[row.is_current][0]}><td>{row.threshold:.4g}{marks[row.is_current][1]}</td>"
        f"<td>{row.false_alarms:.0%}</td><td>{row.missed:.0%}</td></tr>"
        for row in shown.rows
    )
    return (
        '<table class="shares"><thead><tr><th scope="col">Threshold</th><th scope="col">False alarms</th>'
        f'<th scope="col">Missed synthetic defects</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def class_table(shown: TradeOff) -> str:
    """Missed synthetic defects by contrast and size as a table."""
    sizes, rows = shown.by_size()
    head = "".join(f'<th scope="col">{text(size)}</th>' for size in sizes)
    body = "".join(
        f'<tr><th scope="row">{text(name)}</th>{"".join(f"<td>{text(cell)}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    )
    return (
        '<table class="shares"><caption>Missed synthetic defects at the threshold, by contrast and diameter</caption>'
        f'<thead><tr><th scope="col">Contrast</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _line(kind: str, places: Sequence[float], shares: Sequence[float]) -> str:
    points = "L".join(f"{place:.2f} {100 - 100 * share:.2f}" for place, share in zip(places, shares, strict=True))
    return f'<path class="{kind}" d="M{points}"><title>{LINES[kind]}</title></path>'


def _dot(kind: str, across: float, share: float) -> str:
    """The operating point on a line; not part of the SVG, which is stretched."""
    words = f"{LINES[kind]}: {share:.0%}"
    return (
        f'<span class="dot {kind}" style="left:{100 * across:.2f}%;top:calc(var(--height) * {1 - share:.4f})" '
        f'title="{text(words)}"></span>'
    )


def _labels(across: Callable[[float], float], here: float) -> str:
    marks, last = "", -1.0
    for tick in TICKS:
        place = across(tick)
        if 0 <= place <= 1 and place - last >= APART:
            marks += chart_label(place, "tick", f"{tick:g}×")
            last = place
    shares = "".join(
        f'<span class="share" style="top:calc(var(--height) * {1 - share / 100:g})">{share} %</span>'
        for share in (0, 50, 100)
    )
    return marks + chart_label(here, "limit-name", "threshold") + shares


def _legend() -> str:
    keys = "".join(f'<li class="{kind}"><i aria-hidden="true"></i>{text(words)}</li>' for kind, words in LINES.items())
    return f'<ul class="legend" role="list">{keys}</ul>'
