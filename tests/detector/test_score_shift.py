"""Good images that score higher than those of the calibration."""

from __future__ import annotations

import json

import numpy as np
import pytest

from patchsvdd.detector.score_shift import score_shift
from patchsvdd.scoring.calibration import Calibration, calibrate


def drawn(count: int, centre: float = 1.0, seed: int = 0) -> list[float]:
    values: list[float] = (centre * np.random.default_rng(seed).lognormal(0, 0.2, count)).tolist()
    return values


def earlier(basis: str = "separate") -> Calibration:
    return calibrate(drawn(60), 0.05, basis)  # type: ignore[arg-type]


def test_a_shift_is_said_with_medians_and_rates() -> None:
    known = earlier()
    shift = score_shift(known, drawn(30, 1.6, seed=1))
    assert shift is not None
    assert shift.is_higher
    assert shift.evidence > shift.limit
    words = shift.in_words()
    assert f"median {shift.median:.4g}, before {shift.median_before:.4g}" in words
    assert f"{shift.above} of 30" in words
    assert f"above the earlier threshold of {known.threshold:.4g}, before {shift.above_before} of 60" in words
    assert "A part of that is expected" not in words
    assert json.loads(json.dumps(shift.to_json()))["sentence"] == words


def test_images_that_the_model_has_learned_from_score_lower() -> None:
    shift = score_shift(earlier("learned"), drawn(30, 1.6, seed=1))
    assert shift is not None
    assert "A part of that is expected, because the model has learned from the earlier images" in shift.in_words()


def test_lower_scores_are_no_reason_to_warn() -> None:
    shift = score_shift(earlier(), drawn(30, 0.5, seed=1))
    assert shift is not None
    assert shift.evidence > shift.limit
    assert not shift.is_higher


def test_images_like_those_before_rarely_warn() -> None:
    found = [score_shift(calibrate(drawn(40, seed=seed), 0.05), drawn(40, seed=seed + 500)) for seed in range(100)]
    assert sum(shift is not None and shift.is_higher for shift in found) <= 3


@pytest.mark.parametrize("scores", [[], [1.0]])
def test_nothing_to_compare_with(scores: list[float]) -> None:
    assert score_shift(None, [1.0, 2.0]) is None
    assert score_shift(earlier(), []) is None
    if scores:
        assert score_shift(calibrate(scores, 0.05), [1.0, 2.0]) is None
