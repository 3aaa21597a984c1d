from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.errors import DatasetError, Interrupted, ModelError
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.fitting import rounded
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.evaluation import experiment_store as module
from patchsvdd.evaluation.benchmark import Benchmark
from patchsvdd.evaluation.benchmark_page import write_benchmark_page
from patchsvdd.evaluation.evaluate import evaluate
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.images.image_set import load_image
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.scoring.ranking import MARGIN
from support.command_line import files, part
from support.parts import NO_ESTIMATE, draw_part, save_picture

SETTINGS: dict[str, Any] = {
    **{"image_size": 64, "encoder": "flat", "scales": (Scale(64, 16),)},
    **{"steps": 3, "batch_size": 1, "pairs_per_crop": 8, "stop": "end"},
    **NO_ESTIMATE,
}
CONFIG = preset("encoder", **SETTINGS)
"""Training and testing take half a second."""
RAW = preset("encoder", image_size=64, encoder="raw", scales=(Scale(32, 16),), **NO_ESTIMATE)
EARLY = CONFIG.replace(stop="validation")
"""The same, which is undone unless it helps."""
CENTERED = CONFIG.replace(image_size=80, objective="svdd", steps=2)
COLLAPSING = preset("paper", **SETTINGS).replace(lambda_=1e3, learning_rate=1e-2, batch_size=4, steps=60)


@pytest.fixture(scope="module")
def done(bolt: Path) -> ExperimentResult:
    """An experiment that nobody disturbed."""
    return ExperimentStore(bolt.parent / "runs", device="cpu").result(Experiment(bolt, CONFIG))


@pytest.fixture(scope="module")
def early(bolt: Path) -> ExperimentResult:
    """An experiment whose training was judged by drawn defects."""
    return ExperimentStore(bolt.parent / "runs", device="cpu").result(Experiment(bolt, EARLY))


@pytest.fixture(scope="module")
def centered(bolt: Path) -> ExperimentResult:
    """An experiment scored as Deep SVDD does."""
    store = ExperimentStore(bolt.parent / "runs", device="cpu")
    return store.result(Experiment(bolt, CENTERED, scoring="center"))


@pytest.fixture(scope="module")
def collapsed(bolt: Path) -> ExperimentResult:
    """An experiment in which λ pulls all embeddings together."""
    return ExperimentStore(bolt.parent / "runs", device="cpu").result(Experiment(bolt, COLLAPSING))


@pytest.fixture
def copied(bolt: Path, tmp_path: Path) -> Path:
    """The category at another place, to be changed."""
    return Path(shutil.copytree(bolt, tmp_path / "elsewhere" / "bolt"))


@pytest.fixture
def spoilt(done: ExperimentResult, tmp_path: Path) -> ExperimentStore:
    """A store that holds the finished experiment, to be damaged."""
    folder = tmp_path / "runs" / done.folder.name
    folder.mkdir(parents=True)
    for name in ("encoder.safetensors", f"{done.name}.json", f"{done.name}.npz"):
        shutil.copy(done.folder / name, folder)
    return ExperimentStore(tmp_path / "runs", device="cpu")


def store_of(result: ExperimentResult) -> ExperimentStore:
    """A store on the folder that holds ``result``, as a later run opens it."""
    return ExperimentStore(result.folder.parent, device="cpu")


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """From now on it is a failure to call one of the functions that experiments are made of."""
    for name in names:
        monkeypatch.setattr(module, name, lambda *_, name=name, **__: pytest.fail(f"{name} was called again"))


def weights(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "encoder.safetensors")


