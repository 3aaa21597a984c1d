"""What is smaller than ``min_area`` is passed over, by scores, verdicts, regions and pictures alike."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from scipy import ndimage  # type: ignore[import-untyped]

from patchsvdd.core.config import Config
from patchsvdd.core.errors import ConfigError, DatasetError, ImageError
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.memory_update import add_images
from patchsvdd.detector.model_folder import read_index, read_model, write_model
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.evaluation.collected_results import PRODUCT, inspect_test_images
from patchsvdd.export.export import export
from patchsvdd.images.image_set import load_image_set
from patchsvdd.report.detector_card import detector_card
from patchsvdd.report.overlay import OUTLINE, draw_overlay
from patchsvdd.report.report import write_report
from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.scoring.area_opening import area_in_map, area_opening_max
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.regions import find_regions, region_mask
from support.command_line import QUICK, draw_parts, rows, run
from support.parts import TINY, TINY_CRITIC, draw_part, save_picture

pytestmark = pytest.mark.slow

Map = NDArray[np.float32]
EIGHT = np.ones((3, 3))
MIN_AREA = 200
IN_MAP = 50
"""MIN_AREA of images of 128 × 128, in a map of 64 × 64."""

maps = npst.arrays(np.int8, st.tuples(st.integers(1, 12), st.integers(1, 12))).map(
    lambda values: (values % 8).astype(np.float32)
)

SMALL: dict[str, Any] = {**TINY, "larger_patches": "trained"}
"""The largest patch is the whole image: untrained, it would raise the map of every image with a spot."""


def largest_component(mask: NDArray[np.bool_]) -> int:
    labels, count = ndimage.label(mask, structure=EIGHT)
    return int(np.bincount(labels.ravel())[1:].max()) if count else 0


def slowly_opened(anomaly_map: Map, area: int, within: NDArray[np.bool_] | None = None) -> float:
    """The maximum of the area opening, by trying every value."""
    inside = np.ones(anomaly_map.shape, np.bool_) if within is None else within
    values = np.unique(anomaly_map[inside])
    return max(float(one) for one in values if largest_component((anomaly_map >= one) & inside) >= area)


def hills(*spots: tuple[int, int, int, float], size: int = 64) -> Map:
    """A flat map of 0.1 with squares on it: (top, left, side, height)."""
    anomaly_map = np.full((size, size), 0.1, np.float32)
    for top, left, side, height in spots:
        anomaly_map[top : top + side, left : left + side] = height
    return anomaly_map


class TestScore:
    """The maximum of the map's area opening."""

    @given(maps, st.integers(0, 144))
    def test_is_found_as_by_trying_every_value(self, anomaly_map: Map, area: int) -> None:
        assume(area <= anomaly_map.size)
        assert area_opening_max(anomaly_map, area) == slowly_opened(anomaly_map, area)

    @pytest.mark.parametrize("area", [1, 2, 7, 60, 900, 5000, 90 * 83])
    def test_of_a_large_map_ranked_in_pieces_too(self, area: int, monkeypatch: pytest.MonkeyPatch) -> None:
        noise = np.random.default_rng(area).random((90, 83))
        anomaly_map = ndimage.gaussian_filter(noise, 1.5).astype(np.float32)
        expected = slowly_opened(anomaly_map, area)
        assert area_opening_max(anomaly_map, area) == expected
        monkeypatch.setattr("patchsvdd.scoring.area_opening.PIXELS_AT_ONCE", 100)
        assert area_opening_max(anomaly_map, area) == expected

    @given(maps, st.integers(1, 144), st.floats(-1, 9))
    def test_exceeds_a_threshold_exactly_if_enough_lies_together_above_it(
        self, anomaly_map: Map, area: int, threshold: float
    ) -> None:
        assume(area <= anomaly_map.size)
        together = largest_component(anomaly_map.astype(np.float64) > threshold) >= area
        assert (area_opening_max(anomaly_map, area) > threshold) == together
        assert bool(find_regions(anomaly_map, threshold, min_area=area)) == together

    @given(maps)
    def test_of_one_pixel_is_the_maximum_and_of_all_the_minimum(self, anomaly_map: Map) -> None:
        assert area_opening_max(anomaly_map, 0) == area_opening_max(anomaly_map, 1) == anomaly_map.max()
        assert area_opening_max(anomaly_map, anomaly_map.size) == anomaly_map.min()

    def test_is_never_higher_for_a_larger_area(self) -> None:
        anomaly_map = np.random.default_rng(0).random((40, 50), np.float32)
        scores = [area_opening_max(anomaly_map, area) for area in (1, 2, 5, 30, 200, 2000)]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] > scores[-1]

    def test_a_corner_joins_and_an_edge_of_the_map_parts(self) -> None:
        anomaly_map = np.zeros((3, 4), np.float32)
        anomaly_map[0, 3] = anomaly_map[1, 0] = 1.0  # neighbours in memory, at opposite sides of the map
        assert area_opening_max(anomaly_map, 2) == 0
        anomaly_map[1, 2] = 0.5  # below the one, to its left
        assert area_opening_max(anomaly_map, 2) == 0.5

    def test_of_more_pixels_than_there_are_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"4x3 pixels cannot have 13 .* smaller `min_area`"):
            area_opening_max(np.zeros((3, 4), np.float32), 13)

    def test_of_what_is_no_number_is_none(self) -> None:
        assert math.isnan(area_opening_max(np.array([[1, np.nan], [2, 3]], np.float32), 2))

    def test_of_batches_is_each_images_own(self) -> None:
        batch = torch.from_numpy(np.random.default_rng(0).random((3, 20, 30), np.float32))
        found = image_score(batch, 17)
        assert found.dtype == torch.float32
        assert found.tolist() == [area_opening_max(one, 17) for one in batch.numpy()]
        assert torch.equal(image_score(batch), batch.flatten(1).amax(1))


