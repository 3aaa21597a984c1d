"""Traceability, smaller pictures, owners of jobs, users, idempotency keys, and sample review."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

INDEXES = {
    "inspections_thumbnail": ["thumbnail"],
    "inspections_view": ["view"],
    "inspections_serial": ["serial"],
    "inspections_lot": ["lot", "id"],
    "inspections_verdict": ["verdict", "review", "id"],
    "inspections_counts": ["model", "verdict", "review", "id"],
    "inspections_overview": ["id", "model", "verdict", "review", "draw", "line", "station"],
}
TRACE = ("serial", "lot", "line", "station")


def upgrade() -> None:
    """Go to this state."""
    for name in TRACE:
        op.add_column("inspections", sa.Column(name, sa.String(100)))
    op.add_column("inspections", sa.Column("owner", sa.String(32)))
    op.add_column("inspections", sa.Column("thumbnail", sa.String(64)))
    op.add_column("inspections", sa.Column("view", sa.String(64)))
    op.add_column("inspections", sa.Column("view_bytes", sa.Integer, nullable=False, server_default="0"))
    op.add_column("inspections", sa.Column("notes", sa.JSON))
    op.add_column("inspections", sa.Column("draw", sa.Float))
    for name, columns in INDEXES.items():
        op.create_index(name, "inspections", columns)
    op.add_column("jobs", sa.Column("owner", sa.String(32)))
    op.add_column("jobs", sa.Column("started", sa.Float))
    op.add_column("keys", sa.Column("used", sa.Float))
    op.create_table(
        "users",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("disabled", sa.Float),
        sa.Column("used", sa.Float),
    )
    op.drop_table("sessions")  # people sign in again
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(16), sa.ForeignKey("keys.id", ondelete="CASCADE")),
        sa.Column("user", sa.String(16), sa.ForeignKey("users.id", ondelete="CASCADE")),
        sa.Column("expires", sa.Float, nullable=False),
    )
    op.create_table(
        "idempotency",
        sa.Column("caller", sa.String(200), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("inspection", sa.String(32), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_index("ix_idempotency_at", "idempotency", ["at"])
    op.create_table(
        "samples",
        sa.Column("model", sa.String(200), primary_key=True),
        sa.Column("per_day", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    """Go back to the state before."""
    op.drop_table("samples")
    op.drop_table("idempotency")
    op.drop_table("sessions")
    op.drop_table("users")
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(16), sa.ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
    )
    op.drop_column("keys", "used")
    for name in ("started", "owner"):
        op.drop_column("jobs", name)
    for name in INDEXES:
        op.drop_index(name, "inspections")
    for name in ("draw", "notes", "view_bytes", "view", "thumbnail", "owner", *TRACE):
        op.drop_column("inspections", name)
