"""Items of the paper whose results lack: the others are shown, and a reason is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.core.errors import TrainingCollapsed
from patchsvdd.evaluation import experiment_store as module
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.evaluation.paper.items import ITEMS, write_item
from patchsvdd.evaluation.paper.study import TASKS, Study
from patchsvdd.training.hooks import TrainingRecord
from support.paper_study import CONFIG, Numbers, both, made_up, pictures, read_page, small_category

pytestmark = pytest.mark.slow

NAMES = ("bottle", "wood")
MEASURED = ("losses", "hierarchy", "baselines", "lambda", "dimension")
"""Items that show AUROC."""
REASON = "the embeddings collapsed by step 1"


def lacking(*names: str, task: str) -> Numbers:
    """0.5 everywhere, but some categories have no ``task``."""

    def numbers(experiment: Experiment, _size: int) -> dict[str, float]:
        without = experiment.category.name in names
        return {name: value for name, value in both(0.5).items() if not (without and name == task)}

    return numbers


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set. Tests share it: change nothing in it."""
    root = tmp_path_factory.mktemp("data")
    for name in NAMES:
        small_category(root / name)
    return root


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tests of a collapse have computed already."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def collapsing(data: Path, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study in which every training with L_SSL collapses, and the others end at once."""

    def train(*arguments: Any) -> TrainingRecord:
        if arguments[2].learns_positions:
            raise TrainingCollapsed(REASON)
        return TrainingRecord(0, 0.0, [])

    monkeypatch.setattr(module, "train", train)
    return Study(ExperimentStore(runs, device="cpu"), (data / "bottle",), CONFIG, tmp_path)


@pytest.mark.parametrize(
    ("item", "task"),
    [
        *((item, task) for item in ("losses", "hierarchy", "baselines") for task in TASKS),
        ("lambda", "detection_auroc"),
        ("lambda", "segmentation_auroc"),
        *(("dimension", task) for task in TASKS),
    ],
)
def test_a_missing_metric_leaves_a_gap_and_its_reason(data: Path, tmp_path: Path, item: str, task: str) -> None:
    study = made_up(tmp_path, NAMES, lacking("wood", task=task), data=data)
    page = read_page(write_item(study, ITEMS[item](study)))
    rows = json.loads((study.out / f"{item}.json").read_text())["categories"]
    assert f'"{task}"' in json.dumps(rows["bottle"])
    assert f'"{task}"' not in json.dumps({kind: {**row, "published": {}} for kind, row in rows["wood"].items()})
    assert "–" in page.text
    assert f"nobody measured {task}" in page.text


@pytest.mark.parametrize("item", MEASURED)
def test_nothing_is_claimed_where_nothing_was_measured(data: Path, tmp_path: Path, item: str) -> None:
    study = made_up(tmp_path, NAMES, lambda *_: {}, data=data)
    report = ITEMS[item](study)
    assert not [one for one in report.section.verdicts if one.holds is not None]
    assert len(pictures(read_page(write_item(study, report)))) <= 2


@pytest.mark.parametrize(
    "item",
    [
        *("losses", "hierarchy", "lambda", "dimension", "maps", "tsne", "intrinsic-dimension"),
    ],
)
def test_a_collapsed_training_is_told(collapsing: Study, item: str) -> None:
    report = ITEMS[item](collapsing)
    assert "collapsed" in read_page(write_item(collapsing, report)).text
    assert not [one for one in report.section.verdicts if one.holds]


def test_a_collapsed_training_leaves_the_other_losses(collapsing: Study) -> None:
    report = ITEMS["losses"](collapsing)
    row = report.data["categories"]["bottle"]
    assert [list(metrics) for metrics in row.values()] == [list(TASKS)] * 3 + [[]]
    assert f"bottle: training collapsed: {REASON}" in read_page(write_item(collapsing, report)).text


def test_a_collapsed_training_does_not_touch_the_baselines(collapsing: Study) -> None:
    report = ITEMS["baselines"](collapsing)
    assert report.data["missing"] == {}
    assert set(report.data["categories"]["bottle"]["raw"]["product"]) == set(TASKS)