class TestAreaInMap:
    @pytest.mark.parametrize(
        ("min_area", "working", "original", "expected"),
        [
            (0, (64, 64), (900, 900), 0),
            (1, (64, 64), (900, 900), 1),
            (200, (256, 256), (1024, 1024), 13),
            (208, (256, 256), (1024, 1024), 13),
            (100, (256, 256), (128, 128), 400),
            (77, None, (500, 700), 77),
            (77, (256, 256), None, 77),
            (77, None, None, 77),
            (500 * 700, (256, 256), (500, 700), 256 * 256),
        ],
    )
    def test_is_rounded_up(
        self, min_area: int, working: tuple[int, int] | None, original: tuple[int, int] | None, expected: int
    ) -> None:
        assert area_in_map(min_area, working, original) == expected

    @pytest.mark.parametrize(("working", "original"), [((64, 64), (20, 30)), ((20, 30), None), (None, (20, 30))])
    def test_more_than_an_image_is_refused(
        self, working: tuple[int, int] | None, original: tuple[int, int] | None
    ) -> None:
        with pytest.raises(ConfigError, match="`min_area=601` is larger than an image of 30x20"):
            area_in_map(601, working, original)

    @pytest.mark.parametrize("wrong", [-1, 2.5, "many"])
    def test_settings_take_whole_numbers(self, wrong: Any) -> None:
        with pytest.raises(ConfigError, match="`min_area` must be a whole number of pixels"):
            preset("encoder", min_area=wrong)


