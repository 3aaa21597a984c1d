"""Inspections are forgotten by age, their pictures by the room they take; reviewed ones last."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.settings import Retention
from patchsvdd.apps.serve.store import Store, new_id
from patchsvdd.apps.serve.tables import inspections

LOG = logging.getLogger("patchsvdd.apps.serve")
EVERY = 300.0
"""Seconds between two rounds."""
AT_ONCE = 500
"""Inspections that are forgotten in one transaction: others must be written in between."""
YOUNG = 900.0
"""Seconds for which a picture that no inspection names is left alone: its inspection may be about to be written."""


class RetentionTask:
    """Forgets what need not be kept."""

    def __init__(self, store: Store, blobs: Blobs, retention: Retention) -> None:
        self._store, self._blobs, self._retention = store, blobs, retention
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="retention", daemon=True)

    def start(self) -> None:
        """Begin, and do it again and again."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
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
        """Forget once; how many inspections, and how many pictures and maps by size."""
        now = time.time() if now is None else now
        forgotten = emptied = 0
        if self._retention.days is not None:
            oldest = new_id(now - 86400 * self._retention.days)[:12]
            while not self._stopped.is_set():
                gone = self._forget(oldest)
                forgotten += len(gone)
                if len(gone) < AT_ONCE:
                    break
        if self._retention.bytes is not None:
            emptied = self._make_room(self._retention.bytes)
        self._sweep(now)
        return forgotten, emptied

    def _forget(self, oldest: str) -> list[str]:
        """Delete some inspections older than an id."""

        def write(connection: sa.Connection) -> list[str]:
            query = sa.select(inspections.c.id).where(inspections.c.id < oldest).order_by(inspections.c.id)
            gone = [number for (number,) in connection.execute(query.limit(AT_ONCE))]
            if gone:
                connection.execute(sa.delete(inspections).where(inspections.c.id.in_(gone)))
            return gone

        found: list[str] = self._store.write(write)
        return found

    def _make_room(self, limit: int) -> int:
        """Take pictures and maps from the oldest inspections until the rest fits; rows and scores stay."""
        columns, count = inspections.c, 0
        while not self._stopped.is_set():
            with self._store.reading() as connection:
                held = columns.picture.is_not(None)
                size = columns.picture_bytes + columns.map_bytes
                total = int(connection.execute(sa.select(sa.func.sum(size)).where(held)).scalar() or 0)
                if total <= limit:
                    return count
                # Reviewed ones are worth more, and are the last to go.
                order = (columns.review.is_not(None), columns.id)
                query = sa.select(columns.id, size).where(held).order_by(*order).limit(AT_ONCE)
                rows = list(connection.execute(query))
            gone = []
            for number, taken in rows:
                if total <= limit:
                    break
                gone.append(number)
                total -= int(taken)
            self._empty(gone)
            count += len(gone)
        return count

    def _empty(self, gone: Sequence[str]) -> None:
        def write(connection: sa.Connection) -> None:
            change = sa.update(inspections).where(inspections.c.id.in_(gone))
            connection.execute(change.values(picture=None, map=None, picture_bytes=0, map_bytes=0))

        self._store.write(write)

    def _sweep(self, now: float) -> None:
        """Delete files that no inspection names, unless they are new, and what killed processes left."""
        for folder in self._blobs.folder.glob("??"):
            for path in folder.iterdir():
                if self._stopped.is_set():
                    return
                if _age(path, now) <= YOUNG or self._is_named(path.name):
                    continue
                with self._blobs.removing:  # it may be wanted again by now
                    if _age(path, now) > YOUNG:
                        path.unlink(missing_ok=True)

    def _is_named(self, name: str) -> bool:
        named = (inspections.c.picture == name) | (inspections.c.map == name)
        with self._store.reading() as connection:
            return connection.execute(sa.select(inspections.c.id).where(named).limit(1)).first() is not None


def _age(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except OSError:
        return 0.0
