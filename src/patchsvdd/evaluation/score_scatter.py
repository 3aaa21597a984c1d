"""The scores of two models as points, in multiples of their thresholds: inline SVG with a summary in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from patchsvdd.evaluation.comparison import ComparedImage, Comparison
from patchsvdd.report.html_page import text
from patchsvdd.report.score_histogram import short_ratio

MOST_POINTS = 3000
"""Points drawn, those of disagreements first."""
LEAST, MOST = 1 / 8, 16.0
"""Ratios beyond these are drawn at the edge."""
SIDE = 400.0
TICKS = tuple(2.0**power for power in range(-3, 5))


def scatter(comparison: Comparison) -> str:
    """The points on two logarithmic axes, both thresholds as lines, and a summary in words."""
    images = comparison.images
    ratios = [_clipped(ratio) for one in images for ratio in (one.first.ratio, one.second.ratio)]
    low, high = math.log2(min(0.5, *ratios)) - 0.15, math.log2(max(2.0, *ratios)) + 0.15

    def across(ratio: float) -> float:
        return (math.log2(_clipped(ratio)) - low) / (high - low)

    shown = [*(one for one in images if one.disagrees), *_spread([one for one in images if not one.disagrees])]
    shown = shown[:MOST_POINTS]
    places = ((one, SIDE * across(one.first.ratio), SIDE * (1 - across(one.second.ratio))) for one in shown[::-1])
    points = "".join(_point(*place) for place in places)
    limit = SIDE * across(1.0)
    summary = text(_summary(comparison, len(shown)))
    areas = (
        f'<rect class="only-first" x="{limit:.1f}" y="{SIDE - limit:.1f}" width="{SIDE - limit:.1f}" '
        f'height="{limit:.1f}"/><rect class="only-second" x="0" y="0" width="{limit:.1f}" '
        f'height="{SIDE - limit:.1f}"/>'
    )
    lines = f'<path class="limit" d="M{limit:.1f} 0V{SIDE:g}"/><path class="limit" d="M0 {SIDE - limit:.1f}H{SIDE:g}"/>'
    ticks = "".join(_tick(tick, 100 * across(tick)) for tick in TICKS if 0.02 < across(tick) < 0.98)
    return (
        '<div class="scatter"><svg role="img" aria-labelledby="scatter-title scatter-words" '
        f'viewBox="0 0 {SIDE:g} {SIDE:g}"><title id="scatter-title">Scores of both models</title>'
        f'<desc id="scatter-words">{summary}</desc>{areas}{lines}{points}</svg>{ticks}'
        '<span class="axis across">A: score ÷ threshold</span><span class="axis up">B: score ÷ threshold</span></div>'
        f'{_legend(comparison)}<p class="caption">{summary}</p>\n'
    )


def _clipped(ratio: float) -> float:
    return min(MOST, max(LEAST, ratio))


def _spread(images: Sequence[ComparedImage]) -> list[ComparedImage]:
    """At most MOST_POINTS images, evenly chosen by score."""
    ordered = sorted(images, key=lambda one: one.first.ratio)
    step = max(1, math.ceil(len(ordered) / MOST_POINTS))
    return ordered[::step]


def _kind(one: ComparedImage) -> str:
    if not one.disagrees:
        return "agree"
    return "first" if one.first.is_anomalous else "second"


def _point(one: ComparedImage, x: float, y: float) -> str:
    """A circle where the verdicts agree, a triangle for an alarm of A alone, a square for one of B alone."""
    kind = _kind(one)
    defect = " defect" if one.is_defective else ""
    title = f"{text(one.name)}: A {short_ratio(one.first.ratio)}, B {short_ratio(one.second.ratio)}"
    title += f", {text(one.label)}" if one.label is not None else ""
    shape = {
        "agree": f'circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"',
        "first": f'path d="M{x:.1f} {y - 6:.1f}l6 11h-12z"',
        "second": f'path d="M{x - 5:.1f} {y - 5:.1f}h10v10h-10z"',
    }[kind]
    return f'<{shape} class="{kind}{defect}"><title>{title}</title></{shape.split()[0]}>'


def _tick(ratio: float, place: float) -> str:
    name = f"{ratio:g}" if ratio >= 1 else f"1/{1 / ratio:g}"
    return (
        f'<span class="tick x" style="left:{place:.2f}%">{name}</span>'
        f'<span class="tick y" style="bottom:{place:.2f}%">{name}</span>'
    )


def _legend(comparison: Comparison) -> str:
    kinds = [("agree", '<circle cx="7" cy="7" r="4"/>', "same verdict")]
    kinds += [("first", '<path d="M7 1l6 11h-12z"/>', "only A raises an alarm")]
    kinds += [("second", '<path d="M2 2h10v10h-10z"/>', "only B raises an alarm")]
    if comparison.has_labels:
        kinds.append(("agree defect", '<circle cx="7" cy="7" r="4"/>', "dark edge: the image shows a defect"))
    entries = (
        f'<li><svg class="{kind}" viewBox="0 0 14 14" aria-hidden="true">{shape}</svg>{words}</li>'
        for kind, shape, words in kinds
    )
    return f'<ul class="key" role="list">{"".join(entries)}</ul>'


def _summary(comparison: Comparison, shown: int) -> str:
    counted = comparison.alarms
    words = (
        f"{counted.images:,} image{'s' * (counted.images != 1)}: both models raise an alarm on {counted.both:,}, only "
        f"A on {counted.only_first:,}, only B on {counted.only_second:,}, neither on {counted.neither:,}."
    )
    if shown < counted.images:
        words += f" {shown:,} of them are drawn, all disagreements first."
    return f"{words} Both axes are logarithmic; ratios beyond 1/8 and 16 are drawn at the edge."
