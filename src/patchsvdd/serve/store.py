"""The database: SQLite by default, PostgreSQL through the same code.

Writes go through one thread, which puts those that wait into one transaction: what is acknowledged is on disk, and a
hundred inspections a second cost a few commits. Where the database is gone for a moment, a write waits for it.
"""

from __future__ import annotations

import logging
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from sqlalchemy import exc

from patchsvdd.errors import OutputError
from patchsvdd.serve.tables import inspections, jobs, keys, reviews, sessions

LOG = logging.getLogger("patchsvdd.serve")
TOGETHER = 64
"""Writes in one transaction."""
PATIENCE = 10.0
"""Seconds for which a write waits for a database that is gone."""
BUSY_SECONDS = 10
"""For which SQLite waits for another process's lock."""
MIGRATION_LOCK = 712_008_006
"""PostgreSQL's advisory lock while tables are made: two services may start at once."""

Write = Callable[[sa.Connection], Any]
Row = Mapping[str, Any]


class StoreUnavailable(Exception):
    """The database does not answer, or cannot write."""


@dataclass(frozen=True)
class Filter:
    """Which inspections are asked for."""

    model: str | None = None
    verdict: str | None = None
    review: str | None = None
    """A review's verdict, or "none" for those without."""
    since: float | None = None
    until: float | None = None
    before: str | None = None
    """Only those older than this one."""
    after: str | None = None
    """Only those newer than this one."""
    name: str | None = None
    """Part of the image's name."""
    learned: bool | None = None

    def clauses(self) -> Iterator[sa.ColumnElement[bool]]:
        """For a WHERE."""
        columns = inspections.c
        if self.model is not None:
            yield columns.model == self.model
        if self.verdict is not None:
            yield columns.verdict == self.verdict
        if self.review is not None:
            yield columns.review.is_(None) if self.review == "none" else columns.review == self.review
        if self.since is not None:
            yield columns.at >= self.since
        if self.until is not None:
            yield columns.at < self.until
        if self.before is not None:
            yield columns.id < self.before
        if self.after is not None:
            yield columns.id > self.after
        if self.name is not None:
            yield columns.name.icontains(self.name, autoescape=True)
        if self.learned is not None:
            yield columns.learned_by.is_not(None) if self.learned else columns.learned_by.is_(None)


def new_id(at: float | None = None) -> str:
    """A name that sorts by time."""
    return f"{int((time.time() if at is None else at) * 1000):012x}{secrets.token_hex(6)}"


