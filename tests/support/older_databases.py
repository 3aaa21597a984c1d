"""Databases that earlier versions of the service wrote, with rows in every table.

``tests/data/service-databases-0.1.0.tar.xz`` has one per revision, as an SQLite file and as a dump of PostgreSQL.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import sqlalchemy as sa

from support.parts import ROOT

REVISIONS = ("0001", "0002", "0003")
INSPECTIONS = tuple(f"{1_760_000_000_000 + 60_000 * index:012x}{index:012x}" for index in range(3))
"""Their ids: a good one, a reviewed and learned false alarm, a true defect."""
JOBS = ("019a8c2f1e7b3f0c9d2a4b6c", "019a8c2f1e7b3f0c9d2a4b6d")
"""Ids of a learning that is done, and of a training that failed."""


def older_database(revision: str, url: str) -> None:
    """Create the database of a revision at the URL, which must be empty."""
    target = sa.make_url(url)
    with tarfile.open(ROOT / "tests" / "data" / "service-databases-0.1.0.tar.xz") as archive:
        sqlite = target.drivername == "sqlite"
        member = archive.extractfile(f"{revision}.{'sqlite' if sqlite else 'sql'}")
        assert member is not None
        stored = member.read()
    if sqlite:
        assert target.database is not None
        Path(target.database).parent.mkdir(parents=True, exist_ok=True)
        Path(target.database).write_bytes(stored)
        return
    engine = sa.create_engine(target)
    with engine.begin() as connection:
        connection.exec_driver_sql(stored.decode())
    engine.dispose()
