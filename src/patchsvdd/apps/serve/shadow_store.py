"""The tables of candidates, switches and shadow results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.audit_store import AuditStore, Record
from patchsvdd.apps.serve.tables import candidates, inspections, shadow_results, switches
from patchsvdd.evaluation.paired import Paired

Row = Mapping[str, Any]


class ShadowStore(AuditStore):
    """Reads and writes candidates, switches and shadow results. ``owner`` is the service that has the folders."""

    # Candidates

    def candidates(self, owner: str) -> list[Row]:
        """The candidates of a service."""
        query = sa.select(candidates).where(candidates.c.owner == owner).order_by(candidates.c.model)
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def candidate(self, owner: str, model: str) -> Row | None:
        """The candidate of a model."""
        with self.reading() as connection:
            row = connection.execute(sa.select(candidates).where(*_at(owner, model))).mappings().first()
        return None if row is None else dict(row)

    def set_candidate(self, row: Row, record: Record) -> None:
        """Store the candidate of a model in place of the one before."""

        def write(connection: sa.Connection) -> None:
            where = _at(row["owner"], row["model"])
            before = connection.execute(sa.select(candidates.c.candidate).where(*where)).scalar()
            connection.execute(sa.delete(candidates).where(*where))
            connection.execute(sa.insert(candidates).values(**row))
            record.write(connection, before=before)

        self.write(write)

    def remove_candidate(self, owner: str, model: str, record: Record) -> None:
        """Remove the candidate of a model."""

        def write(connection: sa.Connection) -> None:
            connection.execute(sa.delete(candidates).where(*_at(owner, model)))
            record.write(connection)

        self.write(write)

    # Switches

    def live_folders(self, owner: str) -> dict[str, Path]:
        """Name → the folder that is served under it, where that is another than the folder of this name."""
        query = sa.select(switches.c.model, switches.c.folder)
        query = query.where(switches.c.owner == owner, switches.c.rolled_back.is_(None)).order_by(switches.c.id)
        with self.reading() as connection:
            return {model: Path(folder) for model, folder in connection.execute(query)}

    def last_switch(self, owner: str, model: str) -> Row | None:
        """The latest switch of a model that was not rolled back."""
        where = (switches.c.owner == owner, switches.c.model == model, switches.c.rolled_back.is_(None))
        query = sa.select(switches).where(*where).order_by(switches.c.id.desc()).limit(1)
        with self.reading() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else dict(row)

    def add_switch(self, row: Row, record: Record) -> None:
        """Store a switch; the candidate is the live model from now on, and a candidate no longer."""

        def write(connection: sa.Connection) -> None:
            known = connection.execute(sa.select(switches.c.id).where(switches.c.id == row["id"])).first()
            if known is None:  # it exists if the confirmation of a commit was lost
                connection.execute(sa.insert(switches).values(**row))
                connection.execute(sa.delete(candidates).where(*_at(row["owner"], row["model"])))
                record.write(connection)

        self.write(write)

    def roll_back(self, number: str, record: Record) -> None:
        """Mark a switch as rolled back."""
        at = time.time()

        def write(connection: sa.Connection) -> None:
            connection.execute(sa.update(switches).where(switches.c.id == number).values(rolled_back=at))
            record.write(connection)

        self.write(write)

    # Shadow results

    def add_shadow_results(self, rows: Sequence[Row]) -> int:
        """Store results; returns how many: those of inspections that were deleted meanwhile are left out."""

        def write(connection: sa.Connection) -> int:
            stored = 0
            for row in rows:
                known = sa.select(inspections.c.id).where(inspections.c.id == row["inspection"])
                same = sa.select(shadow_results.c.inspection).where(
                    shadow_results.c.inspection == row["inspection"], shadow_results.c.identity == row["identity"]
                )
                if connection.execute(known).first() is not None and connection.execute(same).first() is None:
                    connection.execute(sa.insert(shadow_results).values(**row))
                    stored += 1
            return stored

        count: int = self.write(write)
        return count

    def shadow_counts(self, model: str, live: str, candidate: str) -> Paired:
        """Alarms of two versions on the same images: the live one first."""
        columns = shadow_results.c
        query = sa.select(columns.live_verdict, columns.verdict, sa.func.count()).where(*_pair(model, live, candidate))
        counts: dict[tuple[bool, bool], int] = {}
        with self.reading() as connection:
            for one, other, count in connection.execute(query.group_by(columns.live_verdict, columns.verdict)):
                counts[one == "anomalous", other == "anomalous"] = int(count)
        found = (counts.get(pair, 0) for pair in ((True, True), (True, False), (False, True), (False, False)))
        return Paired(*found)

    def disagreements(
        self, model: str, live: str, candidate: str, limit: int, before: str | None = None
    ) -> list[tuple[Row, Row]]:
        """Inspections on which the verdicts of two versions differ, newest first, each with the shadow result."""
        columns = shadow_results.c
        query = sa.select(shadow_results).where(*_pair(model, live, candidate), columns.verdict != columns.live_verdict)
        if before is not None:
            query = query.where(columns.inspection < before)
        with self.reading() as connection:
            found = connection.execute(query.order_by(columns.inspection.desc()).limit(limit)).mappings()
            results = {row["inspection"]: dict(row) for row in found}
            chosen = sa.select(inspections).where(inspections.c.id.in_(results)).order_by(inspections.c.id.desc())
            return [(dict(row), results[row["id"]]) for row in connection.execute(chosen).mappings()]


def _at(owner: str, model: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return candidates.c.owner == owner, candidates.c.model == model


def _pair(model: str, live: str, candidate: str) -> tuple[sa.ColumnElement[bool], ...]:
    columns = shadow_results.c
    return columns.model == model, columns.live_identity == live, columns.identity == candidate