class Store:
    """Everything the service remembers, except pictures and models."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        if self.url.drivername == "sqlite" and self.url.database:
            try:
                Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(f"the database's folder cannot be made: {error}") from None
        self._engine = _engine(self.url)
        self._migrate()
        self._file = _file_of(self.url)
        self._number = _number_of(self._file) if self._file is not None else None
        self._waiting: queue.SimpleQueue[tuple[Write, Future[Any]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, name="store", daemon=True)
        self._closed = False
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
                command.upgrade(config, "head")
                connection.commit()
                if connection.dialect.name == "postgresql":
                    connection.execute(sa.text(f"SELECT pg_advisory_unlock({MIGRATION_LOCK})"))
                    connection.commit()
        except exc.SQLAlchemyError as error:
            words = f"the database {self.url.render_as_string()} cannot be used: {_first_line(error)}"
            raise OutputError(words) from None

    # Writing

    def submit(self, write: Write) -> Future[Any]:
        """A write that will be done with others; its result once it is on disk. It may be done twice."""
        future: Future[Any] = Future()
        if self._closed:
            future.set_exception(StoreUnavailable("the service is stopping"))
        else:
            self._waiting.put((write, future))
        return future

    def write(self, write: Write) -> Any:
        """The result of a write, once it is on disk."""
        return self.submit(write).result()

    def close(self) -> None:
        """Finish the writes that wait, and let go of the database."""
        self._closed = True
        self._waiting.put(None)
        self._writer.join()
        self._engine.dispose()

    def _write_all(self) -> None:
        ended = False
        while not ended:
            first = self._waiting.get()
            batch = [first]
            while len(batch) < TOGETHER and first is not None:
                try:
                    batch.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            ended = None in batch
            wanted = [item for item in batch if item is not None and item[1].set_running_or_notify_cancel()]
            if wanted:
                try:
                    self._write_together(wanted)
                except Exception as error:  # this thread must not end before the service does
                    LOG.exception("store")
                    for _, future in wanted:
                        if not future.done():
                            future.set_exception(StoreUnavailable(str(error)))

    def _write_together(self, batch: Sequence[tuple[Write, Future[Any]]]) -> None:
        deadline = time.monotonic() + PATIENCE
        pause = 0.05
        while True:
            try:
                results = self._transaction([write for write, _ in batch])
                break
            except (exc.SQLAlchemyError, StoreUnavailable) as error:
                if not _passes(error) or time.monotonic() > deadline or self._closed:
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

    def _transaction(self, writes: Sequence[Write]) -> list[Any]:
        """Results of writes that are all on disk; what one raises by itself is its result, and undoes it alone."""
        results: list[Any] = []
        self._require_file()
        with self._engine.execution_options(writing=True).begin() as connection:
            for write in writes:
                try:
                    with connection.begin_nested():
                        results.append(write(connection))
                except exc.OperationalError:
                    raise  # the database's own trouble
                except Exception as error:  # noqa: BLE001  # it is given to whoever asked for the write
                    results.append(error)
        return results

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection to read with."""
        self._require_file()
        try:
            with self._engine.connect() as connection:
                yield connection
        except (exc.DBAPIError, exc.TimeoutError) as error:
            raise StoreUnavailable(_first_line(error)) from None

    def check(self) -> None:
        """Nothing, or StoreUnavailable."""
        with self.reading() as connection:
            connection.execute(sa.select(inspections.c.id).limit(1))

    def _require_file(self) -> None:
        """StoreUnavailable if SQLite's file was deleted or replaced: what is written to the old one is lost."""
        if self._file is None:
            return
        now = _number_of(self._file)
        if now != self._number:
            self._engine.dispose()  # its connections lead to the old file
            self._number = now or self._number
            raise StoreUnavailable(f"the file {self._file} is {'another one' if now else 'gone'}")

    # Inspections

    def insert_inspection(self, row: Row) -> Future[Any]:
        """Done once the inspection is on disk."""

        def write(connection: sa.Connection) -> None:
            known = connection.execute(sa.select(inspections.c.id).where(inspections.c.id == row["id"]))
            if known.first() is None:  # a commit whose answer was lost is tried again
                connection.execute(sa.insert(inspections).values(**row))

        return self.submit(write)

    def inspection(self, number: str) -> Row | None:
        """One inspection."""
        with self.reading() as connection:
            found = connection.execute(sa.select(inspections).where(inspections.c.id == number)).mappings().first()
        return dict(found) if found is not None else None

    def inspections(self, wanted: Filter, limit: int, *, offset: int = 0, oldest_first: bool = False) -> list[Row]:
        """Inspections, newest first, after so many that are passed over."""
        order = inspections.c.id.asc() if oldest_first else inspections.c.id.desc()
        query = sa.select(inspections).where(*wanted.clauses()).order_by(order).limit(limit).offset(offset)
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def count(self, wanted: Filter) -> dict[str, dict[str, int]]:
        """How many there are, by verdict and by review."""
        counted = {}
        with self.reading() as connection:
            for name, column in (("verdict", inspections.c.verdict), ("review", inspections.c.review)):
                query = sa.select(column, sa.func.count()).where(*wanted.clauses()).group_by(column)
                counted[name] = {key or "none": int(number) for key, number in connection.execute(query)}
        return counted

    def review(self, number: str, verdict: str | None, note: str, by: str) -> Row | None:
        """The inspection after an operator's verdict (None withdraws the last); None if there is no such inspection."""
        identity, at = new_id(), time.time()

        def write(connection: sa.Connection) -> Row | None:
            known = connection.execute(sa.select(inspections.c.id).where(inspections.c.id == number).with_for_update())
            if known.first() is None:
                return None
            if connection.execute(sa.select(reviews.c.id).where(reviews.c.id == identity)).first() is None:
                values = {"id": identity, "inspection": number, "at": at, "verdict": verdict, "note": note, "by": by}
                connection.execute(sa.insert(reviews).values(**values))
            changed = {"review": verdict, "note": note or None, "reviewed_at": at, "reviewed_by": by}
            if verdict is None:
                changed = dict.fromkeys(changed, None)
            connection.execute(sa.update(inspections).where(inspections.c.id == number).values(**changed))
            found = connection.execute(sa.select(inspections).where(inspections.c.id == number)).mappings().one()
            return dict(found)

        result: Row | None = self.write(write)
        return result

    def reviews_of(self, number: str) -> list[Row]:
        """All verdicts on an inspection, in order."""
        query = sa.select(reviews).where(reviews.c.inspection == number).order_by(reviews.c.id)
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def mark_learned(self, numbers: Sequence[str], job: str | None) -> None:
        """Write down by which job inspections were learned, or that they no longer are."""

        def write(connection: sa.Connection) -> None:
            for number in numbers:
                connection.execute(sa.update(inspections).where(inspections.c.id == number).values(learned_by=job))

        self.write(write)

    # Jobs

    def insert_job(self, row: Row) -> None:
        """A new job."""

        def write(connection: sa.Connection) -> None:
            if connection.execute(sa.select(jobs.c.id).where(jobs.c.id == row["id"])).first() is None:
                connection.execute(sa.insert(jobs).values(**row))

        self.write(write)

    def update_job(self, number: str, **values: Any) -> None:
        """Change what is known of a job."""
        values["updated"] = time.time()
        self.write(lambda connection: connection.execute(sa.update(jobs).where(jobs.c.id == number).values(**values)))

    def job(self, number: str) -> Row | None:
        """One job."""
        with self.reading() as connection:
            found = connection.execute(sa.select(jobs).where(jobs.c.id == number)).mappings().first()
        return dict(found) if found is not None else None

    def jobs(self, model: str | None = None, states: Sequence[str] | None = None, limit: int = 100) -> list[Row]:
        """Jobs, newest first."""
        query = sa.select(jobs).order_by(jobs.c.id.desc()).limit(limit)
        if model is not None:
            query = query.where(jobs.c.model == model)
        if states is not None:
            query = query.where(jobs.c.state.in_(states))
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    # Keys

    def insert_key(self, row: Row) -> bool:
        """Whether the key is new; its name may be taken."""

        def write(connection: sa.Connection) -> bool:
            if connection.execute(sa.select(keys.c.id).where(keys.c.name == row["name"])).first() is not None:
                return False
            connection.execute(sa.insert(keys).values(**row))
            return True

        return bool(self.write(write))

    def key(self, number: str) -> Row | None:
        """One key, by the part of it that is no secret."""
        with self.reading() as connection:
            found = connection.execute(sa.select(keys).where(keys.c.id == number)).mappings().first()
        return dict(found) if found is not None else None

    def all_keys(self) -> list[Row]:
        """All keys."""
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(sa.select(keys).order_by(keys.c.created)).mappings()]

    def revoke_key(self, name: str) -> bool:
        """Whether a key of that name was revoked just now."""

        def write(connection: sa.Connection) -> bool:
            wanted = (keys.c.name == name) & keys.c.revoked.is_(None)
            found = connection.execute(sa.select(keys.c.id).where(wanted)).first()
            if found is None:
                return False
            connection.execute(sa.update(keys).where(wanted).values(revoked=time.time()))
            connection.execute(sa.delete(sessions).where(sessions.c.key == found[0]))
            return True

        return bool(self.write(write))

    def insert_session(self, digest: str, key: str, expires: float) -> None:
        """A browser that has shown a key."""

        def write(connection: sa.Connection) -> None:
            connection.execute(
                sa.delete(sessions).where((sessions.c.expires < time.time()) | (sessions.c.hash == digest))
            )
            connection.execute(sa.insert(sessions).values(hash=digest, key=key, expires=expires))

        self.write(write)

    def session(self, digest: str) -> Row | None:
        """The key a browser has shown."""
        query = sa.select(keys).join(sessions, sessions.c.key == keys.c.id)
        query = query.where((sessions.c.hash == digest) & (sessions.c.expires > time.time()))
        with self.reading() as connection:
            found = connection.execute(query).mappings().first()
        return dict(found) if found is not None else None

    def end_session(self, digest: str) -> None:
        """Forget a browser."""
        self.write(lambda connection: connection.execute(sa.delete(sessions).where(sessions.c.hash == digest)))


