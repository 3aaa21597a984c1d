"""A threshold for a served model, proposed from what people said about inspected parts."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.confirmed_images import DAY
from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.apps.serve.samples import Samples
from patchsvdd.apps.serve.store import Filter
from patchsvdd.apps.serve.tables import inspections
from patchsvdd.apps.serve.trade_off import NO_THRESHOLD
from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.scoring.reviewed import IS_DEFECT, InspectedPart, Proposal, Reviews, aim_of, propose

MOST = 100_000
"""Most inspections that count, newest first."""


def proposal_answer(samples: Samples, model: ServedModel, days: int) -> dict[str, Any]:
    """The response about the threshold that the reviews of the last days suggest."""
    calibration = model.detector.calibration
    reviews: Reviews | None = None
    proposal: Proposal | None = None
    reason: str | None = NO_THRESHOLD
    if calibration is not None:
        reviews = reviews_of(samples, model.name, model.identity, calibration.threshold, days)
        try:
            proposal, reason = propose(reviews, aim_of(calibration.aim)), None
        except ConfigError as error:  # a threshold of 0
            reason = str(error)
        except DatasetError:
            reason = what_is_missing(reviews)
    return {
        "model": model.name,
        "identity": model.identity,
        "days": days,
        "possible": proposal is not None,
        "reason": reason,
        "reviewed_good": reviews.count(is_defect=False) if reviews is not None else 0,
        "reviewed_defects": reviews.count(is_defect=True) if reviews is not None else 0,
        "proposal": proposal.to_json() if proposal is not None else None,
    }


def reviews_of(samples: Samples, model: str, identity: str, threshold: float, days: int) -> Reviews:
    """The reviews of the last days, of parts that this version of a model inspected with this threshold."""
    where = Filter(model=model, identity=identity, since=time.time() - DAY * days)
    columns = inspections.c
    query = sa.select(columns.id, columns.at, columns.score, columns.verdict, columns.review)
    query = query.where(*where.clauses(), columns.threshold == threshold).order_by(columns.id.desc()).limit(MOST)
    with samples.store.reading() as connection:
        rows = connection.execute(query).all()
    reviewed = [{"model": model, "at": row.at, "verdict": row.verdict} for row in rows if row.review in IS_DEFECT]
    drawn = samples.drawn(reviewed)
    return Reviews.of(
        threshold,
        (InspectedPart(score, IS_DEFECT.get(review), number in drawn) for number, _, score, _, review in rows),
    )


def what_is_missing(reviews: Reviews) -> str:
    """What a proposal still requires, and what to do."""
    *others, last = reviews.missing
    what = f"{', '.join(others)} and {last}" if others else last
    return (
        f"a proposal requires {what}. Under Review, decide the alarms and the Good parts that were drawn at random; "
        f"Good parts that somebody picked do not count"
    )
