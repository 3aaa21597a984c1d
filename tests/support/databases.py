"""Fixtures of tests that use a database of each kind: ``pytest_plugins = ("support.databases",)``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from patchsvdd.apps.serve.settings import database_url
from support.postgres import Postgres, missing, postgres


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL server."""
    if why := missing():
        pytest.skip(why)
    with postgres() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'db' / 'inspections.sqlite'}"
    found: Postgres = request.getfixturevalue("postgres_server")
    engine = sa.create_engine(database_url(found.url))
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return database_url(found.url)