class TestRegions:
    @given(maps, st.integers(0, 7), st.one_of(st.none(), st.integers(0, 7)), st.integers(0, 20))
    def test_are_those_with_enough_together_above_the_threshold(
        self, anomaly_map: Map, threshold: int, outline: int | None, area: int
    ) -> None:
        level = threshold if outline is None else min(outline, threshold)
        labels, count = ndimage.label(anomaly_map > level, structure=EIGHT)
        parts = [labels == number for number in range(1, count + 1)]
        kept = [part for part in parts if largest_component(part & (anomaly_map > threshold)) >= max(1, area)]
        found = find_regions(anomaly_map, threshold, None, outline, area)
        expected = [(int(part.sum()), slowly_opened(anomaly_map, max(1, area), part)) for part in kept]
        assert sorted((region.area, region.score) for region in found) == sorted(expected)
        assert [region.score for region in found] == sorted((region.score for region in found), reverse=True)
        assert all(threshold < region.score <= region.peak for region in found)
        inside = region_mask(anomaly_map, threshold, outline, area)
        assert np.array_equal(inside, np.any([np.zeros(anomaly_map.shape, np.bool_), *kept], axis=0))
        if found:
            assert found[0].score == area_opening_max(anomaly_map, area)

    def test_a_speck_in_a_wide_outline_does_not_make_a_region(self) -> None:
        anomaly_map = hills((4, 4, 20, 0.75), (10, 10, 2, 2.0), (40, 40, 8, 1.5))
        assert [region.score for region in find_regions(anomaly_map, 1.0, None, 0.5)] == [2.0, 1.5]
        (only,) = find_regions(anomaly_map, 1.0, None, 0.5, 10)
        assert (only.box, only.score) == ((40, 40, 48, 48), 1.5)

    def test_a_speck_in_a_region_is_its_peak_and_not_its_score(self) -> None:
        (region,) = find_regions(hills((4, 4, 8, 1.5), (6, 6, 2, 3.0)), 1.0, min_area=10)
        assert (region.peak, region.score) == (3.0, 1.5)
        assert region.to_json()["score"] == region.score

    @given(st.floats(0.1, 10), st.integers(1, 4))
    def test_agree_with_the_verdict_to_the_last_digit(self, threshold: float, area: int) -> None:
        """Thresholds that no float32 is: rounding them must not make a region, nor lose one."""
        near = np.nextafter(np.float32(threshold), np.array([0, 100], np.float32))
        for value in (np.float32(threshold), *near):
            anomaly_map = np.full((2, 2), value, np.float32)
            is_anomalous = area_opening_max(anomaly_map, area) > threshold
            assert bool(find_regions(anomaly_map, threshold, min_area=area)) == is_anomalous
            assert bool(region_mask(anomaly_map, threshold, None, area).any()) == is_anomalous


