"""The charts of docs/pictures from the result files.

    python benchmarks/plots.py [--results benchmarks/results] [--out docs/pictures] [--png]

A chart is drawn if its result file exists. Times on a CPU are drawn as multiples of the smallest point: the machine is
shared, so only their growth is meaningful.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patchsvdd.evaluation.paper.embeddings import LOSSES
from patchsvdd.report.figure_style import SOFT, WIDTH, canvas, label
from patchsvdd.report.figures import COLOURS, bar_chart, embedding_scatter
from record import RESULTS
from study_report import Choice, Point, choices, points_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = RESULTS.parent.parent / "docs" / "pictures"
MARKERS = ("o", "s", "^", "D", "v", "<", "X")
Data = dict[str, Any]
Quantities = Mapping[str, str]
"""Field of a row → name in the chart."""

SETUP = {"cpu": "graphs", "cuda": "cells"}
IMAGES_TIME = {
    "memory_seconds": "fill the memory",
    "index_seconds": "build {index}",
    "threshold_seconds": "find the threshold",
    "inspect_milliseconds": "inspect one image",
}
SIZE_TIME = {
    "encode_milliseconds": "encode",
    "search_milliseconds": "search",
    "map_milliseconds": "map",
    "inspect_milliseconds": "all together",
}
MEMORY = {
    "cpu": {"disk_bytes": "model on disk", "memory_bytes": "RAM beyond PyTorch, peak"},
    "cuda": {
        "disk_bytes": "model on disk",
        "memory_bytes": "GPU peak, with loading",
        "inspecting_bytes": "GPU peak, inspecting",
    },
}
SIZE_MEMORY = {
    "cpu": {"process_bytes": "whole process, peak", "memory_bytes": "beyond PyTorch, peak"},
    "cuda": {"memory_bytes": "GPU peak, with loading", "inspecting_bytes": "GPU peak, inspecting"},
}
TASKS = {"detection_auroc": "detection", "segmentation_auroc": "segmentation"}
METHODS = {
    "settled": "settled k-center (default)",
    "k-center": "k-center",
    "per-place": "per place",
    "random": "random",
}
PROCESSORS = {"cpu": "Cores", "gpu": "GPUs"}
CLUSTER_STAGES = {
    "find and plan": ("find", "plan"),
    "inspect": ("inspect",),
    "sum up": ("sum up",),
}
SAMPLINGS = {"dense": "dense sampling", "patches": "cut patches"}


def growth_images(data: Data, path: Path) -> None:
    """Time and memory against the number of training images."""
    kind = data["device"]
    times = {name: words.format(index=SETUP[kind]) for name, words in IMAGES_TIME.items()}
    with canvas(path, WIDTH, 4.6) as figure:
        time, memory = figure.subplots(1, 2)
        _growth(time, data, "images", "images", times, is_time=True)
        _growth(memory, data, "images", "images", MEMORY[kind], is_time=False)
        for axes in (time, memory):
            axes.set_xlabel(f"training images ({data.get('picture', 'drawn')} px)")
        at_once = "16 images at a time" if kind == "cuda" else "one image at a time"
        _note(figure, data, f"{data['images'][0]['search']} search, {at_once}")


def growth_size(data: Data, path: Path) -> None:
    """Time and memory against the size of an image."""
    kind = data["device"]
    with canvas(path, WIDTH, 4.6) as figure:
        time, memory = figure.subplots(1, 2)
        _growth(time, data, "sizes", "size", SIZE_TIME, is_time=True)
        _growth(memory, data, "sizes", "size", SIZE_MEMORY[kind], is_time=False)
        if kind == "cpu":
            limit = data["limit_bytes"] / 2**20
            memory.axhline(limit, color="black", linestyle="--", linewidth=1.2)
            memory.text(0.02, limit, "2 GiB", transform=memory.get_yaxis_transform(), va="bottom")
            memory.set_ylim(top=2 * limit)
        for axes in (time, memory):
            axes.set_xlabel("side of the image, px")
        rows = data["sizes"][0]["rows"].values()
        _note(figure, data, f"one memory of {sum(rows):,} patches; exponents per pixel (side²)")


def thinning(data: Data, path: Path) -> None:
    """AUROC against the size of the memory, one column of panels per category."""
    rows = data["rows"]
    categories = list(dict.fromkeys(row["category"] for row in rows))
    columns = len(categories) if len(categories) <= 4 else 3
    blocks = -(-len(categories) // columns)
    with canvas(path, WIDTH, 1.1 + 3.5 * blocks) as figure:
        panels = figure.subplots(2 * blocks, columns, squeeze=False)
        for axes in panels.flat:
            axes.set_visible(False)
        for index, category in enumerate(categories):
            for at, (task, name) in enumerate(TASKS.items()):
                axes = panels[2 * (index // columns) + at, index % columns]
                axes.set_visible(True)
                _thinned(axes, [row for row in rows if row["category"] == category], task)
                if at == 0:
                    axes.set_title(category)
                    axes.tick_params(labelbottom=False)
                else:
                    axes.set_xlabel("memory kept, %")
                if index % columns == 0:
                    axes.set_ylabel(f"{name}\nAUROC")
        _legend(figure, panels[0, 0])
        _note(figure, data, "every axis has its own range; 0.5 is chance; random: mean and range of draws")


def sampling(data: Data, path: Path) -> None:
    """AUROC against seconds of training, a column of panels per category, a line per seed."""
    rows = data["rows"]
    kinds = list(dict.fromkeys(row["sampling"] for row in rows))
    categories = list(dict.fromkeys(row["category"] for row in rows))
    with canvas(path, WIDTH, 4.8) as figure:
        panels = figure.subplots(2, len(categories), squeeze=False, sharey="row")
        for column, category in enumerate(categories):
            for axes, (task, name) in zip(panels[:, column], TASKS.items(), strict=True):
                for index, kind in enumerate(kinds):
                    wanted = [row for row in rows if (row["category"], row["sampling"]) == (category, kind)]
                    _trained(axes, wanted, task, kind, index)
                _plain_log(axes, "x", sorted({row["budget"] for row in rows}))
                if column == 0:
                    axes.set_ylabel(f"{name}\nAUROC")
            panels[0, column].set_title(category)
            panels[1, column].set_xlabel("seconds of training")
        _legend(figure, panels[0, 0])
        _note(figure, data, "a line per seed; 0.5 is chance, where collapsed runs end")


def selection(data: Data, path: Path) -> None:
    """Test against validation, a panel per category, a point per setting."""
    made = choices(points_of(data["rows"]))
    columns = min(3, max(1, len(made)))
    lines = max(1, -(-len(made) // columns))
    with canvas(path, WIDTH, 1.0 + 2.35 * lines) as figure:
        panels = figure.subplots(lines, columns, squeeze=False)
        for axes in panels.flat[len(made) :]:
            axes.set_visible(False)
        for index, (axes, one) in enumerate(zip(panels.flat, made, strict=False)):
            _settings(axes, one)
            correlation = "" if one.correlation is None else f"  ρ = {one.correlation:.2f}"
            axes.set_title(label(one.category) + correlation, fontsize="medium")
            if index >= len(made) - columns:
                axes.set_xlabel("validation (drawn defects)", fontsize="small")
        if made:
            _legend(figure, panels[0, 0])
        _note(figure, data, "mean of detection and segmentation AUROC; ρ: rank correlation; axes differ")


def sharded(data: Data, path: Path) -> None:
    """Time, memory per actor and the coreset's radius against the number of shards."""
    rows, thinned = data["searches"], data["coreset"]["sharded"]
    x = [row["shards"] for row in rows]
    with canvas(path, WIDTH, 3.4) as figure:
        time, memory, radius = figure.subplots(1, 3)
        time.plot(x, [row["seconds"] / rows[0]["seconds"] for row in rows], **_look(0))
        time.set_title("Time")
        time.set_ylabel("times that of one shard")
        for index, (field, name) in enumerate((("own_bytes_per_actor", "actor"), ("vector_bytes_per_actor", "rows"))):
            memory.plot(x, [row[field] / 2**20 for row in rows], label=name, **_look(index))
        memory.set_title("Memory")
        memory.set_ylabel("MiB per shard")
        memory.legend()
        radius.plot([row["shards"] for row in thinned], [row["radius_ratio"] for row in thinned], **_look(0))
        radius.set_title("Coreset")
        radius.set_ylabel("radius, times that at once")
        for axes in (time, memory, radius):
            _plain_log(axes, "x", x)
            axes.set_xlabel("shards")
            axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        _note(figure, data, f"{data['rows']:,} × {data['length']} vectors, {data['queries']:,} queries, one machine")


