"""The table of annotations: where defects are, as people drew them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import AuditStore, Record
from patchsvdd.apps.serve.ids import new_id
from patchsvdd.apps.serve.tables import drawings, inspections

AT_A_TIME = 500
"""Values in one list of a query."""
LATEST = 1000
"""Annotations whose kinds are suggested."""


class AnnotationStore(AuditStore):
    """Reads and writes annotations. The latest of an inspection counts; one without shapes withdraws it."""

    def annotate(self, number: str, shapes: Sequence[Mapping[str, Any]], by: Actor) -> Mapping[str, Any] | None:
        """Store the shapes on an inspection's image and return the row; None if the inspection does not exist."""
        kinds = sorted({str(shape["kind"]) for shape in shapes})
        row = {
            "id": new_id(),
            "inspection": number,
            "at": time.time(),
            "by": by.name,
            "shapes": list(shapes),
            "kinds": kinds,
        }
        action = "annotation.drawn" if shapes else "annotation.withdrawn"
        record = Record(by, action, subject_kind="inspection", subject=number)

        def write(connection: sa.Connection) -> bool:
            query = sa.select(inspections.c.model).where(inspections.c.id == number).with_for_update()
            known = connection.execute(query).first()
            if known is None:
                return False
            stored = sa.select(drawings.c.id).where(drawings.c.id == row["id"])
            if connection.execute(stored).first() is None:  # it exists if the confirmation of a commit was lost
                connection.execute(sa.insert(drawings).values(**row))
                replace(record, model=known.model).write(connection, shapes=len(shapes), kinds=kinds)
            return True

        return row if self.write(write) else None

    def annotation(self, number: str) -> Mapping[str, Any] | None:
        """The annotation of an inspection; None if there is none, or it was withdrawn."""
        return self.annotations_of([number]).get(number)

    def annotations_of(self, numbers: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """The annotations of inspections that have one."""
        columns = drawings.c
        found: dict[str, Mapping[str, Any]] = {}
        with self.reading() as connection:
            for start in range(0, len(numbers), AT_A_TIME):
                some = columns.inspection.in_(numbers[start : start + AT_A_TIME])
                latest = sa.select(sa.func.max(columns.id)).where(some).group_by(columns.inspection)
                query = sa.select(drawings).where(columns.id.in_(latest))
                rows = (dict(row) for row in connection.execute(query).mappings())
                found |= {row["inspection"]: row for row in rows if row["shapes"]}
        return found

    def annotated_kinds(self) -> list[str]:
        """The kinds of defects that were drawn, the most frequent of the latest ones first."""
        query = sa.select(drawings.c.kinds).order_by(drawings.c.id.desc()).limit(LATEST)
        with self.reading() as connection:
            counted = Counter(kind for kinds in connection.execute(query).scalars() for kind in kinds)
        return [kind for kind, _ in sorted(counted.items(), key=lambda one: (-one[1], one[0]))]

    def inspections_named(self, names: Sequence[str], model: str | None = None) -> list[Mapping[str, Any]]:
        """Id, name, size and review of the inspections with one of these names."""
        columns = inspections.c
        wanted = (columns.id, columns.name, columns.width, columns.height, columns.review)
        found: list[Mapping[str, Any]] = []
        with self.reading() as connection:
            for start in range(0, len(names), AT_A_TIME):
                query = sa.select(*wanted).where(columns.name.in_(names[start : start + AT_A_TIME]))
                query = query if model is None else query.where(columns.model == model)
                found += [dict(row) for row in connection.execute(query.order_by(columns.id)).mappings()]
        return found