def large_part(seed: int, *spots: tuple[int, int, int]) -> NDArray[np.uint8]:
    """A good part of 128 × 128, with dark squares: (top, left, side)."""
    picture = draw_part(seed, (128, 128))
    for top, left, side in spots:
        picture[top : top + side, left : left + side] = (10, 0, 120)
    return picture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good images that are twice as large as the detector sees them."""
    place = tmp_path_factory.mktemp("large")
    for seed in range(5):
        save_picture(place / f"{seed:03}.png", large_part(seed))
    return place


@pytest.fixture(scope="module")
def plain(folder: Path) -> PatchSVDD:
    """A detector for which one pixel is enough. Tests share it: change nothing in it."""
    return PatchSVDD.fit(folder, preset="encoder", device="cpu", **SMALL)


@pytest.fixture(scope="module")
def careful(folder: Path) -> PatchSVDD:
    """The same, passing over what is small. Tests share it: change nothing in it."""
    return PatchSVDD.fit(folder, preset="encoder", device="cpu", **SMALL, min_area=MIN_AREA)


@pytest.fixture(scope="module")
def pictures() -> list[NDArray[np.uint8]]:
    """Good images, and some with spots of all sizes."""
    spots = [((60, 60, side),) for side in (4, 8, 16, 30)]
    return [large_part(10), large_part(11), *(large_part(12 + index, *one) for index, one in enumerate(spots))]


@pytest.fixture
def model(careful: PatchSVDD, tmp_path: Path) -> Path:
    careful.save(tmp_path / "model")
    return tmp_path / "model"


def assert_consistent(inspection: Inspection, area: int) -> None:
    """Score, verdict, regions and their mask say the same."""
    assert inspection.score == area_opening_max(inspection.anomaly_map, area)
    assert inspection.is_anomalous == bool(inspection.regions)
    mask = region_mask(inspection.anomaly_map, inspection.threshold, inspection.outline, inspection.map_area)
    assert inspection.is_anomalous == bool(mask.any())
    if inspection.regions:
        assert inspection.regions[0].score == inspection.score


class TestDetector:
    def test_knows_the_area_in_its_own_pixels(self, careful: PatchSVDD, plain: PatchSVDD) -> None:
        assert careful.provenance["data"]["original_size"] == [128, 128]
        assert (careful.min_area, careful.map_builder.min_area) == (MIN_AREA, IN_MAP)
        assert (plain.min_area, plain.map_builder.min_area) == (0, 0)

    def test_is_otherwise_the_same(
        self, careful: PatchSVDD, plain: PatchSVDD, pictures: list[NDArray[np.uint8]]
    ) -> None:
        assert careful.calibration is not None
        assert plain.calibration is not None
        assert careful.threshold < plain.threshold
        for one, other in zip(careful.inspect_many(pictures), plain.inspect_many(pictures), strict=True):
            assert np.array_equal(one.anomaly_map, other.anomaly_map)
            assert one.score < other.score == other.anomaly_map.max()

    def test_is_calibrated_by_the_scores_that_it_gives(self, careful: PatchSVDD) -> None:
        assert careful.calibration is not None
        maps = careful.maps_without_itself((64, 64))
        expected = [area_opening_max(one.combined[0].numpy(), IN_MAP) for one in maps]
        assert list(careful.calibration.scores) == pytest.approx(expected, rel=1e-6)
        assert careful.leave_one_out_scores((64, 64)) == pytest.approx(expected, rel=1e-6)

    def test_verdict_regions_and_mask_agree(self, careful: PatchSVDD, pictures: list[NDArray[np.uint8]]) -> None:
        found = list(careful.inspect_many(pictures, batch_size=4))
        for inspection in found:
            assert_consistent(inspection, IN_MAP)
            assert (inspection.min_area, inspection.map_area) == (MIN_AREA, IN_MAP)
            assert inspection.to_json()["min_area"] == MIN_AREA
        assert {inspection.is_anomalous for inspection in found} == {True, False}

    def test_large_images_in_strips_too(
        self, careful: PatchSVDD, pictures: list[NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = careful.inspect(pictures[-1])
        monkeypatch.setattr("patchsvdd.core.config.LARGE_PIXELS", 0)
        strips = careful.inspect(pictures[-1])
        assert_consistent(strips, IN_MAP)
        assert strips.score == pytest.approx(whole.score, rel=1e-4)

    def test_with_a_critic_too(self, folder: Path, pictures: list[NDArray[np.uint8]]) -> None:
        detector = PatchSVDD.fit(folder, preset="best", device="cpu", **TINY, **TINY_CRITIC, min_area=MIN_AREA)
        for inspection in detector.inspect_many(pictures):
            assert_consistent(inspection, IN_MAP)
        known = recalibrate(detector, list(map(large_part, range(30, 34))))
        kept = [seed for seed in range(30, 34) if f"image {seed - 30}" not in known.copies]
        assert len(kept) > 1
        scores = [detector.inspect(large_part(seed)).score for seed in kept]
        assert list(known.calibration.scores) == pytest.approx(scores, rel=1e-5)

    def test_is_saved_and_loaded(self, careful: PatchSVDD, model: Path, pictures: list[NDArray[np.uint8]]) -> None:
        loaded = PatchSVDD.load(model, "cpu")
        assert (loaded.min_area, loaded.map_builder.min_area) == (MIN_AREA, IN_MAP)
        assert loaded.inspect(pictures[-1]).score == careful.inspect(pictures[-1]).score

    def test_keeps_to_it_with_another_memory(self, careful: PatchSVDD) -> None:
        other = careful.with_min_area(MIN_AREA)
        other.memory = careful.memory
        assert other.map_builder.min_area == IN_MAP

    def test_an_area_larger_than_the_images_is_refused_before_training(self, folder: Path) -> None:
        stages: list[str] = []
        with pytest.raises(ConfigError, match=r"128x128 \(16384 pixels"):
            PatchSVDD.fit(
                folder,
                preset="encoder",
                device="cpu",
                on_stage=lambda stage, *_: stages.append(stage),
                **TINY,
                min_area=16385,
            )
        assert set(stages) == {"images", "copies"}

    def test_of_native_images_a_smaller_one_than_the_area_is_set_aside(self) -> None:
        settings = {**TINY, "image_size": "native", "preset": "encoder", "encoder": "random", "min_area": 5000}
        detector = PatchSVDD.fit([draw_part(seed, (80, 80)) for seed in range(3)], device="cpu", **settings)
        assert detector.map_builder.min_area == 5000
        refused: list[ImageError] = []
        images = [draw_part(5, (80, 64)), draw_part(6, (64, 64)), draw_part(7, (80, 96))]
        found = list(detector.inspect_many(images, on_error=refused.append))
        assert [inspection.name for inspection in found] == ["image 0", "image 2"]
        assert "64x64 pixels, fewer than `min_area=5000`" in str(refused[0])
        for inspection in found:
            assert_consistent(inspection, 5000)

    def test_images_know_the_size_that_the_first_one_had(self) -> None:
        config = preset("encoder", **TINY)
        found = load_image_set([("a", draw_part(0, (70, 90))), ("b", draw_part(1, (100, 100)))], config)
        assert found.original_size == found.subset([1]).original_size == (70, 90)


class TestEarlierModels:
    """They know neither the setting nor the size of their images."""

    @pytest.fixture
    def older(self, plain: PatchSVDD, tmp_path: Path) -> Path:
        plain.save(tmp_path / "now")
        stored = read_model(tmp_path / "now")
        about = json.loads(json.dumps(stored.about))
        del about["config"]["min_area"], about["provenance"]["data"]["original_size"]
        write_model(tmp_path / "older", about, stored.parts)
        return tmp_path / "older"

    def test_load_and_say_the_same(self, older: Path, plain: PatchSVDD, pictures: list[NDArray[np.uint8]]) -> None:
        loaded = PatchSVDD.load(older, "cpu")
        assert loaded.min_area == 0
        for picture in pictures:
            assert loaded.inspect(picture).to_json() == plain.inspect(picture).to_json()

    def test_take_an_area_in_pixels_of_the_map(self, older: Path) -> None:
        assert PatchSVDD.load(older, "cpu").with_min_area(IN_MAP).map_builder.min_area == IN_MAP

    def test_can_be_calibrated_with_one(self, older: Path, folder: Path) -> None:
        told = run("calibrate", older, folder, "--min-area", IN_MAP, "--json").json()
        loaded = PatchSVDD.load(older, "cpu")
        assert (loaded.min_area, loaded.map_builder.min_area, loaded.threshold) == (IN_MAP, IN_MAP, told["threshold"])

    def test_settings_of_earlier_versions_are_read(self) -> None:
        settings = preset("best").to_json()
        del settings["min_area"]
        assert Config.from_json(settings).min_area == 0


class TestAnotherArea:
    def test_a_larger_one_lowers_scores_and_leaves_the_rest(
        self, careful: PatchSVDD, pictures: list[NDArray[np.uint8]]
    ) -> None:
        larger = careful.with_min_area(40 * MIN_AREA)
        assert (careful.min_area, careful.map_builder.min_area) == (MIN_AREA, IN_MAP), (
            "the detector itself is as it was"
        )
        assert larger.threshold == careful.threshold
        assert larger.memory is careful.memory
        before, after = (list(one.inspect_many(pictures)) for one in (careful, larger))
        for one, other in zip(before, after, strict=True):
            assert_consistent(other, 40 * IN_MAP)
            assert other.score < one.score
        assert sum(one.is_anomalous for one in after) < sum(one.is_anomalous for one in before)

    def test_a_smaller_one_is_refused(self, careful: PatchSVDD) -> None:
        with pytest.raises(ConfigError, match="recalibrate with `min_area=199`"):
            careful.with_min_area(MIN_AREA - 1)
        with pytest.raises(ConfigError, match="whole number of pixels"):
            careful.with_min_area(-1)
        with pytest.raises(ConfigError, match="larger than an image"):
            careful.with_min_area(10**6)

    def test_a_smaller_one_is_fine_where_there_is_no_threshold(self, careful: PatchSVDD) -> None:
        uncalibrated = careful.with_min_area(MIN_AREA)
        uncalibrated.calibration = None
        assert uncalibrated.with_min_area(4).map_builder.min_area == 1

    def test_is_calibrated_for(self, plain: PatchSVDD, careful: PatchSVDD, folder: Path) -> None:
        own = plain.with_min_area(0)
        done = recalibrate(own, folder, min_area=MIN_AREA)
        assert (own.min_area, own.map_builder.min_area) == (MIN_AREA, IN_MAP)
        assert own.calibration == done.calibration
        assert own.threshold == pytest.approx(careful.threshold, rel=1e-5)
        back = recalibrate(own, folder, min_area=0)
        assert own.min_area == own.map_builder.min_area == 0
        assert back.calibration.threshold == pytest.approx(plain.threshold, rel=1e-5)

    def test_is_kept_by_a_calibration_that_does_not_speak_of_it(self, careful: PatchSVDD, folder: Path) -> None:
        own = careful.with_min_area(MIN_AREA)
        done = recalibrate(own, folder)
        assert own.min_area == MIN_AREA
        assert done.calibration.threshold == pytest.approx(careful.threshold, rel=1e-5)

    def test_is_not_taken_on_by_a_calibration_that_fails(self, plain: PatchSVDD) -> None:
        own = plain.with_min_area(0)
        with pytest.raises(DatasetError):
            recalibrate(own, [], min_area=MIN_AREA)
        assert own.min_area == own.map_builder.min_area == 0
        assert own.calibration == plain.calibration

    def test_defects_are_scored_with_it(
        self, plain: PatchSVDD, folder: Path, pictures: list[NDArray[np.uint8]]
    ) -> None:
        own = plain.with_min_area(0)
        done = recalibrate(own, folder, min_area=MIN_AREA, defects=pictures[2:])
        assert done.defects is not None
        assert list(done.defects.scores) == pytest.approx([own.inspect(one).score for one in pictures[2:]], rel=1e-5)


def test_images_that_are_added_join_the_threshold_with_such_scores(model: Path, careful: PatchSVDD) -> None:
    more = large_part(20)
    expected = careful.inspect(more).score
    add_images(model, [more], device="cpu", recalibrate=True)
    grown = PatchSVDD.load(model, "cpu")
    assert grown.min_area == MIN_AREA
    assert grown.calibration is not None
    assert grown.calibration.scores[-1] == pytest.approx(expected, rel=1e-5)


def test_a_test_is_judged_by_the_detectors_scores(careful: PatchSVDD, category: Path) -> None:
    results = inspect_test_images(careful, category)
    scores = [careful.inspect(image.file).score for image in results.images]
    assert results.scores[PRODUCT] == pytest.approx(scores, rel=1e-6)
    assert results.anomalous == [score > careful.threshold for score in scores]
    small = [float(results.map_of(index, 32).max()) for index in range(len(results.images))]
    assert results.scores[32] == small


def test_an_export_is_refused_with_the_remedy(model: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recalibrate it with `min_area=0`, then export"):
        export(PatchSVDD.load(model, "cpu"), tmp_path / "part.onnx", folder)
    assert (
        "--min-area 200 cannot be exported"
        in run("export", model, "--images", folder, "--out", tmp_path / "part.onnx").error()
    )
    assert not (tmp_path / "part.onnx").exists()


class TestPictures:
    @staticmethod
    def inspection(anomaly_map: Map, area: int) -> Inspection:
        picture = np.full((*anomaly_map.shape, 3), 90, np.uint8)
        score, regions = area_opening_max(anomaly_map, area), find_regions(anomaly_map, 1.0, min_area=area)
        size = (anomaly_map.shape[0], anomaly_map.shape[1])
        found = Inspection("part.png", score, 1.0, anomaly_map, {}, picture, size, regions)
        return replace(found, min_area=area, map_area=area)

    @pytest.mark.parametrize("side", [1, 2, 16])
    def test_only_what_counts_is_outlined(self, side: int) -> None:
        """Whether the panel is larger than the map or smaller."""
        size = 64 * side
        small, wide = (size // 8, size // 8, 2 * side, 2.0), (size // 2, size // 2, 20 * side, 2.0)
        sheet = draw_overlay(self.inspection(hills(small, wide, size=size), 10 * side * side))
        panel = np.asarray(sheet)[: min(max(256, size), 768), : min(max(256, size), 768)]
        line = (panel == OUTLINE).all(axis=2)
        half = len(line) // 2 - 8
        assert not line[:half, :half].any()
        assert line[half:, half:].any()

    def test_an_image_with_specks_alone_has_no_outline(self) -> None:
        sheet = draw_overlay(self.inspection(hills((8, 8, 2, 2.0)), 10))
        assert not (np.asarray(sheet)[:256, :256] == OUTLINE).all(axis=2).any()

    def test_the_report_lists_scores_and_peaks_where_they_differ(self, tmp_path: Path) -> None:
        found = self.inspection(hills((4, 4, 8, 1.5), (6, 6, 2, 3.0), (40, 40, 8, 1.25)), 10)
        earlier = [{"box": [1, 2, 3, 4], "area": 4, "peak": 1.75, "peak_at": [1, 2]}]
        listed = [found.to_json(), found.to_json() | {"image": "old.png", "regions": earlier}]
        text = write_report(tmp_path, lambda: iter(listed), title="t", facts={}).read_text()
        for words in ("1.50× (peak 3.00×)", "<td>1.25×</td>", "<td>1.75×</td>"):
            assert words in text

    def test_the_model_card_says_it(self, careful: PatchSVDD, plain: PatchSVDD) -> None:
        assert "200 pixels" in detector_card(careful, "part").facts["Ignored"]
        assert "Ignored" not in detector_card(plain, "part").facts


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of images of 72 × 72 worked on at 64 × 64, and its good images."""
    place = tmp_path_factory.mktemp("trained")
    good = draw_parts(place / "good", 5)
    told = run("train", good, "--out", place / "model", *QUICK, "--min-area", 30, "--json").json()
    assert told["min_area"] == 30
    return place / "model", good