def cluster_sizing(data: Data, path: Path) -> None:
    """Hours of an archive against the number of workers, on cores and on GPUs, stage by stage."""
    with canvas(path, WIDTH, 4.6) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (kind, words) in zip(panels, PROCESSORS.items(), strict=True):
            cases = [case for case in data["cases"] if case["kind"] == kind]
            x = [case["workers"] for case in cases]
            for index, (name, stages) in enumerate(CLUSTER_STAGES.items()):
                y = [sum(case["stages"][stage] for stage in stages) / 3600 for case in cases]
                axes.plot(x, y, label=name, **_look(index))
            total = [case["seconds"] / 3600 for case in cases]
            axes.plot(x, total, label="all together", color="black", linewidth=2.2, zorder=1.8)
            ideal = [case["seconds"] * case["speedup"] / case["workers"] / 3600 for case in cases]
            axes.plot(x, ideal, label="if nothing but computing took time", color=SOFT, linestyle=(0, (5, 4)))
            axes.set(xscale="log", yscale="log", title=words, xlabel="workers")
            _plain_log(axes, "x", x)
            _plain_log(axes, "y", None)
        panels[0].set_ylabel("hours")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize="small")
        images = data["assumed"]["images"]["value"]
        _note(figure, data, f"{images:,} images, simulated from what was measured there")


