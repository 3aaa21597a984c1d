"""The chart of false alarms against misses: what it draws, and the same in words and as tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchsvdd.report.model_card import FINE, ModelCard
from patchsvdd.report.report import write_report
from patchsvdd.report.trade_off_chart import chart, class_table, summary_of, threshold_table
from patchsvdd.scoring.calibration import calibrate
from patchsvdd.scoring.trade_off import Evidence
from patchsvdd.scoring.trade_off_table import TradeOff, trade_off
from support.html import Page


def shown(count: int = 9) -> TradeOff:
    rng = np.random.default_rng(0)
    evidence = Evidence(
        *((), tuple(2 * rng.lognormal(0, 0.4, 60)), tuple(rng.uniform(4, 60, 60)), tuple(rng.uniform(10, 80, 60)))
    )
    found = trade_off(calibrate(rng.lognormal(0, 0.2, 40).tolist(), 0.05, "held-out", "balanced", evidence), count)
    assert found is not None
    return found


def points(source: str, kind: str) -> list[tuple[float, float]]:
    (path,) = re.findall(rf'<path class="{kind}" d="M([^"]*)"', source)
    return [(float(x), float(y)) for x, y in (point.split() for point in path.split("L"))]


def test_lines_are_the_shares_over_the_threshold() -> None:
    fine = shown(FINE)
    source = chart(fine)
    alarms, missed = points(source, "alarms"), points(source, "missed")
    assert len(alarms) == len(missed) == FINE
    assert [x for x, _ in alarms] == sorted(x for x, _ in alarms)
    assert (alarms[0][0], alarms[-1][0]) == (0.0, 100.0)
    for (_, y), row in zip(alarms, fine.rows, strict=True):
        assert y == pytest.approx(100 - 100 * row.false_alarms, abs=0.01)
    for (_, y), row in zip(missed, fine.rows, strict=True):
        assert y == pytest.approx(100 - 100 * row.missed, abs=0.01)


def test_the_operating_point_is_on_both_lines() -> None:
    fine = shown(FINE)
    source = chart(fine)
    place = points(source, "alarms")[FINE // 2][0]
    assert f'class="limit" d="M{place:.2f} ' in source
    dots = re.findall(r'class="dot (\w+)" style="left:([\d.]+)%;top:calc\(var\(--height\) \* ([\d.]+)\)', source)
    assert [(kind, float(left)) for kind, left, _ in dots] == [("alarms", place), ("missed", place)]
    assert float(dots[0][2]) == pytest.approx(1 - fine.current.false_alarms, abs=1e-3)
    assert float(dots[1][2]) == pytest.approx(1 - fine.current.missed, abs=1e-3)


def test_it_has_words_for_those_who_do_not_see_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(chart(shown(FINE)) + threshold_table(shown()) + class_table(shown()), encoding="utf-8")
    page = Page(path)
    (svg,) = page.all("svg")
    assert svg["role"] == "img"
    assert svg["aria-labelledby"] == "trade-title trade-words"
    assert summary_of(shown(FINE)) in page.text
    for row in shown().rows:
        assert f"{row.threshold:.4g}{' (current)' if row.is_current else ''}" in page.words
    assert "under 10 px" in page.words
    assert "false alarms" in page.words, "the lines are named, not only coloured"


def test_the_report_has_chart_sentence_and_tables(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        facts = {"image": "a.png", "score": 0.1, "threshold": 1.0, "verdict": "good", "is_anomalous": False}
        yield {**facts, "regions": [], "overlay": "a.jpg"}

    card = ModelCard({"Model": "m"}, promise=shown().sentence, trade_off=shown(), curve=shown(FINE))
    text = Page(write_report(tmp_path, rows, title="t", facts={}, model=card)).text
    assert "False alarms and misses over the threshold" in text
    assert shown().sentence in text
    assert "Missed synthetic defects at the threshold, by contrast and diameter" in text
    assert "over the threshold" not in Page(write_report(tmp_path, rows, title="t", facts={})).text
