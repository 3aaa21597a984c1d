"""A loaded model that is reloaded when the model in its folder is replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import INDEX, read_index

CHECK_SECONDS = 1.0
"""Minimum time between two checks of the folder."""
RETRY_SECONDS = 10.0
"""Time before loading a failed replacement again: it may still be being copied."""


class FollowedModel:
    """The detector of a model folder, replaced once a new model is complete.

    Loading verifies every byte, so a model that is still being copied is refused and the old one stays in use.
    ``on_note`` receives messages for the log; ``on_replace`` is called after each replacement.
    """

    def __init__(
        self,
        folder: Path,
        load: Callable[[Path], PatchSVDD],
        on_note: Callable[[str], None] = lambda _: None,
        on_replace: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self._load, self._note, self._on_replace, self._clock = load, on_note, on_replace, clock
        self._reloading = threading.Lock()
        self._index = self._index_state()  # before loading: a change during the load is noticed later
        self.detector = load(folder)
        self.loaded_at = time.time()
        self.problem: str | None = None
        """Why the folder's current model is not the one in use; None if it is."""
        self._next_check = clock() + CHECK_SECONDS

    def refresh(self) -> PatchSVDD:
        """Return the detector to use now; checks the folder at most every CHECK_SECONDS."""
        now = self._clock()
        if now < self._next_check:
            return self.detector
        self._next_check = now + CHECK_SECONDS
        if self.problem is None and self._index_state() == self._index:
            return self.detector
        try:
            self.reload()
        except Exception as error:  # noqa: BLE001  # whatever the folder holds, the old model stays in use
            self._next_check = now + RETRY_SECONDS
            if str(error) != self.problem:
                self._note(f"the model in {self.folder} cannot be loaded, the previous one stays in use: {error}")
            self.problem = str(error)
        return self.detector

    def reload(self) -> bool:
        """Load the folder's model if it is not the one in use, and return whether it was replaced.

        Raise an error, usually ModelError, if the folder's model cannot be loaded. The old one then stays in use.
        """
        with self._reloading:
            index = self._index_state()
            replaced: bool = read_index(self.folder)["identity"] != self.detector.identity
            if replaced:
                self.detector, self.loaded_at = self._load(self.folder), time.time()
            self._index, self.problem = index, None
        if replaced:
            threshold = self.detector.threshold
            self._note(f"the model in {self.folder} was replaced: {self.detector.identity}, threshold {threshold:.4g}")
            self._on_replace()
        return replaced

    def _index_state(self) -> tuple[int, ...]:
        """Return the file status of ``model.json``, which changes with every new model; empty without the file."""
        try:
            status = (self.folder / INDEX).stat()
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
