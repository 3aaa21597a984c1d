"""Paired rates against closed forms, SciPy and simulation."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.evaluation.paired import Paired, score_statistic

Z = NormalDist().inv_cdf(0.975)
RUNS = 10_000
COUNTS = st.integers(0, 60)


def test_pairs_are_counted() -> None:
    counted = Paired.of([(True, True), (True, False), (True, False), (False, True), *[(False, False)] * 4])
    assert counted == Paired(both=1, only_first=2, only_second=1, neither=4)
    assert (counted.images, counted.first, counted.second) == (8, 3, 2)
    assert counted.difference == pytest.approx(-1 / 8)


@pytest.mark.parametrize("images", [1, 10, 250])
def test_without_a_difference_the_interval_has_a_closed_form(images: int) -> None:
    low, high = Paired(both=images // 2, neither=images - images // 2).interval()
    assert high == pytest.approx(Z**2 / (images + Z**2), abs=1e-9)
    assert low == pytest.approx(-high)


@pytest.mark.parametrize("counts", [(9, 2, 50), (3, 0, 20), (0, 4, 30), (1, 1, 10)])
def test_the_statistic_is_that_of_the_likelihood_under_the_hypothesis(counts: tuple[int, int, int]) -> None:
    more, less, images = counts
    for difference in (-0.4, -0.05, 0.0, 0.1, 0.3):
        # The probability of "less" that fits best, by trial, if that of "more" is larger by the difference.
        least = max(0.0, -difference)
        tried = np.linspace(least, (1 - difference) / 2, 400_001)[1:-1]
        rest = images - more - less
        fit = more * np.log(tried + difference) + less * np.log(tried) + rest * np.log(1 - 2 * tried - difference)
        likely = float(tried[np.argmax(fit)])
        expected = (more - less - images * difference) / math.sqrt(
            images * (2 * likely + difference * (1 - difference))
        )
        assert score_statistic(more, less, images, difference) == pytest.approx(expected, abs=2e-3)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_interval_contains_the_difference_and_changes_sides_with_the_models(
    both: int, first: int, second: int, neither: int
) -> None:
    if both + first + second + neither == 0:
        return
    counted, swapped = Paired(both, first, second, neither), Paired(both, second, first, neither)
    low, high = counted.interval()
    assert -1 <= low <= counted.difference + 1e-12
    assert counted.difference - 1e-12 <= high <= 1
    assert swapped.interval() == pytest.approx((-high, -low), abs=1e-9)
    assert swapped.p_value() == pytest.approx(counted.p_value())
    if first != second:  # at 0 the statistic is McNemar's without correction
        rejected = abs(first - second) / math.sqrt(first + second) > Z
        assert (not low <= 0 <= high) == rejected


@given(COUNTS, COUNTS)
def test_the_exact_test_is_that_of_scipy(first: int, second: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(first, first + second, 0.5).pvalue if first + second else 1.0
    assert Paired(only_first=first, only_second=second, neither=5).p_value() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("images", "only_first", "only_second"),
    [(40, 0.10, 0.10), (100, 0.08, 0.03), (100, 0.02, 0.02), (500, 0.004, 0.03), (60, 0.30, 0.10)],
)
def test_the_interval_covers_the_true_difference(images: int, only_first: float, only_second: float) -> None:
    rng = np.random.default_rng(images)
    shares = (only_first, only_second, 1 - only_first - only_second)

    @cache
    def interval(first: int, second: int) -> tuple[float, float]:
        return Paired(only_first=first, only_second=second, neither=images - first - second).interval()

    drawn = rng.multinomial(images, shares, RUNS)[:, :2]
    truth = only_second - only_first
    covered = sum(low <= truth <= high for low, high in (interval(int(one), int(two)) for one, two in drawn))
    # 95 %, less what the discrete counts cost a score interval, and four standard errors of the simulation.
    assert covered / RUNS > 0.94 - 4 * math.sqrt(0.95 * 0.05 / RUNS)
    assert covered / RUNS < 0.99


def test_the_exact_test_keeps_its_level() -> None:
    rng = np.random.default_rng(1)
    drawn = rng.multinomial(80, (0.1, 0.1, 0.8), RUNS)
    rejected = sum(Paired(only_first=int(one), only_second=int(two)).p_value() <= 0.05 for one, two, _ in drawn)
    assert rejected / RUNS <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / RUNS)


def test_json_has_no_rate_without_images() -> None:
    nothing = Paired().to_json()
    assert nothing["first"] == {"count": 0, "rate": None, "interval": None}
    assert (nothing["difference"], nothing["interval"], nothing["p_value"]) == (None, None, 1.0)
    found = Paired(10, 3, 1, 86).to_json()
    assert found["first"]["rate"] == 0.13
    assert found["method"] == "Tango"
    assert found["interval"][0] < found["difference"] < found["interval"][1]
