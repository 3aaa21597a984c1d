from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from patchsvdd.core.errors import DatasetError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation.evaluate import Evaluation, evaluate
from patchsvdd.evaluation.metrics import Confusion, aupro, auroc, average_precision, best_f1
from patchsvdd.evaluation.streaming_metrics import PixelCurves
from patchsvdd.images.image_set import load_mask
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.inspection import Inspection
from support.parts import assemble, draw_part, save_picture

FILES = [f"{kind}/{index:03}" for kind in ("crack", "good") for index in range(2)]
"""The test images of the category, in order of name."""
LABELS = np.array([True, True, False, False])
DETECTION = {"detection_auroc", "detection_ap", "detection_f1_max", "detection_f1_threshold"}
SEGMENTATION = {
    *("segmentation_auroc", "segmentation_ap", "segmentation_f1_max", "segmentation_f1_threshold"),
    "aupro",
}


def inspect_one_by_one(detector: PatchSVDD, category: Path) -> list[Inspection]:
    return [detector.inspect(category / "test" / f"{name}.png") for name in FILES]


def true_masks(category: Path) -> list[NDArray[np.bool_]]:
    masks = [load_mask(category / "ground_truth" / f"{name}_mask.png", (64, 64), "area") for name in FILES[:2]]
    return masks + [np.zeros((64, 64), bool)] * 2


def with_threshold(detector: PatchSVDD, threshold: float | None) -> PatchSVDD:
    """The same detector with another threshold, or none."""
    parts = (detector.config, detector.encoder, detector.normalization, detector.memory)
    calibration = None if threshold is None else Calibration(threshold, 0.01, (threshold,))
    return assemble(*parts, calibration)


def check_detection(metrics: dict[str, float], scores: NDArray[np.float32]) -> None:
    """The metrics of images are those of the scores, to the last digit."""
    f1, threshold = best_f1(LABELS, scores)
    assert {name: metrics[name] for name in DETECTION} == {
        "detection_auroc": auroc(LABELS, scores),
        "detection_ap": average_precision(LABELS, scores),
        "detection_f1_max": f1,
        "detection_f1_threshold": threshold,
    }


def check_segmentation(
    metrics: dict[str, float], maps: list[NDArray[np.float32]], masks: list[NDArray[np.bool_]]
) -> None:
    """The metrics of pixels are those of the maps, as exactly as PixelCurves promises."""
    counted = PixelCurves()
    for one, mask in zip(maps, masks, strict=True):
        counted.add(one, mask)
    values, truth = np.stack(maps), np.stack(masks)
    for name, exact, error in (
        ("segmentation_auroc", auroc(truth, values), counted.auroc_error()),
        ("segmentation_ap", average_precision(truth, values), counted.average_precision_error()),
        ("aupro", aupro(maps, masks), counted.aupro_error()),
    ):
        assert abs(metrics[name] - exact) <= error + 1e-12, name
    called = values >= np.float32(metrics["segmentation_f1_threshold"])
    f1 = 2 * np.sum(called & truth) / (np.sum(called) + np.sum(truth))
    assert metrics["segmentation_f1_max"] == pytest.approx(f1, abs=1e-12)


def test_metrics_are_those_of_the_single_inspections(detector: PatchSVDD, category: Path) -> None:
    evaluation = evaluate(detector, category)
    inspections, masks = inspect_one_by_one(detector, category), true_masks(category)
    assert set(evaluation.metrics) == DETECTION | SEGMENTATION
    check_detection(evaluation.metrics, np.array([one.score for one in inspections]))
    maps = [one.anomaly_map for one in inspections]
    check_segmentation(evaluation.metrics, maps, masks)
    assert evaluation.metrics["segmentation_auroc"] == pytest.approx(auroc(np.stack(masks), np.stack(maps)), abs=1e-3)
    assert evaluation.metrics["aupro"] == pytest.approx(aupro(maps, masks), abs=1e-3)
    assert set(evaluation.scales) == {32, 64}
    for size, metrics in evaluation.scales.items():
        maps = [one.scale_maps[size] for one in inspections]
        assert set(metrics) == DETECTION | SEGMENTATION
        check_detection(metrics, np.array([one.max() for one in maps]))
        check_segmentation(metrics, maps, masks)
    assert evaluation.images == 4
    assert evaluation.threshold == detector.threshold
    assert (evaluation.skipped, evaluation.warnings) == ({}, ())
    assert evaluation.seconds_per_image > 0


def test_curves_are_drawn_from_corner_to_corner(detector: PatchSVDD, category: Path) -> None:
    curves = evaluate(detector, category).curves
    assert set(curves) == {"roc", "pixel_roc", "pro"}
    for name, curve in curves.items():
        assert (curve.x[0], curve.y[0]) == (0, 0)
        assert curve.x[-1] == pytest.approx(0.3 if name == "pro" else 1)
        assert sorted(curve.x) == curve.x
        assert sorted(curve.y) == curve.y


class TestVerdicts:
    @pytest.mark.parametrize("rank", [1, 3])
    def test_those_above_the_threshold_are_called_anomalous(
        self, detector: PatchSVDD, category: Path, rank: int
    ) -> None:
        scores = np.array([one.score for one in inspect_one_by_one(detector, category)])
        threshold = float(np.sort(scores)[rank])
        called = scores > threshold
        assert called.sum() == 3 - rank
        evaluation = evaluate(with_threshold(detector, threshold), category)
        cracked, good = int(called[:2].sum()), int(called[2:].sum())
        assert evaluation.verdicts == {
            "crack": {"images": 2, "anomalous": cracked},
            "good": {"images": 2, "anomalous": good},
        }
        assert evaluation.confusion == Confusion(
            true_positive=cracked, false_positive=good, true_negative=2 - good, false_negative=2 - cracked
        )
        told = evaluation.to_json()
        assert told["false_alarm_rate"] == good / 2
        assert told["miss_rate"] == 1 - cracked / 2
        assert told["threshold"] == threshold

    def test_without_a_threshold_there_are_no_rates(self, detector: PatchSVDD, category: Path) -> None:
        evaluation = evaluate(with_threshold(detector, None), category)
        assert evaluation.confusion is None
        told = evaluation.to_json()
        assert told["confusion"] is told["false_alarm_rate"] is told["miss_rate"] is told["threshold"] is None
        assert set(evaluation.metrics) == DETECTION | SEGMENTATION

    def test_without_good_images_there_is_no_false_alarm_rate(self, detector: PatchSVDD, category: Path) -> None:
        shutil.rmtree(category / "test" / "good")
        told = evaluate(with_threshold(detector, 0.0), category).to_json()
        assert told["false_alarm_rate"] is None
        assert told["miss_rate"] == 0

    def test_without_defects_there_is_no_miss_rate(self, detector: PatchSVDD, category: Path) -> None:
        shutil.rmtree(category / "test" / "crack")
        told = evaluate(with_threshold(detector, 0.0), category).to_json()
        assert told["false_alarm_rate"] == 1
        assert told["miss_rate"] is None


def test_progress_counts_the_images(detector: PatchSVDD, category: Path) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(detector, category, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def assert_skipped(evaluation: Evaluation, metric: str, reason: str) -> None:
    absent, present = (DETECTION, SEGMENTATION) if metric in DETECTION else (SEGMENTATION, DETECTION)
    for metrics in (evaluation.metrics, *evaluation.scales.values()):
        assert set(metrics) == present
        assert not absent & set(evaluation.to_json())
    assert set(evaluation.skipped) == {metric}
    assert reason in evaluation.skipped[metric]


class TestSkipped:
    def test_no_masks(self, detector: PatchSVDD, category: Path) -> None:
        shutil.rmtree(category / "ground_truth")
        evaluation = evaluate(detector, category)
        assert_skipped(evaluation, "segmentation_auroc", "no masks (no ground_truth folder)")
        assert set(evaluation.curves) == {"roc"}

    def test_no_good_images(self, detector: PatchSVDD, category: Path) -> None:
        shutil.rmtree(category / "test" / "good")
        evaluation = evaluate(detector, category)
        assert_skipped(evaluation, "detection_auroc", "no good test images")
        assert set(evaluation.curves) == {"pixel_roc", "pro"}

    def test_no_defects(self, detector: PatchSVDD, category: Path) -> None:
        shutil.rmtree(category / "test" / "crack")
        shutil.rmtree(category / "ground_truth")
        evaluation = evaluate(detector, category)
        assert set(evaluation.skipped) == {"detection_auroc", "segmentation_auroc"}
        assert "no test images with defects" in evaluation.skipped["detection_auroc"]
        assert (evaluation.metrics, evaluation.curves) == ({}, {})

    def test_masks_whose_names_fit_no_image(self, detector: PatchSVDD, category: Path) -> None:
        for path in (category / "ground_truth" / "crack").iterdir():
            path.rename(path.with_name("x" + path.name))
        evaluation = evaluate(detector, category)
        assert_skipped(evaluation, "segmentation_auroc", "none of the 2 masks matches a test image by name")
        assert "ground_truth/crack/x000_mask.png" in evaluation.skipped["segmentation_auroc"]
        assert "test/crack/x000.*" in evaluation.skipped["segmentation_auroc"]

    def test_empty_masks(self, detector: PatchSVDD, category: Path) -> None:
        for path in (category / "ground_truth" / "crack").iterdir():
            save_picture(path, np.zeros((64, 64), np.uint8))
        assert_skipped(evaluate(detector, category), "segmentation_auroc", "no mask of a test image marks a defect")

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
    native = assemble(*parts, detector.calibration)
    assert set(evaluate(native, category).metrics) == DETECTION | SEGMENTATION


def test_what_the_threshold_costs_is_reported(detector: PatchSVDD, category: Path) -> None:
    lenient, strict = (evaluate(with_threshold(detector, value), category) for value in (1e9, 0.0))
    for evaluation in (lenient, strict):  # nothing is found, or everything alarms: half of the verdicts are right
        assert evaluation.at_threshold["balanced_accuracy"] == 0.5
        lost = evaluation.metrics["detection_f1_max"] - evaluation.at_threshold["detection_f1"]
        assert evaluation.at_threshold["detection_f1_lost"] == pytest.approx(lost)
    assert lenient.at_threshold["region_recall"] == 0.0
    assert lenient.at_threshold["region_f1_lost"] == lenient.metrics["segmentation_f1_max"]
    assert strict.at_threshold["region_recall"] == 1.0
    assert strict.to_json()["false_alarm_rate_interval"][1] == 1.0
    assert evaluate(with_threshold(detector, None), category).at_threshold == {}


@pytest.mark.parametrize("threshold", [0.5, None])
def test_json_is_json(detector: PatchSVDD, category: Path, threshold: float | None) -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    evaluation = evaluate(with_threshold(detector, threshold), category)
    data = json.loads(json.dumps(evaluation.to_json()), parse_constant=refuse)
    assert data.items() >= evaluation.metrics.items()
    assert data["scales"] == {str(size): metrics for size, metrics in evaluation.scales.items()}
    assert data["images"] == 4
    assert data["verdicts"] == evaluation.verdicts
    assert data["threshold"] == threshold
