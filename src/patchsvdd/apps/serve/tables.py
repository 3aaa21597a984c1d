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
    # What the part is and where it was inspected, as given by the client.
    sa.Column("serial", sa.String(100)),
    sa.Column("lot", sa.String(100)),
    sa.Column("line", sa.String(100)),
    sa.Column("station", sa.String(100)),
    # The service (Settings.service_id) whose data folder has the files.
    sa.Column("owner", sa.String(32)),
    # JPEGs written when the image is inspected: 256 px and 1,600 px on the longer side. NULL for older inspections.
    sa.Column("thumbnail", sa.String(64)),
    sa.Column("view", sa.String(64)),
    sa.Column("view_bytes", sa.Integer, nullable=False, server_default="0"),
    # What a client should know about the file, such as that it has more pages than the one inspected.
    sa.Column("notes", sa.JSON),
    # Uniform in 0 … 1, drawn when the image is inspected: the smallest of a day are its sample for review.
    sa.Column("draw", sa.Float),
    sa.Index("inspections_model", "model", "id"),
    sa.Index("inspections_review", "review", "id"),
    sa.Index("inspections_picture", "picture"),
    sa.Index("inspections_map", "map"),
    sa.Index("inspections_position", "model", "identity", "position"),
    sa.Index("inspections_thumbnail", "thumbnail"),
    sa.Index("inspections_view", "view"),
    sa.Index("inspections_serial", "serial"),
    sa.Index("inspections_lot", "lot", "id"),
    sa.Index("inspections_verdict", "verdict", "review", "id"),
    sa.Index("inspections_counts", "model", "verdict", "review", "id"),
    # Counts over a period and samples of a day are read from this index alone.
    sa.Index("inspections_overview", "id", "model", "verdict", "review", "draw", "line", "station"),
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

# Where defects are, as people drew them. The latest of an inspection counts; one without shapes withdraws the others.
drawings = sa.Table(
    "annotations",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("inspection", sa.String(32), sa.ForeignKey("inspections.id", ondelete="CASCADE"), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("by", sa.String(200), nullable=False),
    sa.Column("shapes", sa.JSON, nullable=False),
    sa.Column("kinds", sa.JSON, nullable=False),
    sa.Index("annotations_inspection", "inspection", "id"),
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
    # The service (Settings.service_id) whose data folder has the job's files, and which alone runs it.
    sa.Column("owner", sa.String(32)),
    sa.Column("started", sa.Float),
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
    sa.Column("used", sa.Float),  # to ten minutes
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("disabled", sa.Float),
    sa.Column("used", sa.Float),  # the last sign-in
)

# A session belongs to a key or to a user.
sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(16), sa.ForeignKey("keys.id", ondelete="CASCADE")),
    sa.Column("user", sa.String(16), sa.ForeignKey("users.id", ondelete="CASCADE")),
    sa.Column("expires", sa.Float, nullable=False),
)

# Requests with an Idempotency-Key, and the inspections they led to.
idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("caller", sa.String(200), primary_key=True),
    sa.Column("key", sa.String(200), primary_key=True),
    sa.Column("request", sa.String(64), nullable=False),
    sa.Column("inspection", sa.String(32), nullable=False),
    sa.Column("at", sa.Float, nullable=False, index=True),
)

# The audit chain (audit_chain.Entry); never deleted. Texts instead of foreign keys: entries outlive what they name.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.String(32), nullable=False, unique=True),
    sa.Column("at", sa.BigInteger, nullable=False),  # milliseconds: a float might change its last digit
    sa.Column("who", sa.String(200), nullable=False),
    sa.Column("who_kind", sa.String(16), nullable=False),
    sa.Column("who_id", sa.String(32), nullable=False),
    sa.Column("action", sa.String(40), nullable=False),
    sa.Column("model", sa.String(200)),
    sa.Column("subject_kind", sa.String(16), nullable=False),
    sa.Column("subject", sa.String(200), nullable=False),
    sa.Column("details", sa.Text, nullable=False),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Index("audit_model", "model", "number"),
    sa.Index("audit_who", "who", "number"),
    sa.Index("audit_action", "action", "number"),
)

# One row: number and hash of the last entry. It is locked while an entry is appended.
audit_head = sa.Table(
    "audit_head",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)

# Which served model inspects in the shadow of another. Folders and models belong to a service (Settings.service_id).
candidates = sa.Table(
    "candidates",
    metadata,
    sa.Column("owner", sa.String(32), primary_key=True),
    sa.Column("model", sa.String(200), primary_key=True),
    sa.Column("candidate", sa.String(200), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("by", sa.String(200), nullable=False),
)

# Which folder is served under a name: that of the latest switch that was not rolled back, else the folder of that name.
switches = sa.Table(
    "switches",
    metadata,
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
    sa.Index("switches_model", "owner", "model", "id"),
)

# What a candidate said about an inspected image.
shadow_results = sa.Table(
    "shadow_results",
    metadata,
    sa.Column("inspection", sa.String(32), sa.ForeignKey("inspections.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("identity", sa.String(64), primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("model", sa.String(200), nullable=False),
    sa.Column("candidate", sa.String(200), nullable=False),
    sa.Column("score", sa.Float, nullable=False),
    sa.Column("threshold", sa.Float, nullable=False),
    sa.Column("verdict", sa.String(16), nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    # The live model's version and verdict, as in the inspection.
    sa.Column("live_identity", sa.String(64), nullable=False),
    sa.Column("live_verdict", sa.String(16), nullable=False),
    sa.Index("shadow_pair", "model", "live_identity", "identity", "live_verdict", "verdict", "inspection"),
)

# Good parts to review per day, by model.
samples = sa.Table(
    "samples",
    metadata,
    sa.Column("model", sa.String(200), primary_key=True),
    sa.Column("per_day", sa.Integer, nullable=False),
)

# Parts that a line inspected, each with the one verdict on all of its views.
parts = sa.Table(
    "parts",
    metadata,
    # Ordered by the time of the trigger.
    sa.Column("id", sa.String(32), primary_key=True),
    # The service (Settings.service_id) that runs the line, and the line's name.
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
    # Who has seen that the part got no verdict.
    sa.Column("acknowledged_at", sa.Float),
    sa.Column("acknowledged_by", sa.String(200)),
    sa.Index("parts_sequence", "owner", "line", "sequence", unique=True),
    # Counts over a period are read from this index alone.
    sa.Index("parts_line", "line", "id", "verdict", "owner"),
    sa.Index("parts_verdict", "line", "verdict", "id"),
    sa.Index("parts_number", "part_number", "id"),
)