def _engine(url: sa.URL) -> sa.Engine:
    if url.drivername != "sqlite":
        options: dict[str, Any] = {"connect_args": {"connect_timeout": int(PATIENCE)}, "pool_pre_ping": True}
        return sa.create_engine(url, pool_size=8, max_overflow=16, pool_timeout=PATIENCE, **options)
    engine = sa.create_engine(
        url, connect_args={"timeout": BUSY_SECONDS}, pool_size=8, max_overflow=16, pool_timeout=PATIENCE
    )
    file = _file_of(url)
    made = False

    @sa.event.listens_for(engine, "do_connect")
    def connect(*_: Any) -> None:
        nonlocal made
        if made and file is not None and not file.exists():  # an empty one in its place would hide that it is gone
            raise sqlite3.OperationalError(f"the file {file} is gone")
        made = True

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin below, savepoints among them
        cursor = connection.cursor()
        for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A writer takes its lock at once: a reader that turns into one may find that another was quicker.
        writing = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _file_of(url: sa.URL) -> Path | None:
    """SQLite's file; None for other databases, and for one in memory."""
    return Path(url.database) if url.drivername == "sqlite" and url.database not in (None, "", ":memory:") else None


def _number_of(file: Path) -> int | None:
    """Which file it is; None if there is none."""
    try:
        return file.stat().st_ino
    except OSError:
        return None


def _first_line(error: Exception) -> str:
    return (str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__])[0]


def _passes(error: Exception) -> bool:
    """Whether a database may be over its trouble soon."""
    if isinstance(error, StoreUnavailable):
        return True
    if not isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError):
        return False
    words = str(getattr(error, "orig", "") or "").lower()
    return "disk is full" not in words and "readonly" not in words and "malformed" not in words