def _settings(axes: Axes, one: Choice) -> None:
    """A point per setting; rings, which may be around the same point, mark the settings discussed in the text."""
    others = [point for point in one.points if not point.is_base]
    _points(axes, others, "a setting", marker="o", color=COLOURS[0], markersize=5, markeredgecolor="white")
    if one.base is not None:
        _points(axes, [one.base], "the base", marker="X", color=COLOURS[6], markersize=7, markeredgecolor="white")
    ring = {"markerfacecolor": "none", "markeredgewidth": 1.6}
    _points(axes, [one.chosen], "chosen by validation", marker="s", markersize=11, markeredgecolor=COLOURS[5], **ring)
    _points(axes, [one.best], "best by test", marker="D", markersize=14, markeredgecolor=COLOURS[2], **ring)
    tasks = [name for task, name in TASKS.items() if one.points[0].tasks[task] is not None]
    axes.set_ylabel("test" if len(tasks) == len(TASKS) else f"test, {' and '.join(tasks)} only", fontsize="small")
    axes.margins(0.14)
    axes.tick_params(labelsize="small")
    axes.locator_params(nbins=4)


def _points(axes: Axes, points: Sequence[Point], words: str, **look: Any) -> None:
    x, y = [point.validation for point in points], [point.test for point in points]
    axes.plot(x, y, linestyle="none", label=words, **look)


def _growth(axes: Axes, data: Data, part: str, x: str, quantities: Quantities, *, is_time: bool) -> None:
    """Draw a log-log line per quantity, with its exponent in the legend."""
    rows = data[part]
    relative = is_time and data["device"] == "cpu"
    fitted = data["exponents"]["images" if part == "images" else "size"]
    for index, (field, name) in enumerate(quantities.items()):
        if field not in fitted:
            continue
        y = [row[field] for row in rows]
        y = [value / y[0] for value in y] if relative else [_in_unit(field, value) for value in y]
        words = f"{name}: {fitted[field]['all']:.2f}"
        axes.plot([row[x] for row in rows], y, label=words, **_look(index))
    axes.set(xscale="log", yscale="log")
    _plain_log(axes, "x", [row[x] for row in rows])
    _plain_log(axes, "y", None)
    axes.set_title(f"{'Time' if is_time else 'Memory'}")
    axes.set_ylabel("times the smallest" if relative else "seconds" if is_time else "MiB")
    if relative:
        _linear(axes, [row["pixels" if part == "sizes" else "images"] for row in rows], [row[x] for row in rows])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), title="exponent", handlelength=2.2, alignment="left")


