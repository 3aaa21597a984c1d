from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patchsvdd.calibration import Calibration, calibrate


@pytest.mark.parametrize("count", [20, 99, 150])
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.5])
def test_good_images_exceed_the_threshold_at_most_at_the_rate(count: int, rate: float) -> None:
    # The expectation over calibration sets and new images alike, simulated with a skewed distribution.
    rng = np.random.default_rng(0)
    draws = rng.lognormal(size=(4000, count + 1))
    alarms = [row[-1] > calibrate(row[:-1].tolist(), rate).threshold for row in draws]
    share = float(np.mean(alarms))
    error = 4 * math.sqrt(rate * (1 - rate) / len(draws))
    assert share <= rate + error
    assert share >= rate - 1 / (count + 1) - error, "the threshold is higher than it need be"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0.001, 0.999))
@example([1.0, 2.0, 3.0], 1 - 1e-12)
@example([1.0, 2.0, 3.0], 1e-12)
def test_the_threshold_is_the_promised_quantile(scores: list[float], rate: float) -> None:
    calibration = calibrate(scores, rate)
    assert calibration.threshold in scores
    assert calibration.scores == tuple(scores)
    rank = math.ceil((len(scores) + 1) * (1 - rate) - 1e-9)
    assert calibration.threshold == sorted(scores)[min(max(rank, 1), len(scores)) - 1]


@given(st.lists(st.floats(0, 10), min_size=2, max_size=30), st.floats(0.01, 0.98))
def test_a_smaller_rate_never_lowers_the_threshold(scores: list[float], rate: float) -> None:
    assert calibrate(scores, rate).threshold >= calibrate(scores, rate + 0.01).threshold


def test_99_images_speak_for_one_in_a_hundred() -> None:
    enough, few = calibrate([1.0] * 99, 0.01), calibrate([*range(98)], 0.01)
    assert enough.caveat is None
    assert few.caveat is not None
    assert few.threshold == 97


def test_too_few_images_give_the_highest_score_and_say_so() -> None:
    calibration = calibrate([3.0, 1.0, 2.0], 0.01)
    assert calibration.threshold == 3.0
    assert calibration.smallest_rate == 0.25
    caveat = calibration.caveat
    assert caveat is not None
    for part in ("3 good images", "1.00%", "25.0%", "99 images"):
        assert part in caveat


@given(st.integers(1, 200))
def test_the_number_of_images_the_caveat_asks_for_suffices(thousandths: int) -> None:
    caveat = Calibration(1.0, thousandths / 1000, (1.0,)).caveat
    assert caveat is not None
    asked = re.search(r"it takes (\d+) images", caveat)
    assert asked is not None
    needed = int(asked[1])
    assert Calibration(1.0, thousandths / 1000, (1.0,) * needed).caveat is None
    assert Calibration(1.0, thousandths / 1000, (1.0,) * (needed - 1)).caveat is not None


def test_json_round_trip() -> None:
    calibration = calibrate([0.1, 0.30000000000000004, 1e-9], 0.05)
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration
