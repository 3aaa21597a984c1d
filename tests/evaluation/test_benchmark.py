from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.core.config import Config
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.evaluation.benchmark import (
    HEADLINE,
    METRICS,
    Benchmark,
    cell,
    markdown_table,
    run_benchmark,
    write_tables,
)
from patchsvdd.evaluation.experiment_store import ExperimentStore
from support.parts import NO_ESTIMATE, draw_part, save_category, square_mask

CONFIG = preset(
    "encoder",
    image_size=64,
    encoder="flat",
    scales=(Scale(64, 16),),
    steps=2,
    batch_size=1,
    pairs_per_crop=8,
    **NO_ESTIMATE,
)
RAW = preset("encoder", image_size=64, encoder="raw", scales=(Scale(32, 16),), **NO_ESTIMATE)
CATEGORIES = ("bottle", "grid", "pill", "screw", "spring")
"""Two objects and a texture of MVTec AD, one without a test folder, and one of our own."""
SEEDS = (3, 0)


def draw_category(folder: Path, first: int, *, masks: bool = True, good: bool = True) -> Path:
    """A category of few images; the defects are so slight that no metric is perfect."""
    dented = [draw_part(first + 20 + index) for index in range(2)]
    for picture in dented:
        picture[20:28, 20:28] //= 2
    dents = [(picture, square_mask(slice(20, 28), slice(20, 28))) for picture in dented]
    train, others = [[draw_part(first + start + index) for index in range(2)] for start in (0, 10)]
    return save_category(folder, train, others if good else (), {"dent": dents}, masks=masks)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set: whole categories, one without masks, one without good test images, one without test images."""
    root = tmp_path_factory.mktemp("data") / "parts"
    draw_category(root / "bottle", 0)
    draw_category(root / "grid", 100, masks=False)
    draw_category(root / "pill", 200)
    draw_category(root / "screw", 300)
    shutil.rmtree(root / "screw" / "test")
    draw_category(root / "spring", 400, good=False)
    return root


def benchmark(
    dataset: Path,
    runs: Path,
    names: Sequence[str] = CATEGORIES,
    config: Config = CONFIG,
    seeds: Sequence[int] = SEEDS,
) -> Benchmark:
    """The benchmark, run to its end."""
    found = Benchmark(dataset.name, config, tuple(seeds), tuple(names))
    for _ in run_benchmark(found, [dataset / name for name in names], ExperimentStore(runs, device="cpu")):
        pass
    return found


@pytest.fixture(scope="module")
def found(dataset: Path) -> Benchmark:
    return benchmark(dataset, dataset.parent / "runs")


@pytest.fixture(scope="module")
def told(found: Benchmark) -> dict[str, Any]:
    """What results.json holds."""
    told: dict[str, Any] = json.loads(json.dumps(found.to_json(), allow_nan=False))
    return told


def rows_of(markdown: str) -> dict[str, list[str]]:
    """First cell → the other cells of each row of the table."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows}