class TestCommands:
    @pytest.fixture
    def own(self, trained: tuple[Path, Path], tmp_path: Path) -> Path:
        return shutil.copytree(trained[0], tmp_path / "model")

    @pytest.fixture
    def photos(self, tmp_path: Path) -> Path:
        return draw_parts(tmp_path / "photos", 3, first=50, defect=True)

    def test_train_keeps_it(self, own: Path) -> None:
        assert PatchSVDD.load(own, "cpu").map_builder.min_area == math.ceil(30 * 64**2 / 72**2)

    def test_inspect_takes_a_larger_one_and_inspects_anew(self, own: Path, photos: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        run("inspect", own, photos, "--out", out, "--json").json()
        before = {row["image"]: row for row in rows(out)}
        assert run("inspect", own, photos, "--out", out, "--json").json()["already_done"] == 3
        assert run("inspect", own, photos, "--out", out, "--min-area", 900, "--json").json()["already_done"] == 0
        after = {row["image"]: row for row in rows(out)}
        assert after.keys() == before.keys()
        for name, row in after.items():
            assert (before[name]["min_area"], row["min_area"]) == (30, 900)
            assert row["score"] < before[name]["score"]
            assert row["is_anomalous"] == bool(row["regions"])
            assert all(region["score"] <= region["peak"] for region in row["regions"])

    def test_inspect_refuses_a_smaller_one(self, own: Path, photos: Path, tmp_path: Path) -> None:
        ended = run("inspect", own, photos, "--out", tmp_path / "out", "--min-area", 29)
        assert "recalibrate with --min-area 29 instead" in ended.error()
        assert not (tmp_path / "out").exists()

    def test_watch_takes_it_too(self, own: Path, photos: Path, tmp_path: Path) -> None:
        options = ("--once", "--settle", 0, "--poll", 0.01, "--pictures", "none", "--min-area", 900, "--json")
        assert run("watch", own, photos, "--out", tmp_path / "out", *options).json()["inspected"] == 3
        assert {row["min_area"] for row in rows(tmp_path / "out")} == {900}

    def test_calibrate_sets_it_and_undo_takes_it_back(self, own: Path, trained: tuple[Path, Path]) -> None:
        before = read_index(own)
        told = run("calibrate", own, trained[1], "--min-area", 12, "--json").json()
        after = read_index(own)
        assert (told["min_area"], after["config"]["min_area"]) == (12, 12)
        assert after["config"] == before["config"] | {"min_area": 12}
        assert after["identity"] != before["identity"]
        assert told["threshold"] == after["calibration"]["threshold"] > before["calibration"]["threshold"]
        assert [entry["change"] for entry in after["journal"]] == ["calibrate"]
        run("calibrate", own, trained[1], "--min-area", 12, "--json").json()
        assert read_index(own) == after, "the same once more is no change"
        run("update", own, "--undo", "--json").json()
        assert read_index(own)["config"]["min_area"] == 30
        assert read_index(own)["identity"] == before["identity"]

    def test_a_dry_run_changes_nothing(self, own: Path, trained: tuple[Path, Path]) -> None:
        before = read_index(own)
        assert run("calibrate", own, trained[1], "--min-area", 12, "--dry-run", "--json").json()["min_area"] == 12
        assert read_index(own) == before

    def test_people_are_told(self, own: Path, trained: tuple[Path, Path]) -> None:
        words = r"ignored +regions smaller than 30 pixels"
        assert re.search(words, run("info", own).stdout)
        assert re.search(words, run("calibrate", own, trained[1]).stdout)
        assert "ignored" not in run("calibrate", own, trained[1], "--min-area", 0).stdout
        assert "ignored" not in run("info", own).stdout
