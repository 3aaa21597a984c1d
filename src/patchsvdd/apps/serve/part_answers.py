"""Convert parts to responses of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.responses import as_time
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.tables import inspections

KEYS = (
    *("id", "sequence", "part_number", "product", "trigger_id", "by", "seconds", "verdict", "score", "threshold"),
    *("missing", "regions", "reason"),
)


def part_answers(store: Store, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The responses for rows of parts, with what is known of the images of their views."""
    columns = (inspections.c.id, inspections.c.height, inspections.c.width, inspections.c.picture)
    numbers = {view["inspection"] for row in rows for view in row["views"]}
    with store.reading() as connection:
        found = connection.execute(sa.select(*columns).where(inspections.c.id.in_(numbers)))
        images = {row.id: dict(row._mapping) for row in found}
    return [_answer(row["line"], row, images) for row in rows]


def result_answer(line: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The response for a part as ``PartResult.to_json`` describes it; nothing is read from the database."""
    return _answer(line, facts, {})


def _answer(line: str, facts: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    acknowledged = None
    if facts.get("acknowledged_at") is not None:
        acknowledged = {"at": as_time(facts["acknowledged_at"]), "by": facts["acknowledged_by"]}
    return {
        **{key: facts[key] for key in KEYS},
        "line": line,
        "triggered": as_time(facts["triggered"]),
        "answered": as_time(facts["answered"]),
        "views": [_view(one, images.get(one["inspection"])) for one in facts["views"]],
        "acknowledged": acknowledged,
    }


def _view(facts: Mapping[str, Any], image: Mapping[str, Any] | None) -> dict[str, Any]:
    size = None if image is None else [image["height"], image["width"]]
    has_picture = image is not None and image["picture"] is not None
    return {**facts, "captured": as_time(facts["captured"]), "image_size": size, "has_picture": has_picture}
