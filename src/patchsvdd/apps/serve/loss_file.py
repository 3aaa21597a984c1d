"""The losses of a training, one JSON line per report."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from patchsvdd.core.files import atomic_write


def read_losses(path: Path) -> list[dict[str, Any]]:
    """The losses so far, in the order of their steps."""
    losses = []
    with suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            with suppress(ValueError):  # an incomplete last line, if the service was killed
                losses.append(json.loads(line))
    return losses


class LossFile:
    """Appends losses. A training that goes on from a checkpoint repeats steps: the earlier reports are dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = self._keep_before(None)  # drops an incomplete last line
        self._file = path.open("a")

    def add(self, report: dict[str, Any]) -> None:
        """Append the report of a step."""
        if report["step"] <= self._last:
            self._file.close()
            self._keep_before(report["step"])
            self._file = self._path.open("a")
        self._last = report["step"]
        self._file.write(json.dumps(report) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _keep_before(self, step: int | None) -> int:
        """Keep only the reports before a step, or all; returns the last step kept, -1 if none is."""
        kept = [report for report in read_losses(self._path) if step is None or report["step"] < step]
        if self._path.exists():
            with atomic_write(self._path, sync=False) as file:
                file.write("".join(json.dumps(report) + "\n" for report in kept).encode())
        return int(kept[-1]["step"]) if kept else -1
