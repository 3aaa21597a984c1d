"""Repeatability: how much the score and the verdict change between shots of the same part."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from patchsvdd.evaluation.acceptance.proportions import Proportion


@dataclass(frozen=True)
class PartShots:
    """The shots of one part."""

    name: str
    scores: tuple[float, ...]
    rejected: int
    """Shots that the model calls defective."""
    margin: float | None
    """Distance of the mean score from the threshold in standard deviations; None if that is 0."""

    @property
    def is_same(self) -> bool:
        """Whether all shots have the same verdict."""
        return self.rejected in (0, len(self.scores))

    @property
    def mean(self) -> float:
        """The mean score."""
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float:
        """The standard deviation of this part's scores."""
        return statistics.stdev(self.scores)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "part": self.name,
            "shots": len(self.scores),
            "rejected": self.rejected,
            "same_verdict": self.is_same,
            "mean": self.mean,
            "standard_deviation": self.deviation,
            "margin": self.margin,
        }


@dataclass(frozen=True)
class Repeatability:
    """Repeated shots of several parts (one-way analysis of variance)."""

    parts: tuple[PartShots, ...]
    same: Proportion
    """Parts with the same verdict in all shots."""
    within: float
    """Repeatability standard deviation: of scores of the same part, pooled over the parts."""
    between: float | None
    """Standard deviation of the parts' true scores; None for a single part."""

    @property
    def part_share(self) -> float | None:
        """Share of the variance of scores that comes from the parts (intraclass correlation); None if not known."""
        if self.between is None or self.within == self.between == 0:
            return None
        return self.between**2 / (self.between**2 + self.within**2)

    @property
    def nearest(self) -> PartShots | None:
        """The part with the smallest distance to the threshold in standard deviations; None if that is 0."""
        known = [part for part in self.parts if part.margin is not None]
        return min(known, key=lambda part: part.margin if part.margin is not None else math.inf, default=None)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        nearest = self.nearest
        return {
            "same_verdict": self.same.to_json(),
            "standard_deviation_within": self.within,
            "standard_deviation_between": self.between,
            "share_of_variance_between": self.part_share,
            "smallest_margin": nearest.margin if nearest is not None else None,
            "smallest_margin_part": nearest.name if nearest is not None else None,
            "parts": [part.to_json() for part in self.parts],
        }


def repeatability(scores: Mapping[str, Sequence[float]], threshold: float, confidence: float) -> Repeatability:
    """What repeated shots show: part → the scores of its shots, of which there are at least two."""
    if not scores or any(len(shots) < 2 for shots in scores.values()):
        raise ValueError("every part needs at least two shots")
    counts = np.array([len(shots) for shots in scores.values()])
    means = np.array([statistics.fmean(shots) for shots in scores.values()])
    squares = sum(
        float(np.sum((np.array(shots) - mean) ** 2)) for shots, mean in zip(scores.values(), means, strict=True)
    )
    total, parts = int(counts.sum()), len(counts)
    variance = squares / (total - parts)
    within = math.sqrt(variance)
    between = None
    if parts > 1:
        spread = float(np.sum(counts * (means - np.average(means, weights=counts)) ** 2)) / (parts - 1)
        shots = (total - float(np.sum(counts**2)) / total) / (parts - 1)
        between = math.sqrt(max(0.0, (spread - variance) / shots))
    found = tuple(
        PartShots(
            name,
            tuple(shots),
            sum(score > threshold for score in shots),
            abs(float(mean) - threshold) / within if within else None,
        )
        for (name, shots), mean in zip(scores.items(), means, strict=True)
    )
    same = Proportion(sum(part.is_same for part in found), parts, confidence)
    return Repeatability(found, same, within, between)
