from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageColor

from patchsvdd.core.errors import ConfigError
from patchsvdd.report.figures import (
    COLOURS,
    angle_colours,
    bar_chart,
    curves_chart,
    embedding_scatter,
    have_matplotlib,
    line_chart,
    score_edges,
    score_histogram,
)

pytestmark = pytest.mark.slow

CATEGORIES = [
    *("bottle", "cable", "capsule", "carpet", "grid", "hazelnut", "leather", "metal_nut"),
    *("pill", "screw", "tile", "toothbrush", "transistor", "wood", "zipper"),
]
DEUTERANOPIA = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
"""Machado, Oliveira and Fernandes (2009), on linear light."""
ODD_NAMES = {os.fsdecode(b"caf\xe9"): "caf?", "two\nlines\x07": "two?lines?", "_hidden": " _hidden"}
"""Name of a folder → what a chart shows of it."""


def bars(path: Path, **settings: Any) -> Path:
    series = {"L_SVDD": [0.7, None, 0.6], "Patch SVDD": [0.9, 0.95, None]}
    return bar_chart(path, ["bottle", "cable", "pill"], series, ylabel="AUROC", **settings)


def sweep(path: Path, **settings: Any) -> Path:
    series = {"cable": ([1, 10, 100], [0.9, 0.8, 0.7]), "wood": ([1, 10, 100], [0.7, 0.8, 0.9])}
    return line_chart(path, series, xlabel="λ", ylabel="AUROC", **settings)


def roc(path: Path, **settings: Any) -> Path:
    x = np.linspace(0, 1, 200)
    curves = {name: (x.tolist(), (x ** (1 / (2 + index))).tolist()) for index, name in enumerate(CATEGORIES)}
    return curves_chart(path, curves, xlabel="false positives", ylabel="true positives", **settings)


def scores(path: Path, **settings: Any) -> Path:
    return score_histogram(path, [1.0, 1.1, 1.2], [1.2, 2.0, 3.0, 4.0], **{"threshold": 1.5, **settings})


def embeddings(path: Path, **settings: Any) -> Path:
    rng = np.random.default_rng(0)
    theta, radius = rng.uniform(-np.pi, np.pi, 300), rng.uniform(0, 1, 300)
    panels = {name: rng.normal(size=(300, 2)) for name in ("L_SVDD", "L_SVDD′", "Patch SVDD")}
    return embedding_scatter(path, panels, theta, radius, **settings)


Drawing = Callable[..., Path]
SIZES: dict[Drawing, tuple[float, float]] = {
    bars: (7.3, 3.9),
    sweep: (7.3, 3.9),
    roc: (7.3, 4.8),
    scores: (7.3, 3.6),
    embeddings: (11.0, 3.05),
}
"""Inches."""
every_chart = pytest.mark.parametrize("draw", SIZES, ids=lambda draw: draw.__name__)


