"""The files of a folder that need not be inspected again, in an SQLite file."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

from patchsvdd.core.errors import OutputError
from patchsvdd.images.watched_folder import FileState

_TABLE = """
CREATE TABLE IF NOT EXISTS done (
    name BLOB PRIMARY KEY, size INTEGER NOT NULL, modified_ns INTEGER NOT NULL
) WITHOUT ROWID
"""


class FolderRecord:
    """File names with size and modification time. A file written again under the same name is another file.

    Any thread may use it. A record without a path ends with the process.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(path or "", isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(_TABLE)
        except sqlite3.Error as error:
            raise self._error(error) from None

    def add(self, name: str, state: FileState) -> None:
        """Write down that a file is done; it is on disk when this returns."""
        row = (os.fsencode(name), state.size, state.modified_ns)
        with self._lock:
            try:
                self._connection.execute("INSERT OR REPLACE INTO done VALUES (?, ?, ?)", row)
            except sqlite3.Error as error:
                raise self._error(error) from None

    def has(self, name: str, state: FileState) -> bool:
        """Whether the file of that name, in that state, is done."""
        row = (os.fsencode(name), state.size, state.modified_ns)
        query = "SELECT 1 FROM done WHERE name = ? AND size = ? AND modified_ns = ?"
        with self._lock:
            try:
                return self._connection.execute(query, row).fetchone() is not None
            except sqlite3.Error as error:
                raise self._error(error) from None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _error(self, error: sqlite3.Error) -> OutputError:
        return OutputError(f"{self._path} cannot be used ({error}); check the disk, or delete the file to start again")