class TestRunning:
    def test_each_run_is_told_when_its_result_is_there(self, dataset: Path) -> None:
        names = ("bottle", "screw", "pill")
        found = Benchmark("parts", CONFIG, SEEDS, names)
        store = ExperimentStore(dataset.parent / "runs", device="cpu")
        told = []
        for name, seed in run_benchmark(found, [dataset / name for name in names], store):
            told.append((name, seed))
            assert name in found.failed or seed in found.results[name]
        assert told == [("bottle", 3), ("screw", 3), ("pill", 3), ("bottle", 0), ("pill", 0)]

    def test_a_category_that_cannot_be_used_is_told_and_the_others_go_on(
        self, found: Benchmark, told: dict[str, Any]
    ) -> None:
        assert set(told["failed"]) == {"screw"}
        assert "has no test folder" in told["failed"]["screw"]
        assert set(told["categories"]) == {"bottle", "grid", "pill", "spring"}
        assert told["complete"] is found.complete is False

    def test_an_empty_category_and_one_of_broken_images_are_told(self, dataset: Path, tmp_path: Path) -> None:
        root = tmp_path / "parts"
        (root / "empty" / "train" / "good").mkdir(parents=True)
        (root / "empty" / "test").mkdir()
        shutil.copytree(dataset / "bottle", root / "broken")
        for path in (root / "broken" / "test").rglob("*.png"):
            path.write_bytes(path.read_bytes()[:200])
        shutil.copytree(dataset / "pill", root / "single")
        (root / "single" / "train" / "good" / "000.png").unlink()
        found = benchmark(root, tmp_path / "runs", ("empty", "broken", "single"), RAW, [0])
        assert "there is no image in" in found.failed["empty"]
        assert "none of the test images" in found.failed["broken"]
        assert "at least 2 good images" in found.failed["single"]
        told = found.to_json()
        assert told["categories"] == {}
        assert told["hardware"] is told["commit"] is told["date"] is None
        assert told["means"]["all"]["detection_auroc"] is None

    def test_all_results_of_all_seeds_make_it_complete(self, dataset: Path) -> None:
        runs = dataset.parent / "runs"
        assert benchmark(dataset, runs, ["bottle", "grid"]).complete
        assert not Benchmark("parts", CONFIG, SEEDS, ("bottle",)).complete


class TestJson:
    def test_the_top_holds_what_was_promised(self, told: dict[str, Any]) -> None:
        assert told["preset"] == "encoder"
        assert "CPU" in told["hardware"]
        assert told["commit"]
        assert len(told["date"].split("-")) == 3
        assert told["seeds"] == [3, 0]
        assert told["dataset"] == "parts"
        assert told["settings"]["steps"] == 2
        assert "seed" not in told["settings"]

    def test_a_category_holds_mean_and_deviation_over_the_seeds(self, told: dict[str, Any], found: Benchmark) -> None:
        deviations = []
        for name in ("bottle", "pill"):
            entry = told["categories"][name]
            for metric in METRICS:
                values = [found.results[name][seed].metrics[metric] for seed in SEEDS]
                mean = (values[0] + values[1]) / 2
                deviation = abs(values[0] - values[1]) / 2**0.5
                assert entry[metric]["values"] == values
                assert entry[metric]["mean"] == pytest.approx(mean, abs=1e-12)
                assert entry[metric]["std"] == pytest.approx(deviation, abs=1e-12)
                deviations.append(deviation)
        assert max(deviations) > 0.001  # the seeds do differ

    def test_a_category_says_how_long_it_took(self, told: dict[str, Any], found: Benchmark) -> None:
        entry = told["categories"]["bottle"]
        seconds = [one.train_seconds for one in found.results["bottle"].values()]
        assert entry["train_seconds"] == pytest.approx(sum(seconds) / 2)
        assert entry["steps"] == [2, 2]
        assert entry["test_images"] == [4, 4]
        assert entry["seconds_per_image"] > 0
        assert set(entry["verdicts"]) == {"3", "0"}
        assert entry["verdicts"]["0"]["dent"]["images"] == 2

    def test_a_category_holds_its_scales(self, told: dict[str, Any]) -> None:
        (size, scale), *others = told["categories"]["bottle"]["scales"].items()
        assert (size, others) == ("64", [])
        assert set(scale) == set(HEADLINE)
        for metric in HEADLINE:  # the product of one scale is that scale
            assert scale[metric] == told["categories"]["bottle"][metric]

    def test_the_papers_values_stand_beside(self, told: dict[str, Any]) -> None:
        categories = told["categories"]
        assert categories["bottle"]["published"] == {"detection_auroc": 0.986, "segmentation_auroc": 0.981}
        assert categories["spring"]["published"] == {}
        assert {name: entry["kind"] for name, entry in categories.items()} == {
            **{"bottle": "object", "grid": "texture", "pill": "object", "spring": None},
        }
        assert "Patch SVDD" in told["published_source"]

    def test_one_seed_has_no_deviation(self, dataset: Path) -> None:
        found = benchmark(dataset, dataset.parent / "runs", ["bottle"], seeds=[3])
        entry = found.to_json()["categories"]["bottle"]
        for metric in METRICS:
            assert entry[metric]["std"] == 0
            assert entry[metric]["values"] == [entry[metric]["mean"]]


