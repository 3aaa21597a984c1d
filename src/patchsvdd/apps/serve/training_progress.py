"""How far a training is, over all its stages, and how long the rest will take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

ENOUGH = 3.0
"""Seconds of work to measure before a time is predicted."""
PRIOR = 0.03
"""Share of the plan that counts as measured from the start, so that slow disks do not predict a slow processor."""


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
                self._finish(now)
                self._place += later.index(stage)
            if self._began is None or self._now is None or share < self._now[1]:
                self._began = (now, share)  # a new stage, or one that starts over
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
            if measured < ENOUGH or planned <= 0:
                return Forecast(self._fraction, None)
            prior = PRIOR * sum(self._plan.values())
            factor = (measured + prior) / (planned + prior)
            each = seconds / worked if worked > 0 and seconds >= ENOUGH else factor * self._plan[stage]
            current = max(0.0, each * (1 - share) - (self._clock() - at))
            later = factor * sum(self._plan[name] for name in self._order[self._place + 1 :])
            return Forecast(self._fraction, current + later)

    def _finish(self, now: float) -> None:
        """Add the stage that has ended to what was measured."""
        if self._began is not None:
            at, share = self._began
            self._measured += now - at
            self._planned += (1 - share) * self._plan[self._order[self._place]]
        self._began = self._now = None
