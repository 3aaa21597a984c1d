"""The histogram of a run's scores as inline SVG; memory does not grow with the number of images."""

from __future__ import annotations

import math
from collections import Counter

from patchsvdd.report.html_page import text

MIN_BARS, MAX_BARS = 16, 48
"""Limits of the number of bars; it grows with the number of images."""
LOG_FROM = 50
"""Heights are logarithmic if the tallest bar has at least this many images."""
_STEPS = 16  # fine bins per doubling of the score
_MAX_BIN = 60 * _STEPS  # bins are limited to 60 doublings on either side


class ScoreHistogram:
    """Counts of score ÷ threshold in logarithmic bins; of plain scores if there is no threshold."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()  # bin b holds ratios in (2^(b/16), 2^((b+1)/16)]
        self._zeros = 0
        self._calibrated = False

    def add(self, score: float, threshold: float | None) -> None:
        """Count one image."""
        self._calibrated |= threshold is not None
        if not score > 0:
            self._zeros += 1
            return
        reference = 1.0 if threshold is None else threshold
        octaves = math.log2(score / reference) if reference > 0 else math.inf
        fine = _MAX_BIN if math.isinf(octaves) else math.ceil(octaves * _STEPS) - 1
        # Rounding of the logarithm must not move a score to the other side of the threshold line.
        lowest, highest = (0, _MAX_BIN) if score > reference else (-_MAX_BIN, -1)
        self._bins[max(lowest, min(highest, fine))] += 1

    def to_html(self) -> str:
        """The chart as SVG bars that scale with the page, labels that do not, and a table of the counts.

        An empty string without scores.
        """
        total = self._bins.total() + self._zeros
        if total == 0:
            return ""
        first, width, counts = self._bars()
        tallest = max(counts)
        threshold_at = -first / width if self._calibrated else None  # in bars from the left
        bars = "".join(
            _bar(index, count, tallest, (first + index * width, first + (index + 1) * width), self._calibrated)
            for index, count in enumerate(counts)
            if count
        )
        line = "" if threshold_at is None else f'<path class="limit" d="M{threshold_at:g} -6V100"/>'
        summary = text(self._summary(total, tallest))
        return (
            f'<div class="chart"><svg role="img" aria-labelledby="chart-title chart-words" '
            f'viewBox="0 0 {len(counts)} 100" preserveAspectRatio="none">'
            f'<title id="chart-title">Histogram of the scores</title><desc id="chart-words">{summary}</desc>'
            f"{bars}{line}</svg>{_labels(first, width, len(counts), self._calibrated)}</div>"
            f'<p class="caption">{summary}</p>{self._table(first, width, counts)}\n'
        )

    def _table(self, first: int, width: int, counts: list[int]) -> str:
        """The bars as a collapsible table, for screen readers and for exact numbers."""
        rows = "".join(
            f"<tr><td>{_span((first + index * width, first + (index + 1) * width), self._calibrated)}</td>"
            f"<td>{count:,}</td></tr>"
            for index, count in enumerate(counts)
            if count
        )
        what = "Score ÷ threshold" if self._calibrated else "Score"
        return (
            '<details class="numbers"><summary>The chart as a table</summary><table><thead><tr>'
            f'<th scope="col">{what}</th><th scope="col">Images</th></tr></thead>'
            f"<tbody>{rows}</tbody></table></details>"
        )

    def _bars(self) -> tuple[int, int, list[int]]:
        """(first fine bin, fine bins per bar, count of each bar); bar edges include the threshold."""
        bins = self._bins.copy()
        if self._zeros:
            bins[min(bins, default=-1)] += self._zeros  # a logarithmic axis has no zero
        low, high = min(bins), max(bins)
        if self._calibrated:
            low, high = min(low, -_STEPS), max(high, _STEPS - 1)  # half to twice the threshold at least
        width, most = 1, max(MIN_BARS, min(MAX_BARS, round(4 * bins.total() ** 0.5)))
        while high // width - low // width + 1 > most:
            width *= 2
        first = low // width * width
        counts = [0] * (high // width - low // width + 1)
        for fine, count in bins.items():
            counts[(fine - first) // width] += count
        return first, width, counts

    def _summary(self, total: int, tallest: int) -> str:
        what = "Score ÷ threshold" if self._calibrated else "Score"
        images = "1 image" if total == 1 else f"{total:,} images"
        axes = "on a logarithmic axis" if tallest < LOG_FROM else "with both axes logarithmic"
        if not self._calibrated:
            return f"{what} of {images} {axes}."
        above = sum(count for fine, count in self._bins.items() if fine >= 0)
        return f"{what} of {images} {axes}: {above:,} above the threshold, {total - above:,} at or below it."


def short_ratio(ratio: float) -> str:
    """ "2.41", "0.057", "153": three digits at most, no exponent between a thousandth and a million."""
    if ratio == 0 or 0.001 <= ratio < 1e6:
        return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.3g}" if ratio < 0.1 else f"{ratio:.2f}"
    return f"{ratio:.1e}"


def _height(count: int, tallest: int) -> float:
    """Height of a bar, 0 … 100; logarithmic for many images, so that a single one stays visible."""
    if tallest < LOG_FROM:
        return 100 * count / tallest
    return 100 * math.log1p(count) / math.log1p(tallest)


def _bar(index: int, count: int, tallest: int, span: tuple[int, int], calibrated: bool) -> str:
    height = _height(count, tallest)
    images = "1 image" if count == 1 else f"{count} images"
    kind = "high" if calibrated and span[0] >= 0 else "low"
    return (
        f'<rect class="{kind}" x="{index + 0.06:g}" y="{100 - height:.2f}" width=".88" height="{height:.2f}">'
        f"<title>{images}, {_span(span, calibrated)}</title></rect>"
    )


def _span(span: tuple[int, int], calibrated: bool) -> str:
    """The range of a bar as text."""
    low, high = (short_ratio(2 ** (edge / _STEPS)) for edge in span)
    return f"{low} – {high}{'× threshold' if calibrated else ''}"


def _labels(first: int, width: int, bars: int, calibrated: bool) -> str:
    """Tick labels at powers of two that do not overlap, and the label of the threshold line."""
    low, high = first / _STEPS, (first + bars * width) / _STEPS  # in doublings
    spacing = max(1, math.ceil((high - low) / 7))
    ticks: list[float] = [
        octave for octave in range(math.ceil(low), math.floor(high) + 1) if octave % spacing == 0
    ] or [low, high]
    unit = "×" if calibrated else ""
    marks = "".join(chart_label((octave - low) / (high - low), "tick", f"{2**octave:.4g}{unit}") for octave in ticks)
    return marks + (chart_label(-low / (high - low), "limit-name", "threshold") if calibrated else "")


def chart_label(position: float, kind: str, words: str) -> str:
    """A label at a share of a chart's width that stays inside it."""
    side = " first" if position < 0.05 else " last" if position > 0.95 else ""
    return f'<span class="{kind}{side}" style="left:{100 * position:.2f}%">{text(words)}</span>'