class TestMeans:
    def test_count_the_categories_that_have_the_metric(self, told: dict[str, Any]) -> None:
        categories, means = told["categories"], told["means"]
        assert set(means) == {"all", "object", "texture"}
        for group, metric, names in (
            ("all", "detection_auroc", ["bottle", "grid", "pill"]),  # spring has no good test images
            ("all", "segmentation_auroc", ["bottle", "pill", "spring"]),  # grid has no masks
            ("all", "miss_rate", ["bottle", "grid", "pill", "spring"]),
            ("object", "detection_auroc", ["bottle", "pill"]),
            ("object", "aupro", ["bottle", "pill"]),
            ("texture", "detection_auroc", ["grid"]),
        ):
            mean = means[group][metric]
            assert mean["categories"] == names
            assert mean["mean"] == pytest.approx(statistics.fmean(categories[name][metric]["mean"] for name in names))
        assert means["texture"]["segmentation_auroc"] is None

    def test_are_compared_with_the_papers_mean_over_the_same(self, told: dict[str, Any]) -> None:
        means = told["means"]
        assert means["object"]["detection_auroc"]["published"] == pytest.approx((0.986 + 0.861) / 2)
        assert means["texture"]["detection_auroc"]["published"] == pytest.approx(0.946)
        assert means["all"]["segmentation_auroc"]["published"] is None  # the paper has no spring
        assert means["object"]["aupro"]["published"] is None

    def test_a_data_set_of_ones_own_has_no_kinds(self, dataset: Path) -> None:
        found = benchmark(dataset, dataset.parent / "runs", ["spring"])
        assert set(found.to_json()["means"]) == {"all"}


class TestPartialData:
    def test_no_masks(self, told: dict[str, Any]) -> None:
        entry = told["categories"]["grid"]
        assert entry["segmentation_auroc"] is entry["aupro"] is entry["segmentation_ap"] is None
        assert entry["missing"] == {"segmentation_auroc": "there are no masks (no ground_truth folder)"}
        assert 0 <= entry["detection_auroc"]["mean"] <= 1

    def test_no_good_test_images(self, told: dict[str, Any]) -> None:
        entry = told["categories"]["spring"]
        assert entry["detection_auroc"] is entry["detection_ap"] is entry["false_alarm_rate"] is None
        assert entry["missing"] == {"detection_auroc": "there are no good test images (test/good)"}
        assert 0 <= entry["segmentation_auroc"]["mean"] <= 1
        assert 0 <= entry["miss_rate"]["mean"] <= 1

    def test_a_collapsed_training(self, dataset: Path, tmp_path: Path) -> None:
        found = benchmark(dataset, tmp_path / "runs", ["bottle"], CONFIG.replace(learning_rate=1e30, stop="end"), [0])
        entry = found.to_json()["categories"]["bottle"]
        assert entry["detection_auroc"] is None
        assert "lower `learning_rate`" in entry["missing"]["detection_auroc"]
        paths = write_tables(found, tmp_path / "out")
        assert "training collapsed" in paths["md"].read_text()
        assert "training collapsed" in paths["csv"].read_text()


