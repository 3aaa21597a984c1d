"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Go to this state."""
    op.create_table(
        "inspections",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("threshold", sa.Float),
        sa.Column("p_value", sa.Float),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("regions", sa.JSON, nullable=False),
        sa.Column("traits", sa.JSON, nullable=False),
        sa.Column("timings", sa.JSON, nullable=False),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("height", sa.Integer, nullable=False),
        sa.Column("min_area", sa.Integer, nullable=False),
        sa.Column("picture", sa.String(64)),
        sa.Column("media_type", sa.String(32), nullable=False),
        sa.Column("picture_bytes", sa.Integer, nullable=False),
        sa.Column("map", sa.String(64)),
        sa.Column("map_bytes", sa.Integer, nullable=False),
        sa.Column("review", sa.String(16)),
        sa.Column("note", sa.Text),
        sa.Column("reviewed_at", sa.Float),
        sa.Column("reviewed_by", sa.String(200)),
        sa.Column("learned_by", sa.String(32)),
    )
    op.create_index("inspections_model", "inspections", ["model", "id"])
    op.create_index("inspections_review", "inspections", ["review", "id"])
    op.create_index("inspections_picture", "inspections", ["picture"])
    op.create_index("inspections_map", "inspections", ["map"])
    op.create_table(
        "reviews",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("inspection", sa.String(32), sa.ForeignKey("inspections.id", ondelete="CASCADE"), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("verdict", sa.String(16)),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("by", sa.String(200), nullable=False),
    )
    op.create_index("ix_reviews_inspection", "reviews", ["inspection"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("order", sa.JSON, nullable=False),
        sa.Column("stage", sa.String(64), nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("result", sa.JSON),
        sa.Column("error", sa.Text),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("updated", sa.Float, nullable=False),
        sa.Column("by", sa.String(200), nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("revoked", sa.Float),
    )
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(16), sa.ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Go back to the state before."""
    for table in ("sessions", "keys", "jobs", "reviews", "inspections"):
        op.drop_table(table)
