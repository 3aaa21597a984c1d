"""Database access: users, API keys and browser sessions. Every change says in the audit chain who made it."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import AuditStore, Record, this_process
from patchsvdd.apps.serve.tables import keys, sessions, users

Row = Mapping[str, Any]


USER_EVENTS = ("role", "enabled", "disabled", "password")
"""What changes of a user are recorded as."""


class LastAdministrator(Exception):
    """The change would leave no active user and no active key with the role `admin`."""


def folded(name: str) -> str:
    """A user's name for comparison: upper and lower case, and ways to write an accent, make no difference."""
    return unicodedata.normalize("NFC", name.strip()).casefold()


class PeopleStore(AuditStore):
    """The users, keys and sessions of a service. Changes without ``by`` were made by a command on this machine."""

    # Keys

    def insert_key(self, row: Row, by: Actor | None = None) -> bool:
        """Insert a key; False if its name already exists."""
        record = _of_person("key.created", "key", by)

        def write(connection: sa.Connection) -> bool:
            known = connection.execute(sa.select(keys.c.id).where(keys.c.name == row["name"])).first()
            if known is None:
                connection.execute(sa.insert(keys).values(**row))
                record.about(row["name"]).write(connection, id=row["id"], role=row["role"])
            return known is None or known[0] == row["id"]  # it exists if the confirmation of a commit was lost

        return bool(self.write(write))

    def key(self, number: str) -> Row | None:
        """One key, by its public number; None if it does not exist."""
        return self._one(sa.select(keys).where(keys.c.id == number))

    def all_keys(self) -> list[Row]:
        """All keys, oldest first."""
        return self._all(sa.select(keys).order_by(keys.c.created))

    def note_use(self, key: str) -> None:
        """Record that a key was used just now; does not wait for the disk."""
        self.submit(lambda c: c.execute(sa.update(keys).where(keys.c.id == key).values(used=time.time())))

    def revoke_key(self, name: str, *, keep_admin: bool = False, by: Actor | None = None) -> bool:
        """Revoke a key and end its sessions; False if no active key has that name.

        With ``keep_admin``, raises LastAdministrator rather than revoke the last one's key.
        """
        record = _of_person("key.revoked", "key", by)

        def write(connection: sa.Connection) -> bool:
            active = (keys.c.name == name) & keys.c.revoked.is_(None)
            key = connection.execute(sa.select(keys.c.id, keys.c.role).where(active)).first()
            if key is None:
                return False
            if keep_admin:
                _require_admin_besides(connection, key=key[0])
            connection.execute(sa.update(keys).where(active).values(revoked=time.time()))
            connection.execute(sa.delete(sessions).where(sessions.c.key == key[0]))
            record.about(name).write(connection, id=key[0], role=key[1])
            return True

        return bool(self.write(write))

    # Users

    def insert_user(self, row: Row, by: Actor | None = None) -> bool:
        """Insert a user; False if the name already exists."""
        record = _of_person("user.created", "user", by)

        def write(connection: sa.Connection) -> bool:
            known = _user_named(connection, row["name"])
            if known is None:
                connection.execute(sa.insert(users).values(**row))
                record.about(row["name"]).write(connection, id=row["id"], role=row["role"])
            return known is None or known["id"] == row["id"]  # it exists if the confirmation of a commit was lost

        return bool(self.write(write))

    def user(self, name: str) -> Row | None:
        """One user, by name; None if there is none."""
        with self.reading() as connection:
            return _user_named(connection, name)

    def all_users(self) -> list[Row]:
        """All users, oldest first."""
        return self._all(sa.select(users).order_by(users.c.created))

    def change_user(self, name: str, *, keep_admin: bool = False, by: Actor | None = None, **values: Any) -> Row | None:
        """Change columns of a user; None if there is none of that name.

        A new password or disabling the user ends the sessions. With ``keep_admin``, raises LastAdministrator rather
        than take the role from the last administrator or disable them.
        """
        records = {event: _of_person(f"user.{event}", "user", by) for event in USER_EVENTS}

        def write(connection: sa.Connection) -> Row | None:
            user = _user_named(connection, name)
            if user is None:
                return None
            loses = values.get("role", "admin") != "admin" or values.get("disabled") is not None
            if keep_admin and loses:
                _require_admin_besides(connection, user=user["id"])
            connection.execute(sa.update(users).where(users.c.id == user["id"]).values(**values))
            if "hash" in values or values.get("disabled") is not None:
                connection.execute(sa.delete(sessions).where(sessions.c.user == user["id"]))
            for event, details in _user_events(user, values):
                records[event].about(user["name"]).write(connection, id=user["id"], **details)
            return {**user, **values}

        changed: Row | None = self.write(write)
        return changed

    def delete_user(self, name: str, *, keep_admin: bool = False, by: Actor | None = None) -> bool:
        """Delete a user with the sessions; False if there is none of that name.

        With ``keep_admin``, raises LastAdministrator rather than delete the last one.
        """
        record = _of_person("user.deleted", "user", by)

        def write(connection: sa.Connection) -> bool:
            user = _user_named(connection, name)
            if user is None:
                return False
            if keep_admin:
                _require_admin_besides(connection, user=user["id"])
            connection.execute(sa.delete(sessions).where(sessions.c.user == user["id"]))
            connection.execute(sa.delete(users).where(users.c.id == user["id"]))
            record.about(user["name"]).write(connection, id=user["id"], role=user["role"])
            return True

        return bool(self.write(write))

    def anyone(self) -> bool:
        """Whether there is an active user or an active key."""
        with self.reading() as connection:
            user = connection.execute(sa.select(users.c.id).where(users.c.disabled.is_(None)).limit(1)).first()
            key = connection.execute(sa.select(keys.c.id).where(keys.c.revoked.is_(None)).limit(1)).first()
        return user is not None or key is not None

    def has_users(self) -> bool:
        """Whether there is an active user."""
        return self._one(sa.select(users.c.id).where(users.c.disabled.is_(None)).limit(1)) is not None

    # Sessions

    def insert_session(self, digest: str, key: str, expires: float) -> None:
        """Insert the session of a key; deletes expired ones."""
        self.write(lambda connection: _insert_session(connection, digest, expires, key=key))

    def insert_user_session(self, digest: str, user: Row, expires: float) -> bool:
        """Insert the session of a user; False if the user was disabled, deleted or got another password meanwhile."""

        def write(connection: sa.Connection) -> bool:
            same = (users.c.id == user["id"]) & (users.c.hash == user["hash"]) & users.c.disabled.is_(None)
            if connection.execute(sa.select(users.c.id).where(same).with_for_update()).first() is None:
                return False
            _insert_session(connection, digest, expires, user=user["id"])
            connection.execute(sa.update(users).where(users.c.id == user["id"]).values(used=time.time()))
            return True

        return bool(self.write(write))

    def session(self, digest: str) -> Row | None:
        """The active key or user of a session that has not expired; ``user`` says which. None if there is none."""
        alive = (sessions.c.hash == digest) & (sessions.c.expires > time.time())
        with self.reading() as connection:
            for table, column, ended in (
                (keys, sessions.c.key, keys.c.revoked),
                (users, sessions.c.user, users.c.disabled),
            ):
                query = sa.select(table).join(sessions, column == table.c.id).where(alive & ended.is_(None))
                row = connection.execute(query).mappings().first()
                if row is not None:
                    return {**row, "user": table is users}
        return None

    def end_session(self, digest: str) -> None:
        """Delete a session."""
        self.write(lambda connection: connection.execute(sa.delete(sessions).where(sessions.c.hash == digest)))

    def _one(self, query: sa.Select[Any]) -> Row | None:
        with self.reading() as connection:
            row = connection.execute(query).mappings().first()
        return dict(row) if row is not None else None

    def _all(self, query: sa.Select[Any]) -> list[Row]:
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]


