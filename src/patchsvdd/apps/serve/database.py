"""The database: SQLite by default, PostgreSQL through the same code.

Writes go through one thread, which combines waiting writes into one transaction: acknowledged writes are on disk, and a
hundred inspections per second need only a few commits. If the database is briefly unavailable, writes are retried.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from sqlalchemy import exc

from patchsvdd.apps.serve.tables import inspections
from patchsvdd.core.errors import OutputError

LOG = logging.getLogger("patchsvdd.apps.serve")
MAX_WRITES = 64
"""Writes in one transaction."""
RETRY_SECONDS = 10.0
"""How long a write is retried if the database is unavailable."""
BUSY_SECONDS = 10
"""How long SQLite waits for the lock of another process."""
MIGRATION_LOCK = 712_008_006
"""PostgreSQL advisory lock during migrations, because two services may start at the same time."""

AUDITED = "audited"
"""Key in a connection's `info` that says that a write has appended to the audit chain."""

Write = Callable[[sa.Connection], Any]


class StoreUnavailable(Exception):
    """The database is unavailable or not writable."""


class Database:
    """A database with the tables of ``tables``."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        if self.url.drivername == "sqlite" and self.url.database:
            try:
                Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(f"cannot create the folder of the database: {error}") from None
        self._engine = _engine(self.url)
        self._migrate()
        self._file = _file_of(self.url)
        self._number = _number_of(self._file) if self._file is not None else None
        self._waiting: queue.SimpleQueue[tuple[Write, Future[Any]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, name="store", daemon=True)
        self._closed = False
        self._audited = False
        self.on_audit: Callable[[], None] = lambda: None
        """Called after a transaction that has appended to the audit chain; must not raise."""
        self._writer.start()

    def _migrate(self) -> None:
        config = AlembicConfig()
        config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
        try:
            with self._engine.execution_options(writing=True).connect() as connection:
                if connection.dialect.name == "postgresql":
                    connection.execute(sa.text(f"SELECT pg_advisory_lock({MIGRATION_LOCK})"))
                    connection.commit()
                config.attributes["connection"] = connection
                with connection.begin():  # on SQLite, no other process reads the revision before this one is done
                    command.upgrade(config, "head")
                if connection.dialect.name == "postgresql":
                    connection.execute(sa.text(f"SELECT pg_advisory_unlock({MIGRATION_LOCK})"))
                    connection.commit()
        except exc.SQLAlchemyError as error:
            words = f"the database {self.url.render_as_string()} cannot be used: {_first_line(error)}"
            raise OutputError(words) from None

    # Writing

    def submit(self, write: Write) -> Future[Any]:
        """Queue a write; the future has its result once it is on disk. The write may be executed twice."""
        future: Future[Any] = Future()
        if self._closed:
            future.set_exception(StoreUnavailable("the service is stopping"))
        else:
            self._waiting.put((write, future))
        return future

    def write(self, write: Write) -> Any:
        """Write and wait until it is on disk; returns the result of the write."""
        return self.submit(write).result()

    def close(self) -> None:
        """Finish the queued writes and close the database."""
        self._closed = True
        self._waiting.put(None)
        self._writer.join()
        self._engine.dispose()

    def _write_all(self) -> None:
        ended = False
        while not ended:
            first = self._waiting.get()
            batch = [first]
            while len(batch) < MAX_WRITES and first is not None:
                try:
                    batch.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            ended = None in batch
            writes = [item for item in batch if item is not None and item[1].set_running_or_notify_cancel()]
            if writes:
                try:
                    self._write_batch(writes)
                except Exception as error:  # this thread must outlive any error
                    LOG.exception("store")
                    for _, future in writes:
                        if not future.done():
                            future.set_exception(StoreUnavailable(str(error)))

    def _write_batch(self, batch: Sequence[tuple[Write, Future[Any]]]) -> None:
        deadline = time.monotonic() + RETRY_SECONDS
        pause = 0.05
        while True:
            try:
                results = self._transaction([write for write, _ in batch])
                break
            except (exc.SQLAlchemyError, StoreUnavailable) as error:
                if not _is_temporary(error) or time.monotonic() > deadline or self._closed:
                    reason = _first_line(error)
                    for _, future in batch:
                        future.set_exception(StoreUnavailable(reason))
                    return
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        if self._audited:
            self._audited = False
            self.on_audit()

    def _transaction(self, writes: Sequence[Write]) -> list[Any]:
        """Results of the writes, committed together; a write that raises is rolled back alone, its error the result."""
        results: list[Any] = []
        self._require_file()
        with self._engine.execution_options(writing=True).begin() as connection:
            for write in writes:
                try:
                    with connection.begin_nested():
                        results.append(write(connection))
                except exc.OperationalError:
                    raise  # a failure of the database, not of the write
                except Exception as error:  # noqa: BLE001  # passed on to the caller
                    results.append(error)
            self._audited |= connection.info.pop(AUDITED, False)
        return results

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection for reading; raises StoreUnavailable."""
        self._require_file()
        try:
            with self._engine.connect() as connection:
                yield connection
        except (exc.DBAPIError, exc.TimeoutError) as error:
            raise StoreUnavailable(_first_line(error)) from None

    def check(self, *, writing: bool = False) -> None:
        """Raise StoreUnavailable if the database cannot be read, or cannot be written to."""
        with self.reading() as connection:
            connection.execute(sa.select(inspections.c.id).limit(1))
        if writing:
            nothing = sa.update(inspections).where(inspections.c.id == "").values(note=None)
            self.write(lambda connection: connection.execute(nothing))

    def _require_file(self) -> None:
        """Raise StoreUnavailable if SQLite's file was deleted or replaced: writes to the old one would be lost."""
        if self._file is None:
            return
        now = _number_of(self._file)
        if now != self._number:
            self._engine.dispose()  # its connections use the old file
            self._number = now or self._number
            raise StoreUnavailable(f"the file {self._file} was {'replaced' if now else 'deleted'}")


