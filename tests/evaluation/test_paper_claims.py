"""What the items of the paper claim from numbers that are made up."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.core.config import Config
from patchsvdd.core.presets import preset
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult
from patchsvdd.evaluation.paper import sweeps
from patchsvdd.evaluation.paper.baselines import run_baselines
from patchsvdd.evaluation.paper.hierarchy import run_hierarchy
from patchsvdd.evaluation.paper.losses import ended_early, run_losses
from patchsvdd.evaluation.paper.methods import run_methods
from patchsvdd.evaluation.paper.study import Comparison, Metrics, Study
from patchsvdd.evaluation.paper.sweeps import DIMENSIONS, LAMBDAS, run_dimension, run_lambda
from patchsvdd.report.article import Verdict
from support.paper_study import PRODUCT, both, made_up

DETECTION, SEGMENTATION = "detection_auroc", "segmentation_auroc"


@pytest.fixture(autouse=True)
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts take time, and claims do not need them."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def flags(verdicts: Sequence[Verdict]) -> list[bool | None]:
    return [one.holds for one in verdicts]


def losses(root: Path, rows: Mapping[str, Sequence[float]]) -> Sequence[Verdict]:
    """The claims from category → AUROC under L_SVDD (by its centre, by the nearest), L_SVDD′ and with L_SSL."""
    places = {("svdd", "center"): 0, ("svdd", "nearest"): 1, ("svdd-prime", "nearest"): 2, ("patch-svdd", "nearest"): 3}

    def numbers(experiment: Experiment, _size: int) -> dict[str, float]:
        place = places[experiment.config.objective, experiment.scoring]
        return both(rows[experiment.category.name][place])

    return run_losses(made_up(root, list(rows), numbers)).section.verdicts


def hierarchy(root: Path, flat: float, large: float, small: float, product: float) -> Sequence[Verdict]:
    def numbers(experiment: Experiment, size: int) -> dict[str, float]:
        return both(flat if experiment.config.encoder == "flat" else {64: large, 32: small, PRODUCT: product}[size])

    return run_hierarchy(made_up(root, ["bottle"], numbers)).section.verdicts


def baselines(root: Path, rows: Mapping[str, tuple[float, float]]) -> list[Verdict]:
    """The claims from category → AUROC of random features and of raw patches."""

    def numbers(experiment: Experiment, _size: int) -> dict[str, float]:
        return both(rows[experiment.category.name][experiment.config.encoder == "raw"])

    return list(run_baselines(made_up(root, list(rows), numbers)).section.verdicts)


def lambda_of(root: Path, best: Mapping[str, float]) -> Verdict:
    """The claim from category → the λ at which its detection is best."""

    def numbers(experiment: Experiment, _size: int) -> dict[str, float]:
        wanted = best[experiment.category.name]
        return {DETECTION: 0.9 if experiment.config.lambda_ == wanted else 0.5, SEGMENTATION: 0.7}

    (verdict,) = run_lambda(made_up(root, list(best), numbers)).section.verdicts
    return verdict


class TestLosses:
    def test_each_step_that_helps_is_confirmed(self, tmp_path: Path) -> None:
        verdicts = losses(tmp_path, {"bottle": (0.6, 0.65, 0.7, 0.9), "wood": (0.5, 0.55, 0.6, 0.8)})
        assert flags(verdicts) == [True] * 6
        assert [one.words for one in verdicts[::2]] == [
            "Replacing L_SVDD by L_SVDD′ raises detection: here mean AUROC 0.550 → 0.650, higher in 2 of 2 categories.",
            "Replacing L_SVDD by L_SVDD′, both scored by the nearest patch, raises detection: here mean AUROC 0.600 → "
            "0.650, higher in 2 of 2 categories.",
            "Adding L_SSL raises detection: here mean AUROC 0.650 → 0.850, higher in 2 of 2 categories.",
        ]
        assert "raises segmentation: here mean AUROC 0.550 → 0.650" in verdicts[1].words

    @pytest.mark.parametrize("values", [(0.9, 0.8, 0.7, 0.6), (0.7, 0.7, 0.7, 0.7)])
    def test_a_step_that_does_not_help_is_refuted(self, tmp_path: Path, values: tuple[float, ...]) -> None:
        verdicts = losses(tmp_path, {"bottle": values})
        assert flags(verdicts) == [False] * 6
        assert all("raises" in one.words and "higher in 0 of 1" in one.words for one in verdicts)

    def test_the_mean_decides_and_the_categories_are_counted(self, tmp_path: Path) -> None:
        adding = losses(tmp_path, {"bottle": (0.5, 0.5, 0.5, 0.9), "wood": (0.5, 0.5, 0.8, 0.7)})[-1]
        assert adding.holds
        assert "0.650 → 0.800, higher in 1 of 2 categories" in adding.words

    def test_a_training_that_ended_early_is_named_once(self, tmp_path: Path) -> None:
        training = {"steps": 2000, "scheduled_steps": 97_800}
        config = preset("paper", objective="svdd", seed=1)
        one = ExperimentResult(Experiment(tmp_path / "bottle", config), {"training": training}, tmp_path, "test")
        other = dataclasses.replace(one, data={"training": {"steps": 97_800}})
        assert ended_early({"bottle": {"L_SVDD": [one, one, other]}}) == [
            "bottle, L_SVDD, seed 1: all embeddings were equal after 2,000 of 97,800 steps, where training ended"
        ]


class TestHierarchy:
    def test_each_part_that_helps_is_confirmed(self, tmp_path: Path) -> None:
        verdicts = hierarchy(tmp_path, 0.6, 0.7, 0.8, 0.9)
        assert flags(verdicts) == [True, True, True, True, True, None]
        assert "The hierarchical encoder raises detection: here mean AUROC 0.600 → 0.700" in verdicts[0].words

    def test_a_part_that_does_not_help_is_refuted(self, tmp_path: Path) -> None:
        assert flags(hierarchy(tmp_path, 0.9, 0.8, 0.7, 0.6)) == [False, False, False, False, False, None]

    def test_no_gain_is_claimed_where_the_paper_has_none(self, tmp_path: Path) -> None:
        open_claim = hierarchy(tmp_path, 0.6, 0.7, 0.8, 0.9)[-1]
        assert "compared with only K = 32, raises segmentation" in open_claim.words
        assert "(The paper has 0.957 for both.)" in open_claim.words

    def test_kept_results_without_scales_are_left_out(self, tmp_path: Path) -> None:
        def numbers(experiment: Experiment, _size: int) -> dict[str, float]:
            return both(0.9 if experiment.config.seed == 0 else 0.5)

        study = dataclasses.replace(made_up(tmp_path, ["bottle"], numbers), seeds=(0, 1))
        for result in study.results(tmp_path / "bottle"):
            if result.experiment.config.seed == 1:
                result.data["evaluation"]["scales"] = {}
        found = run_hierarchy(study).data["categories"]["bottle"]
        assert {name: row[DETECTION] for name, row in found.items()} == dict.fromkeys(found, 0.9)

    def test_all_categories_have_the_same_seeds(self, tmp_path: Path) -> None:
        def numbers(experiment: Experiment, _size: int) -> dict[str, float]:
            return both(0.9 if experiment.config.seed == 0 else 0.5)

        study = dataclasses.replace(made_up(tmp_path, ["bottle", "wood"], numbers), seeds=(0, 1))
        for result in study.results(tmp_path / "bottle"):
            if result.experiment.config.seed == 1:
                result.data["evaluation"]["scales"] = {}
        found = run_hierarchy(study).data["categories"]["wood"]
        assert {name: row[DETECTION] for name, row in found.items()} == dict.fromkeys(found, 0.9)

    @pytest.mark.parametrize(("product", "result"), [(0.82, "undecided"), (0.95, "confirmed")])
    def test_a_difference_within_that_of_seeds_decides_nothing(
        self, tmp_path: Path, product: float, result: str
    ) -> None:
        """The scales have one seed, the product two that differ by 0.04."""

        def numbers(experiment: Experiment, size: int) -> dict[str, float]:
            return both(product + 0.04 * experiment.config.seed if size == PRODUCT else 0.8)

        study = dataclasses.replace(made_up(tmp_path, ["bottle"], numbers), seeds=(0, 1))
        for one in study.results(tmp_path / "bottle"):
            if one.experiment.config.seed == 1:
                one.data["evaluation"]["scales"] = {}
        verdicts = run_hierarchy(study).section.verdicts
        assert [one.result for one in verdicts if "only K = 32, raises detection" in one.words] == [result]


class TestMethods:
    def test_a_method_without_maps_does_not_prevent_the_claim_on_segmentation(self, tmp_path: Path) -> None:
        def numbers(experiment: Experiment, _size: int) -> dict[str, float]:
            found = both(0.9 if experiment.config.preset == "paper" and experiment.scoring == "nearest" else 0.8)
            return {DETECTION: found[DETECTION]} if experiment.config.preset == "deep-svdd" else found

        report = run_methods(made_up(tmp_path, ["bottle", "wood"], numbers))
        claims = [one.words for one in report.section.verdicts if "better than every other" in one.words]
        assert [("detection" in words, "segmentation" in words) for words in claims] == [(True, False), (False, True)]
        assert report.data["means_over"] == {DETECTION: ["bottle", "wood"], SEGMENTATION: ["bottle", "wood"]}
        assert report.data["means"]["Deep SVDD"] == {DETECTION: 0.8, SEGMENTATION: None}


class TestLambda:
    @pytest.mark.parametrize(("of_bottle", "holds"), [(1e-4, True), (1e-2, None), (1.0, False)])
    def test_objects_should_prefer_a_smaller_one_than_textures(
        self, tmp_path: Path, of_bottle: float, holds: bool | None
    ) -> None:
        verdict = lambda_of(tmp_path, {"wood": 1e-2, "bottle": of_bottle})
        assert verdict.holds is holds
        assert verdict.words == f"Detection of bottle is best at λ = {of_bottle:g}, of wood at λ = 0.01."

    @pytest.mark.parametrize("names", [["bottle"], ["wood"], ["bottle", "cable"]])
    def test_an_object_and_a_texture_are_needed(self, tmp_path: Path, names: list[str]) -> None:
        assert lambda_of(tmp_path, dict.fromkeys(names, LAMBDAS[0])).holds is None

    def test_nothing_is_known_of_other_data(self, tmp_path: Path) -> None:
        assert lambda_of(tmp_path, {"gear": 1e-4, "bolt": 1.0}).holds is None


class TestDimension:
    @pytest.fixture(autouse=True)
    def half_the_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Embeddings whose intrinsic dimension is half their length."""

        def dimensions(_study: Study, _category: Path, config: Config) -> dict[str, float]:
            return {"64": config.embedding_dim / 2}

        monkeypatch.setattr(sweeps, "intrinsic_dimensions", dimensions)

    @staticmethod
    def run(root: Path, values: Mapping[str, Sequence[float | None]]) -> tuple[dict[str, Any], Sequence[Verdict]]:
        """The numbers and the claims from category → AUROC for each length."""

        def numbers(experiment: Experiment, _size: int) -> dict[str, float]:
            value = values[experiment.category.name][DIMENSIONS.index(experiment.config.embedding_dim)]
            return {} if value is None else both(value)

        report = run_dimension(made_up(root, list(values), numbers))
        return report.data, report.section.verdicts

    def test_what_a_longer_embedding_raises_is_confirmed(self, tmp_path: Path) -> None:
        data, verdicts = self.run(tmp_path, {"bottle": (0.5, 0.7, 0.8, 0.9), "wood": (0.7, 0.7, 0.7, 0.8)})
        assert flags(verdicts) == [True, True, True]
        assert verdicts[0].words == "A larger D raises detection auroc: 0.600 at D = 16, 0.850 at D = 128."
        assert data["means"][DETECTION] == pytest.approx([0.6, 0.7, 0.75, 0.85])
        assert data["means"]["intrinsic_dimension"] == [8, 16, 32, 64]

    def test_what_it_does_not_raise_is_refuted(self, tmp_path: Path) -> None:
        _, verdicts = self.run(tmp_path, {"bottle": (0.9, 0.7, 0.6, 0.9)})
        assert flags(verdicts) == [False, False, True]

    @pytest.mark.parametrize(("last", "holds"), [(0.84, None), (0.76, None), (0.9, True), (0.7, False)])
    def test_a_difference_within_that_of_seeds_decides_nothing(
        self, tmp_path: Path, last: float, holds: bool | None
    ) -> None:
        def numbers(experiment: Experiment, _size: int) -> dict[str, float]:
            if experiment.config.embedding_dim == DIMENSIONS[-1]:
                return both(last)
            return both(0.8 + 0.05 * experiment.config.seed)

        study = dataclasses.replace(made_up(tmp_path, ["bottle"], numbers), seeds=(0, 1))
        assert flags(run_dimension(study).section.verdicts) == [holds, holds, True]

    def test_nothing_is_claimed_where_a_length_is_missing(self, tmp_path: Path) -> None:
        _, verdicts = self.run(tmp_path, {"bottle": (0.5, None, 0.8, 0.9)})
        (verdict,) = verdicts
        assert verdict.words == "A larger D raises intrinsic dimension: 8.000 at D = 16, 64.000 at D = 128."

    def test_means_are_over_the_same_categories(self, tmp_path: Path) -> None:
        data, verdicts = self.run(tmp_path, {"bottle": (0.9, 0.9, 0.9, None), "wood": (0.4, 0.4, 0.4, 0.5)})
        assert data["means"][DETECTION] == [0.4, 0.4, 0.4, 0.5]
        assert verdicts[0].holds


