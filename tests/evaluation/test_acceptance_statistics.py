from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]
from sklearn.metrics import cohen_kappa_score

from patchsvdd.core.errors import ConfigError
from patchsvdd.evaluation.acceptance.agreement import agreement, cohen_kappa, fleiss_kappa, kappa_word
from patchsvdd.evaluation.acceptance.limits import Limit, Measured, parse_limits
from patchsvdd.evaluation.acceptance.proportions import Proportion, percent_at_least, percent_at_most
from patchsvdd.evaluation.acceptance.repeatability import repeatability
from patchsvdd.evaluation.acceptance.sampling_plan import ALLOWED, more_needed, parts_needed, sampling_plan

counts = st.integers(1, 400).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials)))
confidences = st.sampled_from([0.8, 0.9, 0.95, 0.99])
RUNS = 10_000


@cache
def bounds_of(trials: int) -> NDArray[np.float64]:
    """Upper and lower bound, and both ends of the interval (4, trials + 1), for every number of hits."""
    every = [Proportion(hits, trials) for hits in range(trials + 1)]
    return np.array([(one.upper, one.lower, *one.interval) for one in every]).T


class TestProportion:
    @given(counts, confidences)
    def test_bounds_are_those_of_the_beta_distribution(self, counted: tuple[int, int], confidence: float) -> None:
        hits, trials = counted
        one = Proportion(hits, trials, confidence)
        upper = 1.0 if hits == trials else stats.beta.ppf(confidence, hits + 1, trials - hits)
        lower = 0.0 if hits == 0 else stats.beta.ppf(1 - confidence, hits, trials - hits + 1)
        assert one.upper == pytest.approx(upper, abs=1e-9)
        assert one.lower == pytest.approx(lower, abs=1e-9)
        exact = stats.binomtest(hits, trials).proportion_ci(confidence, "exact")
        assert one.interval == pytest.approx((exact.low, exact.high), abs=1e-9)

    @given(counts, st.floats(0.001, 0.999))
    def test_a_limit_is_shown_if_the_bound_meets_it(self, counted: tuple[int, int], limit: float) -> None:
        one = Proportion(*counted)
        if abs(one.upper - limit) > 1e-9:
            assert one.shows_at_most(limit) == (one.upper <= limit)

    def test_without_trials_nothing_is_known(self) -> None:
        none = Proportion(0, 0)
        assert none.share is None
        assert (none.lower, none.upper, none.interval) == (0.0, 1.0, (0.0, 1.0))
        assert not none.shows_at_most(0.99)

    def test_more_hits_than_trials_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="3 of 2"):
            Proportion(3, 2)

    @pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
    @pytest.mark.parametrize("trials", [20, 59, 300])
    def test_bounds_hold_as_often_as_they_say(self, rate: float, trials: int) -> None:
        upper, lower, low, high = bounds_of(trials)
        hits = np.random.default_rng(0).binomial(trials, rate, RUNS)
        likely = stats.binom.pmf(np.arange(trials + 1), trials, rate)
        for holds in (rate <= upper, lower <= rate, (low <= rate) & (rate <= high)):
            assert np.sum(likely[holds]) >= 0.95 - 1e-9
            assert np.mean(holds[hits]) >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / RUNS)

    def test_bounds_are_rounded_to_the_safe_side(self) -> None:
        assert percent_at_most(0.0501) == "5.1%"
        assert percent_at_least(0.9505) == "95.0%"
        assert percent_at_most(0.05) == "5.0%"
        assert percent_at_most(0.00301) == "0.31%"
        assert percent_at_least(0.9999) == "99.99%"
        assert percent_at_least(0.99999) == "99.99%"
        assert (percent_at_most(1.0), percent_at_least(0.0)) == ("100.0%", "0.0%")


