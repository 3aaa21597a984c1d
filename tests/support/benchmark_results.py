"""Read the results of a benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(out: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    return results


def metrics(results: dict[str, Any]) -> dict[str, Any]:
    """The metrics of each category, without the times."""
    timed = {"train_seconds", "seconds_per_image"}
    return {
        name: {key: value for key, value in entry.items() if key not in timed}
        for name, entry in results["categories"].items()
    }
