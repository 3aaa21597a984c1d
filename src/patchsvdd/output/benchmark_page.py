"""The page of a benchmark: its tables beside the paper's values, its curves, and the best and worst images."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import BadZipFile

from patchsvdd.category import GOOD, find_test_images
from patchsvdd.config import PRESETS, Config
from patchsvdd.errors import DatasetError, ImageError
from patchsvdd.evaluation.benchmark import HEADLINE, Benchmark, cell
from patchsvdd.evaluation.experiment import ExperimentResult
from patchsvdd.evaluation.inspected import PRODUCT
from patchsvdd.evaluation.keepsake import KeptMaps
from patchsvdd.evaluation.metrics import PRO_LIMIT
from patchsvdd.evaluation.published import published
from patchsvdd.images import load_image, load_mask
from patchsvdd.output import figures
from patchsvdd.output.article import FigureBlock, Section, TableBlock, write_article
from patchsvdd.output.sheet import SheetCell, SheetRow, draw_sheet, save_sheet

FIGURES = Path("figures")
"""Where the pictures lie, relative to the page."""
MAX_NOTES = 3
"""Warnings of a category that are shown; the others are counted."""
MAX_CELLS = 6
"""Images in one row of a contact sheet."""

_NONE = "–"
_MAP = "anomaly map"
_MISSING = {
    "error": "result",
    "detection_auroc": "detection metrics",
    "segmentation_auroc": "segmentation metrics and AUPRO",
}
_HEADLINE = dict(zip(HEADLINE, ("Detection AUROC", "segmentation AUROC", "AUPRO"), strict=True))
_DETAILS = {
    "detection_ap": "Detection AP",
    "detection_f1_max": "Detection F1-max",
    "segmentation_ap": "Segmentation AP",
    "segmentation_f1_max": "Segmentation F1-max",
    "false_alarm_rate": "False alarms",
    "miss_rate": "Missed",
}
_CURVES = {
    "roc": ("Image ROC", "share of good images called anomalous", "share of defective images found", 1.0),
    "pixel_roc": ("Pixel ROC", "share of good pixels above the threshold", "share of defect pixels found", 1.0),
    "pro": ("PRO", "share of good pixels above the threshold", "mean share found of each defect", PRO_LIMIT),
}

_DETAILS_LEAD = (
    "Average precision (AP) and the best F1 score look at every threshold. False alarms (good images called "
    "anomalous) and missed ones (defective images called good) are counted at the threshold that was calibrated on "
    "the training images."
)
_INSTALL = (
    "The charts are not drawn, for matplotlib is not installed. Install it with pip install 'patchsvdd[paper]' and "
    "run the same command again; nothing is computed twice."
)


def write_benchmark_page(benchmark: Benchmark, folders: Sequence[Path], out: Path) -> Path:
    """The path of ``out``/index.html; its pictures lie in ``out``/figures.

    ``folders`` are the categories' own, in the order of ``benchmark.categories``.
    """
    data = benchmark.to_json()
    sections = [
        Section("Results", _lead(data), blocks=[_main_table(benchmark), *_bars(benchmark, out)]),
        Section("Precision, F1 and verdicts", _DETAILS_LEAD, blocks=[_detail_table(benchmark)]),
        *_curve_section(benchmark, out),
        *(_category(benchmark, name, folder, out) for name, folder in zip(benchmark.categories, folders, strict=True)),
    ]
    return write_article(
        out / "index.html",
        title=f"Benchmark: {data['dataset']}",
        kind="Patch SVDD",
        intro="Every category trained on its good images alone, then tested on good and defective ones.",
        facts=_facts(benchmark, data),
        sections=sections,
    )


def _facts(benchmark: Benchmark, data: Mapping[str, Any]) -> dict[str, str]:
    """How the results came about; what is not known is left out."""
    done, total = len(benchmark.results), len(benchmark.categories)
    facts = {
        "Data set": data["dataset"],
        "Categories": str(total) if done == total else f"{done} of {total}",
        "Preset": data["preset"],
        "Changed settings": _changes(benchmark.config),
        "Seeds": ", ".join(map(str, data["seeds"])),
        "Hardware": data["hardware"],
        "Commit": data["commit"],
        "Date": data["date"],
    }
    return {name: value for name, value in facts.items() if value}


def _changes(config: Config) -> str:
    """The settings that differ from those of the preset."""
    usual = PRESETS[config.preset].replace(seed=config.seed).to_json() if config.preset in PRESETS else {}
    changed = {name: value for name, value in config.to_json().items() if value != usual.get(name, value)}
    return ", ".join(f"{name} {value}" for name, value in changed.items() if value is not None)


def _lead(data: Mapping[str, Any]) -> str:
    known = any(entry["published"] for entry in data["categories"].values())
    paper = f"Paper: {data['published_source']}. " if known else "The paper has no values for these categories. "
    return f"{paper}All numbers are in results.json, results.csv and results.md beside this page."


def _main_table(benchmark: Benchmark) -> TableBlock:
    columns = ["Category", "Detection AUROC", "Paper", "Segmentation AUROC", "Paper", "AUPRO", "Steps", "Training, s"]
    rows = [_main_row(benchmark, name) for name in benchmark.categories]
    for label, names in _groups(benchmark):
        means = [benchmark.mean_over(names, metric) for metric in HEADLINE]
        ours = [_mean(mean, len(names)) for mean in means]
        paper = [_number(mean["published"] if mean else None) for mean in means]
        rows.append([label, ours[0], paper[0], ours[1], paper[1], ours[2], "", ""])
    return TableBlock("Area under the ROC curve and under the PRO curve", columns, rows, _notes(benchmark))


def _main_row(benchmark: Benchmark, name: str) -> list[str]:
    theirs = published("patch_svdd", name)
    detection, segmentation, aupro = (cell(benchmark.values(name, metric)) for metric in HEADLINE)
    paper = [_number(theirs.get(metric)) for metric in HEADLINE]
    training = [one.data["training"] for one in benchmark.results.get(name, {}).values()]
    steps = ", ".join(f"{count:,}" for count in sorted({one["steps"] for one in training}))
    seconds = f"{statistics.fmean(one['seconds'] for one in training):,.1f}" if training else _NONE
    return [name, detection, paper[0], segmentation, paper[1], aupro, steps or _NONE, seconds]


def _detail_table(benchmark: Benchmark) -> TableBlock:
    rows = []
    for name in benchmark.categories:
        found = ((metric, benchmark.values(name, metric)) for metric in _DETAILS)
        rows.append([name, *(_rate(values) if metric.endswith("_rate") else cell(values) for metric, values in found)])
    for label, names in _groups(benchmark):
        cells = [_mean(benchmark.mean_over(names, metric), len(names), metric) for metric in _DETAILS]
        rows.append([label, *cells])
    caption = "Average precision, best F1 score, and verdicts at the calibrated threshold"
    return TableBlock(caption, ["Category", *_DETAILS.values()], rows, _notes(benchmark))


def _groups(benchmark: Benchmark) -> list[tuple[str, list[str]]]:
    """(label, categories) of the rows of means; groups of one are left out, and those that say the same as all."""
    groups = benchmark.groups()
    everything = groups.pop("all")
    found = [(f"mean of {kind}s", names) for kind, names in groups.items() if 1 < len(names) < len(everything)]
    return [*found, ("mean of all", everything)] if len(everything) > 1 else []


def _notes(benchmark: Benchmark) -> list[str]:
    """What ± means, and why cells are empty."""
    seeds = ", ".join(map(str, benchmark.seeds))
    notes = [f"±: standard deviation over the seeds {seeds}."] if len(benchmark.seeds) > 1 else []
    for name in benchmark.categories:
        results = benchmark.results.get(name, {})
        for metric, reason in benchmark.missing(name).items():
            have = len(benchmark.values(name, metric))
            part = f" for {len(results) - have} of {len(results)} seeds" if have else ""
            notes.append(f"{name}: no {_MISSING.get(metric, metric)}{part}: {_local(reason, name)}")
    return notes


def _bars(benchmark: Benchmark, out: Path) -> list[FigureBlock]:
    """Ours beside the published values; nothing without matplotlib or without values."""
    ours: dict[str, figures.Values] = {}
    errors: dict[str, figures.Values] = {}
    paper: dict[str, figures.Values] = {}
    for kind in ("detection", "segmentation"):
        values = [benchmark.values(name, f"{kind}_auroc") for name in benchmark.categories]
        theirs = [published("patch_svdd", name).get(f"{kind}_auroc") for name in benchmark.categories]
        ours[kind] = [statistics.fmean(found) if found else None for found in values]
        errors[kind] = [statistics.stdev(found) if len(found) > 1 else None for found in values]
        paper |= {kind: theirs} if any(theirs) else {}
    if not figures.have_matplotlib() or all(value is None for values in ours.values() for value in values):
        return []
    path, title = FIGURES / "auroc.svg", "AUROC of each category"
    look: dict[str, Any] = {"ylabel": "AUROC", "title": title, "floor": 0.5}
    figures.bar_chart(out / path, list(map(_label, benchmark.categories)), ours, errors=errors, reference=paper, **look)
    caption = "Detection (images) and segmentation (pixels)" + ("; diamonds: the paper's values." if paper else ".")
    return [FigureBlock(path, caption, f"Bar chart: {title}; the values are in the table above", wide=True)]


def _curve_section(benchmark: Benchmark, out: Path) -> list[Section]:
    """The curves of all categories; how to get them where matplotlib is missing; nothing where there are none."""
    if not figures.have_matplotlib():
        return [Section("Charts", _INSTALL)]
    blocks = [block for kind in _CURVES for block in _curves(benchmark, kind, out)]
    return [Section("Curves", "The first seed of each category.", blocks=blocks)] if blocks else []


def _curves(benchmark: Benchmark, kind: str, out: Path) -> list[FigureBlock]:
    shown = {name: _shown(benchmark, name) for name in benchmark.categories}
    found = {name: one.data["curves"][kind] for name, one in shown.items() if one and kind in one.data["curves"]}
    if not found:
        return []
    title, xlabel, ylabel, limit = _CURVES[kind]
    path = FIGURES / f"{kind}.svg"
    curves = {_label(name): (curve["x"], curve["y"]) for name, curve in found.items()}
    look: dict[str, Any] = {"xlabel": xlabel, "ylabel": ylabel, "title": title}
    figures.curves_chart(out / path, curves, xlimit=limit, chance=limit == 1, **look)
    caption = f"{title} curves: {ylabel} against {xlabel}."
    return [FigureBlock(path, caption, f"{title} curves of {', '.join(found)}")]


def _shown(benchmark: Benchmark, name: str) -> ExperimentResult | None:
    """The result whose pictures are shown: that of the first seed that has any."""
    results = benchmark.results.get(name, {}).values()
    return next((one for one in results if one.data["images"]), None)


def _category(benchmark: Benchmark, name: str, folder: Path, out: Path) -> Section:
    """How the images of one category were told apart, and what the detector saw in some of them."""
    shown = _shown(benchmark, name)
    if shown is None:
        reasons = dict.fromkeys(_local(reason, name) for reason in benchmark.missing(name).values())
        return Section(name, f"No result: {'; '.join(reasons) or 'it was not run'}")
    values = {words: benchmark.values(name, metric) for metric, words in _HEADLINE.items()}
    lead = ", ".join(f"{words} {cell(found)}" for words, found in values.items() if found)
    sheet, note = _sheet(shown, folder, out)
    table = _defect_table([one for one in benchmark.results[name].values() if one.data["images"]], name)
    return Section(name, f"{lead}. {note}" if lead else note, blocks=[table, *_histogram(shown, out), *sheet])


def _defect_table(results: Sequence[ExperimentResult], name: str) -> TableBlock:
    """The verdicts on each type of image, as means over the seeds; counts alone without a threshold."""
    evaluations = [one.data["evaluation"] for one in results]
    warnings = list(dict.fromkeys(_local(text, name) for one in evaluations for text in one["warnings"]))
    notes = warnings[:MAX_NOTES]
    notes += [f"… and {len(warnings) - MAX_NOTES} more warnings"] if len(warnings) > MAX_NOTES else []
    kinds = sorted(evaluations[0]["verdicts"], key=lambda kind: (kind == GOOD, kind))
    if evaluations[0].get("threshold") is None:
        rows = [[kind, str(evaluations[0]["verdicts"][kind]["images"])] for kind in kinds]
        return TableBlock("Test images; no threshold, so none was judged", ["Type", "Images"], rows, notes)
    rows = [_defect_row(kind, [one["verdicts"][kind] for one in evaluations]) for kind in kinds]
    columns = ["Type", "Images", "Called anomalous", "Missed", "False alarms"]
    return TableBlock("Verdicts at the calibrated threshold" + _over(len(results)), columns, rows, notes)


def _defect_row(kind: str, verdicts: Sequence[Mapping[str, int]]) -> list[str]:
    images = verdicts[0]["images"]
    called = statistics.fmean(one["anomalous"] for one in verdicts)
    wrong = ["", _rate([called / images])] if kind == GOOD else [_rate([1 - called / images]), ""]
    return [kind, str(images), f"{called:.1f}".removesuffix(".0"), *wrong]


def _over(seeds: int) -> str:
    return f", mean over {seeds} seeds" if seeds > 1 else ""


def _histogram(shown: ExperimentResult, out: Path) -> list[FigureBlock]:
    if not figures.have_matplotlib():
        return []
    name = shown.experiment.category.name
    path = FIGURES / f"{name}-scores.svg"
    images, threshold = shown.data["images"], shown.data["evaluation"].get("threshold")
    good = [image["score"] for image in images if image["defect"] == GOOD]
    defective = [image["score"] for image in images if image["defect"] != GOOD]
    figures.score_histogram(out / path, good, defective, threshold=threshold, title=f"Scores: {_label(name)}")
    caption = f"Anomaly scores of the test images, seed {shown.experiment.config.seed}."
    return [FigureBlock(path, caption, f"Histogram of the scores of good and defective test images of {name}")]


@dataclass(frozen=True)
class _Look:
    """What the images of one contact sheet share."""

    folder: Path
    config: Config
    masks: Mapping[str, Path]
    """Image → mask file."""
    threshold: float
    """0 if there is none."""
    full: float
    """The value of the anomaly map that is drawn fully dark."""

    def cell(self, kept: KeptMaps) -> SheetCell:
        """One image; ImageError if it cannot be read any more."""
        product = kept.maps[PRODUCT]
        height, width = product.shape
        mask = self.masks.get(kept.image)
        truth = None if mask is None else load_mask(mask, (height, width), self.config.resize)
        image = load_image(self.folder / kept.image, self.config).picture
        return SheetCell(image, truth, {_MAP: product}, {_MAP: self.full}, self._caption(kept))

    def _caption(self, kept: KeptMaps) -> str:
        name = f"{kept.defect}/{PurePosixPath(kept.image).stem}"
        if not self.threshold:
            return f"{name}: {kept.score:.3g}"
        called, passed = ("false alarm", "passed") if kept.defect == GOOD else ("found", "missed")
        return f"{name}: {kept.score / self.threshold:.2f}×, {called if kept.anomalous else passed}"


def _sheet(shown: ExperimentResult, folder: Path, out: Path) -> tuple[list[FigureBlock], str]:
    """The contact sheet of the best and the worst images, if any can be read; and what had to be left out."""
    kept = _kept(shown)
    if not kept:
        return [], "The kept anomaly maps are gone, so no image is shown."
    threshold = shown.data["evaluation"].get("threshold") or 0.0
    full = 2 * threshold or max(one.score for one in kept)
    rows, lost = _rows(kept, _Look(folder, shown.experiment.config, _masks(folder), threshold, full))
    note = f"Left out, for the image or its mask cannot be read: {', '.join(lost)}." if lost else ""
    if not rows:
        return [], note
    path = FIGURES / f"{folder.name}-images.jpg"
    save_sheet(draw_sheet(rows), out / path)
    words = "score ÷ threshold, and the verdict" if threshold else "the anomaly score"
    caption = (
        f"Test images and their anomaly maps, seed {shown.experiment.config.seed}: the highest and the lowest score of "
        f"each type of defect, and good images. Below each: {words}."
    )
    alt = f"Test images of {folder.name}. " + "; ".join(row.label for row in rows)
    return [FigureBlock(path, caption, alt, wide=True)], note


def _kept(shown: ExperimentResult) -> list[KeptMaps]:
    """The kept maps; none if their file is missing or damaged."""
    try:
        return shown.keepsakes().read()
    except (OSError, ValueError, EOFError, BadZipFile):
        return []


def _rows(kept: Sequence[KeptMaps], look: _Look) -> tuple[list[SheetRow], list[str]]:
    """The rows of the contact sheet, and the images that cannot be read."""
    rows, lost = [], []
    for label, members in _ranked(kept).items():
        cells = []
        for one in members:
            try:
                cells.append(look.cell(one))
            except (ImageError, OSError):
                lost.append(one.image)
        rows += [SheetRow(label, cells)] if cells else []
    return rows, lost


def _ranked(kept: Sequence[KeptMaps]) -> dict[str, list[KeptMaps]]:
    """Label → images of a row: the highest and the lowest score of each type of defect, and the good images.

    A type with one image is in the first row if it was found, else in the second.
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