class TestSamplingPlan:
    def test_59_parts_without_a_failure_show_five_per_cent(self) -> None:
        assert parts_needed(0.05, 0.95, 0) == 59
        assert Proportion(0, 59).shows_at_most(0.05)
        assert not Proportion(0, 58).shows_at_most(0.05)
        assert percent_at_least(Proportion(59, 59).lower) == "95.0%"

    @given(st.floats(0.002, 0.6), confidences, st.integers(0, 6))
    def test_the_number_is_the_smallest(self, limit: float, confidence: float, failures: int) -> None:
        parts = parts_needed(limit, confidence, failures)
        assert stats.binom.cdf(failures, parts, limit) <= 1 - confidence + 1e-12
        assert parts == failures + 1 or stats.binom.cdf(failures, parts - 1, limit) > 1 - confidence - 1e-12
        assert Proportion(failures, parts, confidence).shows_at_most(limit)

    @given(st.floats(0.01, 0.5), confidences)
    def test_more_failures_need_more_parts_and_pass_more_often(self, limit: float, confidence: float) -> None:
        rows = sampling_plan(limit, confidence)
        assert [row.allowed for row in rows] == list(ALLOWED)
        assert [row.parts for row in rows] == sorted({row.parts for row in rows})
        assert all(after.chance > before.chance for before, after in itertools.pairwise(rows))

    @given(counts, st.floats(0.01, 0.9))
    def test_what_is_still_needed_shows_the_claim(self, counted: tuple[int, int], limit: float) -> None:
        failures, parts = counted
        more = more_needed(failures, parts, limit)
        assert more is not None
        assert Proportion(failures, parts + more).shows_at_most(limit)
        assert more == 0 or not Proportion(failures, parts + more - 1).shows_at_most(limit)

    def test_a_plan_is_passed_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(1)
        for row in sampling_plan(0.1):
            passed = rng.binomial(row.parts, 0.1 / 4, RUNS) <= row.allowed
            assert np.mean(passed) == pytest.approx(row.chance, abs=0.02)
            wrongly = rng.binomial(row.parts, 0.1, RUNS) <= row.allowed
            assert np.mean(wrongly) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / RUNS)

    @pytest.mark.parametrize("limit", [0.0, 1.0, -1.0])
    def test_a_limit_that_no_part_can_show_is_an_error(self, limit: float) -> None:
        with pytest.raises(ConfigError, match="between 0 and 1"):
            parts_needed(limit)

    def test_a_claim_of_millions_of_parts_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="choose a larger one"):
            parts_needed(1e-9)
        assert more_needed(3000, 3000, 1e-4) is None


class TestLimits:
    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            ("miss<=0.05", Limit("miss", 0.05)),
            (" miss <= 5 % ", Limit("miss", 0.05)),
            ("miss:deep scratch<=10%", Limit("miss", 0.1, "deep scratch")),
            ("false-reject≤.02", Limit("false-reject", 0.02)),
            ("kappa>=0.75", Limit("kappa", 0.75)),
            ("repeatability≥90%", Limit("repeatability", 0.9)),
        ],
    )
    def test_a_limit_is_read(self, text: str, limit: Limit) -> None:
        assert parse_limits([text]) == [limit]
        assert parse_limits([limit.words]) == [limit]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("miss", "is not a limit; write one of: miss<=5%"),
            ("miss<0.05", "is not a limit"),
            ("recall>=0.9", "'recall' in 'recall>=0.9' cannot be limited"),
            ("miss>=0.05", "a limit on miss is written with <="),
            ("kappa<=0.5", "a limit on kappa is written with >="),
            ("miss<=5", "between 0.0001 and 0.9999"),
            ("miss<=0", "between 0.0001 and 0.9999"),
            ("repeatability>=100%", "between 0.0001 and 0.9999"),
            ("kappa:scratch>=0.5", "only a limit on miss can name a kind"),
        ],
    )
    def test_another_text_is_an_error(self, text: str, said: str) -> None:
        with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
            parse_limits([text])

    def test_a_rate_is_compared_by_its_bound_and_a_kappa_by_itself(self) -> None:
        measured = Measured(
            Proportion(0, 59), {"dent": Proportion(0, 30)}, Proportion(1, 59), Proportion(0, 29), [0.9, 0.8], 0.95
        )

        def met(text: str) -> bool:
            return measured.check(parse_limits([text])[0]).is_met

        assert met("miss<=5%")
        assert not met("miss:dent<=5%")
        assert not met("false-reject<=5%")
        assert met("repeatability>=90%")
        assert not met("repeatability>=91%")
        assert met("kappa>=0.8")
        assert not met("kappa>=0.81")
        checked = measured.check(parse_limits(["false-reject<=5%"])[0])
        assert checked.more == 93 - 59
        assert "1 of 59 good images were rejected" in checked.words
        assert "34 more without a failure would show it" in checked.words

    def test_a_limit_can_be_refuted(self) -> None:
        measured = Measured(Proportion(9, 10), {}, None, Proportion(9, 10), [], 0.95)
        for text in ("miss<=50%", "repeatability>=50%"):
            checked = measured.check(parse_limits([text])[0])
            assert checked.is_refuted
            assert "does not hold" in checked.words
        checked = measured.check(parse_limits(["miss<=80%"])[0])
        assert not checked.is_refuted
        assert not checked.is_met

    @pytest.mark.parametrize("text", ["miss<=5%", "false-reject<=5%", "repeatability>=90%", "kappa>=0.5"])
    def test_what_was_not_measured_is_an_error(self, text: str) -> None:
        with pytest.raises(ConfigError, match="needs"):
            Measured(None, {}, None, None, [], 0.95).check(parse_limits([text])[0])

    def test_a_kind_that_is_not_there_is_an_error(self) -> None:
        measured = Measured(Proportion(0, 9), {"dent": Proportion(0, 9)}, None, None, [], 0.95)
        with pytest.raises(ConfigError, match="there are: dent"):
            measured.check(Limit("miss", 0.5, "hole"))

    def test_an_undefined_kappa_meets_no_limit(self) -> None:
        checked = Measured(None, {}, None, None, [0.9, None], 0.95).check(Limit("kappa", 0.5))
        assert not checked.is_met
        assert "not defined" in checked.words


