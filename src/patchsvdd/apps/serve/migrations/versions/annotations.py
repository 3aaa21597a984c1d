"""Where defects are, as people drew them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Go to this state."""
    op.create_table(
        "annotations",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("inspection", sa.String(32), sa.ForeignKey("inspections.id", ondelete="CASCADE"), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("by", sa.String(200), nullable=False),
        sa.Column("shapes", sa.JSON, nullable=False),
        sa.Column("kinds", sa.JSON, nullable=False),
    )
    op.create_index("annotations_inspection", "annotations", ["inspection", "id"])


def downgrade() -> None:
    """Go back to the state before."""
    op.drop_table("annotations")
