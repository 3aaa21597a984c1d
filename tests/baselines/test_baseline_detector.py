from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchsvdd.baselines.detector import BaselineDetector, shortened
from patchsvdd.baselines.load import load_detector
from patchsvdd.core.baseline_settings import BASELINES
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation.evaluate import evaluate
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_store import ExperimentStore
from support.baselines import parts, short
from support.parts import draw_part


def settings(kind: str) -> dict[str, Any]:
    return {"image_size": 64, "baseline": short(kind), "device": "cpu", "minutes": 40}


@pytest.fixture(params=list(BASELINES), scope="module")
def fitted(request: pytest.FixtureRequest) -> BaselineDetector:
    kind = str(request.param)
    return BaselineDetector.fit([draw_part(seed) for seed in range(10)], preset=kind, **settings(kind))


def test_inspects_like_any_detector(fitted: BaselineDetector) -> None:
    inspection = fitted.inspect(draw_part(20))
    assert inspection.anomaly_map.shape == (64, 64)
    assert inspection.score == pytest.approx(float(inspection.anomaly_map.max()))
    assert inspection.threshold == fitted.threshold < float("inf")
    assert fitted.localizes == (fitted.config.preset != "deep-svdd")
    many = list(fitted.inspect_many([draw_part(20), draw_part(21)]))
    assert many[0].score == pytest.approx(inspection.score, rel=1e-5)
    with pytest.raises(ModelError, match="nothing to compare with"):
        inspection.explain()


def test_a_stored_model_gives_the_same_scores(fitted: BaselineDetector, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    for stored in (BaselineDetector.load(tmp_path, "cpu"), load_detector(tmp_path, "cpu")):
        assert stored.identity == fitted.identity is not None
        assert stored.config == fitted.config
        assert stored.inspect(draw_part(20)).score == fitted.inspect(draw_part(20)).score
        assert stored.threshold == fitted.threshold
    with pytest.raises(ModelError, match="holds a baseline"):
        PatchSVDD.load(tmp_path, "cpu")


def test_a_damaged_model_is_refused(fitted: BaselineDetector, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    part = next(tmp_path.glob("baseline-*.safetensors"))
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(ModelError, match="checksum does not match"):
        load_detector(tmp_path, "cpu")


def test_only_baselines_are_fitted_here_and_none_elsewhere() -> None:
    images = [draw_part(seed) for seed in range(4)]
    with pytest.raises(ConfigError, match="'paper' is not a baseline"):
        BaselineDetector.fit(images, preset="paper", device="cpu", image_size=64)
    with pytest.raises(ConfigError, match="is a baseline, not Patch SVDD"):
        PatchSVDD.fit(images, preset="l2-ae", device="cpu", image_size=64)


def test_minutes_shorten_the_training() -> None:
    long = dataclasses.replace(short("l2-ae"), epochs=100_000, views=4)
    much_shorter = shortened(long, parts(), 0, 2)
    assert 1 <= much_shorter.epochs < long.epochs
    assert shortened(short("l2-ae"), parts(), 0, 1e9) == short("l2-ae")
    wide = dataclasses.replace(short("l2-ae"), epochs=1, views=10_000_000)
    assert shortened(wide, parts(), 0, 1).views < 10_000_000  # type: ignore[operator]


def test_the_evaluation_says_that_deep_svdd_has_no_map(category: Path) -> None:
    for kind in ("deep-svdd", "l2-ae"):
        detector = BaselineDetector.fit(category, preset=kind, **settings(kind))
        evaluation = evaluate(detector, category)
        assert 0 <= evaluation.metrics["detection_auroc"] <= 1
        assert ("segmentation_auroc" in evaluation.metrics) == (kind == "l2-ae")
        if kind == "deep-svdd":
            assert evaluation.skipped["segmentation_auroc"] == "deep-svdd scores whole images; it has no map"


@pytest.mark.parametrize("kind", ["deep-svdd", "ssim-ae"])
def test_an_experiment_is_trained_once(kind: str, category: Path, tmp_path: Path) -> None:
    config = preset(kind, image_size=64, baseline=short(kind))
    store = ExperimentStore(tmp_path, device="cpu")
    result = store.result(Experiment(category, config))
    detector, training = store.detector(Experiment(category, config))
    assert training["steps"] == result.data["training"]["steps"] > 0
    again = np.array([inspection.score for inspection in detector.inspect_many(category / "test" / "good")])
    stored = [image["score"] for image in result.data["images"] if image["defect"] == "good"]
    assert np.allclose(sorted(again), sorted(stored), rtol=1e-5)
