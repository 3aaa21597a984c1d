"""Users: adding and changing them, by an administrator on the page or on the command line."""

from __future__ import annotations

import re
import secrets
import time
import unicodedata

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.auth import KEY_NAME, ROLES
from patchsvdd.apps.serve.passwords import check_password
from patchsvdd.apps.serve.people_store import PeopleStore, Row
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.password_hash import hashed

SPACES = re.compile(" +")


def add_user(store: PeopleStore, name: str, role: str, password: str, by: Actor | None = None) -> Row:
    """Add a user; returns the row, whose hash nobody needs to see."""
    if role not in ROLES:
        raise ConfigError(f"`role` must be one of {', '.join(ROLES)}; got '{role}'")
    name = user_name(name)
    check_password(password, name)
    row = {"id": secrets.token_hex(6), "name": name, "role": role, "hash": hashed(password), "created": time.time()}
    if not store.insert_user(row, by):
        raise ConfigError(f"there is a user named '{name}' already; choose another name")
    return {**row, "disabled": None, "used": None}


def set_password(store: PeopleStore, name: str, password: str, by: Actor | None = None) -> Row:
    """Give a user another password, and end the user's sessions."""
    check_password(password, name)
    user = store.change_user(name, by=by, hash=hashed(password))
    if user is None:
        raise ConfigError(f"there is no user named '{name}'")
    return user


def user_name(name: str) -> str:
    """A user's name in the form in which it is stored; raises ConfigError if it cannot be one."""
    name = unicodedata.normalize("NFC", SPACES.sub(" ", name.strip(" ")))
    if not KEY_NAME.fullmatch(name):
        raise ConfigError("a user's name must have 1 to 100 letters, digits, spaces or any of . _ @ -")
    return name
