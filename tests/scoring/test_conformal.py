"""What scores of good images promise, against counting and against known quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from patchsvdd.scoring.calibration import calibrate
from patchsvdd.scoring.conformal import at_least, guarantee_for, largest_rate, p_values, rank_for, share_interval


class TestPromise:
    @pytest.mark.parametrize(
        ("count", "rate", "rank"), [(60, 0.05, 58), (60, 0.01, 60), (99, 0.01, 99), (199, 0.01, 198), (1, 0.5, 1)]
    )
    def test_rank(self, count: int, rate: float, rank: int) -> None:
        assert rank_for(count, rate) == rank
        scores = list(np.random.default_rng(0).permutation(count).astype(float))
        assert calibrate(scores, rate).threshold == rank - 1

    def test_sixty_images_promise_no_less_than_a_sixty_first(self) -> None:
        made = guarantee_for(60, 0.01)
        assert made.rate == made.smallest_rate == pytest.approx(1 / 61)
        assert made.rate_at_confidence == pytest.approx(1 - 0.05 ** (1 / 60))
        assert "given 60 images" in made.in_words()
        assert "can be guaranteed is 1.6%" in made.in_words()

    @pytest.mark.parametrize(("count", "rate"), [(20, 0.1), (60, 0.05), (200, 0.01), (320, 0.05)])
    def test_is_kept_over_many_draws(self, count: int, rate: float) -> None:
        made = guarantee_for(count, rate)
        random = np.random.default_rng(1)
        thresholds = np.sort(random.random((4000, count)), axis=1)[:, made.rank - 1]
        realised = 1 - thresholds  # of uniform scores
        assert realised.mean() == pytest.approx(made.rate, rel=0.05)
        assert made.rate <= rate + 1e-12
        assert (realised <= made.rate_at_confidence).mean() == pytest.approx(made.confidence, abs=0.015)

    def test_more_confidence_promises_less(self) -> None:
        assert largest_rate(60, 58, 0.5) < largest_rate(60, 58, 0.95) < largest_rate(60, 58, 0.999)


class TestInterval:
    @pytest.mark.parametrize(
        ("hits", "trials", "low", "high"),
        [(0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0), (5, 10, 0.1871, 0.8129), (2, 41, 0.0060, 0.1653)],
    )
    def test_known_values(self, hits: int, trials: int, low: float, high: float) -> None:
        assert share_interval(hits, trials) == pytest.approx((low, high), abs=1e-4)

    def test_nothing_seen_says_nothing(self) -> None:
        assert share_interval(0, 0) == (0.0, 1.0)

    def test_more_hits_than_trials_are_refused(self) -> None:
        with pytest.raises(ValueError, match="3 of 2"):
            share_interval(3, 2)


class TestPValues:
    def test_count_good_scores_as_high(self) -> None:
        assert p_values([0.5, 2.0, 9.0], [1.0, 2.0, 3.0]).tolist() == [1.0, 0.75, 0.25]

    def test_of_good_images_are_rarely_small(self) -> None:
        random = np.random.default_rng(0)
        found = np.array([p_values([random.random()], random.random(30))[0] for _ in range(4000)])
        for level in (0.05, 0.1, 0.3):
            assert (found <= level).mean() <= level + 0.015


def test_binomial_tail() -> None:
    exact = sum(math.comb(12, k) * 0.3**k * 0.7 ** (12 - k) for k in range(4, 13))
    assert at_least(4, 12, 0.3) == pytest.approx(exact)
    assert (at_least(0, 5, 0.1), at_least(1, 5, 0.0), at_least(5, 5, 1.0)) == (1.0, 0.0, 1.0)
