"""Undelivered messages of one channel, stored in the ledger's outbox table."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from patchsvdd.apps.watch.ledger import connect, ledger_errors
from patchsvdd.report.rows import Row


@dataclass(frozen=True)
class Message:
    """A row to deliver."""

    id: str
    """Unique among all watches; the same in every attempt to deliver this row."""
    number: int
    row: Row
    attempts: int
    """Number of earlier attempts."""

    @property
    def body(self) -> bytes:
        """The row as JSON, with its ``delivery`` id."""
        return json.dumps({"delivery": self.id, **self.row}).encode("ascii")


class Outbox:
    """The messages of one channel. Use it only in the thread that opens it; SQLite coordinates several threads.

    Changes do not wait for the disk: a change lost in a power failure only means that a message is sent twice.
    """

    def __init__(self, ledger: Path, channel: str) -> None:
        self.path, self.channel = ledger, channel
        with ledger_errors(ledger):
            self._connection = connect(ledger, "NORMAL")
            [[identity]] = self._connection.execute("SELECT value FROM about WHERE key = 'identity'")
        self._identity = bytes(identity).decode()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def next(self, put_off: Collection[int] = ()) -> Message | None:
        """The oldest message whose number is not in ``put_off``; None if there is none."""
        query = (
            "SELECT image, result, attempts FROM outbox JOIN images ON number = image "
            "WHERE channel = ? AND refused IS NULL ORDER BY image LIMIT ?"
        )
        with ledger_errors(self.path):
            for number, result, attempts in self._connection.execute(query, (self.channel, len(put_off) + 1)):
                if number not in put_off:
                    row = {"number": number, **json.loads(result)}
                    return Message(f"{self._identity}-{number}", number, row, attempts)
        return None

    def delivered(self, message: Message) -> None:
        """Remove a delivered message."""
        self._write("DELETE FROM outbox WHERE channel = ? AND image = ?", message)

    def failed(self, message: Message) -> None:
        """Count a failed attempt."""
        self._write("UPDATE outbox SET attempts = attempts + 1 WHERE channel = ? AND image = ?", message)

    def refused(self, message: Message, reason: str) -> None:
        """Give up on a message and store the reason."""
        query = "UPDATE outbox SET attempts = attempts + 1, refused = ? WHERE channel = ? AND image = ?"
        self._write(query, message, reason)

    def waiting(self) -> int:
        """Number of messages to deliver."""
        with ledger_errors(self.path):
            query = "SELECT COUNT(*) FROM outbox WHERE channel = ? AND refused IS NULL"
            return int(self._connection.execute(query, (self.channel,)).fetchone()[0])

    def _write(self, query: str, message: Message, *first: str) -> None:
        with ledger_errors(self.path):
            self._connection.execute(query, (*first, self.channel, message.number))


def waiting_by_channel(ledger: Path) -> dict[str, int]:
    """Channel → number of messages to deliver."""
    with ledger_errors(ledger):
        connection = connect(ledger, "NORMAL")
        try:
            query = "SELECT channel, COUNT(*) FROM outbox WHERE refused IS NULL GROUP BY channel"
            return dict(connection.execute(query).fetchall())
        finally:
            connection.close()
