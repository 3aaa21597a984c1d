"""The table of jobs. Each job belongs to the service that accepted it; services on one database run only their own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.audit_store import Record
from patchsvdd.apps.serve.database import Database
from patchsvdd.apps.serve.tables import jobs

UNFINISHED = ("waiting", "running")
CHANGING = ("learn", "teach", "undo", "threshold", "recalibrate")
"""Kinds of jobs that change a model, after which it is loaded again."""


class JobStore(Database):
    """Reads and writes jobs. Every change of state is conditional, so that two processes never make the same one."""

    def insert_job(self, row: Mapping[str, Any], record: Record | None = None) -> None:
        """Insert a job, with an entry of the audit chain."""

        def write(connection: sa.Connection) -> None:
            if connection.execute(sa.select(jobs.c.id).where(jobs.c.id == row["id"])).first() is None:
                connection.execute(sa.insert(jobs).values(**row))
            if record is not None:
                record.write(connection)

        self.write(write)

    def update_job(self, number: str, **values: Any) -> None:
        """Update columns of a job."""
        values["updated"] = time.time()
        self.write(lambda connection: connection.execute(sa.update(jobs).where(jobs.c.id == number).values(**values)))

    def change_state(
        self,
        number: str,
        before: Sequence[str],
        owner: str | None = None,
        *,
        record: Record | None = None,
        **values: Any,
    ) -> bool:
        """Update a job if its state is one of ``before`` and, if given, its owner is ``owner``; returns whether.

        ``record`` is appended to the audit chain together with the change.
        """
        values["updated"] = time.time()
        wanted = (jobs.c.id == number) & jobs.c.state.in_(before)
        if owner is not None:
            wanted &= jobs.c.owner == owner
        changed = {name: jobs.c[name] for name in values}

        def write(connection: sa.Connection) -> bool:
            if connection.execute(sa.update(jobs).where(wanted).values(**values)).rowcount == 1:
                if record is not None:
                    record.write(connection)
                return True
            # The confirmation of an earlier commit of this very change may have been lost.
            row = connection.execute(sa.select(*changed.values()).where(jobs.c.id == number)).mappings().first()
            return row is not None and dict(row) == values

        return bool(self.write(write))

    def claim_job(self, number: str, owner: str) -> bool:
        """Start a waiting job of a service; False if it is not waiting any more."""
        return self.change_state(number, ("waiting",), owner, state="running", started=time.time())

    def jobs_without_owner(self) -> list[str]:
        """Ids of the jobs of earlier versions, which did not record an owner."""
        with self.reading() as connection:
            return list(connection.execute(sa.select(jobs.c.id).where(jobs.c.owner.is_(None))).scalars())

    def adopt_job(self, number: str, owner: str) -> bool:
        """Give a job without an owner to a service; False if another service was first."""
        wanted = (jobs.c.id == number) & jobs.c.owner.is_(None)

        def write(connection: sa.Connection) -> bool:
            return connection.execute(sa.update(jobs).where(wanted).values(owner=owner)).rowcount == 1

        return bool(self.write(write))

    def next_job(self, owner: str, kinds: Sequence[str]) -> Mapping[str, Any] | None:
        """The job to run next: one that was interrupted, or else the oldest that waits; None if there is none."""
        query = sa.select(jobs).where(jobs.c.owner == owner, jobs.c.kind.in_(kinds), jobs.c.state.in_(UNFINISHED))
        query = query.order_by(jobs.c.state, jobs.c.id).limit(1)  # "running" sorts before "waiting"
        with self.reading() as connection:
            row = connection.execute(query).mappings().first()
        return dict(row) if row is not None else None

    def job(self, number: str) -> Mapping[str, Any] | None:
        """One job; None if it does not exist."""
        with self.reading() as connection:
            row = connection.execute(sa.select(jobs).where(jobs.c.id == number)).mappings().first()
        return dict(row) if row is not None else None

    def jobs(
        self, model: str | None = None, states: Sequence[str] | None = None, limit: int = 100, owner: str | None = None
    ) -> list[Mapping[str, Any]]:
        """Jobs, newest first."""
        query = sa.select(jobs).order_by(jobs.c.id.desc()).limit(limit)
        if model is not None:
            query = query.where(jobs.c.model == model)
        if states is not None:
            query = query.where(jobs.c.state.in_(states))
        if owner is not None:
            query = query.where(jobs.c.owner == owner)
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]
