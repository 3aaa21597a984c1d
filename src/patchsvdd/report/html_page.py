"""The shell of every HTML page: one style for light, dark, phone and paper, and no request to any network."""

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


def asset(name: str) -> str:
    """A style sheet or script of ``report/assets``, starting on a new line."""
    return "\n" + files("patchsvdd.report").joinpath("assets", name).read_text("utf-8")


def _style() -> str:
    """The style sheet, with the colours of the heat maps filled in."""
    stops = (f"rgb{colour} {100 * ratio / SATURATION:.2f}%" for ratio, colour, _ in HEAT)
    return asset("page.css").replace("HEAT_STOPS", ", ".join(stops))


_LEGEND = """<footer>
<h2>How to read the pictures</h2>
<p>Left: the image; a line surrounds each region whose anomaly map exceeds the threshold.
Right: the anomaly map. Its colours are fixed by the threshold, the same in every picture:
blue up to the threshold, red above it, yellow from three times the threshold on.</p>
<p class="heat" aria-hidden="true"></p>
</footer>
"""
