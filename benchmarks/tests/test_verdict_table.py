"""The tables of verdicts, from rows whose numbers can be checked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from verdict_table import RULES, cross_fitted, means, miss_error, nominal_and_realised, table, verdicts


def row(category: str = "pill", seed: int = 0, outlier: float = 8.0) -> dict[str, Any]:
    """Good scores around 2 with one outlier among the calibration images, and defects around 6."""
    rng = np.random.default_rng(seed)

    def good(count: int) -> list[float]:
        return [float(2 * value) for value in rng.lognormal(0, 0.2, count)]

    bad = (6 * rng.lognormal(0, 0.4, 60)).tolist()
    evidence = {
        "good": good(48),
        "defects": (5 * rng.lognormal(0, 0.5, 128)).tolist(),
        "sizes": rng.uniform(5, 60, 128).tolist(),
        "contrasts": rng.uniform(10, 80, 128).tolist(),
    }
    return {
        "category": category,
        "seed": seed,
        "detection_auroc": 0.99,
        "scores": {"good": good(40), "dent": bad[:30], "stain": bad[30:]},
        "calibration_scores": [*good(39), outlier],
        "evidence": evidence,
    }


def test_verdicts_of_a_threshold() -> None:
    known = {"scores": {"good": [1.0, 2.0, 3.0, 5.0], "dent": [4.0, 6.0]}}
    expected = {
        "threshold": 3.5,
        "false_alarm_rate": 0.25,
        "miss_rate": 0.0,
        "balanced_accuracy": 0.875,
        "balanced_accuracy_lost": 0.0,
    }
    found = verdicts(known, 3.5)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_before_is_the_highest_score_and_balanced_finds_more() -> None:
    found = table([row()])[0]
    before, after = found["aims"]["few-alarms"], found["aims"]["balanced"]
    assert before["threshold"] == 8.0
    assert after["miss_rate"] < before["miss_rate"]
    assert after["balanced_accuracy_lost"] < before["balanced_accuracy_lost"]
    assert 0 < after["expected_miss_rate"] < before["expected_miss_rate"] < 1


def test_every_category_counts_the_same_in_the_means() -> None:
    rows = table([row("pill", 0), row("pill", 1), row("screw", 2)])
    aim = [one["aims"]["balanced"]["miss_rate"] for one in rows]
    assert means(rows)["balanced"]["miss_rate"] == pytest.approx(((aim[0] + aim[1]) / 2 + aim[2]) / 2)


def test_an_outlier_does_not_set_the_threshold_of_the_tail_model() -> None:
    found = {(one["rule"], one["nominal"]): one for one in nominal_and_realised([row(seed=seed) for seed in range(20)])}
    assert len(found) == 3 * len(RULES)
    assert found["rank of held-out images", 0.02]["realised"] == 0.0
    assert 0.01 < found["tail model, with varied images", 0.05]["realised"] < 0.09


def test_errors_of_the_expected_misses_have_a_sign() -> None:
    rows = table([row()])
    rows[0]["aims"]["balanced"] |= {"expected_miss_rate": 0.3, "miss_rate": 0.1}
    assert miss_error(rows) == pytest.approx({"mean_error": 0.2, "mean_absolute_error": 0.2})


def test_cross_fitted_scores_are_compared_on_the_same_rows() -> None:
    rows = [row(seed=seed) for seed in range(3)]
    folds = [{"category": "pill", "seed": seed, "scores": rows[seed]["scores"]["good"]} for seed in (0, 2)]
    found = cross_fitted(rows, folds)
    assert [one["rule"] for one in found[-6:]] == ["rank of cross-fitted images"] * 3 + [
        "tail model of cross-fitted images"
    ] * 3
    assert found[:-6] == nominal_and_realised([rows[0], rows[2]])
    assert found[-6]["realised"] == 0.0  # the test images themselves
