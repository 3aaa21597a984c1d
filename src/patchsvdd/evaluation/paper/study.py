"""Input and output of the reproduced items of the paper: the study, its comparisons and its reports."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from patchsvdd.core.config import Config
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult, Scoring
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.evaluation.published import kind_of
from patchsvdd.report.article import FigureBlock, Section, TableBlock, Verdict
from patchsvdd.report.figures import bar_chart, have_matplotlib

Metrics = Mapping[str, float]
TASKS = ("detection_auroc", "segmentation_auroc")
"""The two metrics of the paper, Det. and Seg."""
TASK_NAMES = {"detection_auroc": "detection", "segmentation_auroc": "segmentation"}


@dataclass(frozen=True)
class Study:
    """The categories, the base settings, the store of trained encoders, and the output folder."""

    store: ExperimentStore
    categories: tuple[Path, ...]
    config: Config
    out: Path
    used: list[ExperimentResult] = field(default_factory=list)
    """Every result used so far, recorded as the provenance of the report."""

    def result(self, category: Path, scoring: Scoring = "nearest", **changes: Any) -> ExperimentResult:
        """The result with some settings changed; without a threshold, since no item needs one."""
        return self.result_of(category, self.config.replace(**changes), scoring)

    def result_of(self, category: Path, config: Config, scoring: Scoring = "nearest") -> ExperimentResult:
        """The result with these settings; without a threshold."""
        self.used.append(self.store.result(Experiment(category, config, scoring, calibrated=False)))
        return self.used[-1]

    def one_of_each_kind(self) -> list[Path]:
        """The first object and the first texture; the first two categories of a data set not in the paper."""
        kinds = {kind_of(path.name): path for path in reversed(self.categories)}
        chosen = [kinds[kind] for kind in ("object", "texture") if kind in kinds]
        return chosen or list(self.categories[:2])


@dataclass(frozen=True)
class ItemReport:
    """One item: its numbers, and the section that shows them."""

    item: str
    data: dict[str, Any]
    section: Section


@dataclass(frozen=True)
class Comparison:
    """Detection and segmentation AUROC of several variants on each category."""

    values: dict[str, dict[str, Metrics]]
    """Category → variant → metrics."""
    reasons: dict[str, dict[str, str]]
    """Category → metric → reason why it is missing."""

    @property
    def variants(self) -> list[str]:
        """Names of the variants."""
        return list(next(iter(self.values.values())))

    def mean(self, variant: str, task: str) -> float | None:
        """Mean over the categories for which every variant has a value; None if there are none."""
        complete = [row for row in self.values.values() if all(task in row[name] for name in row)]
        return statistics.fmean(row[variant][task] for row in complete) if complete else None

    def counted(self, task: str) -> list[str]:
        """The categories that the mean includes."""
        return [name for name, row in self.values.items() if all(task in values for values in row.values())]

    def to_json(self) -> dict[str, Any]:
        """Values, means, and reasons for missing values."""
        tasks = {task: {name: self.mean(name, task) for name in self.variants} for task in TASKS}
        return {
            "categories": {
                category: {
                    name: {task: values[task] for task in TASKS if task in values} for name, values in row.items()
                }
                for category, row in self.values.items()
            },
            "means": {name: {task: tasks[task][name] for task in TASKS} for name in self.variants},
            "means_over": {task: self.counted(task) for task in TASKS},
            "missing": self.reasons,
        }

    def table(self, caption: str, theirs: Mapping[str, Metrics]) -> TableBlock:
        """A row per category, the mean, and the paper's mean; each variant has a column per task."""
        columns = ["category", *(f"{name}, {TASK_NAMES[task][:3]}." for name in self.variants for task in TASKS)]
        rows = [
            [category, *(show(row[name].get(task)) for name in self.variants for task in TASKS)]
            for category, row in self.values.items()
        ]
        rows.append(["mean", *(show(self.mean(name, task)) for name in self.variants for task in TASKS)])
        rows.append(
            ["mean in the paper", *(show(theirs.get(name, {}).get(task)) for name in self.variants for task in TASKS)]
        )
        notes = [f"{name}: {why}" for name, reasons in self.reasons.items() for why in dict.fromkeys(reasons.values())]
        return TableBlock(caption, columns, rows, notes)

    def series(self, task: str) -> dict[str, list[float | None]]:
        """Variant → value of each category, for a bar chart."""
        return {name: [row[name].get(task) for row in self.values.values()] for name in self.variants}

    def wins(self, better: str, worse: str, task: str) -> tuple[int, int]:
        """Number of categories in which ``better`` is higher, and number of categories that have both."""
        pairs = [(row[better].get(task), row[worse].get(task)) for row in self.values.values()]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        return sum(a > b for a, b in known), len(known)

    def verdicts(
        self,
        claims: Sequence[tuple[str, str, str]],
        equal_in_paper: Mapping[tuple[str, str], str] = MappingProxyType({}),
    ) -> list[Verdict]:
        """Whether each claim (worse variant, better variant, words) holds, for every task that has values.

        ``equal_in_paper``: (worse variant, task) → remark, where the paper reports no gain that could be confirmed.
        """
        verdicts = []
        for (worse, better, claim), task in product(claims, TASKS):
            before, after = self.mean(worse, task), self.mean(better, task)
            if before is None or after is None:
                continue
            wins, of = self.wins(better, worse, task)
            remark = equal_in_paper.get((worse, task))
            words = (
                f"{claim} raises {TASK_NAMES[task]}: here mean AUROC "
                f"{show(before)} → {show(after)}, higher in {wins} of {of} categories."
            )
            verdicts.append(Verdict(after > before, words) if remark is None else Verdict(None, f"{words} ({remark})"))
        return verdicts

    def bar_charts(
        self, study: Study, item: str, caption: str, floor: float, *, with_mean: bool = False
    ) -> list[FigureBlock]:
        """A chart per task of all variants and categories, in the item's folder; none without matplotlib."""
        blocks = []
        for task in TASKS if have_matplotlib() else ():
            series = self.series(task)
            if with_mean:
                series = {name: [*values, self.mean(name, task)] for name, values in series.items()}
            path = bar_chart(
                study.out / item / f"{TASK_NAMES[task]}.svg",
                [*self.values, "mean"] if with_mean else list(self.values),
                series,
                ylabel=f"{TASK_NAMES[task]} AUROC",
                floor=floor,
            )
            words = f"{TASK_NAMES[task].capitalize()} AUROC {caption}"
            blocks.append(figure(study, path, words, words))
        return blocks


def show(value: float | None) -> str:
    """The value with three decimals, or a dash."""
    return "–" if value is None else f"{value:.3f}"


def figure(study: Study, path: Path, caption: str, alt: str) -> FigureBlock:
    """A figure of the study; contact sheets and scatter plots have the full width of the page."""
    return FigureBlock(path.relative_to(study.out), caption, alt, wide=path.suffix != ".svg")


def reasons_of(results: Sequence[ExperimentResult]) -> dict[str, str]:
    """Metric → reason why it is missing, from several results of one category."""
    reasons: dict[str, str] = {}
    for result in results:
        reasons |= result.missing
    return reasons
