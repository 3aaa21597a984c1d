"""The position of each inspection among those by the same model, for tests of drift in blocks that never move."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Go to this state."""
    op.add_column("inspections", sa.Column("position", sa.Integer))
    op.execute(
        """
        UPDATE inspections SET position = known.position FROM (
            SELECT id, row_number() OVER (PARTITION BY model, identity ORDER BY id) AS position FROM inspections
        ) AS known WHERE known.id = inspections.id
        """
    )
    op.create_index("inspections_position", "inspections", ["model", "identity", "position"])


def downgrade() -> None:
    """Go back to the state before."""
    op.drop_index("inspections_position", "inspections")
    op.drop_column("inspections", "position")
