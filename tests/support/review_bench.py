"""A service with stored alarms and latency, for tests of the view Review."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from patchsvdd.apps.serve.tables import inspections, reviews
from support.coded_alarms import Slow, store_alarms
from support.serving import Running

MODELS = 12
OpenPage = Callable[..., Any]


@dataclass
class Bench:
    """A service with latency, and models that are never asked to compute."""

    running: Running
    slow: Slow
    models: list[str]

    @property
    def url(self) -> str:
        return f"{self.running.url}/"

    def alarms(self, model: str, *codes: int, **values: Any) -> dict[int, str]:
        return store_alarms(self.running.service, model, codes, **values)

    def review_of(self, number: str) -> str | None:
        with self.running.service.store.reading() as connection:
            query = sa.select(inspections.c.review).where(inspections.c.id == number)
            found: str | None = connection.execute(query).scalar_one()
        return found

    def stored_ids(self, model: str) -> list[str]:
        """The inspections of a model."""
        with self.running.service.store.reading() as connection:
            return list(connection.execute(sa.select(inspections.c.id).where(inspections.c.model == model)).scalars())

    def stored(self, model: str) -> list[tuple[str, str | None]]:
        """Inspection and verdict of all reviews of a model, in order."""
        query = sa.select(reviews.c.inspection, reviews.c.verdict).join(
            inspections, inspections.c.id == reviews.c.inspection
        )
        query = query.where(inspections.c.model == model).order_by(reviews.c.id)
        with self.running.service.store.reading() as connection:
            return [(one.inspection, one.verdict) for one in connection.execute(query)]


def review_page(open_page: OpenPage, model: str, **how: Any) -> Any:
    """The view Review of a model, when its list is there."""
    page = open_page("#/review", model=model, **how)
    page.wait_for_selector(".view-review #model")
    assert page.locator("#model").input_value() == model
    return page


def usable(page: Any, code: int | None = None) -> None:
    """Wait until a verdict can be given, on the alarm with this code."""
    if code is not None:
        page.locator(".file", has_text=f"part-{code:05}.png").wait_for()
    page.wait_for_selector(".keys [data-key=g]:not([aria-disabled])")
