"""The charts of the paper and of the results, as SVG or PNG; matplotlib is only imported when a chart is drawn.

Every chart is written to ``path``, whose suffix decides the format; the same data give the same bytes. Names may be
file names: characters that cannot be drawn are replaced.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError
from patchsvdd.report.figure_style import SOFT, WIDTH, canvas, heading, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Sequence[float | None]
"""One value per group; None for a missing value."""
Curve = tuple[Sequence[float], Sequence[float]]
"""(x, y) of the points."""

LOG_FROM = 20
"""The histogram's axis is logarithmic if largest ÷ smallest score exceeds this."""

# Okabe and Ito's colours without yellow, which is hard to see on white. A hatch, a marker or a line style repeats what
# a colour means.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#333333")
_HATCHES = ("", "////", "\\\\\\\\", "xxxx", "----", "||||", "++++")
_MARKERS = ("o", "s", "^", "D", "v", "<", "X")
_LINES = ("-", "--", ":")

# The colours of 0°, 30°, … 330°: a circle in OKLab along which lightness and blueness vary, so that all angles are
# distinguishable for people who cannot distinguish red and green.
_CYCLE = (
    *("#a28218", "#9baf53", "#82d18e", "#60dec0", "#4ed1dc", "#5cafdc"),
    *("#6f83c3", "#775899", "#7a386b", "#802a44", "#8b3425", "#9a5501"),
)

_PUBLISHED = "published"
_BARS = 24  # approximate number of bars of the histogram
_PANEL = 2.75  # inches per panel
_PANEL_NAME = 22  # characters per line of a panel's title
_WHISKER: dict[str, Any] = {"fmt": "none", "ecolor": "black", "elinewidth": 1, "capsize": 1.5}
_DIAMOND: dict[str, Any] = {
    **{"linestyle": "none", "marker": "D", "markerfacecolor": "white", "markeredgecolor": "black"},
    **{"markeredgewidth": 1.0, "zorder": 4},
}
_GOOD: dict[str, Any] = {"edgecolor": "#0072b2", "facecolor": "#b3d5e8"}
_DEFECTIVE: dict[str, Any] = {"edgecolor": "#d55e00", "facecolor": "none", "hatch": "////"}