def _masks(folder: Path) -> dict[str, Path]:
    """Image → mask file; empty if the test images are gone."""
    try:
        images = find_test_images(folder).images
    except DatasetError:
        return {}
    return {image.file.relative_to(folder).as_posix(): image.mask for image in images if image.mask is not None}


def _local(words: str, category: str) -> str:
    """The words without the folders above the category: they mean nothing on another machine."""
    return re.sub(rf"(?<![\w.])/[^'\"]*?(?={re.escape(category)}(?:['/]|$))", "", words)


def _label(name: str) -> str:
    """The name as a chart can show it: valid Unicode, and short."""
    plain = name.encode("utf-8", "replace").decode()
    return plain if len(plain) <= 24 else f"{plain[:12]}…{plain[-11:]}"


def _mean(mean: Mapping[str, Any] | None, total: int, metric: str = "") -> str:
    """A cell of a row of means, with the number of categories where some lack the metric."""
    if mean is None:
        return _NONE
    have = len(mean["categories"])
    value = _rate([mean["mean"]]) if metric.endswith("_rate") else _number(mean["mean"])
    return value if have == total else f"{value} ({have} of {total})"


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"


def _rate(values: Sequence[float]) -> str:
    """ "12.5 %", "12.5 ± 3.0 %" over several seeds, "–" for none."""
    if not values:
        return _NONE
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread} %"
