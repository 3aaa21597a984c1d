"""The results of a study of settings: does a validation set without labels rank settings as the test set does?

    python benchmarks/study_report.py benchmarks/results/study.json

A point is one setting in one category, averaged over seeds. A collapsed training counts as chance in validation and
test, because a detector that cannot distinguish patches is no better. Metrics for which a category has no labels are
left out of its mean. ``tables.py`` and ``plots.py`` import this module; the command also prints every training and
every map.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
TASKS = ("detection_auroc", "segmentation_auroc")
METRICS = (*TASKS, "aupro")
"""Metrics of the test."""
CRITERIA = ("criterion", *TASKS, "low_rate_auroc", "average_precision")
"""Criteria of the validation, compared with the test."""
CHANCE = 0.5
FEWEST = 3
"""Smallest number of points for a rank correlation."""
COLUMNS = (
    *("product", "position", "position deviations", "32", "64", "128"),
    *("local product", "local position", "local sum", "local 32", "local 64"),
)
"""Maps in the table of each category."""
MEANS = ("product", "position", "32", "local product", "local position", "local 32")
"""Maps in the table of means."""
CORRELATED = ("product", "position", "local product", "local position")
"""Maps whose rank correlations are printed."""


@dataclass(frozen=True)
class Point:
    """One setting in one category: means over its trainings."""

    category: str
    setting: str
    is_base: bool
    trainings: int
    collapsed: int
    """Trainings that collapsed in every attempt."""
    restarted: int
    """Trainings that succeeded after a collapse, with a tenth of λ or less, so not exactly the named setting."""
    validation: float
    """Criterion: mean of detection and segmentation AUROC on synthetic defects."""
    tasks: dict[str, float | None]
    """Detection and segmentation AUROC of the test; None without labels."""

    @property
    def test(self) -> float:
        """Mean of the metrics that have labels."""
        return mean([value for value in self.tasks.values() if value is not None])

    @property
    def works(self) -> bool:
        """Whether any training did not collapse."""
        return self.collapsed < self.trainings


@dataclass(frozen=True)
class Choice:
    """The cost of choosing a setting without labels in one category."""

    category: str
    points: tuple[Point, ...]
    """Settings to choose from."""
    elsewhere: Point | None
    """The setting with the best mean validation in the other categories, here; None without other categories."""

    @property
    def chosen(self) -> Point:
        """Best by validation."""
        return max(self.points, key=lambda point: point.validation)

    @property
    def best(self) -> Point:
        """Best by test."""
        return max(self.points, key=lambda point: point.test)

    @property
    def base(self) -> Point | None:
        return next((point for point in self.points if point.is_base), None)

    @property
    def average(self) -> float:
        """Expected test of a setting chosen at random."""
        return mean([point.test for point in self.points])

    @property
    def correlation(self) -> float | None:
        """Spearman's, of validation with test; None for too few settings, or if all are equal."""
        if len(self.points) < FEWEST:
            return None
        found = spearman([point.validation for point in self.points], [point.test for point in self.points])
        return None if np.isnan(found) else found

    def loss(self, point: Point | None) -> float | None:
        """Difference in the test from the best setting."""
        return None if point is None else self.best.test - point.test


