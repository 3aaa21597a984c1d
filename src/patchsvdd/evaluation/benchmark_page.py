"""The HTML page of a benchmark: tables with the paper's values, curves, and the best and worst images."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patchsvdd.core.config import Config
from patchsvdd.core.image_size import AUTO
from patchsvdd.core.presets import PRESETS
from patchsvdd.evaluation.benchmark import HEADLINE, Benchmark, cell
from patchsvdd.evaluation.benchmark_figures import auroc_chart, contact_sheet, curve_charts, score_chart, shown_result
from patchsvdd.evaluation.experiment import ExperimentResult
from patchsvdd.evaluation.published import published_for
from patchsvdd.images.mvtec_layout import GOOD
from patchsvdd.report import figures
from patchsvdd.report.article import Section, TableBlock, write_article

MAX_NOTES = 3
"""Number of warnings shown per category; the others are only counted."""

_NONE = "–"
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

_DETAILS_LEAD = (
    "Average precision (AP) and the best F1 score consider every threshold. False alarms (good images classified as "
    "anomalous) and missed images (defective images classified as good) are counted at the threshold calibrated on "
    "the training images."
)
_INSTALL = (
    "There are no charts because matplotlib is not installed. Install it with pip install 'patchsvdd[paper]' and "
    "run the same command again; nothing is computed twice."
)


def write_benchmark_page(benchmark: Benchmark, folders: Sequence[Path], out: Path) -> Path:
    """Write ``out``/index.html, with its figures in ``out``/figures; returns the path of the page.

    ``folders`` are the folders of the categories, in the order of ``benchmark.categories``.
    """
    data = benchmark.to_json()
    sections = [
        Section("Results", _lead(data), blocks=[_main_table(benchmark), *auroc_chart(benchmark, out)]),
        Section("Precision, F1 and verdicts", _DETAILS_LEAD, blocks=[_detail_table(benchmark)]),
        *_curve_section(benchmark, out),
        *(_category(benchmark, name, folder, out) for name, folder in zip(benchmark.categories, folders, strict=True)),
    ]
    return write_article(
        out / "index.html",
        title=f"Benchmark: {data['dataset']}",
        kind="Patch SVDD",
        intro="Every category was trained on good images only, then tested on good and defective images.",
        facts=_facts(benchmark, data),
        sections=sections,
    )


def _facts(benchmark: Benchmark, data: Mapping[str, Any]) -> dict[str, str]:
    """Settings and provenance of the results; unknown values are left out."""
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
    """The settings that differ from the preset."""
    defaults = _shown(PRESETS[config.preset].replace(seed=config.seed)) if config.preset in PRESETS else {}
    changed = {name: value for name, value in _shown(config).items() if value != defaults.get(name, value)}
    return ", ".join(f"{name} {value}" for name, value in changed.items() if value is not None)


def _shown(config: Config) -> dict[str, Any]:
    """The settings by name; an image size that each category chooses is "auto"."""
    settings = config.to_json()
    if settings.pop("auto_size"):
        settings["image_size"] = AUTO
        del settings["fit"], settings["pixel_scale"]
    return settings


def _lead(data: Mapping[str, Any]) -> str:
    known = any(entry["published"] for entry in data["categories"].values())
    paper = f"Paper: {data['published_source']}. " if known else "The paper has no values for these categories. "
    return f"{paper}All numbers are in results.json, results.csv and results.md next to this page."


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
    theirs = published_for(benchmark.config.preset, name)
    detection, segmentation, aupro = (cell(benchmark.values(name, metric)) for metric in HEADLINE)
    paper = [_number(theirs.get(metric)) for metric in HEADLINE]
    training = [one.data["training"] for one in benchmark.results.get(name, {}).values()]
    steps = ", ".join(f"{count:,}" for count in sorted({one["steps"] for one in training}))
    seconds = f"{statistics.fmean(one['seconds'] for one in training):,.1f}" if training else _NONE
    return [name, detection, paper[0], segmentation, paper[1], aupro, steps or _NONE, seconds]


def _detail_table(benchmark: Benchmark) -> TableBlock:
    rows = []
    for name in benchmark.categories:
        values = {metric: benchmark.values(name, metric) for metric in _DETAILS}
        rows.append([name, *(_rate(v) if metric.endswith("_rate") else cell(v) for metric, v in values.items())])
    for label, names in _groups(benchmark):
        cells = [_mean(benchmark.mean_over(names, metric), len(names), metric) for metric in _DETAILS]
        rows.append([label, *cells])
    caption = "Average precision, best F1 score, and verdicts at the calibrated threshold"
    return TableBlock(caption, ["Category", *_DETAILS.values()], rows, _notes(benchmark))


def _groups(benchmark: Benchmark) -> list[tuple[str, list[str]]]:
    """(label, categories) of the rows of means; without groups of one category or of all categories."""
    groups = benchmark.groups()
    everything = groups.pop("all")
    kinds = [(f"mean of {kind}s", names) for kind, names in groups.items() if 1 < len(names) < len(everything)]
    return [*kinds, ("mean of all", everything)] if len(everything) > 1 else []


def _notes(benchmark: Benchmark) -> list[str]:
    """The meaning of ±, and why cells are empty."""
    seeds = ", ".join(map(str, benchmark.seeds))
    notes = [f"±: standard deviation over the seeds {seeds}."] if len(benchmark.seeds) > 1 else []
    for name in benchmark.categories:
        results = benchmark.results.get(name, {})
        for metric, reason in benchmark.missing(name).items():
            have = len(benchmark.values(name, metric))
            part = f" for {len(results) - have} of {len(results)} seeds" if have else ""
            notes.append(f"{name}: no {_MISSING.get(metric, metric)}{part}: {_local(reason, name)}")
    return notes


def _curve_section(benchmark: Benchmark, out: Path) -> list[Section]:
    """The curves of all categories; if matplotlib is missing, how to install it; nothing if there are no curves."""
    if not figures.have_matplotlib():
        return [Section("Charts", _INSTALL)]
    blocks = curve_charts(benchmark, out)
    return [Section("Curves", "The first seed of each category.", blocks=blocks)] if blocks else []


def _category(benchmark: Benchmark, name: str, folder: Path, out: Path) -> Section:
    """Verdicts, scores and sample maps of one category."""
    shown = shown_result(benchmark, name)
    if shown is None:
        reasons = dict.fromkeys(_local(reason, name) for reason in benchmark.missing(name).values())
        return Section(name, f"No result: {'; '.join(reasons) or 'it was not run'}")
    headline = {words: benchmark.values(name, metric) for metric, words in _HEADLINE.items()}
    lead = ", ".join(f"{words} {cell(values)}" for words, values in headline.items() if values)
    sheet, note = contact_sheet(shown, folder, out)
    table = _defect_table([one for one in benchmark.results[name].values() if one.data["images"]], name)
    return Section(name, f"{lead}. {note}" if lead else note, blocks=[table, *score_chart(shown, out), *sheet])


def _defect_table(results: Sequence[ExperimentResult], name: str) -> TableBlock:
    """The verdicts on each type of image, as means over the seeds; only counts without a threshold."""
    evaluations = [one.data["evaluation"] for one in results]
    warnings = list(dict.fromkeys(_local(text, name) for one in evaluations for text in one["warnings"]))
    notes = warnings[:MAX_NOTES]
    notes += [f"… and {len(warnings) - MAX_NOTES} more warnings"] if len(warnings) > MAX_NOTES else []
    kinds = sorted(evaluations[0]["verdicts"], key=lambda kind: (kind == GOOD, kind))
    if evaluations[0].get("threshold") is None:
        rows = [[kind, str(evaluations[0]["verdicts"][kind]["images"])] for kind in kinds]
        return TableBlock("Test images; no verdicts without a threshold", ["Type", "Images"], rows, notes)
    rows = [_defect_row(kind, [one["verdicts"][kind] for one in evaluations]) for kind in kinds]
    columns = ["Type", "Images", "Anomalous", "Missed", "False alarms"]
    return TableBlock("Verdicts at the calibrated threshold" + _over(len(results)), columns, rows, notes)


def _defect_row(kind: str, verdicts: Sequence[Mapping[str, int]]) -> list[str]:
    images = verdicts[0]["images"]
    anomalous = statistics.fmean(one["anomalous"] for one in verdicts)
    wrong = ["", _rate([anomalous / images])] if kind == GOOD else [_rate([1 - anomalous / images]), ""]
    return [kind, str(images), f"{anomalous:.1f}".removesuffix(".0"), *wrong]


def _over(seeds: int) -> str:
    return f", mean over {seeds} seeds" if seeds > 1 else ""


def _local(words: str, category: str) -> str:
    """The text without the folders above the category, which are meaningless on another machine."""
    return re.sub(rf"(?<![\w.])/[^'\"]*?(?={re.escape(category)}(?:['/]|$))", "", words)


def _mean(mean: Mapping[str, Any] | None, total: int, metric: str = "") -> str:
    """A cell of a row of means, with the number of categories if some lack the metric."""
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
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{deviation} %"
