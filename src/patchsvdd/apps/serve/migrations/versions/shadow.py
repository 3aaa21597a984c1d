"""Candidates, the switches between models, and what candidates said about inspected images."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Go to this state."""
    op.create_table(
        "candidates",
        sa.Column("owner", sa.String(32), primary_key=True),
        sa.Column("model", sa.String(200), primary_key=True),
        sa.Column("candidate", sa.String(200), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("by", sa.String(200), nullable=False),
    )
    op.create_table(
        "switches",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("by", sa.String(200), nullable=False),
        sa.Column("folder_before", sa.Text, nullable=False),
        sa.Column("identity_before", sa.String(64), nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("rolled_back", sa.Float),
    )
    op.create_index("switches_model", "switches", ["owner", "model", "id"])
    op.create_table(
        "shadow_results",
        sa.Column("inspection", sa.String(32), sa.ForeignKey("inspections.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("identity", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("candidate", sa.String(200), nullable=False),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("threshold", sa.Float, nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("live_identity", sa.String(64), nullable=False),
        sa.Column("live_verdict", sa.String(16), nullable=False),
    )
    pair = ["model", "live_identity", "identity", "live_verdict", "verdict", "inspection"]
    op.create_index("shadow_pair", "shadow_results", pair)


def downgrade() -> None:
    """Go back to the state before."""
    op.drop_table("shadow_results")
    op.drop_table("switches")
    op.drop_table("candidates")