class TestRepeatability:
    def test_a_small_study_by_hand(self) -> None:
        found = repeatability({"a": [1.0, 3.0], "b": [5.0, 7.0], "c": [2.0, 4.0]}, 3.5, 0.95)
        assert found.within == pytest.approx(np.sqrt(2))
        # The means 2, 6 and 3 have a variance of 13/3, of which 2/2 comes from the shots.
        assert found.between == pytest.approx(np.sqrt(13 / 3 - 1))
        assert (found.same.hits, found.same.trials) == (2, 3)
        assert [part.is_same for part in found.parts] == [True, True, False]
        assert found.nearest is not None
        assert found.nearest.name == "c"
        assert found.nearest.margin == pytest.approx(0.5 / np.sqrt(2))

    def test_it_finds_the_deviations_of_simulated_parts(self) -> None:
        rng = np.random.default_rng(2)
        parts = rng.normal(10, 2, 2000)
        shots = {str(index): list(rng.normal(mean, 0.5, rng.integers(2, 6))) for index, mean in enumerate(parts)}
        found = repeatability(shots, 20, 0.95)
        assert found.within == pytest.approx(0.5, rel=0.03)
        assert found.between == pytest.approx(2, rel=0.05)
        assert found.part_share == pytest.approx(4 / 4.25, abs=0.01)

    def test_equal_shots_have_no_margin(self) -> None:
        found = repeatability({"a": [1.0, 1.0]}, 2, 0.95)
        assert (found.within, found.between, found.nearest, found.part_share) == (0, None, None, None)
        assert found.same.hits == 1

    def test_a_single_shot_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="two shots"):
            repeatability({"a": [1.0]}, 2, 0.95)


FLEISS = [
    [0, 0, 0, 0, 14],
    [0, 2, 6, 4, 2],
    [0, 0, 3, 5, 6],
    [0, 3, 9, 2, 0],
    [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0],
    [3, 2, 6, 3, 0],
    [2, 5, 3, 2, 2],
    [6, 5, 2, 1, 0],
    [0, 2, 2, 3, 7],
]
"""The example of 14 raters, 10 subjects and 5 classes whose kappa is 0.210."""


class TestAgreement:
    @given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
    def test_cohens_kappa_is_that_of_scikit_learn(self, pairs: list[tuple[bool, bool]]) -> None:
        one, other = (np.array(values) for values in zip(*pairs, strict=True))
        kappa = cohen_kappa(one, other)
        if kappa is None:
            assert one.all() == other.all()
            assert one.any() == other.any()
        else:
            assert kappa == pytest.approx(cohen_kappa_score(one, other))

    def test_a_table_by_hand(self) -> None:
        one = np.repeat([True, True, False, False], [20, 5, 10, 15])
        other = np.repeat([True, False, True, False], [20, 5, 10, 15])
        assert cohen_kappa(one, other) == pytest.approx(0.4)
        assert [kappa_word(value) for value in (0.8, 0.75, 0.4, 0.39, None)] == [
            *("good", "moderate", "moderate", "poor", "not defined"),
        ]

    def test_fleiss_kappa_of_a_known_table(self) -> None:
        assert fleiss_kappa(np.array(FLEISS)) == pytest.approx(0.210, abs=5e-4)
        assert fleiss_kappa(np.array([[2, 0], [2, 0]])) is None
        with pytest.raises(ValueError, match="same number"):
            fleiss_kappa(np.array([[2, 0], [1, 0]]))

    def test_a_study_by_hand(self) -> None:
        reference = np.array([False, False, True, True])
        inspectors = {
            "A": np.array([[False, False], [False, True], [True, True], [True, True]]),
            "B": np.array([[False], [False], [True], [False]]),
        }
        found = agreement(inspectors, np.array([False, False, True, True]), reference, 0.95)
        assert [(one.name, one.trials, one.same.hits) for one in found.within] == [("A", 2, 3)]
        assert found.between is not None
        assert found.between.same.hits == 2
        rates = {one.name: (one.right.hits, one.misses.hits, one.false_alarms.hits, one.word) for one in found.against}
        assert rates == {
            "A": (3, 0, 1, "unacceptable"),
            "B": (3, 1, 0, "unacceptable"),
            "model": (4, 0, 0, "acceptable"),
        }
        assert [(one.name, one.same, one.verdicts) for one in found.with_model] == [("A", 7, 8), ("B", 3, 4)]
        assert found.against[-1].kappa == 1

    def test_one_inspector_is_not_compared_with_others(self) -> None:
        verdicts = np.array([[True], [False]])
        found = agreement({"A": verdicts}, verdicts[:, 0], verdicts[:, 0], 0.95)
        assert found.between is None
        assert found.within == ()
