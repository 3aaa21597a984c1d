"""Tables of the verdicts at shipped thresholds, from ``verdict-table.json``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Data = dict[str, Any]
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
    cells = ["–" if value is None else f"{value:.3f}" for value in values]
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


def _by_category(rows: Sequence[Data]) -> dict[str, list[Data]]:
    return {name: [row for row in rows if row["category"] == name] for name in sorted({r["category"] for r in rows})}


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
