"""Image files that a camera's own program writes into a folder."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from pathlib import Path

from patchsvdd.apps.line.sources.folder_record import FolderRecord
from patchsvdd.apps.line.sources.source import Frame, SourceError
from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.images.watched_folder import Arrival, FileState, WatchedFolder


class FolderSource:
    """The image files of a folder, oldest first, each given once.

    After a restart, files that were reported by ``done`` are not given again; others are. ``Frame.data`` is the file,
    ``Frame.captured`` its modification time, and ``Frame.name`` its path below the folder.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        settle: float = 1.0,
        poll: float = 0.25,
        part_pattern: str | None = None,
        record: Path | None = None,
    ) -> None:
        """``settle``: seconds for which a file must not have changed. ``poll``: seconds between two looks.
        ``part_pattern``: a regular expression that is searched in the file's path; its group ``part`` is the part
        number, a group ``view`` the view. ``record``: the file that lists what was done; None to forget it at the end.
        """
        for setting, value in (("settle", settle), ("poll", poll)):
            if value < 0:
                raise ConfigError(f"`{setting}` must be 0 seconds or more; got {value:g}")
        self.name = name
        self.folder = folder
        self._pattern = _compiled(part_pattern)
        self._settle, self._poll = settle, poll
        self._record_path = record
        self._record: FolderRecord | None = None
        self._watched: WatchedFolder | None = None
        self._ready: deque[Arrival] = deque()
        self._given: dict[str, FileState] = {}  # not yet done
        self._lock = threading.Lock()
        self._next_look = 0.0
        self._number = 0

    def open(self) -> None:
        """Begin to look; raises SourceError if there is no such folder."""
        if self._record is None:
            self._record = FolderRecord(self._record_path)
        try:
            self._watched = WatchedFolder(self.folder, settle=self._settle)
        except DatasetError as error:
            raise SourceError(f"folder '{self.name}': {error}") from None
        self._next_look = 0.0

    def read(self, seconds: float) -> Frame | None:
        """The next file; None if none is complete within ``seconds``. Raises SourceError if the folder is gone."""
        end = time.monotonic() + seconds
        while True:
            while self._ready:
                frame = self._frame(self._ready.popleft())
                if frame is not None:
                    return frame
            if self._next_look > end:
                time.sleep(max(0.0, end - time.monotonic()))
                return None
            time.sleep(max(0.0, self._next_look - time.monotonic()))
            self._look()
            if not self._ready and time.monotonic() >= end:
                return None

    def done(self, frame: Frame) -> None:
        """Never give this file again, also after a restart. Any thread may call this."""
        with self._lock:
            state = self._given.get(frame.name)
        if state is not None and self._record is not None:
            self._record.add(frame.name, state)
            with self._lock:
                if self._given.get(frame.name) == state:
                    del self._given[frame.name]

    def trigger(self) -> None:
        """Do nothing: files appear when another program writes them."""

    def flush(self) -> None:
        """Do nothing: files stay until they are done."""

    def close(self) -> None:
        """Stop looking. What was given is not given again by this object."""
        self._watched = None
        self._ready.clear()

    @property
    def lost(self) -> int:
        """Always 0."""
        return 0

    def _look(self) -> None:
        if self._watched is None:
            raise SourceError(f"folder '{self.name}' is not open")
        look = self._watched.look(self._is_done)
        self._next_look = time.monotonic() + self._poll
        if look.problems and not os.access(self.folder, os.R_OK | os.X_OK):
            raise SourceError(f"folder '{self.name}': {look.problems[0]}; check that the share is mounted")
        self._ready.extend(look.ready)

    def _is_done(self, name: str, state: FileState) -> bool:
        with self._lock:
            given = self._given.get(name)
        if given is not None and (given.size, given.modified_ns) == (state.size, state.modified_ns):
            return True
        return self._record is not None and self._record.has(name, state)

    def _frame(self, arrival: Arrival) -> Frame | None:
        """The image in a file; None if it was deleted, changed or cannot be read at the moment."""
        assert self._watched is not None
        try:
            with arrival.path.open("rb") as file:
                data = file.read()
                if FileState.of(os.fstat(file.fileno())) != arrival.state:
                    return None
        except FileNotFoundError:
            return None
        except OSError:
            self._watched.later(arrival)
            return None
        self._watched.done(arrival)
        with self._lock:
            self._given[arrival.name] = arrival.state
        found = self._pattern.search(arrival.name) if self._pattern is not None else None
        groups = found.groupdict() if found is not None else {}
        number, self._number = self._number, self._number + 1
        return Frame(
            self.name,
            number,
            arrival.state.modified_ns / 1e9,
            time.monotonic(),
            arrival.name,
            data=data,
            part=groups.get("part"),
            view=groups.get("view"),
        )


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"`part_pattern` is not a regular expression ({error}): {pattern}") from None
    if "part" not in compiled.groupindex:
        raise ConfigError(f"`part_pattern` needs a group named part, such as (?P<part>\\d+); got '{pattern}'")
    return compiled