def have_matplotlib() -> bool:
    """Whether matplotlib is installed, so that charts can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def bar_chart(
    path: Path,
    groups: Sequence[str],
    series: Mapping[str, Values],
    *,
    ylabel: str,
    title: str = "",
    errors: Mapping[str, Values] | None = None,
    floor: float | None = None,
    reference: Mapping[str, Values] | None = None,
) -> Path:
    """Draw one bar per series in each group, and a dash for a missing value; returns ``path``.

    ``errors`` are half lengths of error bars; ``reference`` are published values, drawn as diamonds. The axis
    starts at ``floor``, or lower if a value is below it.
    """
    errors, reference = errors or {}, reference or {}
    room = 0.82 / max(1, len(series))  # width of one bar; a group is 1 wide
    with canvas(path, WIDTH, 3.9) as figure:
        axes = figure.add_subplot(title=heading(title))
        for index, (name, values) in enumerate(series.items()):
            centres = np.arange(len(groups)) + room * (index - (len(series) - 1) / 2)
            axes.bar(centres, _floats(values), 0.94 * room, label=label(name), **_bar_look(index))
            _mark_missing(axes, centres, values)
            if name in errors:
                axes.errorbar(centres, _floats(values), _floats(errors[name]), **_WHISKER)
            if name in reference:
                size = min(7.0, 0.55 * room * 72 * WIDTH / max(1, len(groups)))
                axes.plot(centres, _floats(reference[name]), markersize=size, **_DIAMOND)
        if reference:
            axes.plot([], [], label=_PUBLISHED, markersize=7, **_DIAMOND)
        _name_groups(axes, list(map(label, groups)))
        _start_axis(axes, floor, _lowest(series, errors, reference), heading(ylabel))
        _legend_below(figure, axes)
    return path


def line_chart(
    path: Path,
    series: Mapping[str, Curve],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    logx: bool = False,
    diagonal: bool = False,
    ticks: Sequence[float] | None = None,
) -> Path:
    """Draw one line per series; ``diagonal`` adds y = x within the range of the data. Returns ``path``."""
    with canvas(path, WIDTH, 3.9) as figure:
        axes = figure.add_subplot(title=heading(title), xlabel=heading(xlabel), ylabel=heading(ylabel))
        for index, (name, (x, y)) in enumerate(series.items()):
            axes.plot(x, y, label=label(name), **_line_look(index))
        if logx:
            _make_logarithmic(axes, [value for x, _ in series.values() for value in x])
        if ticks is not None:
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.set_xticks([], minor=True)
        if diagonal:
            _draw_diagonal(axes, "y = x")
        _legend_below(figure, axes)
    return path


def curves_chart(
    path: Path,
    curves: Mapping[str, Curve],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    xlimit: float = 1.0,
    chance: bool = True,
) -> Path:
    """Draw curves such as ROC from 0 to ``xlimit``; ``chance`` adds y = x. Returns ``path``."""
    with canvas(path, WIDTH, 4.8) as figure:
        axes = figure.add_subplot(title=heading(title), xlabel=heading(xlabel), ylabel=heading(ylabel))
        for index, (name, (x, y)) in enumerate(curves.items()):
            spacing = (0.03 * (index % 5), 0.15)  # keeps markers of neighbouring curves apart
            axes.plot(x, y, label=label(name), markevery=spacing, linewidth=1.6, **_line_look(index))
        axes.set(xlim=(0, xlimit), ylim=(0, 1.01))
        if chance:
            _draw_diagonal(axes, "chance")
        figure.legend(loc="outside right upper", handlelength=3)
    return path


def score_histogram(
    path: Path, good: Sequence[float], defective: Sequence[float], *, threshold: float | None, title: str = ""
) -> Path:
    """Draw a histogram of good and defective test images, with the threshold between two bars; returns ``path``."""
    limit = threshold if threshold is not None and math.isfinite(threshold) else None
    edges, logarithmic = score_edges(np.array([*good, *defective], dtype=float), limit)
    with canvas(path, WIDTH, 3.6) as figure:
        axes = figure.add_subplot(xlabel="anomaly score", ylabel="images")
        for name, scores, look in (("good", good, _GOOD), ("defective", defective, _DEFECTIVE)):
            counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)
            axes.stairs(counts, edges, fill=True, linewidth=1.5, label=f"{name} ({len(scores)})", **look)
        axes.set_title(heading(title), pad=10 if limit is None else 24)
        axes.locator_params(axis="y", integer=True)
        if logarithmic:
            _make_logarithmic(axes, edges)
        if logarithmic and min([*good, *defective]) <= 0:
            axes.set_xlabel("anomaly score (0 in the first bar)")
        if limit is not None:
            _draw_limit(axes, limit)
        _legend_below(figure, axes)
    return path


def embedding_scatter(
    path: Path,
    panels: Mapping[str, NDArray[np.floating[Any]]],
    theta: NDArray[np.floating[Any]],
    radius: NDArray[np.floating[Any]],
    *,
    title: str = "",
    legend_image: NDArray[np.uint8] | None = None,
) -> Path:
    """Draw one panel of points (N, 2) per embedding, and one with their positions in the image; returns ``path``.

    Colour is the angle ``theta`` (N,) in radians from the image's centre, x to the right and y downward; size
    is the ``radius`` (N,), 1 at the corners.
    """
    order = np.argsort(-radius, kind="stable")  # small points on top of large ones
    look: dict[str, Any] = {"c": angle_colours(theta)[order], "s": (1 + 4 * radius[order]) ** 2, "linewidths": 0}
    positions = np.stack([radius * np.cos(theta), radius * np.sin(theta)], axis=1)  # (N, 2)
    columns = min(4, len(panels) + 1)
    rows = math.ceil((len(panels) + 1) / columns)
    with canvas(path, columns * _PANEL, rows * (_PANEL + 0.3) + (0.4 if title else 0)) as figure:
        figure.suptitle(heading(title), x=0.01, ha="left", weight="bold")
        for index, (name, points) in enumerate([*panels.items(), ("position in the image", positions)]):
            axes = figure.add_subplot(rows, columns, index + 1, box_aspect=1, xticks=[], yticks=[])
            axes.set_title(fill(heading(name), _PANEL_NAME), fontsize="medium", weight="normal", loc="center")
            axes.scatter(points[order, 0], points[order, 1], rasterized=True, **look)
            axes.set_aspect("equal", adjustable="datalim")
            axes.spines[:].set(visible=True, color="#cfd3d8")
        _show_image(axes, legend_image)
    return path


def angle_colours(theta: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Colours (N, 3), 0 … 1, of angles (N,) in radians; the colours are periodic."""
    cycle = np.array([list(bytes.fromhex(colour[1:])) for colour in _CYCLE]) / 255  # (12, 3)
    degrees = np.linspace(0, 360, len(cycle), endpoint=False)
    turned = np.rad2deg(theta)
    return np.stack([np.interp(turned, degrees, channel, period=360) for channel in cycle.T], axis=1)


def score_edges(scores: NDArray[np.float64], threshold: float | None) -> tuple[NDArray[np.float64], bool]:
    """Edges of the histogram's bars, one of them just above the threshold, and whether the axis is logarithmic."""
    marks = scores if threshold is None else np.append(scores, threshold)
    positive = marks[marks > 0]
    wide = positive.size > 0 and bool(positive.max() > LOG_FROM * positive.min())
    logarithmic = wide and (threshold is None or threshold > 0)
    values = np.log10(positive) if logarithmic else marks
    low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
    step = (high - low) / _BARS or abs(high) / _BARS or 1.0
    fixed = low if threshold is None else values[-1]
    steps = np.arange(math.floor((low - fixed) / step - 1e-9), math.ceil((high - fixed) / step + 1e-9) + 1)
    edges: NDArray[np.float64] = 10 ** (fixed + step * steps) if logarithmic else fixed + step * steps
    if threshold is not None:  # a score at the threshold is good
        edges[steps == 0] = np.nextafter(threshold, math.inf)
    return edges, logarithmic