class TestBaselines:
    def test_the_same_order_is_confirmed_and_another_refuted(self, tmp_path: Path) -> None:
        same = baselines(tmp_path, {"gear": (0.5, 0.6), "bolt": (0.6, 0.7), "nut": (0.7, 0.9)})[0]
        other = baselines(tmp_path, {"gear": (0.5, 0.9), "bolt": (0.6, 0.7), "nut": (0.7, 0.6)})[0]
        assert (same.holds, other.holds) == (True, False)
        assert "12 of 15 pairs" in same.words  # a result beside itself, for the other task, has no order
        assert "0 of 15 pairs" in other.words

    def test_one_category_is_too_few(self, tmp_path: Path) -> None:
        (verdict,) = baselines(tmp_path, {"gear": (0.5, 0.6)})
        assert verdict.holds is None
        assert "Too few categories" in verdict.words

    def test_values_far_from_the_paper_s_are_named(self, tmp_path: Path) -> None:
        verdicts = baselines(tmp_path, {"bottle": (0.89, 0.82)})  # 0.89 and 0.80, 0.92 and 0.82 in the paper
        assert [one.words for one in verdicts if "in the paper." in one.words] == [
            "bottle, random, segmentation: 0.890 at 64 px, 0.80 in the paper.",
            "bottle, raw, detection: 0.820 at 64 px, 0.92 in the paper.",
        ]
        (mean,) = [one for one in verdicts if "Mean distance" in one.words]
        assert mean.holds is None
        assert "32 px 0.048, 64 px 0.048, product 0.048" in mean.words  # (0 + 0.09 + 0.10 + 0) / 4


