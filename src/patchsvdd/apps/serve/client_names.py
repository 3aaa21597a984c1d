"""The clients' names of a job's images, which are stored under other names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from patchsvdd.core.files import output_errors

NAMES = "names.json"
"""File in the folder of a job with the clients' names of its images."""


def write_names(folder: Path, names: Mapping[str, str]) -> None:
    """Write down the clients' names of a job's images, by which messages name them."""
    path = folder / NAMES
    with output_errors(path):
        path.write_text(json.dumps(dict(names)))


def read_names(folder: Path) -> dict[str, str]:
    """The clients' names of a job's images; empty if none were written."""
    try:
        names: dict[str, str] = json.loads((folder / NAMES).read_text())
    except (OSError, ValueError):
        return {}
    return names
