"""Database access: inspections, reviews, jobs, keys and sessions."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.database import Database
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.tables import inspections, jobs, keys, reviews, sessions

Row = Mapping[str, Any]
TRACE = ("serial", "lot", "line", "station")
"""Columns that say what the part is and where it was inspected, as given by the client."""


@dataclass(frozen=True)
class Filter:
    """Conditions that select inspections."""

    model: str | None = None
    verdict: str | None = None
    review: str | None = None
    """A review's verdict, or "none" for inspections without a review."""
    since: float | None = None
    until: float | None = None
    before: str | None = None
    """Only those older than this one."""
    after: str | None = None
    """Only those newer than this one."""
    name: str | None = None
    """Part of the image's name."""
    learned: bool | None = None
    serial: str | None = None
    lot: str | None = None
    line: str | None = None
    station: str | None = None

    def clauses(self) -> Iterator[sa.ColumnElement[bool]]:
        """The conditions of a WHERE clause."""
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
        for name in TRACE:
            if getattr(self, name) is not None:
                yield columns[name] == getattr(self, name)


def _by(model: str, identity: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return inspections.c.model == model, inspections.c.identity == identity


def new_id(at: float | None = None) -> str:
    """A new id; ids sort by time."""
    return f"{int((time.time() if at is None else at) * 1000):012x}{secrets.token_hex(6)}"


def id_at(at: float) -> str:
    """A bound between the ids before a time and those from it on."""
    return f"{max(0, math.ceil(at * 1000)):012x}"


class Store(Database):
    """The inspections, reviews, jobs and keys of a service."""

    # Inspections

    def insert_inspection(self, row: Row) -> Future[Any]:
        """Insert an inspection; the future is done once it is on disk."""

        def write(connection: sa.Connection) -> None:
            known = connection.execute(sa.select(inspections.c.id).where(inspections.c.id == row["id"]))
            if known.first() is None:  # it exists if the confirmation of an earlier commit was lost
                last = sa.select(sa.func.max(inspections.c.position)).where(*_by(row["model"], row["identity"]))
                position = (connection.execute(last).scalar() or 0) + 1
                connection.execute(sa.insert(inspections).values(**row, position=position))

        return self.submit(write)

    def inspection(self, number: str) -> Row:
        """One inspection; raises Problem if it does not exist."""
        with self.reading() as connection:
            row = connection.execute(sa.select(inspections).where(inspections.c.id == number)).mappings().first()
        if row is None:
            raise Problem("not-found", f"there is no inspection {number}, or it was deleted")
        return dict(row)

    def inspections(
        self, where: Filter, limit: int, *, offset: int = 0, columns: Sequence[str] | None = None
    ) -> list[Row]:
        """Up to ``limit`` inspections, newest first, after the first ``offset``; all columns or only ``columns``."""
        selected = inspections.c if columns is None else [inspections.c[name] for name in columns]
        query = sa.select(*selected).where(*where.clauses()).order_by(inspections.c.id.desc())
        query = query.limit(limit).offset(offset)
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def last_block(self, model: str, identity: str, size: int) -> tuple[int, list[Row]]:
        """The first position of the current block, and the inspections of this block and the previous one in order.

        Blocks have ``size`` positions each.
        """
        columns = inspections.c
        by = _by(model, identity)
        with self.reading() as connection:
            last = connection.execute(sa.select(sa.func.max(columns.position)).where(*by)).scalar() or 1
            first = (last - 1) // size * size + 1
            query = sa.select(columns.id, columns.position, columns.traits)
            query = query.where(*by, columns.position >= first - size).order_by(columns.position, columns.id)
            return first, [dict(row) for row in connection.execute(query).mappings()]

    def count(self, where: Filter) -> dict[str, dict[str, int]]:
        """Numbers of inspections by verdict and by review."""
        counted = {}
        with self.reading() as connection:
            for name, column in (("verdict", inspections.c.verdict), ("review", inspections.c.review)):
                query = sa.select(column, sa.func.count()).where(*where.clauses()).group_by(column)
                counted[name] = {key or "none": int(number) for key, number in connection.execute(query)}
        return counted

    def review(self, number: str, verdict: str | None, note: str, by: str) -> Row | None:
        """Store an operator's verdict (None withdraws the last); returns the inspection, None if it does not exist."""
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
            row = connection.execute(sa.select(inspections).where(inspections.c.id == number)).mappings().one()
            return dict(row)

        result: Row | None = self.write(write)
        return result

    def mark_learned(self, numbers: Sequence[str], job: str | None) -> None:
        """Record the job that added inspections to the memory; None if they were removed again."""

        def write(connection: sa.Connection) -> None:
            for number in numbers:
                connection.execute(sa.update(inspections).where(inspections.c.id == number).values(learned_by=job))

        self.write(write)

    # Jobs

    def insert_job(self, row: Row) -> None:
        """Insert a job."""

        def write(connection: sa.Connection) -> None:
            if connection.execute(sa.select(jobs.c.id).where(jobs.c.id == row["id"])).first() is None:
                connection.execute(sa.insert(jobs).values(**row))

        self.write(write)

    def update_job(self, number: str, **values: Any) -> None:
        """Update columns of a job."""
        values["updated"] = time.time()
        self.write(lambda connection: connection.execute(sa.update(jobs).where(jobs.c.id == number).values(**values)))

    def job(self, number: str) -> Row | None:
        """One job; None if it does not exist."""
        with self.reading() as connection:
            row = connection.execute(sa.select(jobs).where(jobs.c.id == number)).mappings().first()
        return dict(row) if row is not None else None

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
        """Insert a key; False if its name already exists."""

        def write(connection: sa.Connection) -> bool:
            if connection.execute(sa.select(keys.c.id).where(keys.c.name == row["name"])).first() is not None:
                return False
            connection.execute(sa.insert(keys).values(**row))
            return True

        return bool(self.write(write))

    def key(self, number: str) -> Row | None:
        """One key, by its public number; None if it does not exist."""
        with self.reading() as connection:
            row = connection.execute(sa.select(keys).where(keys.c.id == number)).mappings().first()
        return dict(row) if row is not None else None

    def all_keys(self) -> list[Row]:
        """All keys, oldest first."""
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(sa.select(keys).order_by(keys.c.created)).mappings()]

    def revoke_key(self, name: str) -> bool:
        """Revoke a key and end its sessions; False if no active key has that name."""

        def write(connection: sa.Connection) -> bool:
            active = (keys.c.name == name) & keys.c.revoked.is_(None)
            key = connection.execute(sa.select(keys.c.id).where(active)).first()
            if key is None:
                return False
            connection.execute(sa.update(keys).where(active).values(revoked=time.time()))
            connection.execute(sa.delete(sessions).where(sessions.c.key == key[0]))
            return True

        return bool(self.write(write))

    def insert_session(self, digest: str, key: str, expires: float) -> None:
        """Insert a browser session; deletes expired ones."""

        def write(connection: sa.Connection) -> None:
            connection.execute(
                sa.delete(sessions).where((sessions.c.expires < time.time()) | (sessions.c.hash == digest))
            )
            connection.execute(sa.insert(sessions).values(hash=digest, key=key, expires=expires))

        self.write(write)

    def session(self, digest: str) -> Row | None:
        """The key of a session that has not expired; None if there is none."""
        query = sa.select(keys).join(sessions, sessions.c.key == keys.c.id)
        query = query.where((sessions.c.hash == digest) & (sessions.c.expires > time.time()))
        with self.reading() as connection:
            row = connection.execute(query).mappings().first()
        return dict(row) if row is not None else None

    def end_session(self, digest: str) -> None:
        """Delete a session."""
        self.write(lambda connection: connection.execute(sa.delete(sessions).where(sessions.c.hash == digest)))
