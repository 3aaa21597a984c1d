"""How far a training is, over all its stages, and how long the rest will take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

ENOUGH = 3.0
"""Seconds of work to measure before a time is predicted."""
READING = ("images", "copies")
"""Stages whose speed says nothing about the others: it is that of the disk."""
RESUMED = ("training", "critic")
"""Stages that go on from a checkpoint, so that their first report may be about work that was done long ago."""


@dataclass(frozen=True)
class Forecast:
    """Progress of a whole training."""

    fraction: float
    """0 … 1; it never falls while the training runs."""
    seconds_left: float | None
    """None until enough was measured."""


class TrainingProgress:
    """Turns reports of single stages into the progress of the whole.

    The plan says how long each stage takes on a reference machine, in the order of the stages. Its ratios give the
    fraction. The stages measured so far say how much slower or faster this machine is, which scales the later ones; the
    current stage is extrapolated from its own rate.
    """

    def __init__(self, plan: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        self._plan, self._clock = dict(plan), clock
        self._order = list(plan)
        self._lock = threading.Lock()
        self._place = 0
        self._fraction = 0.0
        self._began: tuple[float, float] | None = None
        """Time and share done when the current stage was first reported: a resumed one does not begin at 0."""
        self._now: tuple[float, float] | None = None
        self._measured = self._planned = 0.0
        """Seconds of the earlier stages: measured, and planned for the same work."""

    def report(self, stage: str, done: int, total: int) -> None:
        """Take a report of a stage; stages that are not in the plan, or behind the current one, are ignored."""
        with self._lock:
            later = self._order[self._place :]
            if stage not in later or total <= 0:
                return
            now, share = self._clock(), min(1.0, done / total)
            if stage != self._order[self._place]:
                self._began = self._finish(stage)
                self._place += later.index(stage)
            if self._began is None or (self._now is not None and share < self._now[1]):
                self._began = (now, share)  # the first report, or the stage starts over
            self._now = (now, share)
            before = sum(self._plan[name] for name in self._order[: self._place])
            reached = before + share * self._plan[stage]
            self._fraction = max(self._fraction, min(1.0, reached / max(1e-9, sum(self._plan.values()))))

    def forecast(self) -> Forecast:
        """The progress now."""
        with self._lock:
            if self._began is None or self._now is None:
                return Forecast(self._fraction, None)
            at, share = self._now
            stage = self._order[self._place]
            seconds, worked = at - self._began[0], share - self._began[1]
            measured, planned = self._measured + seconds, self._planned + worked * self._plan[stage]
            if stage in READING or measured < ENOUGH or planned <= 0:
                return Forecast(self._fraction, None)
            factor = measured / planned
            each = seconds / worked if worked > 0 and seconds >= ENOUGH else factor * self._plan[stage]
            later = factor * sum(self._plan[name] for name in self._order[self._place + 1 :])
            left = each * (1 - share) + later - (self._clock() - at)  # time passes without reports too
            return Forecast(self._fraction, max(0.0, left))

    def _finish(self, following: str) -> tuple[float, float] | None:
        """Add the current stage to what was measured; returns when the following one began, if that is known."""
        stage, last = self._order[self._place], self._now
        if self._began is not None and last is not None and stage not in READING:
            self._measured += last[0] - self._began[0]
            self._planned += (1 - self._began[1]) * self._plan[stage]
        self._now = None
        return None if last is None or following in RESUMED else (last[0], 0.0)
