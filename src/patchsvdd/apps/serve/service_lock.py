"""A lock per database and service: two services with the same id never use one database at the same time.

The id is stored in the data folder, so a copied folder has the same id. Without the lock, both services would run the
same jobs.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc

from patchsvdd.core.errors import ConfigError, OutputError
from patchsvdd.core.files import locked

LOG = logging.getLogger("patchsvdd.apps.serve")
PATIENCE = 10.0
"""Seconds to wait for the lock: PostgreSQL takes a moment to notice that a killed service is gone."""
KEEPALIVE = {"idle": 10, "interval": 5, "count": 3}
"""PostgreSQL releases the lock of a machine that lost its power after 25 seconds; its default is two hours."""


class ServiceLock:
    """The lock of a service on a database; released when the process ends, even if it is killed."""

    def __init__(self, url: sa.URL, service: str) -> None:
        self._url, self._service = url, service
        self._held = ExitStack()
        self._connection: sa.Connection | None = None
        self._checking = threading.Lock()
        end = time.monotonic() + PATIENCE
        while not self._take():
            if time.monotonic() > end:
                raise ConfigError(
                    f"another service with the id {service} uses this database; stop it first. If this data folder is "
                    f"a copy of another service's, delete the file 'service-id' in the copy: it then gets its own id"
                )
            time.sleep(0.2)

    def is_held(self) -> bool:
        """Whether the lock is still held; takes it again if the connection to PostgreSQL was lost."""
        with self._checking:
            if self._connection is None:
                return True
            try:
                self._connection.execute(sa.text("SELECT 1"))
                return True
            except exc.SQLAlchemyError:
                self._held.close()
            try:
                held = self._take()
            except OutputError:
                return False
            if not held:
                LOG.error("another service with the id %s uses this database: no jobs are run", self._service)
            return held

    def close(self) -> None:
        """Release the lock."""
        with self._checking:
            self._held.close()

    def _take(self) -> bool:
        with ExitStack() as stack:
            if self._url.drivername == "sqlite":
                file = Path(self._url.database or "")
                try:
                    stack.enter_context(locked(file.parent, "starting another", _lock_file(file, self._service)))
                except OutputError:
                    return False
            else:
                connection = _connect(self._url, stack)
                if not connection.execute(sa.text(f"SELECT pg_try_advisory_lock({_key(self._service)})")).scalar():
                    return False
                self._connection = connection
            self._held = stack.pop_all()
            return True


def is_running(url: sa.URL, service: str) -> bool:
    """Whether a service with this id uses the database now."""
    with ExitStack() as stack:
        if url.drivername == "sqlite":
            file = Path(url.database or "")
            if not (file.parent / _lock_file(file, service)).exists():
                return False
            try:
                stack.enter_context(locked(file.parent, "testing", _lock_file(file, service)))
            except OutputError:
                return True
            return False
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND database = "
        query += "(SELECT oid FROM pg_database WHERE datname = current_database()) AND "
        query += f"((classid::bigint << 32) | objid::bigint) = {_key(service)}"
        return bool(_connect(url, stack).execute(sa.text(query)).scalar())


def _connect(url: sa.URL, stack: ExitStack) -> sa.Connection:
    """A connection of its own, closed with the stack."""
    engine = sa.create_engine(
        url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": int(PATIENCE)}
    )
    stack.callback(engine.dispose)
    try:
        connection = engine.connect()
    except exc.SQLAlchemyError:
        raise OutputError("the database does not answer") from None

    def close() -> None:
        with suppress(exc.SQLAlchemyError):
            connection.close()

    stack.callback(close)
    for name, value in KEEPALIVE.items():
        with suppress(exc.SQLAlchemyError):  # not over a Unix socket
            connection.execute(sa.text(f"SET tcp_keepalives_{name} = {value}"))
    return connection


def _lock_file(database: Path, service: str) -> str:
    return f"{database.name}.{service}.lock"


def _key(service: str) -> int:
    """The number of the advisory lock: 63 bits of a hash of the id."""
    return int.from_bytes(hashlib.sha256(f"patchsvdd service {service}".encode()).digest()[:8]) >> 1
