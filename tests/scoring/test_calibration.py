from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from patchsvdd.scoring.calibration import BASES, Basis, Calibration, calibrate, pixel_threshold
from patchsvdd.scoring.conformal import p_values

Maps = NDArray[np.float32]
scores_of_good = st.lists(st.integers(0, 20).map(float) | st.floats(0, 1e6), min_size=1, max_size=60)


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
    asked = re.search(r"requires (\d+) images", caveat)
    assert asked is not None
    needed = int(asked[1])
    assert Calibration(1.0, thousandths / 1000, (1.0,) * needed).caveat is None
    assert Calibration(1.0, thousandths / 1000, (1.0,) * (needed - 1)).caveat is not None


def test_json_round_trip() -> None:
    calibration = calibrate([0.1, 0.30000000000000004, 1e-9], 0.05)
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


class TestStored:
    """What is written into model.json, now and by earlier versions."""

    def test_of_an_earlier_version_still_loads(self) -> None:
        earlier = {"threshold": 2.0, "false_alarm_rate": 0.25, "scores": [1.0, 2.0, 3.0]}
        loaded = Calibration.from_json(earlier)
        assert loaded == Calibration(2.0, 0.25, (1.0, 2.0, 3.0))
        assert loaded.basis == "learned", "there was nothing else"
        assert (loaded.pixel_threshold, loaded.pixel_rate) == (None, None)
        assert loaded.p_value(2.5) == 0.5

    @pytest.mark.parametrize("basis", BASES)
    @pytest.mark.parametrize("pixels", [(None, None), (0.30000000000000004, 0.01)])
    def test_comes_back_as_it_was(self, basis: str, pixels: tuple[float | None, float | None]) -> None:
        earlier = calibrate([0.1, 0.30000000000000004, 1e-9], 0.05).to_json()
        wanted = Calibration.from_json(
            earlier
            | {"basis": basis, "pixel_threshold": pixels[0], "pixel_rate": pixels[1], "traits": {"light": [1.5]}}
        )
        stored = json.dumps(wanted.to_json(), allow_nan=False)
        loaded = Calibration.from_json(json.loads(stored))
        assert loaded == wanted
        assert (loaded.basis, loaded.pixel_threshold, loaded.pixel_rate) == (basis, *pixels)

    def test_what_images_are_like_is_kept_to_six_digits(self) -> None:
        calibration = Calibration(1.0, 0.1, (1.0,), traits={"light": [1 / 3], "focus": [-1e-7 / 3]})
        stored = Calibration.from_json(calibration.to_json()).traits
        for trait, values in calibration.traits.items():
            assert list(stored[trait]) == pytest.approx(list(values), rel=1e-5)

    @pytest.mark.parametrize("basis", ["held-out", "separate"])
    def test_a_rate_is_guaranteed_of_images_the_detector_has_not_seen(self, basis: Basis) -> None:
        calibration = calibrate([0.1, 0.2, 0.3], 0.25, basis)
        assert calibration.is_guaranteed
        assert calibration.guarantee == calibration.conformal_guarantee.in_words()

    @pytest.mark.parametrize("basis", ["learned", "tuned"])
    def test_and_of_no_others(self, basis: Basis) -> None:
        calibration = calibrate([0.1, 0.2, 0.3], 0.5, basis)
        assert not calibration.is_guaranteed
        assert calibration.guarantee.startswith("no false-alarm rate is guaranteed: ")
        assert "1 of the 3 images are above the threshold" in calibration.guarantee
        assert "at most" not in calibration.guarantee

    def test_nor_after_images_were_removed(self) -> None:
        calibration = replace(calibrate([0.1, 0.2, 0.3], 0.25, "separate"), removed_since=1)
        assert not calibration.is_guaranteed
        assert "removed from the memory" in calibration.guarantee

    def test_held_out_images_of_version_0_1_set_the_units_of_the_score_too(self) -> None:
        written = calibrate([0.1, 0.2, 0.3], 0.25, "held-out").to_json()
        assert Calibration.from_json(written).basis == "held-out"
        older = {key: value for key, value in written.items() if key != "schema"}
        assert Calibration.from_json(older).basis == "tuned"
        assert Calibration.from_json({**older, "basis": "separate"}).is_guaranteed

    def test_every_basis_is_told_in_words_of_its_own(self) -> None:
        assert len(set(BASES.values())) == len(BASES) == 4


