"""Every item of the paper, made for two tiny categories by one command."""

from __future__ import annotations

import base64
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.core import presets as settings
from patchsvdd.core.config import Config
from patchsvdd.core.scales import Scale
from patchsvdd.evaluation import experiment_store as module
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult, Scoring
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.evaluation.paper.items import ITEMS, write_item
from patchsvdd.evaluation.paper.study import TASKS, Study
from patchsvdd.evaluation.published import published
from patchsvdd.training.hooks import TrainingRecord
from patchsvdd.training.loop import train
from support.baselines import short
from support.command_line import BRIEF, files, run
from support.html import Page
from support.paper_study import CONFIG, pictures, read_page, small_category

pytestmark = pytest.mark.slow

NAMES = ("bottle", "wood")
"""An object and a texture."""
FIGURES = {
    "methods": ["detection.svg", "segmentation.svg"],
    "losses": ["detection.svg", "segmentation.svg", "maps-bottle.jpg", "maps-wood.jpg"],
    "hierarchy": ["detection.svg", "segmentation.svg", "maps-bottle.jpg", "maps-wood.jpg"],
    "lambda": ["detection.svg", "segmentation.svg"],
    "dimension": ["auroc.svg", "intrinsic-dimension.svg"],
    "baselines": ["detection.svg", "segmentation.svg"],
    "tsne": ["bottle.png", "wood.png"],
    "intrinsic-dimension": ["dimension.svg"],
    "maps": ["bottle.jpg", "wood.jpg"],
}
LAMBDAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
DIMENSIONS = (16, 32, 64, 128)
every_item = pytest.mark.parametrize("item", ITEMS)


@dataclass(frozen=True)
class Whole:
    """What ``patchsvdd paper all`` was given, wrote and said."""

    data: Path
    out: Path
    told: dict[str, Any]
    trained: list[tuple[str, Config]]
    """(training images, settings) of each training."""

    def categories(self, item: str) -> Any:
        return self.told["items"][item]["categories"]

    def stored(self, name: str, scoring: Scoring = "nearest", **changes: Any) -> ExperimentResult:
        """The result as it is kept on disk."""
        asked = Experiment(self.data / name, CONFIG.replace(**changes), scoring, calibrated=False)
        found = ExperimentStore(self.out / "runs", device="cpu").find(asked)
        assert found is not None
        return found

    def study(self, out: Path) -> Study:
        """A study that finds everything computed."""
        store = ExperimentStore(self.out / "runs", device="cpu")
        return Study(store, tuple(self.data / name for name in NAMES), CONFIG, out)


