"""The table of the parts that lines inspected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from itertools import pairwise
from typing import Any, get_args

import sqlalchemy as sa

from patchsvdd.apps.line.parts import PartResult, PartVerdict
from patchsvdd.apps.serve.audit_store import AuditStore, Record
from patchsvdd.apps.serve.ids import id_at
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.tables import parts

Row = Mapping[str, Any]
VERDICTS: tuple[PartVerdict, ...] = get_args(PartVerdict)
PAGE = 200
"""Parts read at a time while views are looked for."""
MOST_LOOKED_AT = 2000
"""Parts in which anomalous views are looked for."""


class RepeatedSequence(Exception):
    """The line has already stored another part under this sequence number."""


def part_row(owner: str, line: str, result: PartResult) -> dict[str, Any]:
    """A part's row of the table. ``owner`` is the service that runs the line."""
    facts = result.to_json()
    lists = {"views": [asdict(one) for one in result.views], "regions": [asdict(one) for one in result.regions]}
    return {**facts, **lists, "seconds": result.seconds, "owner": owner, "line": line}


class PartStore(AuditStore):
    """Reads and writes parts. A line belongs to a service: ``owner`` is its ``Settings.service_id``."""

    def insert_part(self, owner: str, line: str, result: PartResult) -> Future[Any]:
        """Insert a part; the future is done once it is on disk, and raises RepeatedSequence.

        The part's id must be ``new_id`` of the time of its trigger: parts are ordered and counted by it.
        """
        row = part_row(owner, line, result)

        def write(connection: sa.Connection) -> None:
            if connection.execute(sa.select(parts.c.id).where(parts.c.id == row["id"])).first() is not None:
                return  # the confirmation of an earlier commit was lost
            taken = sa.select(parts.c.id).where(*_of(owner, line), parts.c.sequence == row["sequence"])
            if (other := connection.execute(taken).scalar()) is not None:
                raise RepeatedSequence(f"the line '{line}' has stored part {other} as number {row['sequence']}")
            connection.execute(sa.insert(parts).values(**row))

        return self.submit(write)

    def correct_part(self, owner: str, line: str, result: PartResult) -> None:
        """Replace a stored part, because its verdict did not reach the field bus in time."""
        row = part_row(owner, line, result)
        self.write(lambda connection: connection.execute(sa.update(parts).where(parts.c.id == row["id"]).values(**row)))

    def last_part(self, owner: str, line: str) -> Row | None:
        """The part of a line with the highest sequence number."""
        return self._first(sa.select(parts).where(*_of(owner, line)).order_by(parts.c.sequence.desc()))

    def part(self, number: str) -> Row:
        """One part; raises Problem if it does not exist."""
        row = self._first(sa.select(parts).where(parts.c.id == number))
        if row is None:
            raise Problem("not-found", f"there is no part {number}, or it was deleted")
        return row

    def _first(self, query: sa.Select[Any]) -> Row | None:
        with self.reading() as connection:
            row = connection.execute(query.limit(1)).mappings().first()
        return None if row is None else dict(row)

    def parts(
        self,
        limit: int,
        *,
        line: str | None = None,
        verdict: PartVerdict | None = None,
        part_number: str | None = None,
        before: str | None = None,
    ) -> list[Row]:
        """Up to ``limit`` parts, newest first, of those older than ``before``."""
        query = sa.select(parts).order_by(parts.c.id.desc()).limit(limit)
        for name, value in (("line", line), ("verdict", verdict), ("part_number", part_number)):
            if value is not None:
                query = query.where(parts.c[name] == value)
        if before is not None:
            query = query.where(parts.c.id < before)
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def count_parts(self, owner: str, line: str, edges: Sequence[float]) -> list[dict[PartVerdict, int]]:
        """Numbers of parts by verdict, between each two neighbours of ``edges``, which are times in order."""
        ids = [id_at(edge) for edge in edges]
        bucket = sa.case(*((parts.c.id < end, index) for index, end in enumerate(ids[1:])), else_=-1)
        query = sa.select(bucket, parts.c.verdict, sa.func.count()).where(*_of(owner, line))
        query = query.where(parts.c.id >= ids[0], parts.c.id < ids[-1]).group_by(bucket, parts.c.verdict)
        found: list[dict[PartVerdict, int]] = [dict.fromkeys(VERDICTS, 0) for _ in pairwise(ids)]
        with self.reading() as connection:
            for index, verdict, many in connection.execute(query):
                found[index][verdict] = int(many)
        return found

    def anomalous_views(self, owner: str, line: str, view: str, since: float, limit: int) -> list[str]:
        """Ids of up to ``limit`` inspections of a view that were anomalous since a time, newest first."""
        found: list[str] = []
        for part in self._not_good(owner, line, since):
            found += [one["inspection"] for one in part if one["view"] == view and one["verdict"] == "anomalous"]
            if len(found) >= limit:
                break
        return found[:limit]

    def _not_good(self, owner: str, line: str, since: float) -> Iterator[list[dict[str, Any]]]:
        """The views of parts that are not good, newest first."""
        columns = parts.c
        where = (*_of(owner, line), columns.verdict.in_(("anomalous", "incomplete", "error")))
        before: str | None = None
        for _ in range(MOST_LOOKED_AT // PAGE):
            query = sa.select(columns.id, columns.views).where(*where, columns.id >= id_at(since))
            if before is not None:
                query = query.where(columns.id < before)
            with self.reading() as connection:
                rows = list(connection.execute(query.order_by(columns.id.desc()).limit(PAGE)))
            yield from (row.views for row in rows)
            if len(rows) < PAGE:
                return
            before = rows[-1].id

    def acknowledge_parts(self, owner: str, line: str, record: Record, *, always: bool) -> int:
        """Mark the line's parts without a verdict as acknowledged; returns how many were not yet.

        The record is written with their number: ``always``, or only if there are any.
        """
        where = (*_of(owner, line), parts.c.verdict.in_(("incomplete", "error")), parts.c.acknowledged_at.is_(None))
        values = {"acknowledged_at": record.at / 1000, "acknowledged_by": record.by.name}

        def write(connection: sa.Connection) -> int:
            many = connection.execute(sa.update(parts).where(*where).values(**values)).rowcount
            if many or always:
                record.write(connection, parts=many)
            return many

        marked: int = self.write(write)
        return marked


def _of(owner: str, line: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return parts.c.line == line, parts.c.owner == owner