def _linear(axes: Axes, work: Sequence[float], x: Sequence[float]) -> None:
    """Draw linear growth as a dashed line."""
    y = [one / work[0] for one in work]
    axes.plot(x, y, color=SOFT, linestyle=(0, (5, 4)), linewidth=1.2, zorder=1.5, label="linear: 1")


def _in_unit(field: str, value: float) -> float:
    """Seconds, or MiB."""
    if field.endswith("_bytes"):
        return value / 2**20
    return value / 1000 if field.endswith("_milliseconds") else value


def _thinned(axes: Axes, rows: Sequence[Data], task: str) -> None:
    """One panel: a line per method; the whole memory dashed."""
    whole = [row[task] for row in rows if row["method"] == "all"]
    if whole:
        axes.axhline(whole[0], color="black", linestyle="--", linewidth=1.1, label="whole memory")
    for index, (method, name) in enumerate(METHODS.items()):
        points: dict[float, list[float]] = {}
        for row in rows:
            if row["method"] == method:
                points.setdefault(float(row["size"].rstrip("%")), []).append(row[task])
        x = sorted(points)
        look = _look(index) | {"markersize": 4.5, "linewidth": 1.4}
        axes.plot(x, [statistics.mean(points[size]) for size in x], label=name, **look)
        if max(map(len, points.values()), default=1) > 1:
            low, high = [min(points[size]) for size in x], [max(points[size]) for size in x]
            axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
    axes.set_xscale("log")
    axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.set_xticks([], minor=True)
    axes.tick_params(labelsize="small")


def _trained(axes: Axes, rows: Sequence[Data], task: str, kind: str, index: int) -> None:
    for number, seed in enumerate(dict.fromkeys(row["seed"] for row in rows)):
        own = sorted((row for row in rows if row["seed"] == seed), key=lambda row: float(row["budget"]))
        label = SAMPLINGS.get(kind, kind) if number == 0 else None
        axes.plot([row["train_seconds"] for row in own], [row[task] for row in own], label=label, **_look(index))


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index], "marker": MARKERS[index], "markeredgecolor": "white"}


def ddp(data: Data, path: Path) -> None:
    """Loss of every step, by one process and by workers that share its batch; another seed shows the noise."""
    curves = data["curves"]
    names = {"another seed": "one process, another seed", "one": "one process", "workers": f"{data['workers']} workers"}
    styles = {"another seed": (COLOURS[2], "-", 1.0), "one": (COLOURS[0], "-", 2.5), "workers": (COLOURS[1], "--", 1.2)}
    with canvas(path, WIDTH, 3.6) as figure:
        axes = figure.subplots()
        for key, words in names.items():
            colour, line, width = styles[key]
            axes.plot(range(1, len(curves[key]) + 1), curves[key], line, color=colour, linewidth=width, label=words)
        axes.set_xlabel("step")
        axes.set_ylabel("loss of the whole batch")
        _legend(figure, axes)
        _note(figure, data, f"{data['images']}, a batch of {data['batch_size']}")


def _plain_log(axes: Axes, side: str, ticks: Sequence[float] | None) -> None:
    """A logarithmic axis with plain numbers; a short one has 2 and 5 between the powers of ten."""
    axis = axes.xaxis if side == "x" else axes.yaxis
    (axes.set_xscale if side == "x" else axes.set_yscale)("log")
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter("")
    if ticks is not None:
        axis.set_ticks(ticks, [f"{tick:,g}" for tick in ticks])
        axis.set_ticks([], minor=True)
        return
    low, high = axes.get_ylim()
    if high < 100 * low:
        from matplotlib.ticker import LogLocator

        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def _legend(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize="small")


