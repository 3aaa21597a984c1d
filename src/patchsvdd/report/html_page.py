"""The shell of every HTML page: one style for light, dark, phone and paper, and no request to any network."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from urllib.parse import quote

from patchsvdd.core.files import atomic_write
from patchsvdd.report.overlay import HEAT, SATURATION


def write_page(path: Path, pieces: Iterable[str]) -> Path:
    """``path``, now holding the pieces; they are written one by one, so a page may be larger than memory."""
    with atomic_write(path) as file:
        for piece in pieces:
            # Names that are not valid UTF-8 on disk hold lone surrogates.
            file.write(piece.encode("utf-8", "backslashreplace"))
    return path


def page_top(title: str, *, kind: str, intro: str = "", content: str = "images", style: str = "") -> str:
    """Everything up to the content: document head, skip link, and the header with ``kind`` above the title.

    ``style`` adds to the style sheet; ``content`` names what the skip link leads to.
    """
    lead = f'<p class="intro">{text(intro)}</p>' if intro else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)} – {text(kind)}</title>
<style>{_style()}{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the {text(content)}</a>
<header><p class="kind">{text(kind)}</p><h1>{text(title)}</h1>{lead}</header>
<main>
"""


def page_end(*, script: str = "", overlays: bool = True) -> str:
    """Everything after the content: how to read the overlays, where a page has them, and the script."""
    legend = _LEGEND if overlays else ""
    tail = f"<script>{script}</script>\n" if script else ""
    return f"</main>\n{legend}{tail}</body>\n</html>\n"


def facts_list(facts: Mapping[str, str]) -> str:
    """A definition list of short facts; empty text for no facts."""
    pairs = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{pairs}</dl>\n' if pairs else ""


def text(value: object) -> str:
    """``value`` safe as HTML text and inside a quoted attribute."""
    return html.escape(str(value))


def link(path: str | PurePath) -> str:
    """A relative path as a URL, safe inside a quoted attribute whatever its name holds."""
    name = path.as_posix() if isinstance(path, PurePath) else path
    return quote(os.fsencode(name))


def _style() -> str:
    """The style sheet, with the colours of the heat maps filled in."""
    stops = (f"rgb{colour} {100 * ratio / SATURATION:.2f}%" for ratio, colour, _ in HEAT)
    return _STYLE.replace("HEAT_STOPS", ", ".join(stops))


_LEGEND = """<footer>
<h2>How to read the pictures</h2>
<p>Left: the image; a line surrounds each region whose anomaly map exceeds the threshold.
Right: the anomaly map. Its colours are fixed by the threshold, the same in every picture:
blue up to the threshold, red above it, yellow from three times the threshold on.</p>
<p class="heat" aria-hidden="true"></p>
</footer>
"""

_STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f6f4; --card: #fff; --ink: #1b1f24; --soft: #5a636d; --line: #e2e4e7; --focus: #1f5fae;
  --warm: #a8320c; --warm-fill: #fdeee7; --warm-bar: #d9541e;
  --cool: #24587f; --cool-fill: #eaf2f8; --cool-bar: #5b8db5;
  --none: #5a636d; --none-fill: #eef0f2;
  --sheet: #17191e; --shadow: 0 1px 2px rgb(20 25 30 / .06), 0 4px 16px rgb(20 25 30 / .05);
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #111316; --card: #1b1e23; --ink: #e8eaed; --soft: #a2abb5; --line: #2d3238; --focus: #8ab8f0;
    --warm: #ffb59a; --warm-fill: #43210f; --warm-bar: #f0713a;
    --cool: #a9cdea; --cool-fill: #17303f; --cool-bar: #4f86b2;
    --none: #b3bbc4; --none-fill: #2a2f35;
    --shadow: none;
  }
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
html { scroll-padding-top: 5rem; }
body {
  margin: 0 auto; padding: 0 clamp(1rem, 4vw, 3rem) 4rem; max-width: 1480px;
  background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
h1, h2, h3, p, dl, dd, ul { margin: 0; padding: 0; }
ul { list-style: none; }
a { color: inherit; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; border-radius: 4px; }
.skip { position: absolute; left: -999rem; }
.skip:focus { left: 1rem; top: 1rem; padding: .5rem 1rem; background: var(--card); z-index: 3; }
header { padding: clamp(1.75rem, 5vw, 3.5rem) 0 1.75rem; }
.kind { color: var(--soft); font-size: .8125rem; letter-spacing: .08em; text-transform: uppercase; }
h1 { font-size: clamp(1.6rem, 4vw, 2.4rem); line-height: 1.2; letter-spacing: -.02em; font-weight: 650;
  overflow-wrap: anywhere; }
h2 { font-size: 1.125rem; font-weight: 650; }
.intro { margin-top: .75rem; max-width: 44rem; color: var(--soft); font-size: 1.0625rem; }
.panel { background: var(--card); border: 1px solid var(--line); border-radius: 14px; box-shadow: var(--shadow);
  padding: clamp(1rem, 2.5vw, 1.75rem); }

.totals { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: 1rem;
  margin-bottom: 1rem; }
.total { background: var(--card); border: 1px solid var(--line); border-radius: 14px; box-shadow: var(--shadow);
  padding: 1rem 1.25rem; display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.total dt { color: var(--soft); font-size: .875rem; }
.total dd { font-size: 2rem; line-height: 1.2; font-weight: 600; letter-spacing: -.02em; }
.total.anomalous dd { color: var(--warm); }
.total.good dd { color: var(--cool); }

.overview { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 1rem; margin-bottom: 1rem; }
.overview > .panel:only-child { grid-column: 1 / -1; }
@media (max-width: 820px) { .overview { grid-template-columns: minmax(0, 1fr); } }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(12rem, 42%), 1fr));
  gap: 1rem 1.5rem; margin-top: .75rem; align-content: start; }
.facts dt { color: var(--soft); font-size: .8125rem; }
.facts dd { overflow-wrap: anywhere; }

.chart { position: relative; margin-top: 2.25rem; padding-bottom: 1.6rem; font-size: .75rem; color: var(--soft); }
.chart svg { display: block; width: 100%; height: 132px; border-bottom: 1px solid var(--line); overflow: visible; }
.chart .low { fill: var(--cool-bar); } .chart .high { fill: var(--warm-bar); }
.chart .limit { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3; vector-effect: non-scaling-stroke; }
.chart span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.chart .tick { bottom: 0; } .chart .limit-name { top: -1.5rem; color: var(--ink); }
.chart .first { transform: none; } .chart .last { transform: translateX(-100%); }
.caption { color: var(--soft); font-size: .8125rem; margin-top: .75rem; }

.tools { position: sticky; top: 0; z-index: 2; display: flex; flex-wrap: wrap; align-items: center; gap: .5rem;
  padding: .875rem 0; background: var(--page); }
.tools button, .tools input { font: inherit; font-size: .9375rem; color: var(--ink); background: var(--card);
  border: 1px solid var(--line); border-radius: 999px; padding: .375rem 1rem; min-height: 2.5rem; }
.tools button { cursor: pointer; }
.tools button:hover { border-color: var(--soft); }
.tools button[aria-pressed=true] { background: var(--ink); color: var(--page); border-color: var(--ink); }
.tools button:disabled { color: var(--soft); cursor: default; opacity: .6; border-color: var(--line); }
.tools button small { opacity: .75; margin-left: .25rem; font-size: .8125rem; }
.tools input { min-width: 0; flex: 0 1 16rem; margin-left: auto; }
.tools .shown { color: var(--soft); font-size: .8125rem; flex-basis: 100%; }
@media (max-width: 820px) {
  .tools { position: static; }
  .tools input { margin-left: 0; flex: 1 1 100%; }
  .tools button { padding: .375rem .75rem; }
}

.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(25rem, 100%), 1fr)); gap: 1.25rem; }
/* Not display: list-item, the default: hiding thousands of those takes Chromium minutes, for it counts them anew. */
.card { display: block; background: var(--card); border: 1px solid var(--line); border-radius: 14px; overflow: hidden;
  box-shadow: var(--shadow); content-visibility: auto; contain-intrinsic-size: auto 25rem auto 23rem; }
