"""Accuracy at the shipped threshold against values computed by hand and by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from patchsvdd.evaluation.metrics import Confusion, best_f1, confusion
from patchsvdd.evaluation.operating_point import OperatingPoint, RegionCounts, best_balanced_accuracy, intervals


def balanced(labels: NDArray[np.bool_], called: NDArray[np.bool_]) -> float:
    return float((called[labels].mean() + 1 - called[~labels].mean()) / 2)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=30))
def test_the_best_threshold_is_that_of_all_tried(pairs: list[tuple[bool, int]]) -> None:
    labels, scores = np.array([one for one, _ in pairs]), np.array([float(score) for _, score in pairs])
    if labels.all() or not labels.any():
        return
    tried = [balanced(labels, scores > threshold) for threshold in (-1.0, *scores)]
    assert best_balanced_accuracy(labels, scores) == pytest.approx(max(tried))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=30), st.integers(-1, 6))
def test_no_shipped_threshold_beats_hindsight(pairs: list[tuple[bool, int]], threshold: int) -> None:
    labels, scores = np.array([one for one, _ in pairs]), np.array([float(score) for _, score in pairs])
    if labels.all() or not labels.any():
        return
    shipped = confusion(labels, scores > threshold)
    point = OperatingPoint(shipped, best_balanced_accuracy(labels, scores), best_f1(labels, scores)[0])
    values = point.metrics()
    assert values["balanced_accuracy"] == pytest.approx(balanced(labels, scores > threshold))
    assert values["balanced_accuracy_lost"] >= -1e-12
    assert values["detection_f1_lost"] >= -1e-12


def test_values_by_hand() -> None:
    shipped = Confusion(true_positive=6, false_positive=1, true_negative=9, false_negative=2)
    point = OperatingPoint(shipped, best_balanced_accuracy=0.9, best_f1=0.85)
    assert point.balanced_accuracy == pytest.approx((0.9 + 0.75) / 2)
    assert point.f1 == pytest.approx(12 / 15)
    assert point.metrics()["detection_f1_lost"] == pytest.approx(0.05)
    stated = intervals(shipped)
    assert stated["false_alarm_rate_interval"] == pytest.approx([0.00253, 0.44502], abs=1e-4)
    assert stated["miss_rate_interval"] == pytest.approx([0.03185, 0.65086], abs=1e-4)
    assert intervals(Confusion(0, 1, 9, 0))["miss_rate_interval"] is None


def test_regions_are_compared_pixel_by_pixel() -> None:
    mask = np.zeros((4, 4), dtype=bool)
    mask[1:3, 1:3] = True
    shown = np.zeros_like(mask)
    shown[1:3, :3] = True
    counts = RegionCounts()
    counts.add(shown, mask)
    counts.add(np.zeros_like(mask), np.zeros_like(mask))  # a good image without a region changes nothing
    found = counts.metrics(best_f1=0.9)
    assert found["region_precision"] == pytest.approx(4 / 6)
    assert found["region_recall"] == 1.0
    assert found["region_f1"] == pytest.approx(0.8)
    assert found["region_f1_lost"] == pytest.approx(0.1)
    nothing = RegionCounts()
    nothing.add(np.zeros_like(mask), mask)
    assert nothing.metrics(best_f1=0.9)["region_precision"] == 0.0
