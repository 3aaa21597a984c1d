"""A threshold from reviews: honest weights, intervals that hold, and no change without evidence."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.scoring.conformal import share_interval
from patchsvdd.scoring.reviewed import FEWEST_SAMPLED, ReviewedPart, Reviews, expected, propose

GOOD_SPREAD, DEFECT_CENTRE, DEFECT_SPREAD = 0.25, 1.2, 0.5


def line(
    seed: int, threshold: float, *, parts: int = 5000, sampled: int = 150, defects: float = 0.02, scores: bool = True
) -> Reviews:
    """A simulated line: all alarms reviewed, and a random sample of the parts called good. Scores are lognormal."""
    rng = np.random.default_rng(seed)
    is_defect = rng.random(parts) < defects
    good, bad = rng.lognormal(0, GOOD_SPREAD, parts), rng.lognormal(DEFECT_CENTRE, DEFECT_SPREAD, parts)
    values = np.where(is_defect, bad, good)
    alarms, quiet = np.flatnonzero(values > threshold), np.flatnonzero(values <= threshold)
    sample = rng.choice(quiet, min(sampled, len(quiet)), replace=False)
    reviewed = tuple(ReviewedPart(float(values[index]), bool(is_defect[index])) for index in (*alarms, *sample))
    known = tuple(values[quiet].tolist()) if scores else ()
    return Reviews(threshold, reviewed, len(quiet), len(alarms), known)


def truth(threshold: float) -> tuple[float, float]:
    """False alarms and misses of the simulated line."""
    high = math.log(threshold)
    good, bad = high / GOOD_SPREAD, (high - DEFECT_CENTRE) / DEFECT_SPREAD
    return 0.5 * math.erfc(good / math.sqrt(2)), 0.5 * math.erfc(-bad / math.sqrt(2))


def parts(score: float, defects: int, good: int) -> tuple[ReviewedPart, ...]:
    return (ReviewedPart(score, True),) * defects + (ReviewedPart(score, False),) * good


class TestWeights:
    REVIEWS = Reviews(2.0, parts(3.0, 20, 10) + parts(1.0, 2, 98), good=10_000, alarms=60)

    def test_a_reviewed_part_stands_for_those_with_its_verdict(self) -> None:
        assert self.REVIEWS.weight(alarm=True) == 2.0
        assert self.REVIEWS.weight(alarm=False) == 100.0

    def test_two_missed_defects_in_a_sample_are_many(self) -> None:
        now = expected(self.REVIEWS, 2.0)
        assert now.misses.estimate == pytest.approx(200 / (200 + 40))
        assert now.false_alarms.estimate == pytest.approx(20 / (20 + 9800))

    def test_no_missed_defect_in_a_small_sample_proves_little(self) -> None:
        few = Reviews(2.0, parts(3.0, 20, 10) + parts(1.0, 0, 20), good=10_000, alarms=30)
        many = Reviews(2.0, parts(3.0, 20, 10) + parts(1.0, 0, 9_000), good=10_000, alarms=30)
        assert expected(few, 2.0).misses.estimate == 0.0
        assert expected(few, 2.0).misses.high > 0.98
        assert expected(many, 2.0).misses.high < 0.3

    def test_scores_of_all_parts_sharpen_the_false_alarms_of_a_lower_threshold(self) -> None:
        blind, seeing = (expected(line(0, 2.5, scores=known), 1.8).false_alarms for known in (False, True))
        assert seeing.high - seeing.low < 0.6 * (blind.high - blind.low)
        assert seeing.low <= truth(1.8)[0] <= seeing.high

    def test_more_reviewed_parts_than_parts_are_refused(self) -> None:
        with pytest.raises(DatasetError, match="2 of 1 parts called good and 0 of 5 alarms cannot"):
            Reviews(2.0, parts(1.0, 1, 1), good=1, alarms=5)


class TestIntervals:
    @pytest.mark.parametrize(("missed", "found"), [(0, 12), (3, 9), (12, 0), (1, 60)])
    def test_with_equal_weights_they_are_exact(self, missed: int, found: int) -> None:
        reviews = Reviews(2.0, parts(1.0, missed, 30) + parts(3.0, found, 0), good=missed + 30, alarms=found)
        rate = expected(reviews, 2.0).misses
        assert (rate.low, rate.high) == pytest.approx(share_interval(missed, missed + found), abs=0.01)

    @pytest.mark.parametrize("threshold", [1.4, 2.0, 3.5])
    def test_they_cover_the_truth(self, threshold: float) -> None:
        kept = np.zeros(4)
        for seed in range(60):
            reviews = line(seed, threshold)
            for place, other in enumerate((threshold, 1.8)):
                found, (alarms, missed) = expected(reviews, other), truth(other)
                kept[2 * place] += found.false_alarms.low <= alarms <= found.false_alarms.high
                kept[2 * place + 1] += found.misses.low <= missed <= found.misses.high
        assert (kept >= 0.9 * 60).all(), kept  # 95 % expected; below 54 of 60 with a probability of 4 %

    def test_the_same_reviews_have_the_same_interval(self) -> None:
        assert expected(line(1, 2.0), 1.5) == expected(line(1, 2.0), 1.5)


class TestProposal:
    def test_many_false_alarms_raise_the_threshold(self) -> None:
        proposal = propose(line(0, 1.1))
        assert proposal.is_better
        assert proposal.threshold > 1.3
        assert proposal.proposed.false_alarms.high < proposal.current.false_alarms.low
        assert sum(truth(proposal.threshold)) < sum(truth(1.1)) - 0.15
        assert "The reviews support the change" in proposal.sentence
        assert proposal.conclusion.startswith("the reviews support a higher threshold: ")

    def test_many_misses_lower_it(self) -> None:
        proposal = propose(line(0, 5.0, defects=0.1, sampled=400))
        assert proposal.is_better
        assert proposal.threshold < 3.0
        assert proposal.conclusion.startswith("the reviews support a lower threshold: ")
        assert sum(truth(proposal.threshold)) < sum(truth(5.0)) - 0.3

    def test_a_good_threshold_stays(self) -> None:
        claims = [propose(line(seed, 1.65)) for seed in range(20)]
        assert not any(proposal.is_better for proposal in claims)
        assert all(proposal.sentence.startswith("the reviews do not support a change") for proposal in claims)

    @pytest.mark.parametrize("aim", ["balanced", "few-misses"])
    def test_a_supported_change_is_rarely_wrong(self, aim: str) -> None:
        weight = {"balanced": 1.0, "few-misses": 4.0}[aim]
        wrong = 0
        for seed in range(60):
            threshold = (1.1, 1.3, 1.5, 1.8, 2.2, 3.5)[seed % 6]
            proposal = propose(line(seed, threshold, defects=0.05), aim)  # type: ignore[arg-type]
            costs = [false + weight * missed for false, missed in map(truth, (proposal.threshold, threshold))]
            wrong += proposal.is_better and costs[0] >= costs[1]
        assert wrong <= 3

    def test_few_misses_has_a_lower_threshold(self) -> None:
        reviews = line(3, 2.5, defects=0.1, sampled=400)
        assert propose(reviews, "few-misses").threshold < propose(reviews).threshold

    def test_an_improvement_that_may_be_chance_is_not_called_better(self) -> None:
        alarms = parts(2.1, 0, 3) + parts(4.0, 6, 0)
        reviews = Reviews(2.0, alarms + parts(1.0, 0, 30), good=300, alarms=9)
        proposal = propose(reviews)
        assert proposal.threshold > 2.1
        assert not proposal.is_better
        assert "but that may be chance" in proposal.sentence
        assert proposal.conclusion.endswith("may only seem better by chance; 33 good parts and 6 defects were reviewed")

    def test_units_do_not_matter(self) -> None:
        reviews = line(0, 1.1)
        unit = 1e-6
        scaled = Reviews(
            1.1 * unit,
            tuple(ReviewedPart(unit * part.score, part.is_defect) for part in reviews.parts),
            reviews.good,
            reviews.alarms,
            tuple(unit * score for score in reviews.good_scores),
        )
        plain, other = propose(reviews), propose(scaled)
        assert other.threshold == pytest.approx(unit * plain.threshold, rel=1e-6)
        assert other.is_better == plain.is_better

    def test_scores_of_zero_and_equal_scores(self) -> None:
        reviews = Reviews(2.0, parts(3.0, 8, 1) + parts(0.0, 0, 40), good=40, alarms=9)
        assert not propose(reviews).is_better

    def test_json(self) -> None:
        told = json.loads(json.dumps(propose(line(0, 1.1)).to_json()))
        assert told.keys() == {
            *(
                "threshold",
                "aim",
                "is_better",
                "conclusion",
                "sentence",
                "proposed",
                "current",
                "good",
                "defects",
                "confidence",
            ),
        }
        assert told["current"].keys() == {"threshold", "false_alarms", "misses"}
        assert told["current"]["misses"].keys() == {"estimate", "low", "high"}


class TestTooFew:
    def test_what_is_missing_is_said(self) -> None:
        reviews = Reviews(2.0, parts(3.0, 2, 1) + parts(1.0, 0, 4), good=900, alarms=3)
        assert reviews.missing == (
            "3 more reviewed defects (2 of at least 5)",
            "15 more reviewed good parts (5 of at least 20)",
            f"{FEWEST_SAMPLED - 4} more reviewed parts called good (4 of at least {FEWEST_SAMPLED})",
        )
        with pytest.raises(DatasetError, match="too few reviews for a proposal: 3 more reviewed defects"):
            propose(reviews)

    def test_alarms_alone_say_nothing_about_misses(self) -> None:
        reviews = Reviews(2.0, parts(3.0, 50, 50), good=900, alarms=100)
        assert reviews.missing == ("10 more reviewed parts called good (0 of at least 10)",)

    def test_a_sample_alone_says_nothing_about_alarms(self) -> None:
        reviews = Reviews(2.0, parts(1.0, 6, 50), good=900, alarms=100)
        assert reviews.missing == ("1 more reviewed alarm (0 of at least 1)",)

    def test_no_reviews_at_all(self) -> None:
        assert len(Reviews(2.0, (), 100, 10).missing) == 4

    def test_an_aim_that_weighs_nothing(self) -> None:
        with pytest.raises(ConfigError, match="must be one of balanced, few-misses"):
            propose(line(0, 1.1), "few-alarms")

    def test_a_threshold_of_zero(self) -> None:
        with pytest.raises(ConfigError, match="calibrate with good images"):
            propose(Reviews(0.0, parts(3.0, 8, 30), good=0, alarms=38))