def _engine(url: sa.URL) -> sa.Engine:
    if url.drivername != "sqlite":
        options: dict[str, Any] = {"connect_args": {"connect_timeout": int(RETRY_SECONDS)}, "pool_pre_ping": True}
        return sa.create_engine(url, pool_size=8, max_overflow=16, pool_timeout=RETRY_SECONDS, **options)
    engine = sa.create_engine(
        url, connect_args={"timeout": BUSY_SECONDS}, pool_size=8, max_overflow=16, pool_timeout=RETRY_SECONDS
    )
    file = _file_of(url)
    created = False

    @sa.event.listens_for(engine, "do_connect")
    def connect(*_: Any) -> None:
        nonlocal created
        if created and file is not None and not file.exists():  # SQLite would silently create an empty one
            raise sqlite3.OperationalError(f"the file {file} was deleted")
        created = True

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions and savepoints are started explicitly
        cursor = connection.cursor()
        for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # Writers lock immediately: upgrading a read transaction fails if another writer came first.
        writing = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _file_of(url: sa.URL) -> Path | None:
    """SQLite's file; None for other databases and for an in-memory one."""
    return Path(url.database) if url.drivername == "sqlite" and url.database not in (None, "", ":memory:") else None


def _number_of(file: Path) -> int | None:
    """The inode of a file; None if it does not exist."""
    try:
        return file.stat().st_ino
    except OSError:
        return None


def _first_line(error: Exception) -> str:
    return (str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__])[0]


def _is_temporary(error: Exception) -> bool:
    """Whether a retry may succeed soon."""
    if isinstance(error, StoreUnavailable):
        return True
    if not isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError):
        return False
    words = str(getattr(error, "orig", "") or "").lower()
    return "disk is full" not in words and "readonly" not in words and "malformed" not in words
