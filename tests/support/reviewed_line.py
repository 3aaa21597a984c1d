"""Inspections of a line with reviews, from which a threshold can be proposed."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.store import Store
from patchsvdd.apps.serve.tables import inspections, samples
from support.serving import row

SAMPLED = 40
FALSE_ALARMS = 60
DEFECTS = 40
GOOD = 200


def add_reviews(store: Store, model: str, identity: str, threshold: float, **values: Any) -> None:
    """Add inspections whose reviews support a higher threshold: many false alarms, all below the defects."""
    about = {"model": model, "identity": identity, "threshold": threshold, **values}

    def one(score: float, review: str | None) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "score": score * threshold,
            "verdict": "anomalous" if score > 1 else "good",
            "draw": 0.5,
        }
        said = {"review": review, "reviewed_at": time.time(), "reviewed_by": "anna"}
        return row(**about, **facts, **(said if review else dict.fromkeys(said)))

    rows = [one(0.3 + 0.5 * index / GOOD, None) for index in range(GOOD - SAMPLED)]
    rows += [one(0.3 + 0.5 * index / SAMPLED, "confirmed_good") for index in range(SAMPLED)]
    rows += [one(1.01 + 0.3 * index / FALSE_ALARMS, "false_alarm") for index in range(FALSE_ALARMS)]
    rows += [one(3 + index / DEFECTS, "true_defect") for index in range(DEFECTS)]

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.delete(samples).where(samples.c.model == model))
        connection.execute(sa.insert(samples).values(model=model, per_day=1000))
        connection.execute(sa.insert(inspections), rows)

    store.write(write)
