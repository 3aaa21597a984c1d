"""Database access: the audit chain.

Entries are appended in the transaction of the change that they describe. The row of ``audit_head`` is locked until that
transaction ends, so that the chain stays linear if several services use one PostgreSQL database; on SQLite, writers
wait for each other anyway. Entries have names and ids instead of foreign keys: nothing that is deleted later takes an
entry with it, and no retention applies to them.
"""

from __future__ import annotations

import getpass
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.audit_chain import Actor, Entry, Head, Verification, canonical, plain, verify
from patchsvdd.apps.serve.database import AUDITED, Database
from patchsvdd.apps.serve.tables import audit, audit_head

PAGE = 1000
"""Entries read at a time."""


def this_process() -> Actor:
    """The person who runs a command on this machine."""
    try:
        return Actor(getpass.getuser(), "command")
    except (OSError, KeyError):
        return Actor("unknown", "command")


@dataclass(frozen=True)
class Record:
    """What is to be recorded. Writing it twice appends one entry: transactions may be repeated."""

    by: Actor
    action: str
    """What was done, as group.event, such as ``review.given``."""
    model: str | None = None
    subject_kind: str = ""
    subject: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    at: int = field(default_factory=lambda: int(time.time() * 1000))

    def about(self, subject: str) -> Record:
        """The same record about a subject."""
        return replace(self, subject=subject)

    def write(self, connection: sa.Connection, **details: Any) -> None:
        """Append the entry in the transaction of the connection; ``details`` are added to those known before."""
        if connection.execute(sa.select(audit.c.number).where(audit.c.id == self.id)).first() is not None:
            return
        row = connection.execute(sa.select(audit_head).where(audit_head.c.id == 1).with_for_update()).one()
        entry = self.entry(Head(row.number, row.hash), **details)
        connection.execute(sa.insert(audit).values(**asdict(entry)))
        connection.execute(
            sa.update(audit_head).where(audit_head.c.id == 1).values(number=entry.number, hash=entry.hash)
        )
        connection.info[AUDITED] = True

    def entry(self, head: Head, **details: Any) -> Entry:
        """The entry that follows a head."""
        entry = Entry(
            number=head.number + 1,
            id=self.id,
            at=self.at,
            who=self.by.name,
            who_kind=self.by.kind,
            who_id=self.by.id,
            action=self.action,
            model=self.model,
            subject_kind=self.subject_kind,
            subject=self.subject,
            details=canonical(plain({**self.details, **details})),
            previous=head.hash,
            hash="",
        )
        return replace(entry, hash=entry.computed_hash())


@dataclass(frozen=True)
class AuditFilter:
    """Conditions that select entries."""

    model: str | None = None
    who: str | None = None
    action: str | None = None
    """An action, or the group of actions before the point."""
    people: bool = False
    """Only what people, keys and commands did; not the service by itself."""
    since: float | None = None
    until: float | None = None
    before: int | None = None
    """Only entries with a smaller number."""

    def clauses(self) -> Iterator[sa.ColumnElement[bool]]:
        """The conditions of a WHERE clause."""
        columns = audit.c
        if self.model is not None:
            yield columns.model == self.model
        if self.who is not None:
            yield columns.who == self.who
        if self.action is not None:
            yield (columns.action == self.action) | columns.action.startswith(f"{self.action}.", autoescape=True)
        if self.people:
            yield columns.who_kind != "service"
        if self.since is not None:
            yield columns.at >= int(self.since * 1000)
        if self.until is not None:
            yield columns.at < int(self.until * 1000)
        if self.before is not None:
            yield columns.number < self.before


class AuditStore(Database):
    """Reads the audit chain, and appends entries that belong to no other change of the database."""

    def record(self, record: Record) -> Future[Any]:
        """Append an entry; the future is done once it is on disk."""
        return self.submit(record.write)

    def audit_head(self) -> Head:
        """The last entry, as the database names it."""
        with self.reading() as connection:
            row = connection.execute(sa.select(audit_head).where(audit_head.c.id == 1)).first()
        return Head() if row is None else Head(row.number, row.hash)

    def has_entry(self, head: Head) -> bool:
        """Whether the chain has an entry of this number and hash."""
        if head.number == 0:
            return True
        with self.reading() as connection:
            found = connection.execute(sa.select(audit.c.hash).where(audit.c.number == head.number)).scalar()
        return found == head.hash

    def audit_entries(self, where: AuditFilter, limit: int) -> list[Entry]:
        """Up to ``limit`` entries, the latest first."""
        query = sa.select(audit).where(*where.clauses()).order_by(audit.c.number.desc()).limit(limit)
        with self.reading() as connection:
            return [Entry(**row) for row in connection.execute(query).mappings()]

    def audit_chain(self, until: int | None = None) -> Iterator[Entry]:
        """All entries in their order, or those up to a number; some are read at a time."""
        last: int | None = None
        while True:
            query = sa.select(audit).order_by(audit.c.number).limit(PAGE)
            if last is not None:
                query = query.where(audit.c.number > last)
            if until is not None:
                query = query.where(audit.c.number <= until)
            with self.reading() as connection:
                entries = [Entry(**row) for row in connection.execute(query).mappings()]
            yield from entries
            if len(entries) < PAGE:
                return
            last = entries[-1].number

    def verify_audit(self, heads: Mapping[str, Head] | None = None) -> Verification:
        """Check the whole chain, and that it has the database's head and the given ones."""
        before = self.audit_head()
        found = verify(self.audit_chain(), {"the database": before, **(heads or {})})
        after = self.audit_head()  # entries may have been appended meanwhile
        if found.fault is None and found.head.number > after.number:
            words = f"entry {after.number + 1} was added: the database knows {after.number} entries"
            return Verification(after, words, after.number + 1)
        return found
