"""The figures of a benchmark's page: charts, and contact sheets of the best and worst images."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from patchsvdd.evaluation.benchmark import Benchmark
from patchsvdd.evaluation.collected_results import PRODUCT
from patchsvdd.evaluation.experiment import ExperimentResult
from patchsvdd.evaluation.metrics import PRO_LIMIT
from patchsvdd.evaluation.published import published_for
from patchsvdd.evaluation.sample_maps import KeptMaps
from patchsvdd.images.mvtec_layout import GOOD
from patchsvdd.report import figures
from patchsvdd.report.article import FigureBlock
from patchsvdd.report.contact_sheet import SheetCell, SheetRow, draw_sheet, look_at
from patchsvdd.report.overlay import save_image

FIGURES = Path("figures")
"""Folder of the figures, relative to the page."""
MAX_CELLS = 6
"""Images in one row of a contact sheet."""

_MAP = "anomaly map"
_CURVES = {
    "roc": ("Image ROC", "false positive rate of images", "true positive rate of images", 1.0),
    "pixel_roc": ("Pixel ROC", "false positive rate of pixels", "true positive rate of pixels", 1.0),
    "pro": ("PRO", "false positive rate of pixels", "mean overlap with each defect region", PRO_LIMIT),
}


def shown_result(benchmark: Benchmark, name: str) -> ExperimentResult | None:
    """The result of a category whose images are shown: that of the first seed with images."""
    results = benchmark.results.get(name, {}).values()
    return next((one for one in results if one.data["images"]), None)


def auroc_chart(benchmark: Benchmark, out: Path) -> list[FigureBlock]:
    """Our values next to the published ones; empty without matplotlib or without values."""
    ours: dict[str, figures.Values] = {}
    errors: dict[str, figures.Values] = {}
    paper: dict[str, figures.Values] = {}
    for kind in ("detection", "segmentation"):
        values = [benchmark.values(name, f"{kind}_auroc") for name in benchmark.categories]
        theirs = [published_for(benchmark.config.preset, name).get(f"{kind}_auroc") for name in benchmark.categories]
        ours[kind] = [statistics.fmean(seeds) if seeds else None for seeds in values]
        errors[kind] = [statistics.stdev(seeds) if len(seeds) > 1 else None for seeds in values]
        paper |= {kind: theirs} if any(theirs) else {}
    if not figures.have_matplotlib() or all(value is None for values in ours.values() for value in values):
        return []
    path, title = FIGURES / "auroc.svg", "AUROC of each category"
    look: dict[str, Any] = {"ylabel": "AUROC", "title": title, "floor": 0.5}
    figures.bar_chart(out / path, benchmark.categories, ours, errors=errors, reference=paper, **look)
    caption = "Detection (images) and segmentation (pixels)" + ("; diamonds: the paper's values." if paper else ".")
    return [FigureBlock(path, caption, f"Bar chart: {title}; the values are in the table above", wide=True)]


def curve_charts(benchmark: Benchmark, out: Path) -> list[FigureBlock]:
    """The ROC and PRO curves of all categories that have them."""
    return [block for kind in _CURVES for block in _curves(benchmark, kind, out)]


def _curves(benchmark: Benchmark, kind: str, out: Path) -> list[FigureBlock]:
    shown = {name: shown_result(benchmark, name) for name in benchmark.categories}
    stored = {name: one.data["curves"][kind] for name, one in shown.items() if one and kind in one.data["curves"]}
    if not stored:
        return []
    title, xlabel, ylabel, limit = _CURVES[kind]
    path = FIGURES / f"{kind}.svg"
    curves = {name: (curve["x"], curve["y"]) for name, curve in stored.items()}
    look: dict[str, Any] = {"xlabel": xlabel, "ylabel": ylabel, "title": title}
    figures.curves_chart(out / path, curves, xlimit=limit, chance=limit == 1, **look)
    caption = f"{title} curves: {ylabel} against {xlabel}."
    return [FigureBlock(path, caption, f"{title} curves of {', '.join(stored)}")]


def score_chart(shown: ExperimentResult, out: Path) -> list[FigureBlock]:
    """The scores of one category's test images; empty without matplotlib."""
    if not figures.have_matplotlib():
        return []
    name = shown.experiment.category.name
    path = FIGURES / f"{name}-scores.svg"
    images, threshold = shown.data["images"], shown.data["evaluation"].get("threshold")
    good = [image["score"] for image in images if image["defect"] == GOOD]
    defective = [image["score"] for image in images if image["defect"] != GOOD]
    figures.score_histogram(out / path, good, defective, threshold=threshold, title=f"Scores: {name}")
    caption = f"Anomaly scores of the test images, seed {shown.experiment.config.seed}."
    return [FigureBlock(path, caption, f"Histogram of the scores of good and defective test images of {name}")]


