"""The HTML page of a comparison of two models: one self-contained file, disagreements first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from PIL import Image

from patchsvdd.core.errors import ImageError
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.base import Detector
from patchsvdd.evaluation.comparison import ComparedImage, Comparison, Result
from patchsvdd.evaluation.paired import Paired
from patchsvdd.evaluation.score_scatter import scatter
from patchsvdd.report.embedded_images import ROOM, WIDEST, Embedded, embed
from patchsvdd.report.html_page import asset, facts_list, page_end, page_top, text, write_page
from patchsvdd.report.overlay import draw_overlay
from patchsvdd.report.score_histogram import short_ratio

MAX_SHOWN = 40
"""Disagreements shown with the overlays of both models; the rest are rows of a table."""
MAX_LINES = 5000
"""Rows of that table."""
SIGNIFICANT = 0.05
NAMES = {"alarms": "Alarms", "misses": "Misses", "false_alarms": "False alarms"}
WHERE = {"alarms": "images", "misses": "images with a defect", "false_alarms": "good images"}


def write_comparison_page(
    comparison: Comparison,
    detectors: tuple[Detector, Detector],
    path: Path,
    on_progress: OnProgress | None = None,
) -> Path:
    """Write the page; return its path. The models inspect the first disagreements again, for their overlays."""
    disagreements = comparison.disagreements

    def pieces() -> Iterator[str]:
        a, b = comparison.first, comparison.second
        intro = f"A is {a.name} ({a.identity or 'not saved'}), B is {b.name} ({b.identity or 'not saved'})."
        yield page_top("A and B on the same images", kind="Comparison", intro=intro, style=asset("comparison.css"))
        yield _totals(comparison)
        yield '<div id="content">\n'
        yield from _disagreements(disagreements, _overlays(disagreements[:MAX_SHOWN], detectors, on_progress))
        yield "</div>\n"
        rates = "".join(_rate(name, counted) for name, counted in comparison.rates.items())
        yield f'<div class="overview"><section class="panel"><h2>Scores</h2>{scatter(comparison)}</section>'
        yield f"<div>{rates}{_method()}</div></div>\n"
        yield _skipped(comparison.skipped)
        yield page_end(overlays=bool(disagreements))

    return write_page(path, pieces())


def _totals(comparison: Comparison) -> str:
    counted = comparison.alarms
    tiles = [
        ("Images", counted.images),
        ("Disagreements", counted.only_first + counted.only_second),
        ("Alarms of A", counted.first),
        ("Alarms of B", counted.second),
    ]
    cells = "".join(f'<div class="total"><dt>{name}</dt><dd>{count:,}</dd></div>' for name, count in tiles)
    return f'<dl class="totals">{cells}</dl>\n'


def _overlays(
    images: Sequence[ComparedImage], detectors: tuple[Detector, Detector], on_progress: OnProgress | None
) -> Iterator[tuple[Embedded | None, Embedded | None]]:
    """The overlays of both models for each image, as long as there is room."""
    files, room = [one.file for one in images], ROOM

    def ignored(_: ImageError) -> None:
        """The file was readable before; the page shows the result without an overlay."""

    found: list[dict[str, Embedded]] = [{} for _ in detectors]
    for number, inspections in enumerate(
        zip_longest(*(detector.inspect_many(files, on_error=ignored) for detector in detectors)), start=1
    ):
        for by_name, inspection in zip(found, inspections, strict=True):
            if inspection is not None and room > 0:
                by_name[inspection.name] = _embedded(draw_overlay(inspection))
                room -= len(by_name[inspection.name].uri)
        if on_progress is not None:
            on_progress(number, len(files))
    for file in files:
        yield found[0].get(str(file)), found[1].get(str(file))


def _embedded(image: Image.Image) -> Embedded:
    image = image.convert("RGB")
    image.thumbnail((WIDEST, WIDEST))
    return embed(image)


def _disagreements(
    images: Sequence[ComparedImage], overlays: Iterator[tuple[Embedded | None, Embedded | None]]
) -> Iterator[str]:
    if not images:
        yield '<section class="images"><h2>Disagreements</h2><p class="empty">The verdicts agree on every image.</p>'
        yield "</section>\n"
        return
    yield '<section class="images"><h2>Disagreements, farthest from the thresholds first</h2>\n'
    yield '<ul class="pairs" role="list">\n'
    for image, pair in zip(images, overlays, strict=False):
        pictures = "".join(_picture(letter, image, one) for letter, one in zip("AB", pair, strict=True))
        yield f'<li class="pair"><div class="pictures">{pictures}</div>{_about(image)}</li>\n'
    yield "</ul></section>\n"
    rest = images[MAX_SHOWN:]
    if rest:
        yield from _lines(rest)


def _picture(letter: str, image: ComparedImage, overlay: Embedded | None) -> str:
    if overlay is None:
        return f'<div class="picture none">{letter}: no picture; the page is large enough</div>'
    return f'<div class="picture">{overlay.to_html(f"{text(image.name)} as {letter} sees it")}</div>'


def _about(image: ComparedImage) -> str:
    label = f'<p class="detail">Label: {text(image.label)}</p>' if image.label is not None else ""
    verdicts = _verdict("A", image.first) + _verdict("B", image.second)
    return f'<div class="about"><h3 class="name">{text(image.name)}</h3>{verdicts}{label}</div>'


def _verdict(letter: str, result: Result) -> str:
    kind, sign, words = ("anomalous", "▲", "Anomalous") if result.is_anomalous else ("good", "✓", "Good")
    return (
        f'<p class="verdict {kind}"><span class="who">{letter}</span><span class="badge"><span aria-hidden="true">'
        f'{sign}</span>{words}</span><span class="ratio">{short_ratio(result.ratio)} × threshold</span></p>'
    )


def _lines(images: Sequence[ComparedImage]) -> Iterator[str]:
    yield (
        f'<section class="images"><h2>The other {len(images):,} disagreements</h2><div class="scroll" tabindex="0" '
        'role="region" aria-label="Other disagreements"><table class="lines"><thead><tr><th scope="col">Image</th>'
        '<th scope="col">A</th><th scope="col">B</th><th scope="col">Label</th></tr></thead><tbody>\n'
    )
    for one in images[:MAX_LINES]:
        cells = "".join(f"<td>{each.verdict}, {short_ratio(each.ratio)}</td>" for each in (one.first, one.second))
        yield f'<tr><th scope="row">{text(one.name)}</th>{cells}<td>{text(one.label or "–")}</td></tr>\n'
    yield "</tbody></table></div></section>\n"
    if len(images) > MAX_LINES:
        yield f'<p class="rest">Not listed: {len(images) - MAX_LINES:,} disagreements nearer to the thresholds.</p>\n'


def _rate(name: str, counted: Paired) -> str:
    """A rate of both models, its difference and the test."""
    if not counted.images:
        words = f"There are no {WHERE[name]}, so there is nothing to compare."
        return f'<section class="panel rate"><h2>{NAMES[name]}</h2><p class="caption">{words}</p></section>\n'
    facts = {
        "A": _share(counted, first=True),
        "B": _share(counted, first=False),
        "B − A (95 %)": difference_in_words(counted),
        "Only A": f"{counted.only_first:,}",
        "Only B": f"{counted.only_second:,}",
        "McNemar, exact": p_in_words(counted.p_value()),
    }
    words = f"<p>{text(conclusion(name, counted))}</p>"
    return f'<section class="panel rate"><h2>{NAMES[name]}</h2>{words}{facts_list(facts)}</section>\n'


def conclusion(name: str, counted: Paired) -> str:
    """What the test says of a rate, in a sentence."""
    what = NAMES[name].lower()
    on = f"on {counted.images:,} {WHERE[name]}"
    if counted.p_value() > SIGNIFICANT:
        return f"No difference in {what} is shown {on}: it may be chance."
    fewer = "A" if counted.difference > 0 else "B"
    return f"{fewer} has fewer {what} {on}; this is hardly chance."


def difference_in_words(counted: Paired) -> str:
    """The difference of the rates with its interval, in percentage points."""
    low, high = counted.interval()
    return f"{100 * counted.difference:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"


def p_in_words(p_value: float) -> str:
    """A p-value as text."""
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"


def _share(counted: Paired, *, first: bool) -> str:
    rate = counted.to_json()["first" if first else "second"]
    low, high = rate["interval"]
    return f"{rate['rate']:.1%} ({rate['count']:,} of {counted.images:,}; 95 %: {low:.1%} to {high:.1%})"


def _method() -> str:
    return (
        '<p class="caption method">Both models inspected the same images, so the differences are of pairs. The '
        "interval of a difference is Tango’s score interval for paired shares, the test is McNemar’s exact one; "
        "intervals of single rates are those of Clopper and Pearson. The exact test is the more cautious of the two: "
        "it may find no difference although the interval leaves out 0.</p>\n"
    )


def _skipped(reasons: Sequence[str]) -> str:
    if not reasons:
        return ""
    items = "".join(f"<li>{text(reason)}</li>" for reason in reasons[:MAX_LINES])
    return f'<section class="panel skipped"><h2>Not compared</h2><ul role="list">{items}</ul></section>\n'
