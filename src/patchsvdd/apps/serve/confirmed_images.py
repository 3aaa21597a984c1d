"""Images that people have confirmed as good, to calibrate a model with.

Reviews do not draw good parts evenly: most alarms are reviewed, but only a few Good parts a day. Taken together, false
alarms, which are the highest scores, would be far too many, and the threshold too high. Good parts alone would be cut
off at the present threshold. So both are taken in the proportion that the line produces.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from patchsvdd.apps.serve.store import Filter, Row, Store

LEAST = 12
"""Fewest images of a recalibration."""
MOST = 500
"""Most images of each kind."""
DAY = 86_400.0


@dataclass(frozen=True)
class Confirmed:
    """The reviewed images of some days, by one version of a model."""

    good: list[Row]
    """Good parts that were confirmed."""
    alarms: list[Row]
    """Alarms that were false."""
    chosen: list[Row]
    """Those to calibrate with."""
    reason: str | None
    """Why they do not suffice; None if they do."""


def confirmed_images(store: Store, model: str, identity: str, days: int) -> Confirmed:
    """The images confirmed as good that were inspected by this version of a model in the last days, newest first."""
    since = time.time() - DAY * days
    rows = [
        store.inspections(Filter(model=model, identity=identity, review=review, since=since), MOST)
        for review in ("confirmed_good", "false_alarm")
    ]
    good, alarms = ([row for row in some if row["picture"] is not None and row["learned_by"] is None] for some in rows)
    judged = {
        verdict: store.count(Filter(model=model, identity=identity, verdict=verdict, since=since))
        for verdict in ("good", "anomalous")
    }
    passed = judged["good"]["verdict"].get("good", 0)
    raised, reviews = judged["anomalous"]["verdict"].get("anomalous", 0), judged["anomalous"]["review"]
    false, true = reviews.get("false_alarm", 0), reviews.get("true_defect", 0)
    if raised and not false + true:
        unknown = f"none of the {raised} alarms is reviewed, so it is not known how many were false. Review them first"
        return Confirmed(good, alarms, [], unknown)
    rejected = raised * false / (false + true) if false + true else 0.0
    many_good, many_alarms = in_proportion(len(good), len(alarms), passed, rejected)
    chosen = [*good[:many_good], *alarms[:many_alarms]]
    reason = None
    if len(chosen) < LEAST:
        reason = (
            f"at least {LEAST} images confirmed as good are needed, and reviews of the last {days} days give "
            f"{len(chosen)}. Confirm more good parts under Review, and review the alarms"
        )
    return Confirmed(good, alarms, chosen, reason)


def in_proportion(good: int, alarms: int, passed: float, rejected: float) -> tuple[int, int]:
    """How many of the confirmed Good parts and of the false alarms to take.

    ``passed`` and ``rejected`` are the numbers of good parts below and above the threshold.
    """
    if passed == 0:
        return 0, alarms
    ratio = rejected / passed
    taken = good if ratio == 0 else min(good, int(alarms / ratio + 1e-9))
    return taken, min(alarms, round(taken * ratio))
