"""Repeated requests: with an ``Idempotency-Key``, an image is inspected once however often it is sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import sqlalchemy as sa

from patchsvdd.apps.serve.database import Write
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.tables import idempotency, inspections

KEPT_SECONDS = 86400.0
"""How long a key is remembered."""


@dataclass(frozen=True)
class Request:
    """A request with an ``Idempotency-Key``."""

    caller: str
    key: str
    digest: str
    """Of the model, the image and what was said about the part."""
    at: float = field(default_factory=time.time)

    def write(self, inspection: str) -> Write:
        """The write that remembers the inspection. It fails with IntegrityError if another service was quicker."""

        def write(connection: sa.Connection) -> None:
            gone = idempotency.c.inspection.not_in(sa.select(inspections.c.id))
            old = idempotency.c.at <= self.at - KEPT_SECONDS
            connection.execute(sa.delete(idempotency).where(self.is_this, gone | old))
            row = {"caller": self.caller, "key": self.key, "request": self.digest, "inspection": inspection}
            connection.execute(sa.insert(idempotency).values(**row, at=self.at))

        return write

    @property
    def is_this(self) -> sa.ColumnElement[bool]:
        """The condition that selects the row of this key."""
        return (idempotency.c.caller == self.caller) & (idempotency.c.key == self.key)


class Repeated(Exception):
    """Another service on the same database has stored an inspection for this key in the meantime."""


def digest(model: str, data: bytes | bytearray, details: Mapping[str, str | None]) -> str:
    """A digest that tells requests apart."""
    said = json.dumps([model, hashlib.sha256(data).hexdigest(), sorted(details.items())])
    return hashlib.sha256(said.encode()).hexdigest()


def earlier(store: Store, request: Request) -> Row | None:
    """The inspection that the key led to before; None if there is none. Raises Problem if the request was another."""
    join = sa.join(idempotency, inspections, idempotency.c.inspection == inspections.c.id)
    query = sa.select(idempotency.c.request.label("digest"), inspections).select_from(join)
    query = query.where(request.is_this, idempotency.c.at > request.at - KEPT_SECONDS)
    with store.reading() as connection:
        row = connection.execute(query).mappings().first()
    if row is None:
        return None
    if row["digest"] != request.digest:
        words = "this Idempotency-Key was used for another image, model or part; choose a new key for each image"
        raise Problem("conflict", words)
    return {name: value for name, value in row.items() if name != "digest"}


class Turns:
    """Lets requests with the same key take turns; used from the event loop alone."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[None]:
        """Wait until no other request with this key is in progress."""
        name = (request.caller, request.key)
        lock, users = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)
