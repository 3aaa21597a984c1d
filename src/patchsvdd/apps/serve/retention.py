"""Retention: deletes inspections and parts by age, and images and maps by disk space; reviewed ones last.

The audit chain says how many were deleted, and is itself never shortened.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import Record
from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.idempotency import KEPT_SECONDS
from patchsvdd.apps.serve.settings import Retention
from patchsvdd.apps.serve.store import Store, new_id
from patchsvdd.apps.serve.tables import idempotency, inspections, parts

LOG = logging.getLogger("patchsvdd.apps.serve")
EVERY = 300.0
"""Seconds between two rounds."""
MAX_DELETED = 500
"""Inspections deleted in one transaction; limited, because other writes must get their turn."""
MIN_AGE = 900.0
"""Age in seconds before an unreferenced file is deleted: its inspection may not be written yet."""


class RetentionTask:
    """Deletes old inspections and files in a background thread."""

    def __init__(self, store: Store, blobs: Blobs, retention: Retention, owner: str | None = None) -> None:
        self._store, self._blobs, self._retention, self._owner = store, blobs, retention, owner
        self._own = sa.true() if owner is None else inspections.c.owner.is_(None) | (inspections.c.owner == owner)
        """Inspections of this service; another one on the same database has its own files and its own retention."""
        self._actor = Actor("service", "service", owner or "")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                self.round()
            except (StoreUnavailable, OSError) as error:
                LOG.warning("retention: %s", error)
            except Exception:
                LOG.exception("retention")
            if self._stopped.wait(EVERY):
                return

    def round(self, now: float | None = None) -> tuple[int, int]:
        """Run once; returns the numbers of inspections deleted by age and of those whose files were deleted."""
        now = time.time() if now is None else now
        deleted = emptied = 0
        if self._retention.days is not None:
            oldest = new_id(now - 86400 * self._retention.days)[:12]
            while not self._stopped.is_set():
                batch = self._delete(oldest)
                deleted += len(batch)
                if len(batch) < MAX_DELETED:
                    break
            while not self._stopped.is_set() and self._delete_parts(oldest) == MAX_DELETED:
                pass
        if self._retention.bytes is not None:
            emptied = self._free_space(self._retention.bytes)
        self._delete_unreferenced(now)
        old = idempotency.c.at < now - KEPT_SECONDS
        self._store.write(lambda connection: connection.execute(sa.delete(idempotency).where(old)).rowcount)
        return deleted, emptied

    def _delete(self, oldest: str) -> list[str]:
        """Delete up to MAX_DELETED inspections older than an id; returns their ids."""

        record = Record(self._actor, "retention.deleted", details={"days": self._retention.days})

        def write(connection: sa.Connection) -> list[str]:
            query = sa.select(inspections.c.id).where(inspections.c.id < oldest, self._own)
            query = query.order_by(inspections.c.id)
            numbers = [number for (number,) in connection.execute(query.limit(MAX_DELETED))]
            if numbers:
                connection.execute(sa.delete(inspections).where(inspections.c.id.in_(numbers)))
                record.write(connection, inspections=len(numbers), first=numbers[0], last=numbers[-1])
            return numbers

        deleted: list[str] = self._store.write(write)
        return deleted

    def _delete_parts(self, oldest: str) -> int:
        """Delete up to MAX_DELETED parts older than an id; returns how many.

        The last part of each line is kept: the numbers of the next ones continue from it.
        """
        record = Record(self._actor, "retention.deleted", details={"days": self._retention.days})
        columns = parts.c
        own = sa.true() if self._owner is None else columns.owner == self._owner
        other = parts.alias()
        later = sa.exists().where(
            other.c.owner == columns.owner, other.c.line == columns.line, other.c.sequence > columns.sequence
        )

        def write(connection: sa.Connection) -> int:
            query = sa.select(columns.id).where(columns.id < oldest, own, later).order_by(columns.id)
            numbers = [number for (number,) in connection.execute(query.limit(MAX_DELETED))]
            if numbers:
                connection.execute(sa.delete(parts).where(columns.id.in_(numbers)))
                record.write(connection, parts=len(numbers), first=numbers[0], last=numbers[-1])
            return len(numbers)

        deleted: int = self._store.write(write)
        return deleted

    def _free_space(self, limit: int) -> int:
        """Remove images and maps of the oldest inspections until the rest fits; rows and scores stay."""
        columns, count = inspections.c, 0
        while not self._stopped.is_set():
            with self._store.reading() as connection:
                held = columns.picture.is_not(None) & self._own
                size = columns.picture_bytes + columns.map_bytes + columns.view_bytes
                total = int(connection.execute(sa.select(sa.func.sum(size)).where(held)).scalar() or 0)
                if total <= limit:
                    return count
                # Reviewed inspections are more valuable and come last.
                order = (columns.review.is_not(None), columns.id)
                query = sa.select(columns.id, size).where(held).order_by(*order).limit(MAX_DELETED)
                rows = list(connection.execute(query))
            numbers = []
            for number, file_bytes in rows:
                if total <= limit:
                    break
                numbers.append(number)
                total -= int(file_bytes)
            self._remove_files(numbers)
            count += len(numbers)
        return count

    def _remove_files(self, numbers: Sequence[str]) -> None:
        record = Record(self._actor, "retention.emptied", details={"bytes": self._retention.bytes})

        def write(connection: sa.Connection) -> None:
            change = sa.update(inspections).where(inspections.c.id.in_(numbers))
            no_files = dict.fromkeys(("picture", "map", "thumbnail", "view"))
            connection.execute(change.values(**no_files, picture_bytes=0, map_bytes=0, view_bytes=0))
            record.write(connection, inspections=len(numbers), first=numbers[0], last=numbers[-1])

        self._store.write(write)

    def _delete_unreferenced(self, now: float) -> None:
        """Delete files that no inspection refers to, unless they are new; also leftovers of killed processes."""
        for folder in self._blobs.folder.glob("??"):
            for path in folder.iterdir():
                if self._stopped.is_set():
                    return
                if _age(path, now) <= MIN_AGE or self._is_referenced(path.name):
                    continue
                with self._blobs.removing:  # it may have been reused by now
                    if _age(path, now) > MIN_AGE:
                        path.unlink(missing_ok=True)

    def _is_referenced(self, name: str) -> bool:
        columns = inspections.c
        refers = sa.or_(*(column == name for column in (columns.picture, columns.map, columns.thumbnail, columns.view)))
        with self._store.reading() as connection:
            return connection.execute(sa.select(columns.id).where(refers).limit(1)).first() is not None


def _age(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except OSError:
        return 0.0
