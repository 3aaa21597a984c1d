"""The database tables. Changes require a migration (``migrations/versions``)."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

inspections = sa.Table(
    "inspections",
    metadata,
    # Ordered by time: later inspections have larger ids, so that paging and "newest first" need no other index.
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
    # From 1, among inspections by the same model and identity. It stays the same when older ones are deleted.
    sa.Column("position", sa.Integer),
    sa.Index("inspections_model", "model", "id"),
    sa.Index("inspections_review", "review", "id"),
    sa.Index("inspections_picture", "picture"),
    sa.Index("inspections_map", "map"),
    sa.Index("inspections_position", "model", "identity", "position"),
)

reviews = sa.Table(
    "reviews",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column(
        "inspection", sa.String(32), sa.ForeignKey("inspections.id", ondelete="CASCADE"), nullable=False, index=True
    ),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("verdict", sa.String(16)),  # NULL: the previous review was withdrawn
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("by", sa.String(200), nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
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

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("revoked", sa.Float),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(16), sa.ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
    sa.Column("expires", sa.Float, nullable=False),
)