def _floats(values: Values) -> NDArray[np.float64]:
    """Values (N,) with NaN for None."""
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def _line_look(index: int) -> dict[str, Any]:
    """Colour, marker and line style of a curve; 21 curves are distinguishable, also in greyscale."""
    place = index % len(COLOURS)
    line = _LINES[index // len(COLOURS) % len(_LINES)]
    return {"color": COLOURS[place], "marker": _MARKERS[place], "linestyle": line, "markeredgecolor": "white"}


def _bar_look(index: int) -> dict[str, Any]:
    """Colour and hatch of a series of bars."""
    place = index % len(COLOURS)
    return {"color": COLOURS[place], "hatch": _HATCHES[place], "edgecolor": "white", "linewidth": 0.5}


def _mark_missing(axes: Axes, centres: NDArray[np.floating[Any]], values: Values) -> None:
    """Draw a dash in place of each missing bar."""
    for centre, value in zip(centres, values, strict=True):
        if value is None:
            axes.text(centre, 0.01, "–", transform=axes.get_xaxis_transform(), ha="center", weight="bold")


def _name_groups(axes: Axes, groups: Sequence[str]) -> None:
    """Write the names below the groups, rotated if they would overlap."""
    axes.set_xlim(-0.6, max(1, len(groups)) - 0.4)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    if max(map(len, groups), default=0) * len(groups) > 75:
        for name in axes.get_xticklabels():
            name.set(rotation=40, ha="right", rotation_mode="anchor")


def _lowest(series: Mapping[str, Values], errors: Mapping[str, Values], reference: Mapping[str, Values]) -> float:
    """The lowest point that must be visible; infinite if there are no points."""
    ends = [_floats(values) - np.nan_to_num(_floats(errors.get(name, [0]))) for name, values in series.items()]
    ends += [_floats(values) for values in reference.values()]
    return float(np.nanmin(np.concatenate([*ends, [math.inf]])))


def _start_axis(axes: Axes, floor: float | None, lowest: float, ylabel: str) -> None:
    """Start the vertical axis at ``floor``, or below the lowest point; the label gives the start unless it is 0."""
    if floor is not None and lowest <= floor:
        span = axes.get_ylim()[1] - lowest
        step = 10.0 ** math.floor(math.log10(span / 2))
        floor = step * math.floor((lowest - 0.03 * span) / step)
        floor = floor if lowest < 0 else max(0.0, floor)
    if floor is not None:
        axes.set_ylim(bottom=floor)
    axes.set_ylabel(f"{ylabel}\n(axis from {floor:.2g}, not 0)" if floor else ylabel)


def _make_logarithmic(axes: Axes, positions: Iterable[float]) -> None:
    """Make the horizontal axis logarithmic, with plain numbers."""
    lowest = min(positions, default=1.0)
    if lowest <= 0:
        raise ConfigError(f"a logarithmic axis requires numbers above 0; got {lowest:g}; do not use logx")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")


def _draw_diagonal(axes: Axes, name: str) -> None:
    """Draw y = x dashed (curved on a logarithmic axis) without extending the axes."""
    xlim, ylim = axes.get_xlim(), axes.get_ylim()
    x = np.linspace(*xlim, 500)
    axes.plot(x, x, color=SOFT, linestyle=(0, (5, 4)), linewidth=1.3, label=name, zorder=1.5)
    axes.set(xlim=xlim, ylim=ylim)


def _draw_limit(axes: Axes, threshold: float) -> None:
    """Draw a line at the threshold, labelled above the axes."""
    axes.axvline(threshold, color="black", linestyle="--", linewidth=1.3)
    top: dict[str, Any] = {"xycoords": axes.get_xaxis_transform(), "xytext": (0, 4), "textcoords": "offset points"}
    axes.annotate(f"threshold {threshold:.3g}", (threshold, 1), ha="center", va="bottom", **top)


def _show_image(axes: Axes, image: NDArray[np.uint8] | None) -> None:
    """Show the image (H, W, 3) faintly behind the points of ``axes``, its corners at a distance of 1; y downward."""
    if image is not None:
        height, width = np.array(image.shape[:2]) / math.hypot(*image.shape[:2])
        axes.imshow(image, extent=(-width, width, height, -height), alpha=0.22, zorder=0)
    else:
        axes.invert_yaxis()
    axes.set_aspect("equal", adjustable="datalim")


def _legend_below(figure: Figure, axes: Axes) -> None:
    """Draw the legend below the chart in as few lines as possible, published values last."""
    entries = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=lambda entry: entry[1] == _PUBLISHED)
    if entries:
        handles, names = zip(*entries, strict=True)
        lines = math.ceil(len(names) * (max(map(len, names)) + 8) / 100)
        figure.legend(handles, names, loc="outside lower center", ncols=math.ceil(len(names) / lines))
