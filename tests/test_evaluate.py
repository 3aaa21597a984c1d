from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import draw_part, save_picture
from patchsvdd.detector import PatchSVDD
from patchsvdd.errors import DatasetError
from patchsvdd.evaluation.evaluate import Evaluation, evaluate
from patchsvdd.evaluation.metrics import auroc
from patchsvdd.images import load_mask


def test_metrics_are_those_of_the_single_inspections(detector: PatchSVDD, category: Path) -> None:
    evaluation = evaluate(detector, category)
    inspections, masks, labels = [], [], []
    for kind in ("crack", "good"):
        for index in range(2):
            inspections.append(detector.inspect(category / "test" / kind / f"{index:03}.png"))
            labels.append(kind != "good")
            mask = np.zeros((64, 64), bool)
            if kind == "crack":
                mask = load_mask(category / "ground_truth" / kind / f"{index:03}_mask.png", (64, 64), "area")
            masks.append(mask)
    truth = np.stack(masks)
    assert evaluation.metrics == {
        "detection_auroc": auroc(np.array(labels), np.array([one.score for one in inspections])),
        "segmentation_auroc": auroc(truth, np.stack([one.anomaly_map for one in inspections])),
    }
    assert set(evaluation.scales) == {32, 64}
    for size, metrics in evaluation.scales.items():
        maps = np.stack([one.scale_maps[size] for one in inspections])
        assert metrics["segmentation_auroc"] == auroc(truth, maps)
        assert metrics["detection_auroc"] == auroc(np.array(labels), maps.max((1, 2)))
    assert evaluation.verdicts == {
        kind: {"images": 2, "anomalous": sum(one.is_anomalous for one in inspections[start : start + 2])}
        for kind, start in (("crack", 0), ("good", 2))
    }
    assert evaluation.images == 4
    assert evaluation.threshold == detector.threshold
    assert (evaluation.skipped, evaluation.warnings) == ({}, ())
    assert evaluation.seconds_per_image > 0


def test_progress_counts_the_images(detector: PatchSVDD, category: Path) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(detector, category, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def assert_skipped(evaluation: Evaluation, metric: str, reason: str) -> None:
    assert metric not in evaluation.metrics
    assert all(metric not in metrics for metrics in evaluation.scales.values())
    assert set(evaluation.skipped) == {metric}
    assert reason in evaluation.skipped[metric]


class TestSkipped:
    def test_no_masks(self, detector: PatchSVDD, category: Path) -> None:
        shutil.rmtree(category / "ground_truth")
        evaluation = evaluate(detector, category)
        assert_skipped(evaluation, "segmentation_auroc", "no masks (no ground_truth folder)")
        assert "detection_auroc" in evaluation.metrics

    def test_no_good_images(self, detector: PatchSVDD, category: Path) -> None:
        shutil.rmtree(category / "test" / "good")
        evaluation = evaluate(detector, category)
        assert_skipped(evaluation, "detection_auroc", "no good test images")
        assert "segmentation_auroc" in evaluation.metrics

    def test_no_defects(self, detector: PatchSVDD, category: Path) -> None:
        shutil.rmtree(category / "test" / "crack")
        shutil.rmtree(category / "ground_truth")
        evaluation = evaluate(detector, category)
        assert set(evaluation.skipped) == {"detection_auroc", "segmentation_auroc"}
        assert "no test images with defects" in evaluation.skipped["detection_auroc"]

    def test_masks_whose_names_fit_no_image(self, detector: PatchSVDD, category: Path) -> None:
        for path in (category / "ground_truth" / "crack").iterdir():
            path.rename(path.with_name("x" + path.name))
        evaluation = evaluate(detector, category)
        assert_skipped(evaluation, "segmentation_auroc", "none of the 2 masks fits a test image by name")
        assert "ground_truth/crack/x000_mask.png" in evaluation.skipped["segmentation_auroc"]
        assert "test/crack/x000.*" in evaluation.skipped["segmentation_auroc"]

    def test_empty_masks(self, detector: PatchSVDD, category: Path) -> None:
        for path in (category / "ground_truth" / "crack").iterdir():
            save_picture(path, np.zeros((64, 64), np.uint8))
        assert_skipped(evaluate(detector, category), "segmentation_auroc", "no test image has a mask with a defect")

    def test_masks_that_leave_no_good_pixel(self, detector: PatchSVDD, category: Path) -> None:
        shutil.rmtree(category / "test" / "good")
        for path in (category / "ground_truth" / "crack").iterdir():
            save_picture(path, np.full((64, 64), 255, np.uint8))
        evaluation = evaluate(detector, category)
        assert set(evaluation.skipped) == {"detection_auroc", "segmentation_auroc"}


class TestWarnings:
    def test_an_unreadable_image_is_left_out_and_named(self, detector: PatchSVDD, category: Path) -> None:
        path = category / "test" / "crack" / "000.png"
        path.write_bytes(path.read_bytes()[:200])
        (category / "test" / "good" / "x.png").touch()
        evaluation = evaluate(detector, category)
        assert evaluation.images == 3
        assert any("000.png" in warning for warning in evaluation.warnings)
        assert any("x.png: is an empty file" in warning for warning in evaluation.warnings)
        assert "detection_auroc" in evaluation.metrics

    def test_a_missing_mask_is_named(self, detector: PatchSVDD, category: Path) -> None:
        (category / "ground_truth" / "crack" / "001_mask.png").unlink()
        evaluation = evaluate(detector, category)
        assert "segmentation_auroc" in evaluation.metrics
        (warning,) = evaluation.warnings
        assert "1 defective images have no mask" in warning
        assert "001.png" in warning

    def test_a_broken_mask_is_named(self, detector: PatchSVDD, category: Path) -> None:
        path = category / "ground_truth" / "crack" / "001_mask.png"
        path.write_bytes(path.read_bytes()[:60])
        evaluation = evaluate(detector, category)
        assert any("001_mask.png" in warning for warning in evaluation.warnings)
        assert "segmentation_auroc" in evaluation.metrics

    def test_no_readable_image_is_an_error(self, detector: PatchSVDD, category: Path) -> None:
        for path in (category / "test").rglob("*.png"):
            path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(DatasetError, match="none of the test images"):
            evaluate(detector, category)


def test_masks_may_have_another_size(detector: PatchSVDD, category: Path) -> None:
    before = evaluate(detector, category).metrics
    for path in (category / "ground_truth" / "crack").iterdir():
        mask = np.zeros((128, 128), np.uint8)
        mask[54:74, 54:74] = 255
        save_picture(path, mask)
    assert evaluate(detector, category).metrics == before


def test_images_of_several_sizes(detector: PatchSVDD, category: Path) -> None:
    save_picture(category / "test" / "good" / "wide.png", draw_part(30, (70, 90)))
    parts = (detector.config.replace(image_size="native"), detector.encoder, detector.normalization, detector.memory)
    native = PatchSVDD(*parts, detector.calibration, {}, torch.device("cpu"))
    assert set(evaluate(native, category).metrics) == {"detection_auroc", "segmentation_auroc"}


@pytest.mark.parametrize("calibrated", [True, False])
def test_json_is_json(detector: PatchSVDD, category: Path, calibrated: bool) -> None:
    parts = (detector.config, detector.encoder, detector.normalization, detector.memory)
    one = PatchSVDD(*parts, detector.calibration if calibrated else None, {}, torch.device("cpu"))

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    data = json.loads(json.dumps(evaluate(one, category).to_json()), parse_constant=refuse)
    assert data["images"] == 4
    assert set(data["scales"]) == {"32", "64"}
    assert (data["threshold"] is not None) is calibrated
