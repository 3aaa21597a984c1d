"""Parts that a line inspected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Go to this state."""
    op.create_table(
        "parts",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("line", sa.String(100), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("part_number", sa.String(200), nullable=False),
        sa.Column("product", sa.String(200), nullable=False),
        sa.Column("trigger_id", sa.BigInteger, nullable=False),
        sa.Column("by", sa.String(16), nullable=False),
        sa.Column("triggered", sa.Float, nullable=False),
        sa.Column("answered", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("score", sa.Float),
        sa.Column("threshold", sa.Float, nullable=False),
        sa.Column("views", sa.JSON, nullable=False),
        sa.Column("missing", sa.JSON, nullable=False),
        sa.Column("regions", sa.JSON, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("acknowledged_at", sa.Float),
        sa.Column("acknowledged_by", sa.String(200)),
    )
    op.create_index("parts_sequence", "parts", ["owner", "line", "sequence"], unique=True)
    op.create_index("parts_line", "parts", ["line", "id", "verdict", "owner"])
    op.create_index("parts_verdict", "parts", ["line", "verdict", "id"])
    op.create_index("parts_number", "parts", ["part_number", "id"])


def downgrade() -> None:
    """Go back to the state before."""
    op.drop_table("parts")
