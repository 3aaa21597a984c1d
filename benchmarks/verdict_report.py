"""Tables of the results of ``verdicts.py`` and ``verdict_table.py``."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from critic_study_report import chosen_by_others

Data = dict[str, Any]
RANKING = {
    "detection_auroc": "detection AUROC",
    "segmentation_auroc": "segmentation AUROC",
    "segmentation_ap": "pixel AP",
}
ERRORS = ("false_alarm_rate", "miss_rate", "balanced_accuracy_lost")


def verdicts_table(data: Data) -> str:
    """Verdicts and regions at the shipped threshold, means over seeds, compared with the best in hindsight."""
    lines = [
        "| set | detection AUROC | false alarms | misses | balanced accuracy | in hindsight | F1 | in hindsight "
        "| F1 of regions | in hindsight |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    means: list[list[float | None]] = []
    for name, rows in _by_category(data["rows"]).items():
        points = [row["aims"]["balanced"] for row in rows]
        values = [
            _mean(row["detection_auroc"] for row in rows),
            *(_mean(point[rate] for point in points) for rate in ("false_alarm_rate", "miss_rate")),
            _mean(point["balanced_accuracy"] for point in points),
            _mean(point["balanced_accuracy_max"] for point in points),
            _mean(point["detection_f1"] for point in points),
            _mean(point["detection_f1"] + point["detection_f1_lost"] for point in points),
            *(_mean(row[f1] for row in rows) for f1 in ("region_f1", "segmentation_f1_max")),
        ]
        means.append(values)
        ranges = [_range(points, rate) for rate in ("false_alarm_rate_interval", "miss_rate_interval")]
        lines.append(f"| {name} | {' | '.join(_verdict_cells(values, ranges))} |")
    whole = [_mean(column) for column in zip(*means, strict=True)]
    lines.append(f"| **mean** | {' | '.join(_verdict_cells(whole))} |")
    return "\n".join(lines) + "\n"


def _verdict_cells(values: Sequence[float | None], ranges: Sequence[str] = ("", "")) -> list[str]:
    cells = [_figure(value) for value in values]
    for place, words in zip((1, 2), ranges, strict=True):
        cells[place] = f"{values[place]:.1%}{words}"
    return cells


def _range(points: Sequence[Data], interval: str) -> str:
    """Smallest and largest bound of the exact intervals of all seeds."""
    bounds = [point[interval] for point in points]
    return f" ({min(low for low, _ in bounds):.0%} to {max(high for _, high in bounds):.0%})"


def aims_table(data: Data) -> str:
    """Verdicts with each aim, means over seeds."""
    lines = ["| set | few-alarms, the rule before | balanced, the default | few-misses |", "|---|---|---|---|"]
    for name, rows in _by_category(data["rows"]).items():
        cells = []
        for aim in ("few-alarms", "balanced", "few-misses"):
            points = [row["aims"][aim] for row in rows]
            cells.append(_errors({rate: _mean(one[rate] for one in points) for rate in ERRORS}))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    cells = [_errors(data["means"][aim]) for aim in ("few-alarms", "balanced", "few-misses")]
    lines.append(f"| **mean** | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _errors(known: Data) -> str:
    alarms, missed, lost = (known[name] for name in ERRORS)
    return f"{alarms:.1%} / {missed:.1%} / {lost:.3f}"


def nominal_table(data: Data) -> str:
    """False alarms that each rule promises, and those of good test images."""
    rows = data["nominal_and_realised"]
    rates = list(dict.fromkeys(row["nominal"] for row in rows))
    lines = [
        f"| threshold from | {' | '.join(f'nominal {rate:.0%}' for rate in rates)} |",
        "|---|" + "---|" * len(rates),
    ]
    for rule in dict.fromkeys(row["rule"] for row in rows):
        cells = [f"{row['realised']:.1%}" for row in rows if row["rule"] == rule]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def states_table(states: Mapping[str, Sequence[Data]]) -> str:
    """Detection, segmentation and precision with each state of the preset, and whether other sets choose a state.

    ``states``: name → rows of ``verdicts.py``, the oldest first. Detection has the standard deviation over seeds.
    """
    names = list(states)
    grouped = {name: _by_category(rows) for name, rows in states.items()}
    categories = list(grouped[names[-1]])
    means = {
        (name, category, metric): _mean(row.get(metric) for row in grouped[name][category])
        for name in names
        for category in categories
        for metric in RANKING
    }
    header = ["set", *(f"{title}: {name}" for title in RANKING.values() for name in names)]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for category in categories:
        cells = []
        for metric in RANKING:
            for name in names:
                scatter = [row[metric] for row in grouped[name][category] if metric == "detection_auroc"]
                shown = f" ± {statistics.stdev(scatter):.3f}" if scatter else ""
                cells.append(_figure(means[name, category, metric]) + shown)
        lines.append(f"| {category} | {' | '.join(cells)} |")
    whole = [_mean(means[name, category, metric] for category in categories) for metric in RANKING for name in names]
    lines.append(f"| **mean** | {' | '.join(_figure(value) for value in whole)} |")
    chosen = ["–"]
    for before, after in itertools.pairwise(names):
        effect = {}
        for category in categories:
            detection, precision = (
                _difference(means[before, category, metric], means[after, category, metric])
                for metric in ("detection_auroc", "segmentation_ap")
            )
            effect[category] = (detection or 0.0, precision)
        chosen.append(chosen_by_others(effect))
    lines.append(f"| the others choose it | {' | '.join(chosen)} |" + " |" * (2 * len(names)))
    return "\n".join(lines) + "\n"


def dirty_table(rows: Sequence[Data]) -> str:
    """Planted defects: how many are suggested, and what they cost."""
    lines = [
        "| set | planted | in the suggested tenth | clean | with the planted images | without the suggested tenth |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        aurocs = " | ".join(f"{row['detection_auroc'][name]:.3f}" for name in ("clean", "dirty", "cleaned"))
        found = f"{row['found']} of {row['planted']}"
        lines.append(f"| {row['category']} | {row['share']:.0%} | {found} | {aurocs} |")
    return "\n".join(lines) + "\n"


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _by_category(rows: Sequence[Data]) -> dict[str, list[Data]]:
    return {name: [row for row in rows if row["category"] == name] for name in sorted({r["category"] for r in rows})}


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