def _of_person(action: str, kind: str, by: Actor | None) -> Record:
    return Record(by or this_process(), action, subject_kind=kind)


def _user_events(user: Row, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a change of columns means for a user, with details."""
    if values.get("role", user["role"]) != user["role"]:
        yield "role", {"before": user["role"], "role": values["role"]}
    if "disabled" in values and (values["disabled"] is None) != (user["disabled"] is None):
        yield ("enabled" if values["disabled"] is None else "disabled"), {}
    if "hash" in values:
        yield "password", {}


def _user_named(connection: sa.Connection, name: str) -> Row | None:
    """The user of a name; compared here, because databases differ in what they take for upper and lower case."""
    wanted = folded(name)
    for number, known in connection.execute(sa.select(users.c.id, users.c.name)):
        if folded(known) == wanted:
            row = connection.execute(sa.select(users).where(users.c.id == number)).mappings().first()
            return dict(row) if row is not None else None
    return None


def _require_admin_besides(connection: sa.Connection, *, user: str = "", key: str = "") -> None:
    """Raise LastAdministrator unless another user or key is an active administrator."""
    others = [
        sa.select(table.c.id).where((table.c.role == "admin") & ended.is_(None)).with_for_update()
        for table, ended in ((users, users.c.disabled), (keys, keys.c.revoked))
    ]
    found = {("user", one[0]) for one in connection.execute(others[0])}
    found |= {("key", one[0]) for one in connection.execute(others[1])}
    mine = ("user", user) if user else ("key", key)
    if mine in found and len(found) == 1:
        raise LastAdministrator


def _insert_session(connection: sa.Connection, digest: str, expires: float, **owner: str) -> None:
    connection.execute(sa.delete(sessions).where((sessions.c.expires < time.time()) | (sessions.c.hash == digest)))
    connection.execute(sa.insert(sessions).values(hash=digest, expires=expires, **owner))