def same_weights(first: Path, second: Path) -> bool:
    one, other = weights(first), weights(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def content(result: ExperimentResult | None) -> object:
    """What a result holds, as it is read from its file."""
    assert result is not None
    return json.loads(json.dumps(result.data))


def check_same(first: ExperimentResult, second: ExperimentResult) -> None:
    """Both found the same, to the last bit; only the times may differ."""
    assert first.metrics == second.metrics
    assert first.scales == second.scales
    for name in ("images", "curves", "kept"):
        assert first.data[name] == second.data[name]
    assert first.data["evaluation"]["threshold"] == second.data["evaluation"]["threshold"]


class Watch:
    """Sees the stages of an experiment go by, and asks it to stop at one of them."""

    def __init__(self, stop_at: tuple[str, int] | None = None) -> None:
        self.stop_at = stop_at
        self.seen: list[tuple[str, int]] = []

    def on_stage(self, stage: str, done: int, _total: int) -> None:
        self.seen.append((stage, done))

    def should_stop(self) -> bool:
        return self.seen[-1] == self.stop_at

    def store(self, folder: Path) -> ExperimentStore:
        return ExperimentStore(folder, device="cpu", on_stage=self.on_stage, should_stop=self.should_stop)

    @property
    def steps(self) -> list[int]:
        """The training steps that were done."""
        return [done for stage, done in self.seen if stage == "training"]


class TestResult:
    def test_is_that_of_fit_and_evaluate(self, bolt: Path, done: ExperimentResult) -> None:
        detector = PatchSVDD.fit(bolt, preset="encoder", device="cpu", **SETTINGS)
        expected = evaluate(detector, bolt)
        assert done.metrics.items() >= expected.metrics.items()
        assert done.scales == expected.scales
        assert done.data["evaluation"]["verdicts"] == expected.verdicts
        assert done.data["evaluation"]["threshold"] == detector.threshold
        assert expected.confusion is not None
        assert done.metrics["miss_rate"] == expected.confusion.miss_rate
        for image in done.data["images"]:
            assert image["score"] == detector.inspect(bolt / image["image"]).score

    def test_says_how_it_came_about(self, done: ExperimentResult) -> None:
        assert done.data["category"] == "bolt"
        assert Config.from_json(done.data["settings"]) == CONFIG
        for about in (done.data, done.data["training"]):
            assert "CPU" in about["hardware"]
            assert about["commit"]
            assert len(about["date"]) == len("2026-11-15")
            assert set(about["versions"]) == {"patchsvdd", "torch", "python"}
        assert done.data["training"]["steps"] == 3
        assert done.train_seconds > 0

    def test_lists_every_test_image(self, done: ExperimentResult) -> None:
        names = [image["image"] for image in done.data["images"]]
        assert names == [f"test/{kind}/{index:03}.png" for kind in ("good", "spot") for index in range(3)]
        assert [image["defect"] for image in done.data["images"]] == ["good"] * 3 + ["spot"] * 3
        for image in done.data["images"]:
            assert image["scores"] == {"64": image["score"]}  # there is one scale

    def test_keeps_maps_to_look_at(self, done: ExperimentResult) -> None:
        kept = done.sample_maps().read()
        assert [(one.defect, one.rank) for one in kept] == [
            (kind, rank) for kind in ("good", "spot") for rank in ("highest", "median", "lowest")
        ]
        scores = {image["image"]: image["score"] for image in done.data["images"]}
        for one in kept:
            assert one.score == scores[one.image]
            assert one.maps[0].shape == (64, 64)
            assert one.maps[0].max() == pytest.approx(one.score)

    def test_survives_the_loss_of_its_maps(self, spoilt: ExperimentStore, bolt: Path) -> None:
        next(spoilt.folder.rglob("*.npz")).unlink()
        found = spoilt.result(Experiment(bolt, CONFIG))
        assert found.sample_maps().read() == []
        assert found.metrics

    @pytest.mark.parametrize("encoder", ["random", "raw"])
    def test_encoders_that_do_not_learn_are_not_trained(
        self, bolt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: str
    ) -> None:
        forbid(monkeypatch, "train")
        config = preset("paper", image_size=64, encoder=encoder, scales=(Scale(32, 16),))
        result = ExperimentStore(tmp_path, device="cpu").result(Experiment(bolt, config))
        assert result.data["training"]["steps"] == 0
        assert result.metrics["detection_auroc"] == 1  # red spots on grey
        assert result.data["evaluation"]["threshold"] > 0

    def test_the_chosen_image_size_is_part_of_the_result(self, tmp_path: Path) -> None:
        category = tmp_path / "part"
        for seed, size in enumerate([(90, 60), (60, 90), (80, 80), (60, 70)]):
            save_picture(category / "train" / "good" / f"{seed}.png", draw_part(seed, size))
            save_picture(category / "test" / "good" / f"{seed}.png", draw_part(10 + seed, size))
            save_picture(category / "test" / "hole" / f"{seed}.png", draw_part(20 + seed, size, defect=True))
        left_open = Experiment(category, preset("encoder", encoder="random", scales=(Scale(32, 32),), **NO_ESTIMATE))
        chosen = left_open.sized()
        assert chosen.config.image_size == (384, 384)
        assert chosen.config.pixel_scale is not None
        assert chosen.sized() is chosen
        assert left_open.training_key() == chosen.training_key()
        store = ExperimentStore(tmp_path / "runs", device="cpu")
        result = store.result(left_open)
        assert result.experiment == chosen
        assert result.data["settings"] == json.loads(json.dumps(chosen.config.to_json()))
        for experiment in (left_open, chosen):
            found = store.find(experiment)
            assert found is not None
            assert found.experiment == chosen
            assert content(found) == content(result)
        benchmark = Benchmark("parts", left_open.config, (0,), ("part",))
        benchmark.add("part", 0, result)
        assert benchmark.to_json()["categories"]["part"]["image_size"] == [384, 384]
        page = write_benchmark_page(benchmark, [category], tmp_path / "page")
        assert "auto_size" not in page.read_text()
        assert "Changed settings" in page.read_text()

    def test_without_training_images_the_size_stays_open(self, tmp_path: Path) -> None:
        (tmp_path / "train" / "good").mkdir(parents=True)
        (tmp_path / "test" / "good").mkdir(parents=True)
        left_open = Experiment(tmp_path, preset("encoder"))
        assert left_open.sized() is left_open
        store = ExperimentStore(tmp_path / "runs", device="cpu")
        assert store.find(left_open) is None
        with pytest.raises(DatasetError):
            store.result(left_open)

    def test_names_may_have_any_character(self, bolt: Path, tmp_path: Path) -> None:
        odd = Path(shutil.copytree(bolt, tmp_path / "\udcfe [b] ä|*"))
        (odd / "test" / "spot").rename(odd / "test" / "\udcff spot")
        (odd / "test" / "\udcff spot" / "000.png").rename(odd / "test" / "\udcff spot" / "\udcfd.png")
        store = ExperimentStore(tmp_path / "runs", device="cpu")
        computed = store.result(Experiment(odd, RAW))
        stored = store.find(Experiment(odd, RAW))
        assert content(stored) == content(computed)
        assert stored is not None
        assert "test/\udcff spot/\udcfd.png" in [image["image"] for image in stored.data["images"]]
        assert {one.defect for one in stored.sample_maps().read()} == {"good", "\udcff spot"}


class TestStore:
    def test_nothing_is_computed_twice(
        self, done: ExperimentResult, bolt: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forbid(monkeypatch, "train", "load_good_images", "inspect_test_images", "measure")
        before = files(done.folder)
        again = store_of(done).result(Experiment(bolt, CONFIG))
        assert content(again) == content(done)
        assert files(done.folder) == before

    def test_a_copy_of_the_category_has_the_same_results(
        self, done: ExperimentResult, copied: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forbid(monkeypatch, "train", "inspect_test_images")
        assert content(store_of(done).result(Experiment(copied, CONFIG))) == content(done)

    def test_other_test_images_are_tested_without_training(
        self, done: ExperimentResult, copied: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forbid(monkeypatch, "train")
        shutil.copy(copied / "test" / "good" / "000.png", copied / "test" / "spot" / "good.png")
        other = store_of(done).result(Experiment(copied, CONFIG))
        assert other.folder == done.folder
        assert other.data["evaluation"]["images"] == 7
        assert other.metrics["detection_auroc"] < done.metrics["detection_auroc"]
        assert other.data["images"][:3] == done.data["images"][:3]

    def test_a_threshold_serves_where_none_is_wanted(self, done: ExperimentResult, bolt: Path) -> None:
        assert content(store_of(done).find(Experiment(bolt, CONFIG, calibrated=False))) == content(done)

    def test_no_threshold_does_not_serve_where_one_is_wanted(self, bolt: Path, tmp_path: Path) -> None:
        store = ExperimentStore(tmp_path, device="cpu")
        without = store.result(Experiment(bolt, RAW, calibrated=False))
        assert without.data["evaluation"]["threshold"] is None
        assert without.metrics["detection_auroc"] == 1
        assert store.find(Experiment(bolt, RAW)) is None
        calibrated = store.result(Experiment(bolt, RAW))
        assert calibrated.data["evaluation"]["threshold"] > 0
        assert calibrated.data["training"] == without.data["training"]  # the same encoder

    def test_a_new_rate_of_false_alarms_takes_no_training(
        self, done: ExperimentResult, bolt: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forbid(monkeypatch, "train")
        other = store_of(done).result(Experiment(bolt, CONFIG.replace(false_alarm_rate=0.5)))
        assert other.data["evaluation"]["threshold"] < done.data["evaluation"]["threshold"]
        assert other.metrics["detection_auroc"] == done.metrics["detection_auroc"]

    def test_half_a_result_is_not_taken_for_one(self, spoilt: ExperimentStore, bolt: Path) -> None:
        next(spoilt.folder.rglob("*.json")).unlink()  # written last: the maps are there
        assert spoilt.find(Experiment(bolt, CONFIG)) is None


class TestKeys:
    @pytest.mark.parametrize(
        "change",
        [
            *({"seed": 1}, {"steps": 4}, {"epochs": 3}, {"lambda_": 0.5}, {"image_size": 72}, {"resize": "nearest"}),
            *({"embedding_dim": 32}, {"batch_size": 2}, {"learning_rate": 0.01}, {"noise": 0.5}, {"photometric": 0.1}),
            *({"objective": "svdd"}, {"sampling": "patches"}, {"schedule": "constant"}, {"relative_svdd": False}),
            *({"scales": (Scale(64, 8),)}, {"centering": "pixel"}, {"standardize": False}, {"crop_size": 200}),
            {"stop": "validation"},
        ],
        ids=lambda change: "-".join(change),
    )
    def test_every_setting_of_the_training_counts(self, bolt: Path, change: dict[str, Any]) -> None:
        before, after = (Experiment(bolt, config).training_key() for config in (CONFIG, CONFIG.replace(**change)))
        assert before != after

    def test_neither_place_nor_preset_nor_rate_counts(self, bolt: Path, copied: Path) -> None:
        key = Experiment(bolt, CONFIG).training_key()
        for other in (
            Experiment(copied, CONFIG),
            Experiment(bolt, dataclasses.replace(CONFIG, preset="mine")),
            Experiment(bolt, CONFIG.replace(false_alarm_rate=0.2)),
            Experiment(bolt, CONFIG.replace(aim="balanced", synthetic_defects=30)),
            Experiment(bolt, CONFIG, scoring="center", calibrated=False),
        ):
            assert other.training_key() == key

    @pytest.mark.parametrize(
        "change",
        [
            lambda good: part(999)[0].save(good / "000.png"),
            lambda good: (good / "000.png").rename(good / "100.png"),
            lambda good: (good / "000.png").unlink(),
            lambda good: shutil.copy(good / "000.png", good / "100.png"),
        ],
        ids=["pixels", "name", "gone", "new"],
    )
    def test_every_training_image_counts(self, copied: Path, change: Callable[[Path], object]) -> None:
        before = Experiment(copied, CONFIG).training_key()
        change(copied / "train" / "good")
        assert Experiment(copied, CONFIG).training_key() != before

    @pytest.mark.parametrize(
        "change",
        [
            lambda root: part(999)[0].save(root / "test" / "good" / "000.png"),
            lambda root: (root / "test" / "good" / "000.png").rename(root / "test" / "spot" / "100.png"),
            lambda root: part(999)[1].save(root / "ground_truth" / "spot" / "000_mask.png"),
            lambda root: shutil.rmtree(root / "ground_truth"),
        ],
        ids=["pixels", "label", "mask", "no-masks"],
    )
    def test_every_test_file_counts_for_the_result_alone(self, copied: Path, change: Callable[[Path], object]) -> None:
        one = Experiment(copied, CONFIG)
        training, test = one.training_key(), one.test_key(calibrated=True)
        change(copied)
        assert one.test_key(calibrated=True) != test
        assert one.training_key() == training

    def test_scoring_and_threshold_count_for_the_result(self, bolt: Path) -> None:
        strict = CONFIG.replace(false_alarm_rate=0.2)
        keys = {
            Experiment(bolt, CONFIG).test_key(calibrated=True),
            Experiment(bolt, CONFIG).test_key(calibrated=False),
            Experiment(bolt, strict).test_key(calibrated=True),
            Experiment(bolt, CONFIG, scoring="center").test_key(calibrated=True),
        }
        assert len(keys) == 4
        assert Experiment(bolt, strict).test_key(calibrated=False) in keys  # no threshold, no rate

    def test_the_aim_and_the_synthetic_defects_count_for_the_threshold_alone(self, bolt: Path) -> None:
        others = [CONFIG.replace(aim="balanced"), CONFIG.replace(synthetic_defects=30)]
        others.append(CONFIG.replace(aim="balanced", synthetic_defects=30))
        keys = {Experiment(bolt, config).test_key(calibrated=True) for config in (CONFIG, *others)}
        assert len(keys) == 4
        without = {Experiment(bolt, config).test_key(calibrated=False) for config in (CONFIG, *others)}
        assert len(without) == 1


class TestInterruption:
    def test_a_stopped_training_goes_on_and_ends_the_same(
        self, done: ExperimentResult, bolt: Path, tmp_path: Path
    ) -> None:
        experiment = Experiment(bolt, CONFIG)
        for step, steps in ((1, [1]), (2, [2])):
            watch = Watch(stop_at=("training", step))
            with pytest.raises(Interrupted, match=f"stopped at step {step} of 3"):
                watch.store(tmp_path).result(experiment)
            assert watch.steps == steps
            assert set(files(tmp_path)) == {f"{done.folder.name}/training.safetensors"}
        watch = Watch()
        result = watch.store(tmp_path).result(experiment)
        assert watch.steps == [3]
        assert same_weights(result.folder, done.folder)
        check_same(result, done)
        assert "training.safetensors" not in files(result.folder)

    @pytest.mark.parametrize("stage", ["images", "memory", "threshold", "inspect"])
    def test_a_stop_outside_training_costs_no_training(
        self, done: ExperimentResult, bolt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
    ) -> None:
        with pytest.raises(Interrupted, match=f"stopped during {stage}"):
            Watch(stop_at=(stage, 2)).store(tmp_path).result(Experiment(bolt, CONFIG))
        if stage != "images":
            forbid(monkeypatch, "train")
        result = ExperimentStore(tmp_path, device="cpu").result(Experiment(bolt, CONFIG))
        check_same(result, done)

    def test_another_aim_continues_a_stopped_training(self, done: ExperimentResult, bolt: Path, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            Watch(stop_at=("training", 2)).store(tmp_path).result(Experiment(bolt, CONFIG))
        watch, balanced = Watch(), CONFIG.replace(aim="balanced", synthetic_defects=24)
        result = watch.store(tmp_path).result(Experiment(bolt, balanced))
        assert watch.steps == [3]
        assert same_weights(result.folder, done.folder)
        assert result.metrics["detection_auroc"] == done.metrics["detection_auroc"]
        assert result.data["evaluation"]["threshold"] != done.data["evaluation"]["threshold"]

    def test_an_image_that_changed_meanwhile_is_another_training(self, copied: Path, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            Watch(stop_at=("training", 2)).store(tmp_path / "runs").result(Experiment(copied, CONFIG))
        part(999)[0].save(copied / "train" / "good" / "000.png")
        watch = Watch()
        watch.store(tmp_path / "runs").result(Experiment(copied, CONFIG))
        assert watch.steps == [1, 2, 3]


def map_by_hand(image: Tensor, fresh: Tensor, embed: Callable[[Tensor], Tensor]) -> NDArray[np.float32]:
    """Each pixel's mean distance to the centre over the 64-px patches, 16 px apart, that it belongs to."""
    total, count = np.zeros(image.shape[1:]), np.zeros(image.shape[1:])
    for top in range(0, image.shape[1] - 63, 16):
        for left in range(0, image.shape[2] - 63, 16):
            patch = image[None, :, top : top + 64, left : left + 64]
            total[top : top + 64, left : left + 64] += float((embed(patch)[0] - fresh).norm())
            count[top : top + 64, left : left + 64] += 1
    return (total / count).astype(np.float32)


class TestCenter:
    def test_scores_are_distances_to_the_mean_embedding(self, bolt: Path, centered: ExperimentResult) -> None:
        good = load_good_images(bolt, CENTERED).pixels
        normalize = Normalization.fit(good, CENTERED)
        untrained, trained = build_encoder(CENTERED), build_encoder(CENTERED)
        trained.load_state_dict(weights(centered.folder))
        patches = torch.cat(
            [normalize(good)[:, :, y : y + 64, x : x + 64] for y in (0, 16) for x in (0, 16)]
        )  # all patches of all training images
        with torch.no_grad():
            center = untrained.encode({64: patches})[64].mean(0)
            for image in centered.data["images"]:
                pixels = normalize(load_image(bolt / image["image"], CENTERED).tensor[None])[0]
                expected = map_by_hand(pixels, center, lambda patch: trained.encode({64: patch})[64])
                assert image["score"] == pytest.approx(expected.max(), rel=1e-4)
        assert len({image["score"] for image in centered.data["images"]}) > 3

    def test_it_has_no_threshold(self, centered: ExperimentResult) -> None:
        assert centered.data["evaluation"]["threshold"] is None
        assert centered.data["scoring"] == "center"

    def test_both_scorings_share_the_encoder(
        self, bolt: Path, centered: ExperimentResult, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forbid(monkeypatch, "train")
        nearest = store_of(centered).result(Experiment(bolt, CENTERED))
        assert nearest.folder == centered.folder
        assert nearest.data["images"] != centered.data["images"]
        again = store_of(centered).result(Experiment(bolt, CENTERED, scoring="center"))
        assert content(again) == content(centered)


class TestCollapse:
    def test_is_a_result_without_metrics_that_says_why(self, collapsed: ExperimentResult) -> None:
        assert collapsed.metrics == {}
        assert collapsed.scales == {}
        assert set(collapsed.missing) == {"detection_auroc", "segmentation_auroc"}
        for reason in collapsed.missing.values():
            assert reason.startswith("training collapsed: the embeddings collapsed by step")
            assert "`lambda_=100`" in reason
        assert collapsed.sample_maps().read() == []

    def test_is_not_trained_again(
        self, bolt: Path, collapsed: ExperimentResult, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forbid(monkeypatch, "train")
        assert content(store_of(collapsed).result(Experiment(bolt, COLLAPSING))) == content(collapsed)
        other = store_of(collapsed).result(Experiment(bolt, COLLAPSING, scoring="center"))
        assert other.missing == collapsed.missing

    def test_leaves_an_untrained_encoder_where_training_may_stop_early(self, bolt: Path, tmp_path: Path) -> None:
        config = COLLAPSING.replace(stop="validation")
        store = ExperimentStore(tmp_path, device="cpu")
        result = store.result(Experiment(bolt, config))
        training = result.data["training"]
        assert (training["steps"], training["kept_untrained"], training["lambda"]) == (0, True, None)
        (reason,) = training["collapses"]
        assert "`lambda_=100`" in reason
        assert "validation" not in training
        assert result.metrics["detection_auroc"] > 0
        fresh = rounded(build_encoder(config)).state_dict()
        assert all(torch.equal(fresh[name], value) for name, value in weights(result.folder).items())


class TestJudged:
    """Trainings that are undone unless drawn defects are found better by them."""

    def test_the_result_tells(self, early: ExperimentResult) -> None:
        training = early.data["training"]
        found = training["validation"]
        assert set(found) == {"untrained", "trained"}
        assert all(0 <= value <= 1 for value in found.values())
        assert training["kept_untrained"] == (found["trained"] <= found["untrained"] + MARGIN)
        assert training["steps"] == 3

    def test_without_judging_there_is_nothing_to_tell(self, done: ExperimentResult) -> None:
        assert not {"validation", "kept_untrained"} & set(done.data["training"])

    def test_is_that_of_fit_and_evaluate(self, bolt: Path, early: ExperimentResult) -> None:
        detector = PatchSVDD.fit(bolt, preset="encoder", device="cpu", **(SETTINGS | {"stop": "validation"}))
        assert early.metrics.items() >= evaluate(detector, bolt).metrics.items()
        training = detector.provenance["training"]
        assert training["validation"] == pytest.approx(early.data["training"]["validation"], abs=1e-5)
        assert (training["kept"] == "untrained") == early.data["training"]["kept_untrained"]
        kept = detector.embedder.encoder.state_dict()
        assert all(torch.equal(kept[name], value) for name, value in weights(early.folder).items())

    @pytest.mark.parametrize(("margin", "undone"), [(1.0, True), (-1.0, False)])
    def test_a_stopped_training_goes_on_and_keeps_the_same(
        self, bolt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, margin: float, undone: bool
    ) -> None:
        monkeypatch.setattr("patchsvdd.detector.fitting.MARGIN", margin)
        images = load_good_images(bolt, EARLY)
        whole, training = ExperimentStore(tmp_path / "whole", device="cpu").encoder(Experiment(bolt, EARLY), images)
        assert training["kept_untrained"] == undone
        with pytest.raises(Interrupted):
            Watch(stop_at=("training", 2)).store(tmp_path / "runs").encoder(Experiment(bolt, EARLY), images)
        watch = Watch()
        resumed, again = watch.store(tmp_path / "runs").encoder(Experiment(bolt, EARLY), images)
        assert watch.steps == [3]
        assert (again["validation"], again["kept_untrained"]) == (training["validation"], undone)
        fresh, kept = rounded(build_encoder(EARLY)).state_dict(), resumed.state_dict()
        assert all(torch.equal(kept[name], value) for name, value in whole.state_dict().items())
        assert all(torch.equal(kept[name], value) for name, value in fresh.items()) == undone

    def test_nothing_is_judged_twice(
        self, bolt: Path, early: ExperimentResult, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forbid(monkeypatch, "train", "revert_if_not_better")
        other = store_of(early).result(Experiment(bolt, EARLY.replace(false_alarm_rate=0.5)))
        assert other.folder == early.folder
        assert other.data["training"] == early.data["training"]


class TestWithoutEncoder:
    def test_a_result_is_found(
        self, spoilt: ExperimentStore, done: ExperimentResult, bolt: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        next(spoilt.folder.rglob("encoder.safetensors")).unlink()
        forbid(monkeypatch, "train")
        check_same(spoilt.result(Experiment(bolt, CONFIG)), done)

    def test_what_was_computed_from_an_encoder_is_remembered(self, spoilt: ExperimentStore, bolt: Path) -> None:
        experiment = Experiment(bolt, CONFIG)
        assert spoilt.remember(experiment, "points", lambda: (1.5, None)) == [1.5, None]
        next(spoilt.folder.rglob("encoder.safetensors")).unlink()
        assert spoilt.remember(experiment, "points", lambda: pytest.fail("computed again")) == [1.5, None]
        assert spoilt.remember(experiment, "lines", lambda: 2) == 2

    def test_what_was_remembered_and_damaged(self, spoilt: ExperimentStore, bolt: Path) -> None:
        experiment = Experiment(bolt, CONFIG)
        spoilt.remember(experiment, "points", lambda: 1)
        path = next(spoilt.folder.rglob("points.json"))
        path.write_text("[1,")
        with pytest.raises(ModelError, match="delete it to compute it again"):
            spoilt.remember(experiment, "points", lambda: 1)
        path.unlink()
        assert spoilt.remember(experiment, "points", lambda: 1) == 1


class TestDamage:
    @pytest.mark.parametrize("content", [b"", b"not an encoder", None])
    def test_an_encoder_that_cannot_be_read(
        self, spoilt: ExperimentStore, done: ExperimentResult, bolt: Path, content: bytes | None
    ) -> None:
        path = next(spoilt.folder.rglob("encoder.safetensors"))
        path.write_bytes(path.read_bytes()[:-1000] if content is None else content)
        next(spoilt.folder.rglob("*.json")).unlink()
        with pytest.raises(ModelError) as error:
            spoilt.result(Experiment(bolt, CONFIG))
        assert str(path) in str(error.value)
        assert "delete it to train again" in str(error.value)
        path.unlink()
        check_same(spoilt.result(Experiment(bolt, CONFIG)), done)

    def test_an_encoder_of_other_settings(self, spoilt: ExperimentStore, bolt: Path) -> None:
        path = next(spoilt.folder.rglob("encoder.safetensors"))
        small = CONFIG.replace(embedding_dim=8, steps=0)
        other = spoilt.result(Experiment(bolt, small))
        shutil.copy(other.folder / "encoder.safetensors", path)
        next(path.parent.glob("*.json")).unlink()
        with pytest.raises(ModelError, match="delete it to train again"):
            spoilt.result(Experiment(bolt, CONFIG))

    @pytest.mark.parametrize("content", [b"", b'{"evaluation": {', b"\xff\xfe\x00"])
    def test_a_result_that_cannot_be_read(
        self,
        spoilt: ExperimentStore,
        done: ExperimentResult,
        bolt: Path,
        content: bytes,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        path = next(spoilt.folder.rglob("*.json"))
        path.write_bytes(content)
        for ask in (spoilt.find, spoilt.result):
            with pytest.raises(ModelError) as error:
                ask(Experiment(bolt, CONFIG))
            assert str(path) in str(error.value)
            assert "delete it to compute it again" in str(error.value)
        path.unlink()
        forbid(monkeypatch, "train")
        check_same(spoilt.result(Experiment(bolt, CONFIG)), done)