class TestPValue:
    @given(scores_of_good, st.floats(-1, 1e6))
    def test_is_that_of_the_good_scores(self, good: list[float], score: float) -> None:
        calibration = calibrate(good, 0.05)
        assert calibration.p_value(score) == p_values([score], good)[0]
        assert calibration.p_value(score) == (1 + sum(one >= score for one in good)) / (len(good) + 1)

    @given(scores_of_good, st.floats(0.001, 0.999), st.floats(0, 2e6))
    def test_says_the_same_as_the_threshold(self, good: list[float], rate: float, other: float) -> None:
        calibration = calibrate(good, rate)
        for score in (*good, *(math.nextafter(one, math.inf) for one in good), other):
            # Anomalous: as high a score is no more probable than what was promised.
            assert (score > calibration.threshold) == (
                calibration.p_value(score) <= calibration.conformal_guarantee.rate
            )

    def test_falls_as_scores_rise(self) -> None:
        calibration = calibrate([3.0, 1.0, 2.0, 2.0], 0.2)
        found = [calibration.p_value(score) for score in (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)]
        assert found == [1.0, 1.0, 0.8, 0.8, 0.4, 0.4, 0.2]


def draw_maps(random: np.random.Generator, count: int, pixels: int, spread: float) -> Maps:
    """Anomaly maps (count, pixels) of exchangeable images, which differ by ``spread`` as wholes."""
    levels = spread * random.standard_normal((count, 1), dtype=np.float32)
    return levels + random.standard_normal((count, pixels), dtype=np.float32)


def lowest_threshold(maps: Maps, rate: Fraction) -> float:
    """The lowest value of any pixel that keeps to the rate, one by one; else the highest of all."""
    count, pixels = maps.shape
    for value in np.unique(maps):
        if int((maps > value).sum()) + pixels <= rate * (count + 1) * pixels:
            return float(value)
    return float(maps.max())


class TestPixelThreshold:
    """Conformal risk control of the share of a good image's pixels that lie above."""

    @pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
    @pytest.mark.parametrize(("count", "rate"), [(40, 0.1), (60, 0.05), (20, 0.3)])
    def test_keeps_to_the_rate_and_not_needlessly(self, count: int, rate: float, spread: float) -> None:
        random = np.random.default_rng(count)
        shares = []
        for _ in range(600):
            maps = draw_maps(random, count + 10, 40, spread)
            threshold = pixel_threshold(list(maps[:count]), rate)
            shares.append(float((maps[count:] > threshold).mean()))
        error = 4 * float(np.std(shares)) / math.sqrt(len(shares))
        assert np.mean(shares) <= rate + error
        assert np.mean(shares) >= rate - 2 / (count + 1) - error, "the threshold is higher than it need be"

    @given(npst.arrays(np.int8, st.tuples(st.integers(1, 12), st.integers(1, 9))), st.integers(1, 999))
    def test_is_the_lowest_value_that_keeps_to_the_rate(self, values: NDArray[np.int8], thousandths: int) -> None:
        maps = (values % 7).astype(np.float32)  # many ties
        found = pixel_threshold(list(maps), thousandths / 1000)
        assert found == lowest_threshold(maps, Fraction(thousandths, 1000))

    def test_equal_pixels_lie_above_together_or_not_at_all(self) -> None:
        maps = [np.array([1, 1, 1, 2], np.float32), np.array([1, 1, 2, 2], np.float32)]
        assert pixel_threshold(maps, 0.6) == 1.0, "may have 3 of the 8 pixels above"
        assert pixel_threshold(maps, 0.5) == 2.0, "may have 2, and the three 2s count together"

    def test_of_maps_all_alike_is_their_value(self) -> None:
        assert pixel_threshold([np.full(10, 0.5, np.float32)] * 30, 0.2) == 0.5

    @pytest.mark.parametrize(("count", "rate"), [(1, 0.3), (98, 0.01), (18, 0.05)])
    def test_with_too_few_images_is_the_highest_value(self, count: int, rate: float) -> None:
        maps = draw_maps(np.random.default_rng(0), count, 50, 1.0)
        assert pixel_threshold(list(maps), rate) == maps.max()

    def test_of_more_images_is_lower(self) -> None:
        maps = draw_maps(np.random.default_rng(0), 120, 50, 1.0)
        assert pixel_threshold(list(maps), 0.01) < maps.max()

    @given(st.integers(1, 30), st.floats(0.001, 0.97), st.floats(0, 0.02))
    def test_a_smaller_rate_never_lowers_it(self, count: int, rate: float, more: float) -> None:
        maps = list(draw_maps(np.random.default_rng(count), count, 25, 1.0))
        assert pixel_threshold(maps, rate) >= pixel_threshold(maps, rate + more)

    def test_neither_order_nor_pixels_below_it_matter(self) -> None:
        random = np.random.default_rng(5)
        maps = draw_maps(random, 60, 40, 0.0)
        expected = pixel_threshold(list(maps), 0.05)
        assert pixel_threshold([random.permutation(one) for one in maps[::-1]], 0.05) == expected
