"""The results folder of a watch: ledger, exports and overlays, locked for one watch at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Self

from patchsvdd.apps.watch.ledger import LEDGER, Ledger
from patchsvdd.apps.watch.results_export import open_exports, require_own_folder
from patchsvdd.core.files import locked, output_errors
from patchsvdd.images.watched_folder import Arrival
from patchsvdd.report.overlay import save_overlay
from patchsvdd.report.rows import Row, file_for
from patchsvdd.scoring.inspection import Inspection

Pictures = Literal["all", "anomalous", "none"]
_LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.tmp")


class WatchResults:
    """The results folder, locked until it is closed or this process ends."""

    def __init__(self, folder: Path, watched: Path) -> None:
        """``watched``: the folder that the images come from."""
        self.folder = folder
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            opened.enter_context(locked(folder, "starting another watch, or choose another folder", "watch.lock"))
            require_own_folder(folder, folder / LEDGER)
            self.ledger = Ledger(folder / LEDGER, watched)
            opened.callback(self.ledger.close)
            self._exports = open_exports(folder, self.ledger)
            for export in self._exports:
                opened.callback(export.close)
            _remove_leftovers(folder / "overlays")
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def add(self, arrival: Arrival, digest: str, row: Row, channels: Sequence[str] = ()) -> Row:
        """Store a row with its messages in the ledger, then in the exports; returns the row with its number."""
        numbered = self.ledger.add(arrival, digest, row, channels)
        for export in self._exports:
            export.add(numbered)
        return numbered

    def sync(self) -> None:
        """Force the exports to disk; the ledger is there already."""
        for export in self._exports:
            export.sync()

    def draw(self, inspection: Inspection, arrival: Arrival, digest: str) -> str:
        """Write the overlay of an inspection, completely or not at all; returns its path relative to the folder."""
        # The name includes the digest, because a file of the same name may arrive again with other content.
        overlay = file_for("overlays", f"{arrival.name}-{digest[:8]}", ".jpg")
        save_overlay(inspection, self.folder / overlay)
        return overlay.as_posix()


def _remove_leftovers(folder: Path) -> None:
    """Delete overlays that a killed process left half-written."""
    for place, _, files in os.walk(folder):
        for name in files:
            if _LEFTOVER.fullmatch(name):
                Path(place, name).unlink(missing_ok=True)