SEEDS = (("bottle", 0.4, 0.7), ("wood", 0.6, 0.5))
"""Category, and a value with each of two seeds."""


class TestComparison:
    FOUND = Comparison(
        {
            "bottle": {"one": {DETECTION: 0.5, SEGMENTATION: 0.6}, "two": {DETECTION: 0.7, SEGMENTATION: 0.6}},
            "cable": {"one": {DETECTION: 0.9}, "two": {}},
            "wood": {"one": {DETECTION: 0.7}, "two": {DETECTION: 0.6, SEGMENTATION: 0.1}},
        },
        {
            "cable": {DETECTION: "it collapsed", SEGMENTATION: "it collapsed"},
            "wood": {SEGMENTATION: "there are no masks"},
        },
    )

    def test_means_are_over_categories_that_have_all(self) -> None:
        assert self.FOUND.mean("one", DETECTION) == pytest.approx(0.6)
        assert self.FOUND.mean("two", SEGMENTATION) == 0.6
        assert self.FOUND.to_json()["means_over"] == {DETECTION: ["bottle", "wood"], SEGMENTATION: ["bottle"]}
        empty = Comparison({"cable": self.FOUND.values["cable"]}, {})
        assert empty.mean("one", DETECTION) is None
        assert empty.to_json()["means"]["one"] == {DETECTION: None, SEGMENTATION: None}

    def test_wins_are_counted_among_categories_that_have_both(self) -> None:
        assert self.FOUND.wins("two", "one", DETECTION) == (1, 2)
        assert self.FOUND.wins("two", "one", SEGMENTATION) == (0, 1)

    @pytest.mark.parametrize(
        ("worse", "better", "result"),
        [
            ([0.60, 0.62], [0.70, 0.72], "confirmed"),
            ([0.70, 0.72], [0.60, 0.62], "refuted"),
            ([0.60, 0.70], [0.62, 0.72], "undecided"),  # 0.02 higher; the seeds differ by more
            ([0.60], [0.62, 0.622], "confirmed"),
            ([0.60], [0.601], "confirmed"),  # one seed has no spread
        ],
    )
    def test_differences_within_the_spread_of_seeds_decide_nothing(
        self, worse: list[float], better: list[float], result: str
    ) -> None:
        runs: dict[str, list[Metrics]] = {
            "one": [{DETECTION: value} for value in worse],
            "two": [{DETECTION: value} for value in better],
        }
        found = Comparison.of_runs({"bottle": runs}, {})
        (verdict,) = found.verdicts([("one", "two", "The change")])
        assert verdict.result == result
        assert found.values["bottle"]["one"][DETECTION] == pytest.approx(sum(worse) / len(worse))

    def test_the_spread_is_that_of_the_means(self) -> None:
        runs: dict[str, dict[str, list[Metrics]]] = {
            name: {"one": [{DETECTION: value}, {DETECTION: other}]} for name, value, other in SEEDS
        }
        found = Comparison.of_runs(runs, {})
        assert found.spread("one", DETECTION) == pytest.approx(0.1 / 2**0.5)  # of 0.5 and 0.6
        assert found.show_mean("one", DETECTION) == "0.550 ± 0.071"
        assert found.to_json()["spreads"]["one"] == {DETECTION: found.spread("one", DETECTION), SEGMENTATION: None}
        assert self.FOUND.spread("one", DETECTION) is None

    def test_the_table_has_dashes_and_reasons(self) -> None:
        table = self.FOUND.table("AUROC", {"two": {DETECTION: 0.92}})
        assert table.columns == ["category", "one, det.", "one, seg.", "two, det.", "two, seg."]
        assert table.rows == [
            ["bottle", "0.500", "0.600", "0.700", "0.600"],
            ["cable", "0.900", "–", "–", "–"],
            ["wood", "0.700", "–", "0.600", "0.100"],
            ["mean", "0.600", "0.600", "0.650", "0.600"],
            ["mean in the paper", "–", "–", "0.920", "–"],
        ]
        assert table.notes == ["cable: it collapsed", "wood: there are no masks"]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["tile", "cable", "wood", "bottle"], ["cable", "tile"]),
        (["cable", "bottle"], ["cable"]),
        (["gear", "bolt", "nut"], ["gear", "bolt"]),
        (["gear", "wood"], ["wood"]),
    ],
)
def test_a_study_shows_an_object_and_a_texture(names: list[str], chosen: list[str], tmp_path: Path) -> None:
    study = made_up(tmp_path, names, lambda *_: {})
    assert [path.name for path in study.one_of_each_kind()] == chosen


def test_a_study_shows_the_object_and_the_texture_with_the_fewest_images(tmp_path: Path) -> None:
    for name, count in {"bottle": 3, "cable": 2, "tile": 1, "wood": 2}.items():
        folder = tmp_path / name / "train" / "good"
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number}.png").touch()
    study = made_up(tmp_path, ["bottle", "cable", "wood", "tile"], lambda *_: {})
    assert [path.name for path in study.one_of_each_kind()] == ["cable", "tile"]


@pytest.mark.parametrize(("steps", "expected"), [(None, 10_000), (3, 3), (20_000, 10_000)])
def test_a_training_without_l_ssl_is_limited(steps: int | None, expected: int, tmp_path: Path) -> None:
    study = made_up(tmp_path, ["bottle"], lambda *_: {})
    study = dataclasses.replace(study, config=preset("paper", steps=steps, seed=1))
    assert study.with_loss("svdd") == preset("paper", steps=expected, seed=1, objective="svdd")
    assert study.with_loss("svdd-prime", seed=2) == preset("paper", steps=expected, seed=2, objective="svdd-prime")
    assert study.with_loss("patch-svdd") == study.config
