"""A watched folder, scanned repeatedly for image files that are complete and wait to be inspected.

The folder is polled, because network shares do not notify about changes. A file is complete when its size and times
have not changed for the settling time, measured by the clock of this machine, not of the share. Hidden files and files
without the suffix of an image are ignored, so ``x.png.part`` is not read until it is renamed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image

from patchsvdd.core.errors import DatasetError
from patchsvdd.images.decoding import FORMATS

LONGEST_PAUSE = 60.0
"""Maximum seconds until a file that could not be read is tried again."""


@dataclass(frozen=True)
class FileState:
    """Status of a file; a file whose status changed is examined again."""

    size: int
    modified_ns: int
    changed_ns: int
    """Also changes when the file is renamed or its permissions change."""
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """The state in a result of ``os.stat``."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def same_file(self, other: FileState) -> bool:
        """Whether both may be the same file under two names."""
        return (self.size, self.modified_ns, self.inode) == (other.size, other.modified_ns, other.inode)


@dataclass(frozen=True)
class Arrival:
    """A complete file that waits to be inspected."""

    name: str
    """Relative to the folder, with forward slashes."""
    path: Path
    state: FileState


@dataclass(frozen=True)
class Look:
    """The result of one scan of the folder."""

    ready: list[Arrival]
    """Complete files that wait, oldest first."""
    settling: int
    """Files that may still grow, or that are retried later."""
    problems: list[str]
    """Folders that could not be listed."""


@dataclass
class _Entry:
    state: FileState
    since: float
    """When this state was first seen."""
    done: bool
    next_try: float = 0.0
    failures: int = 0
    failing_since: float = 0.0


class WatchedFolder:
    """The image files below a folder, and whether each was inspected.

    Uses about 300 bytes of memory per file in the folder; deleted files are forgotten.
    """

    def __init__(
        self,
        root: Path,
        *,
        settle: float = 1.0,
        leave_out: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``leave_out``: a folder, possibly below ``root``, that is ignored."""
        if not root.is_dir():
            raise DatasetError(f"there is no folder '{root}'; check the path, or that the share is mounted")
        self.root = root
        self._settle = settle
        self._leave_out = leave_out.resolve() if leave_out is not None else None
        self._clock = clock
        self._entries: dict[str, _Entry] = {}

    def look(self, is_done: Callable[[str, FileState], bool]) -> Look:
        """Scan the folder; ``is_done`` is called for files that this object has not seen yet."""
        now = self._clock()
        entries: dict[str, _Entry] = {}
        ready: list[Arrival] = []
        problems: list[str] = []
        settling = 0
        for path, state in self._files(problems):
            name = path.relative_to(self.root).as_posix()
            entry = self._entries.get(name)
            if entry is None or entry.state != state:
                entry = _Entry(state, self._clock(), is_done(name, state))
            entries[name] = entry
            if entry.done:
                continue
            if now - entry.since >= self._settle and now >= entry.next_try:
                ready.append(Arrival(name, path, state))
            else:
                settling += 1
        self._entries = entries
        ready.sort(key=lambda arrival: (arrival.state.modified_ns, arrival.name))
        return Look(ready, settling, problems)

    def done(self, arrival: Arrival) -> None:
        """Do not offer the file again while its state is unchanged."""
        entry = self._entry(arrival)
        if entry is not None:
            entry.done = True

    def later(self, arrival: Arrival) -> float:
        """Offer the file again after a pause that doubles; returns the seconds since its first failure."""
        now = self._clock()
        entry = self._entry(arrival)
        if entry is None:
            return 0.0
        if entry.failures == 0:
            entry.failing_since = now
        entry.next_try = now + min(LONGEST_PAUSE, 0.5 * 2**entry.failures)
        entry.failures = min(entry.failures + 1, 16)
        return now - entry.failing_since

    def holds(self, name: str, state: FileState) -> bool:
        """Whether the file of that name is currently the file with that state.

        Raises OSError if the share does not answer.
        """
        try:
            return FileState.of(os.stat(self.root / name)).same_file(state)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _entry(self, arrival: Arrival) -> _Entry | None:
        entry = self._entries.get(arrival.name)
        return entry if entry is not None and entry.state == arrival.state else None

    def _files(self, problems: list[str]) -> Iterator[tuple[Path, FileState]]:
        """Every image file below the root with its state; folders that cannot be listed are added to ``problems``."""

        def on_error(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError) or Path(error.filename) == self.root:
                problems.append(f"'{error.filename}' cannot be listed ({error.strerror})")

        for place, folders, files in os.walk(self.root, onerror=on_error):
            has_results = "results.jsonl" in files  # of another run, whose overlays are not photos
            folders[:] = [name for name in folders if self._is_watched(Path(place, name), has_results)]
            for name in files:
                if name.startswith(".") or os.path.splitext(name)[1].lower() not in suffixes():
                    continue
                try:
                    status = os.stat(os.path.join(place, name))
                except OSError:  # deleted since it was listed, or a broken link
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield Path(place, name), FileState.of(status)

    def _is_watched(self, folder: Path, beside_results: bool) -> bool:
        if folder.name.startswith(".") or (beside_results and folder.name == "overlays"):
            return False
        return self._leave_out is None or folder.resolve() != self._leave_out


@cache
def suffixes() -> frozenset[str]:
    """Suffixes of image files, in lower case."""
    Image.init()
    return frozenset(suffix for suffix, kind in Image.EXTENSION.items() if kind in FORMATS)


def digest_of(arrival: Arrival) -> str | None:
    """SHA-256 of the file's bytes; None if it was deleted or changed. Raises OSError if it cannot be read."""
    try:
        with arrival.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if FileState.of(os.fstat(file.fileno())) != arrival.state:
                return None
    except FileNotFoundError:
        return None
    return digest


def current_state(arrival: Arrival) -> str:
    """Whether the file is "same", "changed" or "gone"."""
    try:
        state = FileState.of(os.stat(arrival.path))
    except (FileNotFoundError, NotADirectoryError):
        return "gone"
    return "same" if state == arrival.state else "changed"