@pytest.fixture(scope="module", autouse=True)
def small_batches() -> Iterator[None]:
    """A training step uses one pair of patches, not 64; baselines train for a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(settings.PRESETS, "paper", settings.PRESETS["paper"].replace(batch_size=1))
        for name, config in settings.BASELINE_PRESETS.items():
            patch.setitem(settings.BASELINE_PRESETS, name, config.replace(baseline=short(name)))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, small_batches: None) -> Whole:
    """All items at once. Tests share it: change nothing in it."""
    root = tmp_path_factory.mktemp("paper")
    for first, name in zip((0, 100), NAMES, strict=True):
        small_category(root / "parts" / name, first)
    trained = []

    def train_and_note(*arguments: Any) -> TrainingRecord:
        trained.append((arguments[3], arguments[2]))
        return train(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train", train_and_note)
        ended = run("paper", "all", root / "parts", "--out", root / "out", *BRIEF, "--json")
    return Whole(root / "parts", root / "out", ended.json(), trained)


def asked(result: ExperimentResult) -> dict[str, float]:
    """What the items show of a result."""
    return {task: result.metrics[task] for task in TASKS}


def data_uri(path: Path) -> str:
    kind = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg"}[path.suffix]
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def read(out: Path, item: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((out / f"{item}.json").read_text())
    return data


class TestAll:
    def test_says_what_it_wrote(self, whole: Whole) -> None:
        assert whole.told["page"] == str(whole.out / "index.html")
        assert list(whole.told["items"]) == list(ITEMS) == list(FIGURES)

    @every_item
    def test_writes_numbers_a_page_and_figures_of_every_item(self, whole: Whole, item: str) -> None:
        written = read(whole.out, item)
        assert written["command"] == f"patchsvdd paper {item}"
        assert written["settings"] == json.loads(json.dumps(CONFIG.to_json()))
        assert {"hardware", "commit", "date", "versions", "seed"} <= set(written)
        told = whole.told["items"][item]
        assert {name: written[name] for name in told} == told
        page = read_page(whole.out / f"{item}.html")
        assert pictures(page) == [f"{item}/{name}" for name in FIGURES[item]]
        assert all(name in page.text for name in NAMES)
        assert all(verdict["words"] in page.text for verdict in written["verdicts"])

    def test_index_has_every_claim_and_every_figure(self, whole: Whole) -> None:
        page = Page(whole.out / "index.html")
        assert pictures(page) == [
            data_uri(whole.out / item / name) for item, names in FIGURES.items() for name in names
        ]
        assert not [a["href"] for a in page.all("a") if not (a["href"] or "").startswith("#")], "it is one file"
        claims = [{"item": item, **one} for item in ITEMS for one in read(whole.out, item)["verdicts"]]
        assert whole.told["verdicts"] == claims
        assert {one["result"] for one in claims} <= {"confirmed", "refuted", "undecided", "note"}
        assert {one["holds"] for one in claims} == {True, False, None}
        for one in claims:
            assert page.text.count(f"{one['result']}{one['words']}") == 2  # in the summary, and with its item

    def test_trains_every_encoder_once(self, whole: Whole) -> None:
        assert len(whole.trained) == 2 * (3 + 1 + 4 + 3)  # losses, the flat one, and the others of two sweeps
        assert len(set(whole.trained)) == len(whole.trained)

    def test_computes_nothing_when_run_again(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("train", "inspect_test_images", "measure"):
            monkeypatch.setattr(module, name, lambda *_, name=name: pytest.fail(f"{name} was called again"))
        before = files(whole.out)
        again = run("paper", "all", whole.data, "--out", whole.out, *BRIEF, "--json").json()
        assert again == whole.told
        assert files(whole.out) == before


class TestNumbers:
    """They are those of the stored experiments."""

    def test_of_the_losses(self, whole: Whole) -> None:
        for name in NAMES:
            assert whole.categories("losses")[name] == {
                "L_SVDD": asked(whole.stored(name, "center", objective="svdd")),
                "L_SVDD, nearest": asked(whole.stored(name, objective="svdd")),
                "L_SVDD′": asked(whole.stored(name, objective="svdd-prime")),
                "L_SVDD′ + L_SSL": asked(whole.stored(name)),
            }

    def test_of_the_methods(self, whole: Whole) -> None:
        for name in NAMES:
            row = whole.categories("methods")[name]
            baselines = ["Deep SVDD", "L2-AE", "SSIM-AE"]
            assert list(row) == ["Patch SVDD", *baselines, "random encoder", "raw patches", "L_SVDD"]
            assert row["Patch SVDD"] == asked(whole.stored(name))
            assert row["raw patches"] == asked(whole.stored(name, encoder="raw"))
            assert row["L_SVDD"] == asked(whole.stored(name, "center", objective="svdd"))
            for kind, method in zip(settings.BASELINE_PRESETS, baselines, strict=True):
                config = settings.preset(kind, image_size=CONFIG.image_size)
                experiment = Experiment(whole.data / name, config, calibrated=False)
                found = ExperimentStore(whole.out / "runs", device="cpu").find(experiment)
                assert found is not None
                assert row[method] == {task: found.metrics[task] for task in TASKS if task in found.metrics}

    def test_of_methods_that_are_only_published(self, whole: Whole) -> None:
        text = read_page(whole.out / "methods.html").text
        assert "capsule–––––––0.767–0.6700.7320.6810.9520.9850.981" in text
        assert whole.told["items"]["methods"]["published"]["ITAE"]["average"] == {"detection_auroc": 0.839}

    def test_of_the_hierarchy(self, whole: Whole) -> None:
        for name in NAMES:
            hierarchical = whole.stored(name)
            scales = {size: {task: hierarchical.scales[size][task] for task in TASKS} for size in (32, 64)}
            assert whole.categories("hierarchy")[name] == {
                "flat 64": asked(whole.stored(name, encoder="flat", scales=(Scale(64, 16),))),
                "hierarchical 64": scales[64],
                "hierarchical 32": scales[32],
                "product": asked(hierarchical),
            }

    @pytest.mark.parametrize("item", ["losses", "hierarchy"])
    def test_of_means(self, whole: Whole, item: str) -> None:
        rows, means = whole.categories(item), whole.told["items"][item]["means"]
        for variant, row in means.items():
            for task in TASKS:
                assert row[task] == pytest.approx(statistics.fmean(rows[name][variant][task] for name in NAMES))

    def test_of_the_sweep_of_lambda(self, whole: Whole) -> None:
        for name in NAMES:
            expected = {f"{value:g}": asked(whole.stored(name, lambda_=value)) for value in LAMBDAS}
            assert whole.categories("lambda")[name] == expected

    def test_of_the_sweep_of_the_length(self, whole: Whole) -> None:
        for name in NAMES:
            row = whole.categories("dimension")[name]
            assert list(row) == [str(length) for length in DIMENSIONS]
            for length in DIMENSIONS:
                assert row[str(length)].items() >= asked(whole.stored(name, embedding_dim=length)).items()

    def test_of_the_baselines(self, whole: Whole) -> None:
        tables = {"random": "random_encoder", "raw": "raw_patch"}
        for name in NAMES:
            for kind, table in tables.items():
                found = whole.stored(name, encoder=kind)
                scales = {str(size): {task: found.scales[size][task] for task in TASKS} for size in (32, 64)}
                expected = {**scales, "product": asked(found), "published": published(table, name)}
                assert whole.categories("baselines")[name][kind] == expected

    def test_of_the_images_shown(self, whole: Whole) -> None:
        for name in NAMES:
            scores = {image["image"]: image["score"] for image in whole.stored(name).data["images"]}
            shown = whole.categories("maps")[name]
            assert [one["defect"] for one in shown] == ["good", "spot"]
            assert {one["image"]: one["score"] for one in shown}.items() <= scores.items()

    def test_of_a_table_are_those_of_the_file(self, whole: Whole) -> None:
        text = read_page(whole.out / "losses.html").text
        means = whole.told["items"]["losses"]["means"].values()
        assert "mean" + "".join(f"{row[task]:.3f}" for row in means for task in TASKS) in text
        theirs = [published("losses", objective) for objective in ("svdd", "svdd-prime", "patch-svdd")]
        paper = [f"{row[task]:.3f}" for row in theirs for task in TASKS]
        assert "mean in the paper" + "".join([*paper[:2], "–", "–", *paper[2:]]) in text


@pytest.mark.parametrize("item", ["methods", "losses", "hierarchy", "lambda", "baselines", "maps"])
def test_without_matplotlib_the_tables_and_the_images_stay(
    whole: Whole, item: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    study = whole.study(tmp_path)
    page = read_page(write_item(study, ITEMS[item](study)))
    assert pictures(page) == [f"{item}/{name}" for name in FIGURES[item] if name.endswith(".jpg")]
    assert read(tmp_path, item) == read(whole.out, item)
    assert bool(page.all("table")) == (item != "maps")
