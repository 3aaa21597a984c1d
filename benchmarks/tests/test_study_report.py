"""What is read off the rows of a study of settings, on rows made up."""

from __future__ import annotations

from typing import Any

import pytest

import tables
from study_report import Point, choices, details, pair, points_of, selection_table, spearman, study_table

MAPS = ("product", "local product")


def row(
    category: str,
    setting: str,
    validation: float,
    segmentation: float | None,
    detection: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """A training that got through."""
    guessed = {
        **{"criterion": validation, "detection_auroc": validation, "segmentation_auroc": validation},
        **{"low_rate_auroc": validation, "average_precision": validation},
    }
    tested = {"detection_auroc": detection, "segmentation_auroc": segmentation, "aupro": segmentation}
    return {
        **{"category": category, "setting": setting, "seed": seed, "steps": 10, "seconds": 1.0, "lambda": 0.3},
        **{"changes": {} if setting == "base" else {"name": setting}, "collapses": 0, "collapsed": None},
        **{"validation": dict.fromkeys(MAPS, guessed), "test": dict.fromkeys(MAPS, tested)},
        "embeddings": {"32": {"saturated": 0.1}},
    }


def fallen(category: str, setting: str, seed: int = 0) -> dict[str, Any]:
    """A training that collapsed."""
    kept = ("category", "setting", "seed", "steps", "seconds", "lambda", "changes")
    full = row(category, setting, 0.0, None, seed=seed)
    return {**{name: full[name] for name in kept}, "collapses": 2, "collapsed": "all patches are alike"}


def rows() -> list[dict[str, Any]]:
    """Validation is right about pill and wrong about screw; grid has no detection."""
    return [
        *(row("screw", "base", 0.70, 0.9, 0.8), row("screw", "a", 0.80, 0.8, 0.7), row("screw", "b", 0.90, 0.7, 0.6)),
        *(row("pill", "base", 0.70, 0.7, 0.7), row("pill", "a", 0.80, 0.8, 0.8), row("pill", "b", 0.90, 0.9, 0.9)),
        *(row("grid", "base", 0.95, 0.8), row("grid", "a", 0.80, 0.9), row("grid", "b", 0.60, 0.6)),
    ]


def points(some: list[dict[str, Any]], category: str) -> dict[str, Point]:
    return {point.setting: point for point in points_of(some)[category]}


class TestPoints:
    def test_the_test_is_the_mean_of_what_there_are_labels_for(self) -> None:
        found = points_of(rows())
        assert list(found) == ["grid", "pill", "screw"]
        assert points(rows(), "screw")["base"].test == pytest.approx(0.85)
        assert points(rows(), "grid")["a"].test == pytest.approx(0.9)
        assert points(rows(), "grid")["a"].tasks["detection_auroc"] is None

    def test_seeds_are_averaged(self) -> None:
        found = points([row("pill", "a", 0.8, 0.9, 0.7), row("pill", "a", 0.6, 0.7, 0.5, seed=1)], "pill")["a"]
        assert (found.trainings, found.collapsed) == (2, 0)
        assert found.validation == pytest.approx(0.7)
        assert found.tasks == pytest.approx({"detection_auroc": 0.6, "segmentation_auroc": 0.8})

    def test_a_collapsed_training_counts_as_chance(self) -> None:
        found = points([row("grid", "a", 0.9, 0.9), fallen("grid", "a", seed=1), fallen("grid", "b")], "grid")
        assert found["a"].validation == pytest.approx(0.7)
        assert found["a"].tasks == {"detection_auroc": None, "segmentation_auroc": pytest.approx(0.7)}
        assert found["a"].works
        assert not found["b"].works

    def test_only_settings_without_changes_are_the_base(self) -> None:
        assert [name for name, point in points(rows(), "pill").items() if point.is_base] == ["base"]

    def test_errors_and_maps_that_are_missing_are_left_out(self) -> None:
        failed = {"category": "pill", "setting": "c", "seed": 0, "error": "no"}
        assert list(points([*rows(), failed], "pill")) == ["a", "b", "base"]
        assert points_of(rows(), "128") == {}


class TestChoices:
    def test_chosen_against_best(self) -> None:
        grid, pill, screw = choices(points_of(rows()))
        assert (pill.chosen.setting, pill.best.setting, pill.loss(pill.chosen)) == ("b", "b", 0)
        assert (screw.chosen.setting, screw.best.setting) == ("b", "base")
        assert screw.loss(screw.chosen) == pytest.approx(0.2)
        assert screw.average == pytest.approx(0.75)
        assert (grid.chosen.setting, grid.best.setting) == ("base", "a")

    def test_correlation(self) -> None:
        grid, pill, screw = choices(points_of(rows()))
        assert pill.correlation == pytest.approx(1)
        assert screw.correlation == pytest.approx(-1)
        assert grid.correlation == pytest.approx(0.5)
        (few,) = choices(points_of(rows()[:2]))
        assert few.correlation is None
        (alike,) = choices(points_of([row("pill", name, 0.5, 0.5, 0.5) for name in "abc"]))
        assert alike.correlation is None

    def test_a_category_left_out_has_no_say(self) -> None:
        found = {one.category: one.elsewhere for one in choices(points_of(rows()))}
        # Mean validation of base, a, b: without grid .70 .80 .90; without pill or screw .825 .80 .75.
        assert {category: point.setting for category, point in found.items() if point} == {
            **{"grid": "b", "pill": "base", "screw": "base"},
        }
        assert found["grid"] == points(rows(), "grid")["b"]

    def test_a_setting_for_all_must_have_been_tried_everywhere(self) -> None:
        favourite = [row("pill", "c", 0.99, 0.5, 0.5), row("screw", "c", 0.99, 0.5, 0.5)]
        assert [one.elsewhere.setting for one in choices(points_of([*rows(), *favourite])) if one.elsewhere] == [
            *("b", "base", "base"),
        ]

    def test_one_category_has_no_others(self) -> None:
        (only,) = choices(points_of(rows()[:3]))
        assert only.elsewhere is None

    def test_what_collapsed_is_not_chosen_from(self) -> None:
        (only,) = choices(points_of([row("pill", "a", 0.3, 0.4, 0.4), fallen("pill", "b")]))
        assert (only.chosen.setting, only.best.setting) == ("a", "a")
        assert only.base is None
        assert only.loss(only.base) is None
        assert choices(points_of([fallen("pill", "b")])) == []


class TestTables:
    def test_study(self) -> None:
        lines = study_table([*rows(), row("pill", "c", 0.5, 0.5, 0.5), fallen("screw", "c")]).splitlines()
        assert lines[0] == "| setting | grid | pill | screw | mean |"
        assert lines[2] == "| a | 0.800 → **–/0.900** | 0.800 → 0.800/0.800 | 0.800 → 0.700/0.800 | 0.800 → 0.817 |"
        assert "| b | 0.600 → –/0.600 | **0.900** → **0.900/0.900** | **0.900** → 0.600/0.700 |" in lines[3]
        assert lines[5] == "| c |  | 0.500 → 0.500/0.500 | collapsed |  |"
        assert lines[-1] == "11 trainings: 4 settings, 3 categories, 1 seed, 1 collapsed."

    def test_seeds_that_differ_in_number_are_told(self) -> None:
        text = study_table([*rows(), row("pill", "a", 0.8, 0.8, 0.8, seed=1), fallen("pill", "a", seed=2)])
        assert "0.700 → 0.700/0.700 (1 of 3 collapsed)" in text
        assert "11 trainings: 3 settings, 3 categories, 1 to 3 seeds, 1 collapsed." in text

    def test_a_training_that_was_started_anew_is_marked(self) -> None:
        anew = row("pill", "c", 0.5, 0.5, 0.5) | {"collapses": 1}
        text = study_table([*rows(), anew, fallen("screw", "c")])
        assert "| c |  | 0.500 → 0.500/0.500 † | collapsed |" in text
        assert "1 collapsed. † collapsed at first and was restarted" in text
        assert text.count("†") == 2

    def test_selection(self) -> None:
        lines = selection_table(rows()).splitlines()
        assert "| screw | -1.00 | b | 0.650 | base | 0.850 | 0.200 | 0.000 | 0.100 |" in lines
        assert "| **mean** | 0.17 |  | 0.783 |  | 0.883 | 0.100 | 0.100 | 0.111 |" in lines
        assert "| grid | b | 0.600 | 0.300 |" in lines
        assert len({line.count("|") for line in lines[:6]}) == 1

    def test_details_have_a_line_for_every_training(self) -> None:
        lines = list(details([*rows(), fallen("grid", "c")]))
        assert sum(line.startswith(("| a | 0", "| b | 0", "| base | 0", "| c | 0")) for line in lines) == 13
        assert "  criterion: -1.00" in lines
        assert any("collapsed at 10" in line for line in lines)

    def test_nothing_but_errors(self) -> None:
        assert "0 trainings" in study_table([])

    def test_a_table_that_is_not_known_fails_only_where_it_is_asked_for(self) -> None:
        assert tables.fill("no table") == "no table"
        with pytest.raises(SystemExit, match="there is no table nonsense"):
            tables.fill("<!-- table: nonsense -->\n<!-- end -->")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1),
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        ([1, 1, 2, 2], [1, 2, 3, 4], 2 / 5**0.5),
    ],
)
def test_spearman(first: list[float], second: list[float], expected: float) -> None:
    assert spearman(first, second) == pytest.approx(expected)
    assert spearman(second, first) == pytest.approx(expected)


def test_a_pair_has_a_dash_for_what_is_not_there() -> None:
    assert pair({"detection_auroc": None, "segmentation_auroc": 0.98765}) == "–/0.988"