def _note(figure: Figure, data: Data, words: str) -> None:
    """Write the machine and date of the measurement below the chart."""
    figure.supxlabel(f"{data['hardware']}, {data['date']}; {words}", fontsize="small", color=SOFT)


def verdict_misses(data: Data, path: Path) -> None:
    """Share of defects that a model expects to miss, from synthetic ones, against the share of real ones it misses."""
    with canvas(path, WIDTH, 4.6) as figure:
        axes = figure.subplots()
        axes.axline((0, 0), slope=1, color=SOFT, linewidth=1)
        for index, category in enumerate(dict.fromkeys(row["category"] for row in data["rows"])):
            points = [row["aims"]["balanced"] for row in data["rows"] if row["category"] == category]
            axes.scatter(
                [100 * one["expected_miss_rate"] for one in points],
                [100 * one["miss_rate"] for one in points],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
                label=label(category),
            )
        axes.set_xlabel("visible synthetic defects missed, %")
        axes.set_ylabel("real defects missed, %")
        axes.set_xlim(0, None)
        axes.set_ylim(0, None)
        axes.set_title("Expected and realised misses")
        figure.legend(loc="outside right upper")


def paper_bars(data: Data, path: Path) -> None:
    """Detection AUROC of the variants of an item of the paper, on every category."""
    series = {name: [row[name].get("detection_auroc") for row in data["categories"].values()] for name in data["means"]}
    bar_chart(path, list(data["categories"]), series, ylabel="detection AUROC", floor=0.0)


def paper_tsne(data: Data, path: Path) -> None:
    """t-SNE of the embeddings of toothbrush under each loss, from the kept results of the paper's items."""
    plots = {}
    for name, files in data["trainings"].items():
        drawn = next((value for key, value in files.items() if key.startswith("tsne-")), None)
        if name.startswith("toothbrush-") and drawn is not None:
            test = next(value for key, value in files.items() if key.startswith("test-"))
            plots[test["settings"]["objective"]] = drawn
    position = np.array(next(iter(plots.values()))["positions"])
    panels = {name: np.array(plots[objective]["points"]) for name, objective in LOSSES.items() if objective in plots}
    theta, radius = np.arctan2(position[:, 0], position[:, 1]), np.hypot(position[:, 0], position[:, 1])
    embedding_scatter(path, panels, theta, radius)


CHARTS: dict[str, tuple[str, Callable[[Data, Path], None]]] = {
    "growth-images-cpu": ("growth-cpu", growth_images),
    "growth-size-cpu": ("growth-cpu", growth_size),
    "growth-images-gpu": ("growth-gpu", growth_images),
    "growth-size-gpu": ("growth-gpu", growth_size),
    "thinning": ("thinning", thinning),
    "sampling": ("sampling", sampling),
    "selection": ("study", selection),
    "sharded-search": ("sharded-search", sharded),
    "ddp-loss": ("ddp", ddp),
    "verdict-misses": ("verdict-table", verdict_misses),
    "paper-losses": ("paper-losses", paper_bars),
    "paper-hierarchy": ("paper-hierarchy", paper_bars),
    "paper-tsne": ("paper-kept", paper_tsne),
}
"""Name of the chart → its result file and drawing function."""


def draw_all(results: Path, pictures: Path, suffix: str = ".svg") -> list[Path]:
    """Draw the charts whose result files exist; return their paths."""
    drawn = []
    for name, (source, draw) in CHARTS.items():
        file = results / f"{source}.json"
        if file.exists():
            drawn.append(pictures / f"{name}{suffix}")
            draw(json.loads(file.read_text()), drawn[-1])
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=PICTURES)
    parser.add_argument("--png", action="store_true", help="PNG instead of SVG")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for path in draw_all(args.results, args.out, ".png" if args.png else ".svg"):
        print(path)


if __name__ == "__main__":
    main()
