"""The model in use, replaced by its successor once that is whole."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import INDEX, read_index

CHECKED = 1.0
"""Seconds between two looks at the folder."""
RETRIED = 10.0
"""Seconds after which a successor that could not be loaded is tried again: it may still be on its way."""


class CurrentModel:
    """The detector of a model folder, and the one after it when the folder's model is replaced.

    Loading checks every byte, so that a model in the middle of being copied is refused; the old one stays in use.
    """

    def __init__(
        self,
        folder: Path,
        load: Callable[[Path], PatchSVDD],
        on_note: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self._load = load
        self._note = on_note or (lambda _: None)
        self._clock = clock
        self._index = self._state()  # before it is loaded: what is written meanwhile is seen later
        self.detector = load(folder)
        self._next_look = clock() + CHECKED
        self._refused: str | None = None

    def refresh(self) -> PatchSVDD:
        """The detector to use now."""
        now = self._clock()
        if now < self._next_look:
            return self.detector
        self._next_look = now + CHECKED
        state = self._state()
        if state == self._index and self._refused is None:
            return self.detector
        try:
            if read_index(self.folder)["identity"] != self.detector.identity:
                self.detector = self._load(self.folder)
                self._note(f"model replaced: {self.detector.identity}, threshold {self.detector.threshold:.4g}")
            self._index, self._refused = state, None
        except (PatchSVDDError, OSError, MemoryError, RuntimeError) as error:
            self._next_look = now + RETRIED
            if str(error) != self._refused:
                self._note(f"the model in {self.folder} cannot be used, the one loaded before stays in use: {error}")
            self._refused = str(error)
        return self.detector

    def _state(self) -> tuple[int, ...]:
        """What changes when another model is put in place."""
        try:
            status = os.stat(self.folder / INDEX)
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