def points_of(rows: Iterable[Row], name: str = "product") -> dict[str, list[Point]]:
    """Category → a point per setting, of one of the maps; both in alphabetical order."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if "error" not in row and (row["collapsed"] or name in row["test"]):
            found[row["category"], row["setting"]].append(row)
    known = {
        (category, task)
        for (category, _), some in found.items()
        for row in some
        for task in TASKS
        if not row["collapsed"] and row["test"][name][task] is not None
    }
    points: dict[str, list[Point]] = defaultdict(list)
    for (category, setting), some in sorted(found.items()):
        tasks: dict[str, float | None] = {
            task: mean([CHANCE if row["collapsed"] else row["test"][name][task] for row in some])
            if (category, task) in known
            else None
            for task in TASKS
        }
        collapsed = [bool(row["collapsed"]) for row in some]
        restarted = [row["collapses"] > 0 and not row["collapsed"] for row in some]
        validation = mean([CHANCE if row["collapsed"] else row["validation"][name]["criterion"] for row in some])
        points[category].append(
            Point(
                category, setting, not some[0]["changes"], len(some), sum(collapsed), sum(restarted), validation, tasks
            )
        )
    return dict(points)


def choices(points: Mapping[str, Sequence[Point]]) -> list[Choice]:
    """A choice per category, from the settings with a training that did not collapse there."""
    working = {category: tuple(point for point in some if point.works) for category, some in points.items()}
    return [Choice(category, some, _elsewhere(category, points)) for category, some in working.items() if len(some) > 0]


def _elsewhere(category: str, points: Mapping[str, Sequence[Point]]) -> Point | None:
    """The point of the setting that is best, by mean validation, in all other categories; it must be in all."""
    by_setting = _by_setting(points)
    everywhere = {name: some for name, some in by_setting.items() if len(some) == len(points)}
    if len(points) < 2 or not everywhere:
        return None
    others = {
        name: mean([point.validation for place, point in some.items() if place != category])
        for name, some in everywhere.items()
    }
    return everywhere[max(others, key=lambda name: others[name])][category]


def _by_setting(points: Mapping[str, Sequence[Point]]) -> dict[str, dict[str, Point]]:
    """Setting → category → point; settings with most categories first, then by mean validation."""
    found: dict[str, dict[str, Point]] = defaultdict(dict)
    for category, some in points.items():
        for point in some:
            found[point.setting][category] = point

    def order(name: str) -> tuple[int, float]:
        return -len(found[name]), -mean([point.validation for point in found[name].values()])

    return {name: found[name] for name in sorted(found, key=order)}


def study_table(rows: Iterable[Row]) -> str:
    """Settings as rows, categories as columns: "validation → test: detection/segmentation"; the best of each bold."""
    points = points_of(rows)
    chosen = {one.category: (one.chosen, one.best) for one in choices(points)}
    lines = [f"| setting | {' | '.join(points)} | mean |", "|---" * (2 + len(points)) + "|"]
    for name, some in _by_setting(points).items():
        cells = [_cell(some.get(category), chosen.get(category)) for category in points]
        validation, test = (_mean([getattr(point, what) for point in some.values()]) for what in ("validation", "test"))
        last = f"{validation} → {test}" if len(some) == len(points) else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {last} |")
    every = [point for some in points.values() for point in some]
    lines += ["", f"{sum(point.trainings for point in every)} trainings: {_count(points)}."]
    if any(point.restarted for point in every):
        lines[-1] += " † collapsed at first and was restarted with a tenth of λ."
    return "\n".join(lines) + "\n"


def _cell(point: Point | None, best: tuple[Point, Point] | None) -> str:
    if point is None:
        return ""
    if not point.works:
        return "collapsed"
    validation, test = f"{point.validation:.3f}", pair(point.tasks)
    if best is not None:
        validation = f"**{validation}**" if point == best[0] else validation
        test = f"**{test}**" if point == best[1] else test
    fallen = f" ({point.collapsed} of {point.trainings} collapsed)" if point.collapsed else ""
    return f"{validation} → {test}{' †' if point.restarted else ''}{fallen}"


def _count(points: Mapping[str, Sequence[Point]]) -> str:
    """ "7 settings, 5 categories, 1 seed, none collapsed"."""
    every = [point for some in points.values() for point in some]
    seeds = sorted({point.trainings for point in every}) or [0]
    collapsed = sum(point.collapsed for point in every)
    words = (
        (len(_by_setting(points)), "setting", "settings"),
        (len(points), "category", "categories"),
        (seeds[-1], "seed", "seeds"),
    )
    counts = [f"{count} {one if count == 1 else many}" for count, one, many in words]
    counts[-1] = counts[-1] if len(seeds) == 1 else f"{seeds[0]} to {counts[-1]}"
    return ", ".join([*counts, f"{collapsed or 'none'} collapsed"])


def selection_table(rows: Iterable[Row]) -> str:
    """The cost of choosing by category, and of the setting that the other categories would choose."""
    made = choices(points_of(rows))
    lines = [
        "| category | rank correlation | chosen by validation | its test | best by test | its test | lost "
        "| lost by the base | lost by a random choice |",
        "|---" * 9 + "|",
    ]
    for one in made:
        correlation = "–" if one.correlation is None else f"{one.correlation:.2f}"
        lines.append(
            f"| {one.category} | {correlation} | {one.chosen.setting} | {one.chosen.test:.3f} | {one.best.setting} "
            f"| {one.best.test:.3f} | {_number(one.loss(one.chosen))} | {_number(one.loss(one.base))} "
            f"| {one.best.test - one.average:.3f} |"
        )
    means = [
        _mean([one.correlation for one in made], 2),
        *("", _mean([one.chosen.test for one in made]), "", _mean([one.best.test for one in made])),
        _mean([one.loss(one.chosen) for one in made]),
        _mean([one.loss(one.base) for one in made]),
        _mean([one.best.test - one.average for one in made]),
    ]
    lines.append(f"| **mean** | {' | '.join(means)} |")
    lines += ["", "| left out | chosen by the other categories | its test | lost |", "|---" * 4 + "|"]
    left = [(one, one.elsewhere) for one in made if one.elsewhere is not None]
    for one, point in left:
        lines.append(f"| {one.category} | {point.setting} | {point.test:.3f} | {_number(one.loss(point))} |")
    tests, losses = [point.test for _, point in left], [one.loss(point) for one, point in left]
    lines.append(f"| **mean** |  | {_mean(tests)} | {_mean(losses)} |")
    return "\n".join(lines) + "\n"


# Details


def details(rows: Sequence[Row]) -> Iterator[str]:
    """Lines: every training with every map, by category, and the rank correlation of validation with test."""
    by_category: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if "error" not in row:
            by_category[row["category"]].append(row)
    for category, some in sorted(by_category.items()):
        yield from ("", f"## {category} (validation | test: detection / segmentation)", "")
        yield f"| setting | seed | {' | '.join(COLUMNS)} | saturated 32 | λ | s |"
        yield "|---" * (len(COLUMNS) + 5) + "|"
        yield from (_line(row) for row in sorted(some, key=_criterion, reverse=True))
        yield ""
        for name in CORRELATED:
            yield from _correlations([row for row in some if not row["collapsed"] and name in row["test"]], name)
    yield from _means([row for some in by_category.values() for row in some])


def _correlations(healthy: Sequence[Row], name: str) -> Iterator[str]:
    """Rank correlation of every criterion, over single trainings."""
    if len(healthy) < FEWEST:
        return
    yield f"Rank correlation of the {name} map, validation with test (mean of detection and segmentation):"
    tests = [[row["test"][name][task] for task in TASKS] for row in healthy]
    truth = [mean([value for value in values if value is not None]) for values in tests]
    for criterion in CRITERIA:
        guess = [row["validation"][name][criterion] for row in healthy]
        yield f"  {criterion}: {spearman(guess, truth):.2f}"
    best = max(range(len(healthy)), key=lambda index: float(healthy[index]["validation"][name]["criterion"]))
    yield f"  chosen: {healthy[best]['setting']}: {truth[best]:.4f}; best by test: {max(truth):.4f}"


def _means(rows: Sequence[Row]) -> Iterator[str]:
    """Means over the categories and seeds that every listed setting has."""
    by_setting: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_setting[row["setting"]].append(row)
    most = max(map(len, by_setting.values()), default=0)
    yield from ("", f"## Means over {most} trainings (settings with fewer are left out)", "")
    yield f"| setting | validation | {' | '.join(f'{name} det / seg / AUPRO' for name in MEANS)} | collapsed |"
    yield "|---" * (len(MEANS) + 3) + "|"
    for setting, found in by_setting.items():
        if len(found) < most:
            continue
        healthy = [row for row in found if not row["collapsed"]]
        cells = [
            " / ".join(
                _mean([row["test"][name][metric] for row in healthy if name in row["test"]]) for metric in METRICS
            )
            for name in MEANS
        ]
        validation = _mean([_criterion(row) for row in healthy])
        yield f"| {setting} | {validation} | {' | '.join(cells)} | {len(found) - len(healthy)} |"


def _line(row: Row) -> str:
    start = f"| {row['setting']} | {row['seed']} | "
    if row["collapsed"]:
        return start + f"collapsed at {row['steps']} |" + " |" * (len(COLUMNS) + 1) + f" {row['seconds']:.0f} |"
    cells = [
        f"{pair(row['validation'][name])} \\| {pair(row['test'][name])}" if name in row["test"] else ""
        for name in COLUMNS
    ]
    saturated = row["embeddings"]["32"]["saturated"]
    used = f"{row['lambda']:g}" if row.get("lambda") is not None else ""
    return start + " | ".join(cells) + f" | {saturated:.2f} | {used} | {row['seconds']:.0f} |"


def _criterion(row: Row) -> float:
    return 0.0 if row["collapsed"] else float(row["validation"]["product"]["criterion"])


# Numbers


def pair(values: Mapping[str, float | None]) -> str:
    """ "0.748/0.912": detection and segmentation, "–" for a missing value."""
    return "/".join(_number(values[task]) for task in TASKS)


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _mean(values: Sequence[float | None], digits: int = 3) -> str:
    """The mean of the known values."""
    known = [value for value in values if value is not None]
    return _number(mean(known) if known else None, digits)


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation in −1 … 1; equal values share their mean rank. NaN if all are equal."""
    ranks = [_ranks(np.asarray(values)) for values in (first, second)]
    centred = [one - one.mean() for one in ranks]
    size = float(np.sqrt(np.dot(centred[0], centred[0]) * np.dot(centred[1], centred[1])))
    return float(np.dot(*centred)) / size if size > 0 else float("nan")


def _ranks(values: Any) -> Any:
    _, owner, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[owner]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="result file of study.py")
    rows = json.loads(parser.parse_args().file.read_text())["rows"]
    for line in (study_table(rows), selection_table(rows), *details(rows)):
        print(line)


if __name__ == "__main__":
    main()