def contact_sheet(shown: ExperimentResult, folder: Path, out: Path) -> tuple[list[FigureBlock], str]:
    """The contact sheet of the best and worst images, if any can be read; and a note on missing ones."""
    kept = shown.sample_maps().read()
    if not kept:
        return [], "No images are shown because the stored anomaly maps are missing."
    threshold = shown.data["evaluation"].get("threshold") or 0.0
    rows, lost = _rows(shown, kept, folder, threshold)
    note = f"Not shown because the image or its mask cannot be read: {', '.join(lost)}." if lost else ""
    if not rows:
        return [], note
    path = FIGURES / f"{folder.name}-images.jpg"
    save_image(draw_sheet(rows), out / path)
    words = "score ÷ threshold, and the verdict" if threshold else "the anomaly score"
    caption = (
        f"Test images and their anomaly maps, seed {shown.experiment.config.seed}: the highest and the lowest score of "
        f"each type of defect, and good images. Below each: {words}."
    )
    alt = f"Test images of {folder.name}. " + "; ".join(row.label for row in rows)
    return [FigureBlock(path, caption, alt, wide=True)], note


def _rows(
    shown: ExperimentResult, kept: Sequence[KeptMaps], folder: Path, threshold: float
) -> tuple[list[SheetRow], list[str]]:
    """The rows of the contact sheet, and the images that cannot be read."""
    full = 2 * threshold or max(one.score for one in kept)
    ranked = rank_images(kept)
    images = [one.image for members in ranked.values() for one in members]
    seen = look_at(folder, images, shown.experiment.config)
    rows = []
    for label, members in ranked.items():
        cells = [
            SheetCell(*seen[one.image], {_MAP: one.maps[PRODUCT]}, {_MAP: full}, caption_of(one, threshold))
            for one in members
            if one.image in seen
        ]
        rows += [SheetRow(label, cells)] if cells else []
    return rows, [image for image in images if image not in seen]


def rank_images(kept: Sequence[KeptMaps]) -> dict[str, list[KeptMaps]]:
    """Label → images of a row: the highest and lowest score of each type of defect, and the good images.

    A type with one image is in the first row if it was detected, else in the second.
    """
    kinds: dict[str, list[KeptMaps]] = defaultdict(list)
    for one in sorted(kept, key=lambda one: -one.score):
        kinds[one.defect].append(one)
    good = kinds.pop(GOOD, [])
    best = [members[0] for members in kinds.values() if len(members) > 1 or members[0].anomalous]
    worst = [members[-1] for members in kinds.values() if len(members) > 1 or not members[0].anomalous]
    worst.sort(key=lambda one: one.score)
    return {
        "Clearest defects": best[:MAX_CELLS],
        "Hardest defects": worst[:MAX_CELLS],
        "Good images, highest score first": good,
    }


def caption_of(kept: KeptMaps, threshold: float) -> str:
    """Name, score ÷ threshold, and whether the verdict is correct; name and score if the threshold is 0."""
    name = f"{kept.defect}/{PurePosixPath(kept.image).stem}"
    if not threshold:
        return f"{name}: {kept.score:.3g}"
    called, passed = ("false alarm", "passed") if kept.defect == GOOD else ("found", "missed")
    return f"{name}: {kept.score / threshold:.2f}×, {called if kept.anomalous else passed}"