class TestTables:
    @pytest.fixture
    def paths(self, found: Benchmark, tmp_path: Path) -> dict[str, Path]:
        return write_tables(found, tmp_path / "out")

    def test_json_csv_and_markdown_are_written(
        self, paths: dict[str, Path], told: dict[str, Any], tmp_path: Path
    ) -> None:
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            *("results.csv", "results.json", "results.md"),
        ]
        assert json.loads(paths["json"].read_text()) == told
        assert paths["md"].read_text() == markdown_table(told)

    def test_csv_has_a_row_for_each_category_and_seed(self, paths: dict[str, Path], found: Benchmark) -> None:
        with paths["csv"].open(newline="") as file:
            rows = list(csv.DictReader(file))
        expected = [(name, str(seed)) for name in ("bottle", "grid", "pill") for seed in SEEDS]
        expected += [("screw", ""), ("spring", "3"), ("spring", "0")]
        assert [(row["category"], row["seed"]) for row in rows] == expected
        for row in rows:
            if row["category"] == "screw":
                assert "has no test folder" in row["missing"]
                continue
            metrics = found.results[row["category"]][int(row["seed"])].metrics
            for metric in METRICS:
                value = metrics.get(metric)
                assert row[metric] == ("" if value is None else str(value))
        assert rows[0]["kind"] == "object"
        assert rows[-1]["kind"] == ""
        assert rows[0]["missing"] == ""
        assert "no masks" in rows[2]["missing"]

    def test_markdown_has_ours_beside_the_papers(self, told: dict[str, Any]) -> None:
        rows = rows_of(markdown_table(told))
        bottle = told["categories"]["bottle"]
        ours = [f"{bottle[metric]['mean']:.3f} ± {bottle[metric]['std']:.3f}" for metric in HEADLINE]
        assert rows["bottle"] == [ours[0], "0.986", ours[1], "0.981", ours[2]]
        assert rows["grid"][2:] == ["–", "0.962", "–"]
        assert rows["spring"][:2] == ["–", ""]
        assert {len(row) for row in rows.values()} == {5}

    def test_markdown_has_means_that_say_over_how_many(self, told: dict[str, Any]) -> None:
        rows, means = rows_of(markdown_table(told)), told["means"]
        detection, aupro = means["all"]["detection_auroc"]["mean"], means["all"]["aupro"]["mean"]
        assert rows["**mean**"][0] == f"**{detection:.3f}** (3 of 5)"
        assert rows["**mean**"][4] == f"**{aupro:.3f}** (3 of 5)"
        assert rows["**mean of objects**"][1] == "0.923"  # of bottle and pill: 0.986 and 0.861
        assert "**mean of textures**" not in rows  # there is one

    def test_markdown_says_why_cells_are_empty(self, told: dict[str, Any]) -> None:
        notes = [line for line in markdown_table(told).splitlines() if line.startswith("- ")]
        assert notes[:2] == [
            "- grid: no segmentation_auroc (there are no masks (no ground_truth folder))",
            "- spring: no detection_auroc (there are no good test images (test/good))",
        ]
        assert "has no test folder" in notes[2]

    def test_names_need_not_be_unicode(self, dataset: Path, tmp_path: Path) -> None:
        name = "\udcff [b]"
        shutil.copytree(dataset / "bottle", tmp_path / "parts" / name)
        found = benchmark(tmp_path / "parts", tmp_path / "runs", [name], RAW, [0])
        paths = write_tables(found, tmp_path / "out")
        assert set(json.loads(paths["json"].read_text())["categories"]) == {name}
        assert "\\udcff [b]" in paths["md"].read_text()


def test_a_cell_shows_the_deviation_of_several_values() -> None:
    assert cell([]) == "–"
    assert cell([0.98765]) == "0.988"
    assert cell([0.9, 0.8]) == "0.850 ± 0.071"


def test_a_seed_that_collapses_leaves_the_others_their_scales(found: Benchmark) -> None:
    seeds = found.results["bottle"]
    number, good = next(iter(seeds.items()))
    nothing = {"scales": {}, "skipped": {"detection_auroc": "training collapsed"}, "warnings": [], "verdicts": {}}
    data = {**good.data, "evaluation": {**nothing, "images": 0}, "images": [], "curves": {}}
    collapsed = dataclasses.replace(good, data=data)
    told = Benchmark("parts", found.config, (number, 99), ("bottle",), {"bottle": {number: good, 99: collapsed}})
    entry = told.to_json()["categories"]["bottle"]
    assert len(entry["detection_auroc"]["values"]) == 1
    assert all(len(scale["detection_auroc"]["values"]) == 1 for scale in entry["scales"].values())
    assert "collapsed" in entry["missing"]["detection_auroc"]
