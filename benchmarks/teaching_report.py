"""Tables of what models learn from confirmed defects (``results/teaching.json``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BELOW = 0.85
"""Kinds of which the untaught model finds at least this share are not shown."""


def kinds_table(data: Mapping[str, Any]) -> str:
    """Recall of the taught kind and of others, and false alarms, before and after teaching three missed images."""
    lines = ["| | kind | missed | recall of the kind | without masks | other kinds | false alarms |", "|---" * 7 + "|"]
    for name, entry in data["categories"].items():
        parts = [entry.get("with_masks"), entry["without_masks"]]
        shown = parts[0] or parts[1]
        for kind, row in shown["kinds"].items():
            if row["means"].get("kind_before", 1.0) >= BELOW:
                continue
            cells = [name, kind, f"{row['missed']} of {row['images']}"]
            cells.append(_change(row, "kind") if parts[0] else "no masks")
            other = parts[1]["kinds"].get(kind)
            cells.append(_change(other, "kind") if other is not None else "–")
            cells += [_change(row, "other_kinds"), _change(row, "good")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def names_table(data: Mapping[str, Any]) -> str:
    """How often the kind of an image that raises an alarm is named rightly."""
    lines = ["| | kinds | alarms | named rightly | named at all | right of those named |", "|---" * 6 + "|"]
    for name, entry in data["categories"].items():
        part = entry.get("with_masks") or entry["without_masks"]
        if (row := part.get("names")) is None:
            continue
        named = 1 - row["unnamed"] / row["alarms"]
        cells = [name, str(len(row["by_kind"])), str(row["alarms"])]
        cells += [f"{value:.2f}" for value in (row["right"], named, row["right_of_named"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _change(row: Mapping[str, Any], name: str) -> str:
    means = row["means"]
    return f"{means[f'{name}_before']:.2f} → {means[f'{name}_after']:.2f}" if f"{name}_after" in means else "–"
