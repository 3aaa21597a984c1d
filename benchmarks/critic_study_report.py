"""Tables of ``critic_study.py``'s result."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

METRICS = ("detection", "segmentation", "ap")
Row = dict[str, Any]


def sizes_table(rows: Sequence[Row]) -> str:
    """Images stretched to a square, and with their aspect ratio kept."""
    words = {
        "square": "stretched to 256x256",
        "auto": "`auto`",
        "fit": "each resized to fit",
        "larger": "short side 384",
    }
    lines = [
        "| category | images | detection AUROC | segmentation AUROC | pixel AP | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for category in ("tire", "magnetic_tile", "screw"):
        for arm, name in words.items():
            found = [row for row in rows if row["category"] == category and row["arm"] == arm]
            if found:
                cells = (f"{statistics.mean(_value(row, metric) for row in found):.3f}" for metric in METRICS)
                lines.append(f"| {category} | {name} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(lines) + "\n"


def changes_table(rows: Sequence[Row]) -> str:
    """What each change does to each category, and whether the other categories would have chosen it."""
    categories = sorted({row["category"] for row in rows})
    effects: dict[str, dict[str, tuple[float, float | None]]] = {}
    for name, of in CHANGES.items():
        for category in categories:
            here = [row for row in rows if row["category"] == category]
            if (one := of(here)) is not None:
                effects.setdefault(name, {})[category] = one
    lines = [f"| change | {' | '.join(categories)} | the others choose it |", "|---" * (len(categories) + 2) + "|"]
    for name, effect in effects.items():
        cells = [_signed(effect.get(category)) for category in categories]
        lines.append(f"| {name} | {' | '.join(cells)} | {chosen_by_others(effect)} |")
    return "\n".join(lines) + "\n"


def chosen_by_others(effect: Mapping[str, tuple[float, float | None]]) -> str:
    """For how many categories the mean effect (detection, precision) on the other ones is an improvement."""
    if len(effect) < 2:
        return "–"
    hits = 0
    for left_out in effect:
        others = [value for category, value in effect.items() if category != left_out]
        detection = statistics.mean(one for one, _ in others)
        precision = statistics.mean([two for _, two in others if two is not None] or [0.0])
        hits += detection > 0 and detection + precision > 0
    return f"{hits} of {len(effect)}"


def _against(arm: str) -> Callable[[Sequence[Row]], tuple[float, float | None] | None]:
    return lambda rows: _difference(_with(rows, arm), _with(rows, "auto"))


def _factor(name: str) -> Callable[[Sequence[Row]], tuple[float, float | None] | None]:
    def of(rows: Sequence[Row]) -> tuple[float, float | None] | None:
        tried = [row for row in rows if row["arm"] == "auto" or row["arm"].startswith("auto, ")]
        if len(tried) < 8:  # not the whole design
            return None
        having = [row for row in tried if name in row["arm"]]
        return _difference(having, [row for row in tried if name not in row["arm"]])

    return of


def _part(part: str) -> Callable[[Sequence[Row]], tuple[float, float | None] | None]:
    return lambda rows: _difference(_with(rows, "auto"), _with(rows, "auto"), part)


CHANGES = {
    "`auto` instead of stretching": lambda rows: _difference(_with(rows, "auto"), _with(rows, "square")),
    "Muon, learning rate 0.02": _against("muon .02"),
    "Muon, learning rate 0.05": _against("muon .05"),
    "Muon, learning rate 0.1": _against("muon .1"),
    "distances of features, a quarter of the map": _part("eighth@0.25"),
    "short side of 384 px": _against("larger"),
    "any rotation": _against("turned"),
    "dropout": _against("dropout"),
    "restored image as second input": _factor("restorer"),
    "foreign patterns": _factor("patterns"),
    "faint defects": _factor("faint"),
    "grooves": _factor("grooves"),
}


def _with(rows: Iterable[Row], arm: str) -> list[Row]:
    return [row for row in rows if row["arm"] == arm]


def _difference(
    changed: Sequence[Row], before: Sequence[Row], part: str = "critic"
) -> tuple[float, float | None] | None:
    """Differences of detection AUROC and pixel AP; None if one of the arms was not tried."""
    if not changed or not before:
        return None

    def mean(rows: Sequence[Row], metric: str, part: str) -> float:
        return statistics.mean(_value(row, metric, part) for row in rows)

    detection = mean(changed, "detection", part) - mean(before, "detection", "critic")
    if "ap" not in changed[0]["found"]["critic"]:
        return detection, None
    return detection, mean(changed, "ap", part) - mean(before, "ap", "critic")


def _value(row: Row, metric: str, part: str = "critic") -> float:
    return float(row["found"][part][metric])


def _signed(effect: tuple[float, float | None] | None) -> str:
    if effect is None:
        return "–"
    detection, precision = effect
    return f"{detection:+.3f}" + (f" / {precision:+.3f}" if precision is not None else "")
