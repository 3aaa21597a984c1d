"""The trade-off of a calibration as a table: false alarms and missed synthetic defects at thresholds around it."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.trade_off import DefectClass, curve

ROWS = 9
"""Thresholds in a table."""
LEAST, MOST = 0.7, 1.4
"""The range reaches at least this far below and above the threshold, as a ratio,"""
LOWEST, HIGHEST = 0.4, 2.5
"""and at most this far."""


@dataclass(frozen=True)
class TradeOffRow:
    """What to expect of a threshold."""

    threshold: float
    false_alarms: float
    """Share of good images, with light, place, focus and grain varied, above it."""
    missed: float
    """Share of visible synthetic defects not above it."""
    is_current: bool


@dataclass(frozen=True)
class TradeOff:
    """False alarms against missed synthetic defects, around the threshold of a calibration."""

    rows: tuple[TradeOffRow, ...]
    """From the lowest threshold up; one is the current one."""
    classes: tuple[DefectClass, ...]
    """Missed at the current threshold, by contrast and size."""
    good: int
    """Good images behind the false alarms, varied ones included."""
    defects: int
    """Synthetic defects drawn."""
    visible: int
    """Those behind the misses."""
    sentence: str
    """``Calibration.sentence``."""

    @property
    def current(self) -> TradeOffRow:
        """The row of the current threshold."""
        return next(row for row in self.rows if row.is_current)

    def by_size(self) -> tuple[list[str], list[tuple[str, list[str]]]]:
        """Missed at the current threshold, for a table: sizes, then each contrast with "missed of all" by size."""
        sizes = sorted({(one.smallest, one.largest or math.inf) for one in self.classes})
        cells = {(one.contrast, one.smallest): f"{one.missed} of {one.count}" for one in self.classes}
        contrasts = dict.fromkeys(one.contrast for one in self.classes)
        rows = [(name, [cells.get((name, smallest), "–") for smallest, _ in sizes]) for name in contrasts]
        return [_size_in_words(*size) for size in sizes], rows

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "threshold": self.current.threshold,
            "rows": [asdict(row) for row in self.rows],
            "missed_by_class": [one.to_json() for one in self.classes],
            "good": self.good,
            "defects": self.defects,
            "visible": self.visible,
            "sentence": self.sentence,
        }


def trade_off(calibration: Calibration, count: int = ROWS) -> TradeOff | None:
    """The trade-off at ``count`` thresholds; None if misses were not estimated, or the threshold is 0."""
    evidence, threshold = calibration.evidence, calibration.threshold
    if evidence is None or not evidence.defects or not 0 < threshold < math.inf:
        return None
    rows = curve(calibration.scores, evidence, thresholds_around(calibration, count))
    return TradeOff(
        tuple(TradeOffRow(**row, is_current=row["threshold"] == threshold) for row in rows),
        tuple(evidence.classes(threshold)),
        len(calibration.scores) + len(evidence.good),
        len(evidence.defects),
        int(evidence.visible.sum()),
        calibration.sentence,
    )


def _size_in_words(smallest: float, largest: float) -> str:
    if largest == math.inf:
        return f"{smallest:g} px and more"
    return f"{smallest:g} to {largest:g} px" if smallest else f"under {largest:g} px"


def thresholds_around(calibration: Calibration, count: int = ROWS) -> list[float]:
    """Thresholds at equal ratios below and above the current one, which is in the middle.

    The range covers what may be chosen: from half of the good images above it to three quarters of the defects missed,
    within limits.
    """
    evidence, threshold = calibration.evidence, calibration.threshold
    good = [*calibration.scores, *(evidence.good if evidence is not None else ())]
    bad = evidence.defects if evidence is not None else ()
    low = min(max(statistics.median(good) / threshold, LOWEST), LEAST)
    high = max(max(good), float(np.quantile(bad, 0.75)) if bad else 0.0) / threshold
    high = max(min(high, HIGHEST), MOST)
    side = max(1, count // 2)
    below = [threshold * low ** (step / side) for step in range(side, 0, -1)]
    above = [threshold * high ** (step / side) for step in range(1, side + 1)]
    return [*below, threshold, *above]