def texts(path: Path) -> list[str]:
    """Every text of an SVG, in order."""
    return [node.text or "" for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def pixels(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def count(path: Path, colour: str) -> int:
    """Pixels of exactly that colour."""
    return int((pixels(path) == ImageColor.getrgb(colour)).all(axis=-1).sum())


@every_chart
def test_png_files_have_the_asked_size_on_white(draw: Drawing, tmp_path: Path) -> None:
    path = tmp_path / "new" / "chart.png"
    assert draw(path) == path
    width, height = SIZES[draw]
    seen = pixels(path)
    assert seen.shape == (pytest.approx(200 * height, abs=1), pytest.approx(200 * width, abs=1), 3)
    assert (seen[0] == 255).all()
    assert (seen < 128).any()


@every_chart
def test_svg_files_are_as_wide_as_a_page_shows_them(draw: Drawing, tmp_path: Path) -> None:
    root = ElementTree.parse(draw(tmp_path / "chart.SVG")).getroot()
    assert root.attrib["width"] == f"{72 * SIZES[draw][0]:g}pt"


@every_chart
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_data_give_the_same_bytes_whatever_the_settings_of_the_machine(
    draw: Drawing, kind: str, tmp_path: Path
) -> None:
    first = draw(tmp_path / f"a.{kind}", title="A title").read_bytes()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        second = draw(tmp_path / f"b.{kind}", title="A title").read_bytes()
        assert dict(matplotlib.rcParams) == before
    assert first == second
    assert b"<dc:date>" not in first


@every_chart
def test_titles_are_text_and_dollar_signs_are_no_formula(draw: Drawing, tmp_path: Path) -> None:
    assert "cost $x_1$ <&>" in texts(draw(tmp_path / "chart.svg", title="cost $x_1$ <&>"))


def draw_with_names(folder: Path, *names: str) -> list[Path]:
    """Every chart with the names wherever it takes any."""
    first, curves = names[0], {name: ([0.1, 0.5, 1.0], [0.2, 0.6, 1.0]) for name in names}
    everywhere: dict[str, Any] = {"xlabel": first, "ylabel": first, "title": first}
    values = [0.5] * len(names)
    return [
        bar_chart(folder / "bars.svg", names, dict.fromkeys(names, values), ylabel=first, title=first),
        line_chart(folder / "lines.svg", curves, **everywhere),
        curves_chart(folder / "curves.svg", curves, **everywhere),
        score_histogram(folder / "scores.svg", [1.0], [2.0], threshold=None, title=first),
        embedding_scatter(folder / "points.svg", dict.fromkeys(names, np.eye(2)), np.zeros(2), np.ones(2), title=first),
    ]


@pytest.mark.parametrize(("name", "shown"), ODD_NAMES.items(), ids=["not-utf-8", "control-characters", "underscore"])
def test_names_of_files_may_be_odd(name: str, shown: str, tmp_path: Path) -> None:
    counts = [texts(path).count(shown) for path in draw_with_names(tmp_path, name)]
    assert counts == [4, 4, 4, 1, 2]  # with the title: group, legend and axis; legend and both axes; …; panel


def test_long_names_lose_their_middle(tmp_path: Path) -> None:
    name = "a category with a name of many words"
    bars, lines, curves, _, points = map(texts, draw_with_names(tmp_path, name))
    assert [words.count("a category w… many words") for words in (bars, lines, curves)] == [2, 1, 1]
    assert [words.count(name) for words in (bars, lines, curves, points)] == [2, 3, 3, 1]  # titles have more room
    assert {"a category with a name", "of many words"} <= set(points)  # in two lines above a panel


def test_names_that_are_cut_alike_keep_their_curves(tmp_path: Path) -> None:
    names = [f"{'x' * 20}{number}{'y' * 20}" for number in range(3)]
    _, lines, curves, *_ = map(texts, draw_with_names(tmp_path, *names))
    assert [words.count("xxxxxxxxxxxx…yyyyyyyyyyy") for words in (lines, curves)] == [3, 3]


def test_long_names_leave_room_for_the_bars(tmp_path: Path) -> None:
    areas = []
    for name in ("part", "part" * 60):
        groups = [f"{name} 1", f"{name} 2"]
        path = bar_chart(tmp_path / "chart.png", groups, {name: [1.0, 0.9]}, ylabel=name, title=name)
        areas.append(count(path, COLOURS[0]))
    assert areas[1] > 0.9 * areas[0]


def test_the_module_loads_matplotlib_when_drawing_and_pyplot_never(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from patchsvdd.report import figures
assert "matplotlib" not in sys.modules
figures.score_histogram(Path({str(tmp_path)!r}) / "chart.svg", [1.0], [2.0], threshold=1.5)
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@every_chart
def test_without_matplotlib_the_error_says_what_to_install(
    draw: Drawing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert have_matplotlib()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not have_matplotlib()
    with pytest.raises(ConfigError, match=r'install it: pip install "patchsvdd\[paper\]"'):
        draw(tmp_path / "chart.svg")
    assert not list(tmp_path.iterdir())


def test_other_kinds_of_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got 'chart\.pdf'"):
        bars(tmp_path / "chart.pdf")


def test_bars_have_their_names_and_a_dash_for_each_missing_one(tmp_path: Path) -> None:
    words = texts(bars(tmp_path / "chart.svg"))
    assert {"bottle", "cable", "pill", "L_SVDD", "Patch SVDD", "AUROC"} <= set(words)
    assert words.count("–") == 2
    assert "published" not in words


def test_a_missing_bar_leaves_a_gap(tmp_path: Path) -> None:
    whole = bar_chart(tmp_path / "whole.png", ["a", "b"], {"s": [1.0, 1.0]}, ylabel="y")
    half = bar_chart(tmp_path / "half.png", ["a", "b"], {"s": [1.0, None]}, ylabel="y")
    nothing = bar_chart(tmp_path / "nothing.png", ["a", "b"], {"s": [None, None]}, ylabel="y")
    legend = count(nothing, COLOURS[0])
    assert count(half, COLOURS[0]) - legend == pytest.approx((count(whole, COLOURS[0]) - legend) / 2, rel=0.01)


def test_published_values_come_last_in_the_legend_even_without_a_value_of_our_own(tmp_path: Path) -> None:
    words = texts(bars(tmp_path / "chart.svg", reference={"L_SVDD": [0.7, 0.8, None]}))
    assert words[-3:] == ["L_SVDD", "Patch SVDD", "published"]
    plain = bar_chart(tmp_path / "plain.png", ["a"], {"s": [None]}, ylabel="y", reference={"s": [None]})
    shown = bar_chart(tmp_path / "shown.png", ["a"], {"s": [None]}, ylabel="y", reference={"s": [0.5]})
    assert count(shown, "black") > count(plain, "black")


def test_error_bars_are_drawn(tmp_path: Path) -> None:
    plain, whiskers = bars(tmp_path / "a.png"), bars(tmp_path / "b.png", errors={"L_SVDD": [0.1, None, 0.1]})
    assert count(whiskers, "black") > count(plain, "black")


@pytest.mark.parametrize(
    ("values", "settings", "words"),
    [
        ([0.7, 0.9], {}, []),
        ([0.7, 0.9], {"floor": 0.0}, []),
        ([0.7, 0.9], {"floor": 0.4}, ["(axis from 0.4, not 0)"]),
        ([0.31, 0.9], {"floor": 0.4}, ["(axis from 0.2, not 0)"]),
        ([0.4, 0.9], {"floor": 0.4}, ["(axis from 0.3, not 0)"]),
        ([0.02, 0.9], {"floor": 0.4}, []),
        ([0.45, 0.9], {"floor": 0.4, "errors": {"s": [0.1, None]}}, ["(axis from 0.3, not 0)"]),
        ([0.7, 0.9], {"floor": 0.4, "reference": {"s": [0.25, None]}}, ["(axis from 0.2, not 0)"]),
    ],
)
def test_the_label_says_where_the_axis_starts(
    values: list[float], settings: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    path = bar_chart(tmp_path / "chart.svg", ["a", "b"], {"s": values}, ylabel="AUROC", **settings)
    assert "AUROC" in texts(path)
    assert [word for word in texts(path) if "axis" in word] == words


def test_a_bar_below_the_floor_can_be_seen(tmp_path: Path) -> None:
    low = bar_chart(tmp_path / "low.png", ["a", "b"], {"x": [0.1, None], "y": [None, 1]}, ylabel="AUROC", floor=0.4)
    none = bar_chart(tmp_path / "none.png", ["a", "b"], {"x": [None, None], "y": [None, 1]}, ylabel="AUROC", floor=0.4)
    assert count(low, COLOURS[0]) > count(none, COLOURS[0]) + 1000


def test_many_names_are_slanted(tmp_path: Path) -> None:
    path = bar_chart(tmp_path / "chart.svg", CATEGORIES, {"s": [0.5] * 15}, ylabel="AUROC")
    assert "rotate(-40" in path.read_text()
    assert "rotate(-40" not in bars(tmp_path / "few.svg").read_text()


def test_a_sweep_has_its_ticks_and_its_diagonal(tmp_path: Path) -> None:
    words = texts(sweep(tmp_path / "chart.svg", logx=True, ticks=[1, 10, 100], diagonal=True))
    assert words[:3] == ["1", "10", "100"]
    assert {"λ", "AUROC", "cable", "wood", "y = x"} <= set(words)
    assert "y = x" not in texts(sweep(tmp_path / "plain.svg"))


def test_the_diagonal_does_not_widen_the_axes(tmp_path: Path) -> None:
    plain, diagonal = (texts(sweep(tmp_path / f"{flag}.svg", diagonal=flag)) for flag in (False, True))
    assert [word for word in diagonal if word != "y = x"] == plain


def test_a_logarithmic_axis_refuses_zero(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="numbers above 0; got 0"):
        line_chart(tmp_path / "chart.svg", {"s": ([0, 1], [1, 2])}, xlabel="λ", ylabel="AUROC", logx=True)
    assert not list(tmp_path.iterdir())


def test_fifteen_curves_look_different(tmp_path: Path) -> None:
    path = roc(tmp_path / "chart.svg")
    assert set(CATEGORIES) | {"chance"} <= set(texts(path))
    styles = {node.attrib.get("style", "") for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}path")}
    looks = {style for style in styles if "stroke-width: 1.6" in style}
    assert len(looks) == 15


def test_curves_end_at_the_limit(tmp_path: Path) -> None:
    words = texts(roc(tmp_path / "chart.svg", xlimit=0.3, chance=False))
    assert "0.30" in words
    assert "0.35" not in words
    assert "chance" not in words


def test_a_histogram_names_its_counts_and_the_threshold(tmp_path: Path) -> None:
    assert {"good (3)", "defective (4)", "threshold 1.5"} <= set(texts(scores(tmp_path / "chart.svg")))
    words = texts(scores(tmp_path / "uncalibrated.svg", threshold=float("inf")))
    assert not any("threshold" in word for word in words)


@pytest.mark.parametrize(("good", "defective"), [([], [1.0, 2.0]), ([0.0], []), ([], []), ([1.0, 1.0], [1.0])])
@pytest.mark.parametrize("threshold", [None, 0.0, 1.5])
def test_histograms_of_few_or_equal_scores_can_be_drawn(
    good: list[float], defective: list[float], threshold: float | None, tmp_path: Path
) -> None:
    words = texts(score_histogram(tmp_path / "chart.svg", good, defective, threshold=threshold))
    assert {f"good ({len(good)})", f"defective ({len(defective)})"} <= set(words)


def test_a_wide_span_of_scores_has_a_logarithmic_axis_and_says_where_zero_is(tmp_path: Path) -> None:
    words = texts(score_histogram(tmp_path / "chart.svg", [0.0, 0.01], [10.0], threshold=0.5))
    assert {"0.01", "0.1", "1", "10", "anomaly score (0 in the first bar)"} <= set(words)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_every_score_has_a_bar_on_its_side_of_the_threshold(seed: int, spread: float) -> None:
    values = np.random.default_rng(seed).lognormal(sigma=spread, size=50)
    threshold = float(values[0])
    edges, logarithmic = score_edges(values, threshold)
    assert logarithmic == (values.max() > 20 * values.min())
    assert (np.diff(edges) > 0).all()
    assert edges[0] <= values.min() < values.max() <= edges[-1]
    assert len(edges) <= 30
    split = int(np.flatnonzero(np.isclose(edges, threshold, rtol=1e-12))[0])
    counts, _ = np.histogram(values, edges)
    assert counts[:split].sum() == (values <= threshold).sum()


def test_positions_are_drawn_where_they_lie_in_the_image(tmp_path: Path) -> None:
    theta, radius = np.array([0.0, np.pi / 2]), np.array([0.6, 0.6])  # to the right, and below the centre
    picture = np.full((40, 80, 3), 255, dtype=np.uint8)
    path = embedding_scatter(tmp_path / "a.png", {"x": np.zeros((2, 2))}, theta, radius, legend_image=picture)
    legend = pixels(path)[:, -540:]  # the last panel
    (right_y, right_x), (below_y, below_x) = (
        np.argwhere((np.abs(legend / 255 - colour) < 0.01).all(axis=-1)).mean(axis=0) for colour in angle_colours(theta)
    )
    assert right_x - below_x == pytest.approx(below_y - right_y, abs=2)
    assert right_x - below_x > 100
    assert below_x == pytest.approx(270, abs=15)


def test_farther_points_are_larger(tmp_path: Path) -> None:
    areas = []
    for radius in (0.1, 0.9):
        path = embedding_scatter(tmp_path / "a.png", {"x": np.zeros((1, 2))}, np.zeros(1), np.array([radius]))
        areas.append(int((np.abs(pixels(path) / 255 - angle_colours(np.zeros(1))) < 0.01).all(axis=-1).sum()))
    assert areas[1] > 5 * areas[0] > 0


def test_embeddings_wrap_after_four_panels(tmp_path: Path) -> None:
    panels = {str(index): np.zeros((3, 2)) for index in range(5)}
    path = embedding_scatter(tmp_path / "a.png", panels, np.zeros(3), np.ones(3))
    assert pixels(path).shape == (1220, 2200, 3)


def test_angles_have_a_closed_circle_of_colours() -> None:
    theta = np.linspace(-np.pi, np.pi, 361)
    colours = angle_colours(theta)
    np.testing.assert_allclose(colours[0], colours[-1])
    np.testing.assert_allclose(colours, angle_colours(theta + 2 * np.pi), atol=1e-9)
    assert np.linalg.norm(np.diff(colours, axis=0), axis=1).max() < 0.02


def test_distant_angles_differ_for_the_colour_blind_too() -> None:
    seen = angle_colours(np.deg2rad(np.arange(0, 360, 10))) ** 2.2 @ DEUTERANOPIA.T
    seen = np.clip(seen, 0, 1) ** (1 / 2.2)
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)  # (36, 36)
    turn = np.abs(np.subtract.outer(np.arange(36), np.arange(36)))
    assert apart[np.minimum(turn, 36 - turn) >= 9].min() > 0.2  # a quarter turn or more
