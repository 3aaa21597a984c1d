"""Input and output of the reproduced items of the paper: the study, its comparisons and its reports."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from patchsvdd.core.config import Config, Objective
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult, Scoring
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.evaluation.published import kind_of
from patchsvdd.report.article import FigureBlock, Section, TableBlock, Verdict
from patchsvdd.report.figures import bar_chart, have_matplotlib

Metrics = Mapping[str, float]
TASKS = ("detection_auroc", "segmentation_auroc")
"""The two metrics of the paper, Det. and Seg."""
TASK_NAMES = {"detection_auroc": "detection", "segmentation_auroc": "segmentation"}
ABLATION_STEPS = 10_000
"""Most steps of a training without L_SSL. By then L_SVDD' has drawn all embeddings together, as closely as float32 can
tell them apart. Trainings without L_SSL are in float32 and take seven times as long per step as the others."""


@dataclass(frozen=True)
class Study:
    """The categories, the base settings, the store of trained encoders, and the output folder."""

    store: ExperimentStore
    categories: tuple[Path, ...]
    config: Config
    out: Path
    seeds: tuple[int, ...] = ()
    """Seeds of the variants that are trained several times; empty for that of the settings."""
    used: list[ExperimentResult] = field(default_factory=list)
    """Every result used so far, recorded as the provenance of the report."""
    known: dict[tuple[Path, Config, Scoring], ExperimentResult] = field(default_factory=dict)
    """Every result so far; the files of a category are read once."""

    def result(self, category: Path, scoring: Scoring = "nearest", **changes: Any) -> ExperimentResult:
        """The result with some settings changed; without a threshold, since no item needs one."""
        return self.result_of(category, self.config.replace(**changes), scoring)

    @property
    def every_seed(self) -> tuple[int, ...]:
        """The seeds, at least one."""
        return self.seeds or (self.config.seed,)

    def results(self, category: Path, scoring: Scoring = "nearest", **changes: Any) -> list[ExperimentResult]:
        """The result of each seed."""
        return [self.result(category, scoring, seed=seed, **changes) for seed in self.every_seed]

    def seed_spread(self, categories: Sequence[Path], task: str) -> float:
        """Standard deviation over the seeds of the mean AUROC of the unchanged settings; 0 if there is one seed.

        The scale on which variants with one seed are compared.
        """
        unchanged = Comparison.of({category.name: {"unchanged": self.results(category)} for category in categories})
        return unchanged.spread("unchanged", task) or 0.0

    def with_loss(self, objective: Objective, seed: int | None = None) -> Config:
        """The settings with another loss; without L_SSL, training has at most ABLATION_STEPS."""
        config = self.config.replace(objective=objective, seed=seed)
        if config.learns_positions:
            return config
        return config.replace(steps=ABLATION_STEPS if config.steps is None else min(config.steps, ABLATION_STEPS))

    def result_of(self, category: Path, config: Config, scoring: Scoring = "nearest") -> ExperimentResult:
        """The result with these settings; without a threshold."""
        asked = (category, config, scoring)
        if asked not in self.known:
            self.known[asked] = self.store.result(Experiment(category, config, scoring, calibrated=False))
        self.used.append(self.known[asked])
        return self.used[-1]

    def one_of_each_kind(self) -> list[Path]:
        """The object and the texture with the fewest training images, whose trainings are the shortest.

        The first two categories of a data set that is not in the paper.
        """
        counts = {path: len(list((path / "train").rglob("*"))) for path in reversed(self.categories)}
        kinds = {kind_of(path.name): path for path in sorted(counts, key=lambda path: counts[path], reverse=True)}
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
    """Category → variant → metrics, means over the seeds."""
    reasons: dict[str, dict[str, str]]
    """Category → metric → reason why it is missing."""
    runs: dict[str, dict[str, list[Metrics]]] = field(default_factory=dict)
    """Category → variant → metrics of each seed."""
    without_maps: frozenset[str] = frozenset()
    """Variants that have no maps, so no segmentation; the means of the others do not need theirs."""

    @classmethod
    def of(
        cls,
        results: Mapping[str, Mapping[str, Sequence[ExperimentResult]]],
        without_maps: frozenset[str] = frozenset(),
    ) -> Comparison:
        """Compare results: category → variant → result of each seed."""
        runs: dict[str, dict[str, list[Metrics]]] = {
            name: {variant: [one.metrics for one in each] for variant, each in row.items()}
            for name, row in results.items()
        }
        every = {name: [one for each in row.values() for one in each] for name, row in results.items()}
        reasons = {name: why for name, row in every.items() if (why := reasons_of(row))}
        return cls.of_runs(runs, reasons, without_maps)

    @classmethod
    def of_runs(
        cls,
        runs: dict[str, dict[str, list[Metrics]]],
        reasons: dict[str, dict[str, str]],
        without_maps: frozenset[str] = frozenset(),
    ) -> Comparison:
        """Compare metrics: category → variant → metrics of each seed."""
        means = {name: {variant: _means(each) for variant, each in row.items()} for name, row in runs.items()}
        return cls(means, reasons, runs, without_maps)

    @property
    def variants(self) -> list[str]:
        """Names of the variants."""
        return list(next(iter(self.values.values())))

    def mean(self, variant: str, task: str) -> float | None:
        """Mean over the categories that count (see ``counted``); None if there are none, or no value of the variant."""
        if not self._has(variant, task):
            return None
        complete = [self.values[name] for name in self.counted(task)]
        return statistics.fmean(row[variant][task] for row in complete) if complete else None

    def spread(self, variant: str, task: str) -> float | None:
        """Standard deviation over the seeds of the mean over the categories; None if there is one seed."""
        if not self._has(variant, task):
            return None
        rows = [[one[task] for one in self.runs[name][variant]] for name in self.counted(task) if name in self.runs]
        if not rows or min(len(row) for row in rows) < 2:
            return None
        return statistics.stdev(statistics.fmean(seed) for seed in zip(*rows, strict=True))

    def counted(self, task: str) -> list[str]:
        """The categories that the means include: those with a value of every variant that can have one."""
        return [
            name for name, row in self.values.items() if all(task in row[one] for one in row if self._has(one, task))
        ]

    def _has(self, variant: str, task: str) -> bool:
        return task != "segmentation_auroc" or variant not in self.without_maps

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
            "spreads": {name: {task: self.spread(name, task) for task in TASKS} for name in self.variants},
            "means_over": {task: self.counted(task) for task in TASKS},
            "missing": self.reasons,
        }

    def table(self, caption: str, theirs: Mapping[str, Metrics], remarks: Sequence[str] = ()) -> TableBlock:
        """A row per category, the mean, and the paper's mean; each variant has a column per task.

        Reasons for missing values and ``remarks`` follow the table.
        """
        columns = ["category", *(f"{name}, {TASK_NAMES[task][:3]}." for name in self.variants for task in TASKS)]
        rows = [
            [category, *(show(row[name].get(task)) for name in self.variants for task in TASKS)]
            for category, row in self.values.items()
        ]
        rows.append(["mean", *(self.show_mean(name, task) for name in self.variants for task in TASKS)])
        rows.append(
            ["mean in the paper", *(show(theirs.get(name, {}).get(task)) for name in self.variants for task in TASKS)]
        )
        notes = [f"{name}: {why}" for name, reasons in self.reasons.items() for why in dict.fromkeys(reasons.values())]
        return TableBlock(caption, columns, rows, [*notes, *remarks])

    def show_mean(self, variant: str, task: str) -> str:
        """The mean, with the standard deviation over the seeds if there are several."""
        spread = self.spread(variant, task)
        return show(self.mean(variant, task)) + ("" if spread is None else f" ± {spread:.3f}")

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
        seed_spread: Mapping[str, float] = MappingProxyType({}),
    ) -> list[Verdict]:
        """Whether each claim (worse variant, better variant, words) holds, for every task that has values.

        With several seeds, a difference within their spread decides nothing.

        ``equal_in_paper``: (worse variant, task) → remark, where the paper reports no gain that could be confirmed.
        ``seed_spread``: task → spread of a variant that has only one seed.
        """
        verdicts = []
        for (worse, better, claim), task in product(claims, TASKS):
            before, after = self.mean(worse, task), self.mean(better, task)
            if before is None or after is None:
                continue
            wins, of = self.wins(better, worse, task)
            remark = equal_in_paper.get((worse, task))
            words = (
                f"{claim} raises {TASK_NAMES[task]}: here mean AUROC {self.show_mean(worse, task)} → "
                f"{self.show_mean(better, task)}, higher in {wins} of {of} categories."
            )
            if remark is not None:
                verdicts.append(Verdict.remark(f"{words} ({remark})"))
                continue
            assumed = seed_spread.get(task, 0.0)
            spread = math.hypot(*(self.spread(name, task) or assumed for name in (worse, better)))
            decided = spread == 0 or abs(after - before) > spread
            verdicts.append(Verdict(after > before if decided else None, words))
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


def _means(runs: Sequence[Metrics]) -> Metrics:
    """The mean of each metric that all runs have."""
    return {name: statistics.fmean(one[name] for one in runs) for name in runs[0] if all(name in one for one in runs)}


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
