"""Shares of images or parts with exact (Clopper-Pearson) bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from patchsvdd.scoring.conformal import CONFIDENCE, at_least, largest_rate, share_interval


@dataclass(frozen=True)
class Proportion:
    """``hits`` in ``trials``, and what they show about the true share."""

    hits: int
    trials: int
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.trials:
            raise ValueError(f"{self.hits} of {self.trials}")

    @property
    def share(self) -> float | None:
        """The share that was seen; None without trials."""
        return self.hits / self.trials if self.trials else None

    @property
    def upper(self) -> float:
        """One-sided bound: with this confidence the true share is at most this."""
        if self.hits == self.trials:
            return 1.0
        return largest_rate(self.trials, self.trials - self.hits, self.confidence)

    @property
    def lower(self) -> float:
        """One-sided bound: with this confidence the true share is at least this."""
        return 1 - self.inverse.upper

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided interval: with this confidence the true share is inside."""
        return share_interval(self.hits, self.trials, self.confidence)

    @property
    def inverse(self) -> Proportion:
        """The trials that were no hits."""
        return Proportion(self.trials - self.hits, self.trials, self.confidence)

    def shows_at_most(self, limit: float) -> bool:
        """Whether the true share is at most ``limit``, with this confidence."""
        return self.hits < self.trials and at_least(self.hits + 1, self.trials, limit) >= self.confidence

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "hits": self.hits,
            "of": self.trials,
            "share": self.share,
            "confidence": self.confidence,
            "lower_bound": self.lower,
            "upper_bound": self.upper,
            "interval": list(self.interval),
        }


def percent_at_most(share: float) -> str:
    """An upper bound in per cent, never rounded down."""
    return _percent(share, math.ceil)


def percent_at_least(share: float) -> str:
    """A lower bound in per cent, never rounded up."""
    return _percent(share, math.floor)


def _percent(share: float, rounded: Any) -> str:
    digits = 2 if 0 < min(share, 1 - share) < 0.01 else 1
    scale = 10 ** (digits + 2)
    # A share such as 0.05 is not exact in binary: rounding must not turn it into the next number.
    return f"{rounded(round(share * scale, 6)) / 10**digits:.{digits}f}%"
