"""The common style of all charts: an empty figure, and labels that are safe to draw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.extras import require
from patchsvdd.core.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 7.3
"""Inches; 700 pixels on a page. Text scales with the width."""
LONGEST_NAME = 24
"""Maximum characters of a tick or legend label, such as a category."""
LONGEST_HEADING = 42
"""Maximum characters of a title or an axis label."""
SOFT = "#6b7280"
"""Colour of secondary lines."""

_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "patchsvdd",
    "text.parse_math": False,  # a name may hold a dollar sign
    "axes.titlesize": "large",
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.edgecolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e3e5e8",
    "xtick.color": SOFT,
    "xtick.labelcolor": "black",
    "ytick.color": SOFT,
    "ytick.labelcolor": "black",
    "legend.frameon": False,
    "lines.markersize": 7,
    "lines.markeredgewidth": 0.7,
    "hatch.linewidth": 0.8,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
}


@contextmanager
def canvas(path: Path, width: float, height: float) -> Iterator[Figure]:
    """An empty figure of the given size in inches, written to ``path`` when the block ends."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _METADATA:
        raise ConfigError(f"a chart is an .svg or a .png file; got {path.name!r}; choose a name with one of these ends")
    require("matplotlib", "paper", "drawing a chart")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's settings
        matplotlib.rcParams.update(_STYLE | {"font.size": 10.5 * width / WIDTH})
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with atomic_write(path, sync=False) as file:
            figure.savefig(file, format=kind, dpi=200, metadata=_METADATA[kind])


def label(words: str, longest: int = LONGEST_NAME) -> str:
    """The text as one printable line; if it is too long, its middle is replaced with an ellipsis.

    A file name may contain anything but a slash: line breaks, bytes that are not UTF-8 (as lone surrogates).
    """
    plain = "".join(one if one.isprintable() else "?" for one in words)
    if len(plain) > longest:
        plain = f"{plain[: longest // 2]}…{plain[1 - longest // 2 :]}"
    return f" {plain}" if plain.startswith("_") else plain  # a legend omits labels that start with "_"


def heading(words: str) -> str:
    """A title or an axis label."""
    return label(words, LONGEST_HEADING)
