"""Table 1: Patch SVDD beside other methods, trained here and as published."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patchsvdd.core.presets import BASELINE_PRESETS, preset
from patchsvdd.evaluation.experiment import ExperimentResult
from patchsvdd.evaluation.paper.study import (
    TASK_NAMES,
    TASKS,
    Comparison,
    ItemReport,
    Metrics,
    Study,
    show,
)
from patchsvdd.evaluation.published import METHOD_OF, Method, categories, methods, published
from patchsvdd.report.article import FigureBlock, Section, TableBlock, Verdict

OURS = "Patch SVDD"
UNTRAINED = {"random encoder": "random", "raw patches": "raw"}
"""Name → kind of encoder."""
ONE_CENTER = "L_SVDD"
CHECKED = "Values per category were entered by hand. Only their means were checked, against the printed averages."
FAR = 0.1
"""Differences from published values above this are listed (docs/paper.md explains them)."""


def run_methods(study: Study) -> ItemReport:
    """Patch SVDD, the baselines and what needs no training on every category, beside the published values."""
    results = {category.name: _results(study, category) for category in study.categories}
    comparison = Comparison.of(results, without_maps=frozenset({METHOD_OF["deep-svdd"]}))
    others = methods()
    section = Section(
        title="Other methods",
        lead="Table 1. Patch SVDD, the methods that the paper compares it with, and later ones. Methods trained here "
        "have the same images and the same test; all others are as published, on the original images.",
        verdicts=[*_claims(comparison), *_distances(comparison, others)],
        blocks=[
            *(_table(comparison, others, task) for task in TASKS),
            TableBlock(
                "Sources", ["method", "source"], [[one.name, one.source] for one in others], [CHECKED], is_text=True
            ),
            *_figures(study, comparison),
        ],
        anchor="methods",
    )
    printed = {one.name: {"source": one.source, "average": one.average, "categories": one.categories} for one in others}
    return ItemReport("methods", {**comparison.to_json(), "published": printed}, section)


def _results(study: Study, category: Path) -> dict[str, list[ExperimentResult]]:
    """Name of each method that is trained here → its results; Patch SVDD is trained with every seed."""
    results = {OURS: study.results(category)}
    for name in BASELINE_PRESETS:
        config = preset(name, seed=study.config.seed, image_size=study.config.image_size)
        results[METHOD_OF[name]] = [study.result_of(category, config)]
    results |= {name: [study.result(category, encoder=kind)] for name, kind in UNTRAINED.items()}
    results[ONE_CENTER] = [study.result_of(category, study.with_loss("svdd"), "center")]
    return results


def _claims(comparison: Comparison) -> list[Verdict]:
    """Whether Patch SVDD is better than each method that was trained here."""
    verdicts = []
    for task in TASKS:
        ours = comparison.mean(OURS, task)
        means = {name: comparison.mean(name, task) for name in comparison.variants if name != OURS}
        known = {name: value for name, value in means.items() if value is not None}
        if ours is None or not known:
            continue
        best = max(known, key=lambda name: known[name])
        words = (
            f"Patch SVDD is better than every other method trained here in {TASK_NAMES[task]}: mean AUROC "
            f"{comparison.show_mean(OURS, task)}, the next is {best} with {show(known[best])}."
        )
        spread = comparison.spread(OURS, task) or 0.0
        decided = spread == 0 or abs(ours - known[best]) > spread
        verdicts.append(Verdict(ours > known[best] if decided else None, words))
    return verdicts


def _distances(comparison: Comparison, others: Sequence[Method]) -> list[Verdict]:
    """Every baseline trained here that differs by more than FAR from its published value."""
    printed = {one.name: one for one in others if one.name in METHOD_OF.values()}
    verdicts = []
    for category, row in comparison.values.items():
        for name, method in printed.items():
            theirs = method.categories.get(category, {})
            for task in TASKS:
                here, there = row[name].get(task), theirs.get(task)
                if here is not None and there is not None and abs(here - there) > FAR:
                    words = f"{category}, {name}, {TASK_NAMES[task]}: {here:.3f} here, {there:.3f} published."
                    verdicts.append(Verdict.remark(words))
    return verdicts


def _table(comparison: Comparison, others: Sequence[Method], task: str) -> TableBlock:
    """All categories of the paper; those that are not here have published values only."""
    known = [one for one in others if task in one.average]
    here = [name for name in comparison.variants if any(task in row[name] for row in comparison.values.values())]
    columns = ["category", *(f"{name}, here" for name in here), "Patch SVDD, paper", *(one.name for one in known)]
    rows = []
    for category in dict.fromkeys([*categories(), *comparison.values]):
        ours: Mapping[str, Metrics] = comparison.values.get(category, {})
        rows.append(
            [
                category,
                *(show(ours.get(name, {}).get(task)) for name in here),
                show(published("patch_svdd", category).get(task)),
                *(show(one.categories.get(category, {}).get(task)) for one in known),
            ]
        )
    same = comparison.counted(task)
    if same:
        shown: list[Any] = [published("patch_svdd", category).get(task) for category in same]
        rows.append(
            [
                "mean of those here",
                *(comparison.show_mean(name, task) for name in here),
                _mean(shown),
                *(_mean([one.categories.get(category, {}).get(task) for category in same]) for one in known),
            ]
        )
    average = [published("average", "patch_svdd").get(task), *(one.average.get(task) for one in known)]
    rows.append(["mean of 15, published", *("–" for _ in here), *(show(value) for value in average)])
    notes = [f"{name}: {why[task]}" for name, why in comparison.reasons.items() if task in why]
    return TableBlock(f"{TASK_NAMES[task].capitalize()} AUROC", columns, rows, notes)


def _mean(values: Sequence[float | None]) -> str:
    """The mean, or a dash if a value is missing."""
    known = [value for value in values if value is not None]
    return show(statistics.fmean(known) if known and len(known) == len(values) else None)


def _figures(study: Study, comparison: Comparison) -> list[FigureBlock]:
    return comparison.bar_charts(study, "methods", "of the methods trained here (Table 1).", 0.4)