.picture { display: block; aspect-ratio: 518 / 292; background: var(--sheet); }
.picture img { display: block; width: 100%; height: 100%; object-fit: contain; color: #e2e5ea; font-size: .8125rem; }
.card.anomalous .picture { border-top: 4px solid var(--warm-bar); }
.picture:focus-visible { outline-offset: -4px; }
.card .about { padding: .875rem 1.125rem 1.125rem; }
.name { font-size: .9375rem; font-weight: 600; line-height: 1.35; overflow-wrap: anywhere; }
.name span { color: var(--soft); font-weight: 400; }
.verdict { display: flex; flex-wrap: wrap; align-items: center; gap: .375rem .75rem; margin-top: .5rem; }
.badge { display: inline-flex; gap: .375rem; align-items: center; border-radius: 999px; padding: .0625rem .75rem;
  font-size: .875rem; font-weight: 600; border: 1.5px solid currentcolor; }
.anomalous .badge { color: var(--warm); background: var(--warm-fill); }
.good .badge { color: var(--cool); background: var(--cool-fill); border-color: transparent; }
.unjudged .badge, .unreadable .badge { color: var(--none); background: var(--none-fill); border-color: transparent; }
.ratio { font-weight: 600; }
.detail { color: var(--soft); font-size: .875rem; margin-top: .25rem; }
.gauge { display: block; position: relative; height: 6px; border-radius: 3px; background: var(--line);
  margin-top: .75rem; }
.gauge::before { content: ""; position: absolute; inset: 0 auto 0 0; width: var(--fill); border-radius: 3px;
  background: var(--cool-bar); }
.anomalous .gauge::before { background: var(--warm-bar); }
.gauge::after { content: ""; position: absolute; left: 33.33%; top: -3px; bottom: -3px; width: 2px;
  background: var(--ink); }
.broken { margin-top: 2rem; } .broken ul { margin-top: .75rem; display: grid; gap: .75rem; }
.broken .card { padding: .875rem 1.125rem; contain-intrinsic-size: auto 60rem auto 5rem; }
.empty, .rest { color: var(--soft); padding: 2rem 0; }

.category { margin-bottom: 1.25rem; }
.category .facts { grid-template-columns: repeat(auto-fill, minmax(min(9rem, 45%), 1fr)); }
.category .facts dd { font-size: 1.125rem; font-weight: 600; }
.category .head { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between;
  gap: .5rem 1rem; }
.category h2 { font-size: 1.375rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
.category .head a { color: var(--focus); font-weight: 600; text-underline-offset: .2em; }
.samples { display: grid; gap: .75rem; margin-top: 1.25rem;  /* at most --columns, each at least 15rem wide */
  grid-template-columns: repeat(auto-fill, minmax(min(100%, max(15rem, 100% / (var(--columns) + 1))), 1fr)); }
.samples .picture { border-radius: 8px; overflow: hidden; }

footer { margin-top: 3.5rem; padding-top: 1.5rem; border-top: 1px solid var(--line); color: var(--soft);
  font-size: .875rem; }
footer h2 { font-size: .875rem; color: var(--ink); margin-bottom: .25rem; }
footer p { max-width: 46rem; }
.heat { height: 8px; width: 16rem; max-width: 100%; margin-top: .75rem; border-radius: 4px;
  background: linear-gradient(90deg, HEAT_STOPS); print-color-adjust: exact; }

@media print {
  :root { --page: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #bbb; --shadow: none;
    --warm: #8c2a0a; --warm-fill: #fff; --cool: #1d4a6c; --cool-fill: #fff; --none: #444; --none-fill: #fff; }
  html { font-size: 12px; }
  body { padding: 0; font-size: 1rem; }
  header { padding-top: 0; }
  .tools, .skip { display: none; }
  .cards { grid-template-columns: 1fr 1fr; gap: .75rem; }
  .card, .category, .panel { content-visibility: visible; break-inside: avoid; }
  .picture, .chart svg, .gauge, .gauge::before, .gauge::after { print-color-adjust: exact; }
}
@media (prefers-reduced-motion: no-preference) { html { scroll-behavior: smooth; } }
"""
