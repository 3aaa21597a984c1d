"""The ledger of inspected images: an SQLite file in which an image and its result are written in one transaction.

An *image* is the content of one file at one time. It is recognised

- under its name, as long as the file has the same bytes, even if its times change;
- under another name, if bytes, modification time and inode are the same and the file no longer has its old name.

Everything else is a new image, such as a file with the same name and other bytes, or a copy with the same bytes.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from patchsvdd.core.errors import OutputError
from patchsvdd.images.watched_folder import Arrival, FileState
from patchsvdd.report.rows import Row

LEDGER = "watch.sqlite"
VERSION = 1
_TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE about (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE images (
    number INTEGER PRIMARY KEY,
    digest TEXT NOT NULL,
    size INTEGER NOT NULL,
    modified_ns INTEGER NOT NULL,
    changed_ns INTEGER NOT NULL,
    inode TEXT NOT NULL,
    verdict TEXT NOT NULL,
    result TEXT NOT NULL
);
CREATE INDEX image_digests ON images (digest);
CREATE TABLE files (name BLOB PRIMARY KEY, image INTEGER NOT NULL UNIQUE REFERENCES images) WITHOUT ROWID;
CREATE TABLE outbox (
    channel TEXT NOT NULL,
    image INTEGER NOT NULL REFERENCES images,
    attempts INTEGER NOT NULL DEFAULT 0,
    refused TEXT,
    PRIMARY KEY (channel, image)
) WITHOUT ROWID;
PRAGMA user_version = 1;
COMMIT;
"""


class Ledger:
    """Every inspected image, the current name of its file, and the messages to deliver, in the file ``path``."""

    def __init__(self, path: Path, folder: Path) -> None:
        """``folder``: the watched folder, to which the names are relative."""
        self.path = path
        with ledger_errors(path):
            self._connection = connect(path, "FULL")
            if self._connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                self._connection.executescript(_TABLES)
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                raise OutputError(f"{path} has version {version}, not {VERSION}; choose another folder")
            self.identity = self._fact("identity", secrets.token_hex(8).encode()).decode()
            watched = self._fact("folder", os.fsencode(folder.resolve()))
        if watched != os.fsencode(folder.resolve()):
            raise OutputError(
                f"{path.parent} holds results of '{os.fsdecode(watched)}', not of '{folder.resolve()}'; "
                f"choose another folder"
            )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def is_done(self, name: str, state: FileState) -> bool:
        """Whether the file of that name was inspected in that state."""
        query = (
            "SELECT size, modified_ns, changed_ns, inode FROM files JOIN images ON number = image WHERE files.name = ?"
        )
        with ledger_errors(self.path):
            stored = self._connection.execute(query, (os.fsencode(name),)).fetchone()
        return bool(stored == _columns(state))

    def recognise(self, arrival: Arrival, digest: str, holds: Callable[[str, FileState], bool]) -> bool:
        """Whether the file is an image that was inspected before; if so, its current name and times are stored.

        ``holds`` returns whether the file of a name still has a given state.
        """
        name, state = os.fsencode(arrival.name), arrival.state
        here = "SELECT number FROM files JOIN images ON number = image WHERE name = ? AND digest = ?"
        elsewhere = (
            "SELECT number, name FROM images LEFT JOIN files ON number = image "
            "WHERE digest = ? AND size = ? AND modified_ns = ? AND inode = ? AND (name IS NULL OR name != ?)"
        )
        with ledger_errors(self.path):
            same = self._connection.execute(here, (name, digest)).fetchone()
            known = (digest, state.size, state.modified_ns, str(state.inode), name)
            candidates = self._connection.execute(elsewhere, known).fetchall() if same is None else []
        number = same[0] if same is not None else None
        for candidate, old_name in candidates:
            if old_name is None or not holds(os.fsdecode(old_name), state):
                number = candidate
                break
        if number is None:
            return False
        with self._transaction() as write:
            write("UPDATE images SET (size, modified_ns, changed_ns, inode) = (?, ?, ?, ?) WHERE number = ?",
                  (*_columns(state), number))  # fmt: skip
            write("DELETE FROM files WHERE image = ? OR name = ?", (number, name))
            write("INSERT INTO files VALUES (?, ?)", (name, number))
        return True

    def add(self, arrival: Arrival, digest: str, row: Row, channels: Sequence[str] = ()) -> Row:
        """Write a row together with its messages for ``channels``; returns the row with its ``number``."""
        verdict = "unreadable" if "error" in row else row["verdict"]
        columns = (digest, *_columns(arrival.state), verdict, json.dumps(row, allow_nan=False))
        name = os.fsencode(arrival.name)
        with self._transaction() as write:
            number = write(
                "INSERT INTO images (digest, size, modified_ns, changed_ns, inode, verdict, result) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                columns,
            ).lastrowid
            write("INSERT OR REPLACE INTO files VALUES (?, ?)", (name, number))
            for channel in channels:
                write("INSERT INTO outbox (channel, image) VALUES (?, ?)", (channel, number))
        return {"number": number, **row}

    def rows_after(self, number: int) -> Iterator[Row]:
        """The rows with a higher number, in order."""
        with ledger_errors(self.path):
            query = "SELECT number, result FROM images WHERE number > ? ORDER BY number"
            for row_number, result in self._connection.execute(query, (number,)):
                yield {"number": row_number, **json.loads(result)}

    def counts(self) -> dict[str, int]:
        """Images by verdict: good, anomalous, unreadable."""
        with ledger_errors(self.path):
            query = "SELECT verdict, COUNT(*) FROM images GROUP BY verdict"
            return {"good": 0, "anomalous": 0, "unreadable": 0} | dict(self._connection.execute(query))

    def _fact(self, key: str, value: bytes) -> bytes:
        """The stored value of a key; stores ``value`` if there is none."""
        self._connection.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (key, value))
        return bytes(self._connection.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Yield a function that executes statements; when the block ends, all of them are on disk, or none."""
        with ledger_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """Open a ledger; "FULL" waits until every change is on disk, "NORMAL" may lose the last ones in a power failure."""
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


@contextmanager
def ledger_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into OutputError."""
    try:
        yield
    except sqlite3.Error as error:
        raise OutputError(
            f"{path}: {error}; check the disk (it must be a local disk, not a network share), or choose another folder"
        ) from error


def _columns(state: FileState) -> tuple[int, int, int, str]:
    return state.size, state.modified_ns, state.changed_ns, str(state.inode)  # inodes may exceed SQLite's integers
