"""Thresholds that weigh false alarms and missed synthetic defects."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.core.aims import AIMS
from patchsvdd.core.errors import ConfigError
from patchsvdd.scoring.calibration import Calibration, calibrate
from patchsvdd.scoring.conformal import guarantee_at
from patchsvdd.scoring.trade_off import Evidence, GoodTail, curve, false_alarms, threshold_for


def drawn(good: float, bad: float, count: int = 40, defects: int = 200, seed: int = 0) -> tuple[list[float], Evidence]:
    """Scores of good images around ``good`` and of defects around ``bad``, both lognormal."""
    rng = np.random.default_rng(seed)
    scores = good * rng.lognormal(0, 0.2, count)
    found = bad * rng.lognormal(0, 0.4, defects)
    sizes, contrasts = rng.uniform(4, 60, defects), rng.uniform(10, 80, defects)
    return scores.tolist(), Evidence((), tuple(found), tuple(sizes), tuple(contrasts))


def test_between_separate_scores_nothing_is_wrong() -> None:
    scores, evidence = drawn(1.0, 10.0)
    threshold = threshold_for("balanced", scores, evidence)
    assert threshold is not None
    assert max(scores) < threshold < min(evidence.defects)


def test_a_wide_gap_leaves_room_on_both_sides() -> None:
    scores, evidence = drawn(1.0, 30.0)
    threshold = threshold_for("balanced", scores, evidence)
    assert threshold is not None
    low, high = math.log(max(scores)), math.log(min(evidence.defects))
    assert 0.2 < (math.log(threshold) - low) / (high - low) < 0.8


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_of_both_errors_is_close_to_the_smallest(seed: int) -> None:
    scores, evidence = drawn(1.0, 1.8, count=60, seed=seed)
    new_good, new_bad = drawn(1.0, 1.8, count=4000, defects=4000, seed=seed + 100)
    defects = np.array(new_bad.defects)

    def cost(threshold: float) -> float:
        return float((np.array(new_good) > threshold).mean() + (defects <= threshold).mean())

    chosen = threshold_for("balanced", scores, evidence)
    assert chosen is not None
    assert cost(chosen) <= min(cost(value) for value in np.linspace(0.5, 4, 200)) + 0.06


def test_few_misses_lowers_the_threshold() -> None:
    scores, evidence = drawn(1.0, 1.6)
    balanced, few_misses = (threshold_for(aim, scores, evidence) for aim in ("balanced", "few-misses"))
    assert balanced is not None
    assert few_misses is not None
    assert few_misses < balanced
    assert evidence.miss_rate(few_misses) < evidence.miss_rate(balanced)  # type: ignore[operator]


def test_one_outlier_among_the_good_images_does_not_decide() -> None:
    scores, evidence = drawn(1.0, 4.0)
    outlier = [*scores, 30.0]
    by_rank = calibrate(outlier, 0.01, "held-out").threshold
    balanced = calibrate(outlier, 0.01, "held-out", "balanced", evidence).threshold
    assert by_rank == 30.0
    assert balanced < 4.0


@given(st.floats(1e-6, 1e6), st.integers(0, 20))
def test_units_do_not_matter(unit: float, seed: int) -> None:
    scores, evidence = drawn(1.0, 2.0, count=20, defects=30, seed=seed)
    scaled = replace(evidence, defects=tuple(unit * score for score in evidence.defects))
    plain = threshold_for("balanced", scores, evidence)
    other = threshold_for("balanced", [unit * score for score in scores], scaled)
    assert plain is not None
    assert other is not None
    assert math.isclose(other, unit * plain, rel_tol=1e-6)


@pytest.mark.parametrize(
    "scores",
    [[1.0, 1.1], [0.0] * 10, [2.0] * 10, [0.0] * 6 + [1.0, 2.0]],
    ids=["two", "zero", "alike", "mostly 0"],
)
def test_images_that_say_nothing_about_variation_leave_the_rank(scores: list[float]) -> None:
    _, evidence = drawn(1.0, 4.0)
    calibration = calibrate(scores, 0.01, "held-out", "balanced", evidence)
    assert calibration.aim == "few-alarms"
    assert calibration.threshold == max(scores)


def test_an_aim_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="balanced, few-alarms, few-misses; got 'fewer'"):
        calibrate([1.0, 2.0], 0.01, "held-out", "fewer")  # type: ignore[arg-type]


class TestGoodTail:
    """Good scores whose logarithms have a normal, an exponential or a Gumbel distribution."""

    @pytest.mark.parametrize("kind", ["normal", "exponential", "gumbel"])
    @pytest.mark.parametrize("count", [8, 20, 80])
    def test_new_images_exceed_a_threshold_about_as_often_as_expected(self, kind: str, count: int) -> None:
        rng, rate = np.random.default_rng(count), 0.05
        realised, by_rank = [], []
        for _ in range(400):
            draw = getattr(rng, kind)
            scores, new = np.exp(0.3 * draw(size=count)), np.exp(0.3 * draw(size=1000))
            tail = GoodTail.fit(scores.tolist())
            assert tail is not None
            threshold = tail.threshold(rate)
            assert tail.above(math.log(threshold)) == pytest.approx(rate)
            realised.append(float((new > threshold).mean()))
            by_rank.append(float((new > np.quantile(scores, 1 - rate)).mean()))
        assert 0.015 < np.mean(realised) < 0.075  # the tail of a normal distribution is shorter than assumed
        assert np.std(realised) < np.std(by_rank)

    def test_fewer_images_are_less_certain(self) -> None:
        few, many = (GoodTail(0.0, 0.3, count) for count in (5, 100))
        assert few.above(1.5) > 2 * many.above(1.5)

    def test_starts_at_the_median_and_falls(self) -> None:
        tail = GoodTail.fit([1.0, 2.0, 3.0, 4.0, 8.0])
        assert tail is not None
        values = [tail.above(tail.start + step) for step in (0.0, 0.1, 0.5, 2.0)]
        assert values[0] == 0.5
        assert values == sorted(values, reverse=True)

    def test_below_the_median_shares_are_counted(self) -> None:
        assert false_alarms(1.5, [1.0, 2.0, 3.0, 4.0]) == 0.75


class TestCalibration:
    SCORES, EVIDENCE = drawn(1.0, 2.0)

    def test_is_stored_with_its_evidence(self) -> None:
        calibration = replace(calibrate(self.SCORES, 0.05, "held-out", "balanced", self.EVIDENCE), region_level=1.5)
        assert Calibration.from_json(calibration.to_json()) == calibration

    def test_another_aim_needs_no_images(self) -> None:
        calibration = calibrate(self.SCORES, 0.05, "held-out", "balanced", self.EVIDENCE)
        for aim in AIMS:
            chosen = calibration.with_aim(aim)
            assert chosen.aim == aim
            assert chosen.threshold == calibrate(self.SCORES, 0.05, "held-out", aim, self.EVIDENCE).threshold
        assert calibration.with_aim("few-alarms", 0.2).threshold == calibrate(self.SCORES, 0.2).threshold

    def test_another_aim_without_synthetic_defects_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="requires scores of synthetic defects"):
            calibrate(self.SCORES, 0.05, "held-out").with_aim("balanced")

    def test_other_scores_keep_the_aim_and_the_outline(self) -> None:
        calibration = replace(calibrate(self.SCORES, 0.05, "held-out", "balanced", self.EVIDENCE), region_level=1.5)
        renewed = calibration.renewed([*self.SCORES, 1.3], "held-out")
        assert (renewed.aim, renewed.region_level, renewed.outline) == ("balanced", 1.5, 1.5)
        assert len(renewed.scores) == len(self.SCORES) + 1

    def test_the_sentence_has_both_errors(self) -> None:
        sentence = calibrate(self.SCORES, 0.05, "held-out", "balanced", self.EVIDENCE).sentence
        assert sentence.startswith("about ")
        assert "of good images like these will be called anomalous, with 95% confidence at most" in sentence
        visible = int((np.array(self.EVIDENCE.contrasts) >= 20).sum())
        assert f"Of {visible} visible synthetic defects " in sentence
        assert f"of {200 - visible} faint ones; real defects may differ" in sentence

    def test_the_estimate_counts_visible_defects(self) -> None:
        seen = np.array(self.EVIDENCE.contrasts) >= 20
        assert self.EVIDENCE.miss_rate(2.0) == pytest.approx((np.array(self.EVIDENCE.defects)[seen] <= 2.0).mean())
        few = Evidence((), (1.0, 3.0, 5.0), (9.0,) * 3, (5.0, 5.0, 50.0))
        assert few.miss_rate(4.0) == pytest.approx(2 / 3)  # one visible defect says nothing, so all count

    def test_classes_add_up(self) -> None:
        threshold = 2.0
        classes = self.EVIDENCE.classes(threshold)
        assert sum(one.count for one in classes) == len(self.EVIDENCE.defects)
        assert sum(one.missed for one in classes) == sum(score <= threshold for score in self.EVIDENCE.defects)
        assert {one.contrast for one in classes} == {"faint", "visible", "plain"}

    def test_the_curve_goes_from_alarms_to_misses(self) -> None:
        rows = curve(self.SCORES, self.EVIDENCE, [0.0, 1.0, 2.0, 1e9])
        assert (rows[0]["false_alarms"], rows[0]["missed"]) == (1.0, 0.0)
        assert rows[-1]["false_alarms"] == pytest.approx(0.0, abs=1e-9)
        assert rows[-1]["missed"] == 1.0
        assert [row["false_alarms"] for row in rows] == sorted((row["false_alarms"] for row in rows), reverse=True)
        assert sorted(row["missed"] for row in rows) == [row["missed"] for row in rows]


@pytest.mark.parametrize("count", [12, 60])
def test_the_bound_holds_for_a_threshold_chosen_by_the_scores(count: int) -> None:
    # The worst choice: the rank whose share looks smallest compared with the truth.
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(400):
        scores = rng.uniform(size=count).tolist()
        ordered = sorted(scores)
        worst = max(range(count), key=lambda index: 1 - ordered[index] - (count - 1 - index) / count)
        bound = guarantee_at(scores, ordered[worst])
        broken += 1 - ordered[worst] > bound.rate_at_confidence
    assert broken / 400 <= 0.05


def test_a_threshold_below_all_scores_guarantees_nothing() -> None:
    assert guarantee_at([1.0, 2.0], 0.5).rate_at_confidence == 1.0
