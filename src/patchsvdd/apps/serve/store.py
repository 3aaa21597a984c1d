"""Database access: inspections, reviews and jobs; ``people_store`` has users, keys and sessions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.annotation_store import AnnotationStore
from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import Record
from patchsvdd.apps.serve.database import Write
from patchsvdd.apps.serve.ids import new_id as new_id
from patchsvdd.apps.serve.job_store import JobStore
from patchsvdd.apps.serve.part_store import PartStore
from patchsvdd.apps.serve.people_store import PeopleStore
from patchsvdd.apps.serve.people_store import Row as Row
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.shadow_store import ShadowStore
from patchsvdd.apps.serve.tables import inspections, reviews

TRACE = ("serial", "lot", "line", "station")
"""Columns that say what the part is and where it was inspected, as given by the client."""

LAST_ID = "g"
"""Greater than every id: these are hexadecimal. SQLite takes a range with two bounds to be small and reads it by id."""


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
    identity: str | None = None
    """The model's version."""

    def clauses(self) -> Iterator[sa.ColumnElement[bool]]:
        """The conditions of a WHERE clause."""
        columns = inspections.c
        if self.model is not None:
            yield columns.model == self.model
        if self.identity is not None:
            yield columns.identity == self.identity
        if self.verdict is not None:
            yield columns.verdict == self.verdict
        if self.review is not None:
            yield columns.review.is_(None) if self.review == "none" else columns.review == self.review
        if self.since is not None:
            yield (columns.at >= self.since) & columns.id.between(_id_bound(self.since), LAST_ID)
        if self.until is not None:
            yield (columns.at < self.until) & (columns.id < _id_bound(self.until, 1))
        if self.before is not None:
            yield columns.id < self.before
        if self.after is not None:
            yield (columns.id > self.after) & (columns.id < LAST_ID)
        if self.name is not None:
            yield columns.name.icontains(self.name, autoescape=True)
        if self.learned is not None:
            yield columns.learned_by.is_not(None) if self.learned else columns.learned_by.is_(None)
        for name in TRACE:
            if getattr(self, name) is not None:
                yield columns[name] == getattr(self, name)


def _review_facts(row: Row, verdict: str | None, note: str) -> dict[str, Any]:
    """What the audit chain says of a review: enough to understand it when the inspection was deleted."""
    facts = {"verdict": verdict, "before": row["review"], "note": note or None, "judged": row["verdict"]}
    facts |= {"identity": row["identity"], "name": row["name"], "serial": row["serial"]}
    return {name: value for name, value in facts.items() if value is not None}


def _by(model: str, identity: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return inspections.c.model == model, inspections.c.identity == identity


def _id_bound(at: float, more: int = 0) -> str:
    """The start of ids of a time, some milliseconds later: ids are indexed, times are not."""
    return f"{int(at * 1000) + more:012x}"


class Store(AnnotationStore, JobStore, PartStore, PeopleStore, ShadowStore):
    """Inspections, reviews, annotations, parts, jobs, candidates, users and keys of a service, and its audit chain."""

    # Inspections

    def insert_inspection(self, row: Row, also: Write | None = None) -> Future[Any]:
        """Insert an inspection; the future is done once it is on disk. ``also`` is written in the same transaction."""

        def write(connection: sa.Connection) -> None:
            known = connection.execute(sa.select(inspections.c.id).where(inspections.c.id == row["id"]))
            if known.first() is None:  # it exists if the confirmation of an earlier commit was lost
                last = sa.select(sa.func.max(inspections.c.position)).where(*_by(row["model"], row["identity"]))
                position = (connection.execute(last).scalar() or 0) + 1
                connection.execute(sa.insert(inspections).values(**row, position=position))
                if also is not None:
                    also(connection)

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
        columns = (inspections.c.verdict, inspections.c.review)
        query = sa.select(*columns, sa.func.count()).where(*where.clauses()).group_by(*columns)
        counted: dict[str, dict[str, int]] = {"verdict": {}, "review": {}}
        with self.reading() as connection:
            for verdict, review, number in connection.execute(query):
                for name, key in (("verdict", verdict), ("review", review or "none")):
                    counted[name][key] = counted[name].get(key, 0) + int(number)
        return counted

    def review(self, number: str, verdict: str | None, note: str, by: Actor | str) -> Row | None:
        """Store an operator's verdict (None withdraws the last); returns the inspection, None if it does not exist."""
        identity, at, actor = new_id(), time.time(), Actor.of(by)
        action = "review.withdrawn" if verdict is None else "review.given"
        record = Record(actor, action, subject_kind="inspection", subject=number)

        def write(connection: sa.Connection) -> Row | None:
            query = sa.select(inspections).where(inspections.c.id == number).with_for_update()
            known = connection.execute(query).mappings().first()
            if known is None:
                return None
            if connection.execute(sa.select(reviews.c.id).where(reviews.c.id == identity)).first() is None:
                values = {"id": identity, "inspection": number, "at": at, "verdict": verdict, "note": note}
                connection.execute(sa.insert(reviews).values(**values, by=actor.name))
                replace(record, model=known["model"]).write(connection, **_review_facts(dict(known), verdict, note))
            changed = {"review": verdict, "note": note or None, "reviewed_at": at, "reviewed_by": actor.name}
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

    def mark_unlearned(self, model: str, numbers: Sequence[str]) -> None:
        """Record that a model's memory no longer has these inspections, nor copies of them learned by the same job."""
        columns = inspections.c

        def write(connection: sa.Connection) -> None:
            query = sa.select(columns.learned_by, columns.picture).where(
                columns.model == model, columns.id.in_(numbers), columns.learned_by.is_not(None)
            )
            for job, picture in connection.execute(query).all():
                same = columns.id.in_(numbers) | ((columns.picture == picture) if picture is not None else sa.false())
                which = (columns.model == model) & (columns.learned_by == job) & same
                connection.execute(sa.update(inspections).where(which).values(learned_by=None))

        self.write(write)
