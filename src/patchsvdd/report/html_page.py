"""Parts that all HTML pages share: head, style and footer. Pages make no network requests."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path, PurePath
from urllib.parse import quote

from patchsvdd.core.files import atomic_write
from patchsvdd.report.overlay import HEAT, SATURATION


def write_page(path: Path, pieces: Iterable[str]) -> Path:
    """Write the pieces one by one, so that a page may be larger than memory; return ``path``."""
    with atomic_write(path) as file:
        for piece in pieces:
            # File names that are not valid UTF-8 contain lone surrogates.
            file.write(piece.encode("utf-8", "backslashreplace"))
    return path


def page_top(title: str, *, kind: str, intro: str = "", content: str = "images", style: str = "") -> str:
    """The page up to the content: document head, skip link, and the header with ``kind`` above the title.

    ``style`` is appended to the style sheet; ``content`` names the target of the skip link.
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
    """The page after the content: the legend of the overlays, if the page has any, and the script."""
    legend = _LEGEND if overlays else ""
    tail = f"<script>{script}</script>\n" if script else ""
    return f"</main>\n{legend}{tail}</body>\n</html>\n"


def facts_list(facts: Mapping[str, str]) -> str:
    """A definition list of short facts; an empty string if there are none."""
    pairs = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{pairs}</dl>\n' if pairs else ""


def text(value: object) -> str:
    """``value`` escaped for HTML text and quoted attributes."""
    return html.escape(str(value))


def link(path: str | PurePath) -> str:
    """A relative path as a URL that is safe in a quoted attribute."""
    name = path.as_posix() if isinstance(path, PurePath) else path
    return quote(os.fsencode(name))


def asset(name: str) -> str:
    """A style sheet or script from ``report/assets``, after a line break."""
    return "\n" + files("patchsvdd.report").joinpath("assets", name).read_text("utf-8")


def _style() -> str:
    """The style sheet, with the colours of the heat maps filled in."""
    stops = (f"rgb{colour} {100 * ratio / SATURATION:.2f}%" for ratio, colour, _ in HEAT)
    return asset("page.css").replace("HEAT_STOPS", ", ".join(stops))


_LEGEND = """<footer>
<h2>How to read the overlays</h2>
<p>Left: the image; a line surrounds each region whose anomaly map exceeds the threshold.
Right: the anomaly map. Its colours depend only on the threshold, so they mean the same in every overlay:
blue up to the threshold, red above it, yellow at three times the threshold and above.</p>
<p class="heat" aria-hidden="true"></p>
</footer>
"""
