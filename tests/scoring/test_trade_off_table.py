"""False alarms and misses around a threshold."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from patchsvdd.scoring.calibration import Calibration, calibrate
from patchsvdd.scoring.trade_off import Evidence, curve
from patchsvdd.scoring.trade_off_table import thresholds_around, trade_off


def calibration(good: float = 1.0, bad: float = 2.0, seed: int = 0) -> Calibration:
    rng = np.random.default_rng(seed)
    scores = (good * rng.lognormal(0, 0.2, 40)).tolist()
    sizes, contrasts = rng.uniform(4, 60, 100), rng.uniform(10, 80, 100)
    evidence = Evidence((), tuple(bad * rng.lognormal(0, 0.4, 100)), tuple(sizes), tuple(contrasts))
    return calibrate(scores, 0.05, "held-out", "balanced", evidence)


@pytest.mark.parametrize("count", [3, 9, 65])
def test_rows_surround_the_current_threshold(count: int) -> None:
    known = calibration()
    shown = trade_off(known, count)
    assert shown is not None
    assert len(shown.rows) == count
    thresholds = [row.threshold for row in shown.rows]
    assert thresholds == sorted(thresholds)
    assert [row.is_current for row in shown.rows].index(True) == count // 2
    assert shown.current.threshold == known.threshold
    assert thresholds[0] <= 0.7 * known.threshold * 1.001
    assert thresholds[-1] >= 1.4 * known.threshold * 0.999


def test_rows_are_those_of_the_curve_and_move_from_alarms_to_misses() -> None:
    known = calibration()
    shown = trade_off(known)
    assert shown is not None
    assert known.evidence is not None
    expected = curve(known.scores, known.evidence, [row.threshold for row in shown.rows])
    assert [(row.false_alarms, row.missed) for row in shown.rows] == [
        (row["false_alarms"], row["missed"]) for row in expected
    ]
    assert shown.current.missed == known.miss_rate
    assert shown.rows[0].false_alarms > shown.rows[-1].false_alarms
    assert shown.rows[0].missed < shown.rows[-1].missed


@pytest.mark.parametrize("threshold", [1e-6, 1e6])
def test_a_threshold_far_from_all_scores_still_has_a_range(threshold: float) -> None:
    around = thresholds_around(calibration().with_threshold(threshold))
    assert len(around) == 9
    assert around == sorted(around)
    assert 0.39 < around[0] / threshold < 0.71
    assert 1.39 < around[-1] / threshold < 2.51


def test_classes_add_up_in_the_table() -> None:
    shown = trade_off(calibration())
    assert shown is not None
    sizes, rows = shown.by_size()
    assert sizes == ["under 10 px", "10 to 20 px", "20 to 40 px", "40 px and more"]
    assert [name for name, _ in rows] == ["faint", "visible", "plain"]
    cells = [cell.split(" of ") for _, cells in rows for cell in cells if cell != "–"]
    assert sum(int(count) for _, count in cells) == 100 == shown.defects
    seen = [cell.split(" of ") for name, cells in rows if name != "faint" for cell in cells if cell != "–"]
    assert sum(int(count) for _, count in seen) == shown.visible
    assert sum(int(missed) for missed, _ in seen) == round(shown.visible * shown.current.missed)


def test_json_and_sentence() -> None:
    known = calibration()
    shown = trade_off(known)
    assert shown is not None
    told = json.loads(json.dumps(shown.to_json()))
    assert told["threshold"] == known.threshold
    assert told["sentence"] == known.sentence
    assert len(told["rows"]) == 9
    assert sum(one["count"] for one in told["missed_by_class"]) == 100


def test_without_synthetic_defects_there_is_none() -> None:
    known = calibration()
    assert trade_off(replace(known, evidence=None)) is None
    assert trade_off(replace(known, evidence=Evidence((), (), (), ()))) is None
    assert trade_off(replace(known, threshold=0.0)) is None
