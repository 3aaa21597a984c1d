"""Whether good images score higher than those that a model was calibrated with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from patchsvdd.detector.drift import RATE, DriftTest
from patchsvdd.scoring.calibration import GUARANTEED, Calibration

SCORE = "score"


@dataclass(frozen=True)
class Shift:
    """Scores of good images, compared with those of an earlier calibration."""

    images: int
    """New images that were compared; images in the model's memory are not."""
    images_before: int
    median: float
    median_before: float
    threshold: float
    """The earlier threshold."""
    above: int
    """New images above it."""
    above_before: int
    """Calibration images above it."""
    evidence: float
    """Likelihood ratio of a change against none, as a power of ten (``drift.DriftTest``)."""
    limit: float
    """A change is reported from this evidence on."""
    is_higher: bool
    """Whether the new images score higher; wrong with a probability of at most ``rate``."""
    is_expected: bool
    """Whether new images score higher than the calibration's even if nothing changed."""
    rate: float = RATE

    def in_words(self) -> str:
        """The comparison as a sentence."""
        comparison = "score higher than" if self.is_higher else "score like"
        words = (
            f"these good images {comparison} those that the threshold was set with: median {self.median:.4g}, before "
            f"{self.median_before:.4g}; {self.above} of {self.images} ({self.above / self.images:.0%}) are above the "
            f"earlier threshold of {self.threshold:.4g}, before {self.above_before} of {self.images_before} "
            f"({self.above_before / self.images_before:.0%})"
        )
        if self.is_higher and self.is_expected:
            words += ". A part of that is expected, because the model has learned from the earlier images"
        return words

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {**asdict(self), "sentence": self.in_words()}


def score_shift(earlier: Calibration | None, scores: Sequence[float]) -> Shift | None:
    """Compare scores of good images that are new to the model, in their order; None if there is nothing to compare."""
    if earlier is None or len(earlier.scores) < 2 or not scores:
        return None
    test = DriftTest({SCORE: earlier.scores})
    for number, score in enumerate(scores):
        test.add(str(number), {SCORE: score})
    median, before = statistics.median(scores), statistics.median(earlier.scores)
    change = test.changes.get(SCORE)
    return Shift(
        images=len(scores),
        images_before=len(earlier.scores),
        median=median,
        median_before=before,
        threshold=earlier.threshold,
        above=sum(score > earlier.threshold for score in scores),
        above_before=sum(score > earlier.threshold for score in earlier.scores),
        evidence=test.evidence[SCORE],
        limit=test.limit_as_power,
        is_higher=change is not None and change.direction == "higher" and median > before,
        is_expected=earlier.basis not in GUARANTEED,
    )
