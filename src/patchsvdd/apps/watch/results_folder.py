"""The folder that a watch writes to: ledger, exports and pictures, for one watch at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal, Self

from patchsvdd.apps.watch.folder import Arrival
from patchsvdd.apps.watch.ledger import LEDGER, Ledger, Row
from patchsvdd.apps.watch.results_export import open_exports, require_own_folder
from patchsvdd.core.errors import OutputError
from patchsvdd.core.files import output_errors
from patchsvdd.report.overlay import save_overlay
from patchsvdd.scoring.inspection import Inspection

Pictures = Literal["all", "anomalous", "none"]
LONGEST_NAME = 255
"""Bytes in the name of a file, on nearly every disk."""
_LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.tmp")


class WatchResults:
    """``folder``, opened by this process alone: a killed process gives it free."""

    def __init__(self, folder: Path, watched: Path) -> None:
        """``watched``: the folder that the images come from."""
        self.folder = folder
        self._lock = _locked(folder)
        try:
            require_own_folder(folder, folder / LEDGER)
            self.ledger = Ledger(folder / LEDGER, watched)
            self._exports = open_exports(folder, self.ledger)
        except BaseException:
            self._lock.close()
            raise
        _remove_leftovers(folder / "overlays")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for export in self._exports:
            export.close()
        self.ledger.close()
        self._lock.close()

    def add(self, arrival: Arrival, digest: str, row: Row, channels: Sequence[str] = ()) -> Row:
        """The row, numbered: in the ledger in one step with what is to be told of it, then in the exports."""
        numbered = self.ledger.add(arrival, digest, row, channels)
        for export in self._exports:
            export.add(numbered)
        return numbered

    def sync(self) -> None:
        """Force the exports to disk; the ledger is there already."""
        for export in self._exports:
            export.sync()

    def draw(self, inspection: Inspection, arrival: Arrival, digest: str) -> str:
        """The picture of an inspection, relative to the folder: whole, or not there."""
        # Under its digest: a file of the same name may come again and hold something else.
        relative = Path("overlays", f"{arrival.name}-{digest[:8]}.jpg")
        if len(os.fsencode(relative.name)) > LONGEST_NAME:
            relative = relative.with_name(hashlib.sha256(os.fsencode(relative.name)).hexdigest()[:32] + ".jpg")
        save_overlay(inspection, self.folder / relative)
        return relative.as_posix()


def result_row(inspection: Inspection, arrival: Arrival, digest: str, model: str | None, seconds: float) -> Row:
    """What is told of an image that was inspected."""
    return {**inspection.to_json(), **_origin(arrival, digest, model), "seconds": round(seconds, 4)}


def error_row(arrival: Arrival, digest: str, model: str | None, reason: str) -> Row:
    """What is told of a file that is no usable image."""
    return {**_origin(arrival, digest, model), "error": reason}


def _origin(arrival: Arrival, digest: str, model: str | None) -> Row:
    file = {"bytes": arrival.state.size, "modified_ns": arrival.state.modified_ns, "sha256": digest}
    return {
        "image": arrival.name,
        "path": str(arrival.path),
        "model": model,
        "file": file,
        "inspected": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _locked(folder: Path) -> IO[bytes]:
    """A file that this process alone has locked; the lock ends with the process, however that ends."""
    path = folder / "watch.lock"
    with output_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "ab")  # noqa: SIM115 - open as long as the watch lasts
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise OutputError(f"another watch writes to {folder}; stop it, or choose another folder") from None
    return file


def _remove_leftovers(folder: Path) -> None:
    """Delete pictures that a killed process left half-written."""
    for place, _, files in os.walk(folder):
        for name in files:
            if _LEFTOVER.fullmatch(name):
                Path(place, name).unlink(missing_ok=True)
