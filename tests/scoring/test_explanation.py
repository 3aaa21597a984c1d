from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from patchsvdd.core.errors import ModelError
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.explainer import peak_in_map, shares_of
from patchsvdd.images.loading import load_good_images
from patchsvdd.scoring.explanation import MAX_ROWS, Explanation, ScaleReason
from patchsvdd.scoring.explanation_image import INSPECTED, NORMAL, SIDE, STRIP, surroundings
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.regions import find_regions
from support.parts import TINY, draw_part

Picture = NDArray[np.uint8]


@pytest.fixture(scope="module")
def wide() -> PatchSVDD:
    """An untrained detector of larger images."""
    images = [draw_part(seed, (96, 128)) for seed in range(4)]
    settings: dict[str, Any] = TINY | {"image_size": (96, 128)}
    return PatchSVDD.fit(images, preset="encoder", encoder="random", device="cpu", **settings)


@pytest.fixture(scope="module")
def defective(detector: PatchSVDD) -> Inspection:
    return detector.inspect(draw_part(7, defect=True))


def covers(scale: ScaleReason, x: int, y: int) -> bool:
    left, top, right, bottom = scale.working_box
    return left <= x < right and top <= y < bottom


def as_found(detector: PatchSVDD, inspection: Inspection, scale: ScaleReason) -> tuple[float, list[int]]:
    """Distance and origin that the memory's own search finds for the patch of a reason."""
    pixels = torch.from_numpy(inspection.image).permute(2, 0, 1)[None]
    grids = detector.embedder.grids(inspection.anomaly_map.shape)
    number = [grid.scale.patch_size for grid in grids].index(scale.patch_size)
    grid, memory = grids[number], detector.memory.scales[scale.patch_size]
    distances, rows = memory.nearest(detector.embedder(pixels)[number][0], None, grid.shape)
    left, top = scale.working_box[:2]
    at = grid.rows.index(top) * grid.shape[1] + grid.columns.index(left)
    return float(distances[at]), memory.origins[int(rows[at])].tolist()


class TestNearest:
    def test_a_copied_patch_is_explained_by_what_it_was_copied_from(self) -> None:
        images = [draw_part(seed, (96, 96)) for seed in range(4)]
        settings: dict[str, Any] = TINY | {"image_size": 96, "scales": (Scale(32, 8),), "encoder": "random"}
        detector = PatchSVDD.fit(images, preset="encoder", device="cpu", **settings)
        picture = draw_part(40, (96, 96))
        picture[8:72, 0:64] = images[2][24:88, 16:80]  # every patch over (39, 31) comes from image 2, 16 px lower
        inspection = detector.inspect(picture)
        point = np.zeros_like(inspection.anomaly_map)
        point[39, 31] = 1.0
        (reason,) = replace(inspection, anomaly_map=point, regions=()).explain().reasons
        (scale,) = reason.scales
        left, top, right, bottom = scale.working_box
        assert covers(scale, 31, 39)
        assert scale.distance == pytest.approx(0, abs=1e-5)
        assert (scale.nearest.index, scale.nearest.image) == (2, detector.memory.image_names[2])
        assert scale.nearest.box == (left + 16, top + 16, right + 16, bottom + 16)

    def test_a_training_image_is_explained_by_itself(self, wide: PatchSVDD) -> None:
        explanation = wide.inspect(draw_part(3, (96, 128))).explain()
        for scale in explanation.reasons[0].scales:
            assert scale.distance == pytest.approx(0, abs=1e-5)
            assert (scale.nearest.index, scale.nearest.image) == (3, wide.memory.image_names[3])
            assert scale.nearest.box == scale.working_box
            equal = replace(scale, distance=0.0)
            assert "equals its nearest normal patch" in equal.in_words()

    def test_a_defects_patches_lie_on_it(self, defective: Inspection) -> None:
        reason = defective.explain().reasons[0]
        assert reason.region == defective.regions[0]
        assert all(covers(scale, 32, 32) for scale in reason.scales), "the spot lies in the middle"
        assert all(scale.distance > 0 for scale in reason.scales)

    def test_is_what_the_search_found(self, detector: PatchSVDD, defective: Inspection) -> None:
        for reason in defective.explain().reasons:
            for scale in reason.scales:
                distance, (image, top, left) = as_found(detector, defective, scale)
                assert scale.distance == pytest.approx(distance, rel=1e-6)
                assert (scale.nearest.index, scale.nearest.box[:2]) == (image, (left, top))

    def test_no_patch_over_the_peak_is_farther(self, detector: PatchSVDD, defective: Inspection) -> None:
        region = defective.regions[0]
        y, x = peak_in_map(region, defective)
        for scale in defective.explain().reasons[0].scales:
            assert covers(scale, x, y)
            over = [
                one[0]
                for one in _every_patch(detector, defective)
                if one[1] == scale.patch_size
                and one[2][0] <= x < one[2][0] + one[1]
                and one[2][1] <= y < one[2][1] + one[1]
            ]
            assert scale.distance == pytest.approx(max(over), rel=1e-6)

    def test_distances_in_units_of_reach(self, good_folder: Path) -> None:
        scaled = PatchSVDD.fit(good_folder, preset="encoder", device="cpu", local_scaling=True, **TINY)
        inspection = scaled.inspect(draw_part(7, defect=True))
        for scale in inspection.explain().reasons[0].scales:
            memory = scaled.memory.scales[scale.patch_size]
            left, top = scale.nearest.box[:2]
            wanted = torch.tensor([scale.nearest.index, top, left], dtype=memory.origins.dtype)
            (row,) = (memory.origins == wanted).all(1).nonzero()[:, 0].tolist()
            assert memory.local_scale is not None
            assert scale.measured == pytest.approx(scale.distance / float(memory.local_scale[row]), rel=1e-5)

    def test_boxes_in_pixels_of_the_original(self, detector: PatchSVDD) -> None:
        picture = np.repeat(np.repeat(draw_part(7, defect=True), 3, axis=0), 2, axis=1)  # 192 high, 128 wide
        for scale in detector.inspect(picture).explain().reasons[0].scales:
            left, top, right, bottom = scale.working_box
            assert scale.box == (2 * left, 3 * top, 2 * right, 3 * bottom)
            assert "as the model sees it" in scale.in_words()


def _every_patch(
    detector: PatchSVDD, inspection: Inspection
) -> list[tuple[float, int, tuple[int, int], tuple[int, ...]]]:
    """(distance, patch size, (left, top), origin of the nearest) of every patch of an image."""
    pixels = torch.from_numpy(inspection.image).permute(2, 0, 1)[None]
    grids = detector.embedder.grids(inspection.anomaly_map.shape)
    found = []
    for grid, query in zip(grids, detector.embedder(pixels), strict=True):
        memory = detector.memory.scales[grid.scale.patch_size]
        distances, rows = memory.nearest(query[0], None, grid.shape)
        places = [(left, top) for top in grid.rows for left in grid.columns]
        origins = [tuple(origin) for origin in memory.origins[rows].tolist()]
        found += list(zip(distances.tolist(), [grid.scale.patch_size] * len(places), places, origins, strict=True))
    return found


class TestReasons:
    def test_one_per_region_highest_first(self, detector: PatchSVDD) -> None:
        inspection = detector.inspect(draw_part(7, defect=True))
        height = np.zeros_like(inspection.anomaly_map)
        height[5:8, 5:8], height[50:54, 40:60] = 2.0, 3.0
        two = replace(inspection, anomaly_map=height, regions=find_regions(height, 1.0))
        reasons = two.explain().reasons
        assert [reason.peak for reason in reasons] == [3.0, 2.0]
        assert [reason.region for reason in reasons] == list(two.regions)

    def test_a_good_image_has_its_highest_point_explained(self, detector: PatchSVDD) -> None:
        inspection = detector.inspect(draw_part(0))
        (reason,) = inspection.explain().reasons
        assert reason.region is None
        assert reason.peak == inspection.score
        x, y = reason.peak_at
        assert inspection.anomaly_map[y, x] == inspection.score

    def test_memory_and_critic_together_are_the_peak(self, critical: PatchSVDD) -> None:
        inspection = critical.inspect(draw_part(7, defect=True))
        for reason in inspection.explain().reasons:
            assert set(reason.parts) == {"memory", "critic"}
            assert sum(reason.parts.values()) == pytest.approx(reason.peak, rel=1e-4, abs=1e-6)
            assert reason.peak <= 0 or "critic" in reason.in_words()

    def test_without_a_critic_there_are_no_parts(self, defective: Inspection) -> None:
        assert defective.explain().reasons[0].parts == {}

    def test_words_say_what_where_and_how_far(self, detector: PatchSVDD, defective: Inspection) -> None:
        reason = defective.explain().reasons[0]
        words = reason.in_words()
        for scale in reason.scales:
            assert f"The {scale.patch_size}-px patch at ({scale.box[0]}, {scale.box[1]})" in words
            assert scale.nearest.image in words
            assert f"{scale.times_usual:.1f} times as far" in words
        assert "the farthest of those" in words
        usual = detector.provenance["usual"]
        assert {int(size) for size in usual} == set(detector.memory.scales)
        assert all(0 < one["middle"] <= one["most"] for one in usual.values())

    def test_json_is_json_and_inspections_are_as_before(self, defective: Inspection) -> None:
        told = json.loads(json.dumps(defective.explain().to_json(), allow_nan=False))
        assert [one["patch_size"] for one in told["reasons"][0]["scales"]] == [32, 64]
        assert "explainer" not in defective.to_json()
        assert "explainer" not in repr(defective)


class TestShares:
    @given(st.lists(st.floats(0, 1e9), min_size=1, max_size=4))
    def test_sum_to_one(self, ratios: list[float]) -> None:
        shares = shares_of(ratios)
        assert sum(shares) == pytest.approx(1)
        assert all(0 <= share <= 1 for share in shares)

    def test_follow_the_logarithm(self) -> None:
        assert shares_of([10.0, 100.0]) == pytest.approx([1 / 3, 2 / 3])
        assert shares_of([10.0, 0.5]) == pytest.approx([1, 0])
        assert shares_of([0.5, 0.5]) == [0.5, 0.5]

    def test_of_a_reason(self, defective: Inspection) -> None:
        for reason in defective.explain().reasons:
            assert sum(scale.share for scale in reason.scales) == pytest.approx(1)


class TestWhoCanExplain:
    def test_a_loaded_model_as_the_trained_one(self, detector: PatchSVDD, tmp_path: Path) -> None:
        detector.save(tmp_path)
        loaded = PatchSVDD.load(tmp_path, device="cpu")
        picture = draw_part(7, defect=True)
        before, after = (one.inspect(picture).explain() for one in (detector, loaded))
        assert before.reasons == after.reasons
        assert np.array_equal(np.asarray(before.picture()), np.asarray(after.picture()))

    def test_inspections_of_a_batch(self, detector: PatchSVDD, defective: Inspection) -> None:
        pictures = [draw_part(0), draw_part(7, defect=True)]
        found = [inspection.explain() for inspection in detector.inspect_many(pictures)]
        assert found[1].reasons == defective.explain().reasons

    def test_images_of_16_bits(self, detector: PatchSVDD) -> None:
        fine = draw_part(7, defect=True).astype(np.uint16) * 257 + 100
        inspection = detector.inspect(fine)
        scale = inspection.explain().reasons[0].scales[0]
        rounded = detector.inspect(inspection.image).explain().reasons[0].scales[0]
        assert scale.distance == pytest.approx(rounded.distance, rel=0.05)
        assert scale.distance != rounded.distance, "the full precision is compared"

    def test_an_inspection_from_elsewhere_says_what_to_do(self, defective: Inspection) -> None:
        stored = pickle.loads(pickle.dumps(defective))
        assert len(pickle.dumps(defective)) < 300_000, "the detector stays behind"
        for orphan in (stored, replace(defective, explainer=None)):
            with pytest.raises(ModelError, match=r"not made by a detector.*inspect the image again"):
                orphan.explain()

    def test_a_model_that_knows_neither_pictures_nor_what_is_usual(self, detector: PatchSVDD) -> None:
        provenance = {name: value for name, value in detector.provenance.items() if name != "usual"}
        learned = replace(detector.learned, pictures=None, provenance=provenance)
        older = PatchSVDD(detector.config, learned, detector.device)
        explanation = older.inspect(draw_part(7, defect=True)).explain()
        assert "as the patches of this image usually are" in explanation.in_words()
        assert explanation.picture().size == detector.inspect(draw_part(7, defect=True)).explain().picture().size

    def test_good_images_that_are_all_alike(self) -> None:
        config = preset("encoder", encoder="raw", **TINY)
        same = PatchSVDD.fit_images(load_good_images([draw_part(0)] * 3, config), config, device="cpu")
        explanation = same.inspect(draw_part(0, defect=True)).explain()
        assert "in good images no patch differs at all" in explanation.in_words()
        json.dumps(explanation.to_json(), allow_nan=False)


class TestPicture:
    def test_shows_patch_and_normal_patch_of_each_scale(self, wide: PatchSVDD) -> None:
        inspection = wide.inspect(draw_part(9, (96, 128), defect=True))
        sheet = np.asarray(inspection.explain().picture(0))
        assert sheet.shape[0] == SIDE + STRIP
        for index, colour in enumerate((INSPECTED, NORMAL, INSPECTED, NORMAL)):
            left = index // 2 * (2 * SIDE + 16) + index % 2 * (SIDE + 4)
            panel = sheet[:SIDE, left : left + SIDE]
            assert (panel == colour).all(-1).sum() > 300, "a frame around the patch"

    def test_the_normal_panel_is_the_stored_picture(self, wide: PatchSVDD) -> None:
        explanation = wide.inspect(draw_part(3, (96, 128))).explain()  # itself: both panels show the same place
        sheet = np.asarray(explanation.picture()).astype(int)
        here, normal = sheet[:SIDE, :SIDE], sheet[:SIDE, SIDE + 4 : 2 * SIDE + 4]
        frames = (here == INSPECTED).all(-1) | (normal == NORMAL).all(-1)
        assert np.abs(here - normal)[~frames].mean() < 6

    def test_a_line_per_region_and_no_more_than_five(self, defective: Inspection) -> None:
        explanation = defective.explain()
        many = Explanation("a", explanation.reasons[:1] * 8, explanation.image, explanation.pictures)
        assert many.picture().height == MAX_ROWS * (SIDE + STRIP)
        assert many.picture(7).height == SIDE + STRIP

    @given(st.integers(0, 100), st.integers(0, 60), st.sampled_from([8, 32, 64]))
    def test_surroundings_lie_within_the_image_around_the_patch(self, left: int, top: int, size: int) -> None:
        height, width = max(64, top + size), max(64, left + size)
        box = (left, top, left + size, top + size)
        x0, y0, x1, y1 = surroundings(box, (height, width))
        assert 0 <= x0 <= box[0] < box[2] <= x1 <= width
        assert 0 <= y0 <= box[1] < box[3] <= y1 <= height
        assert (x1 - x0, y1 - y0) == (min(2 * size, width), min(2 * size, height))


@given(st.integers(9, 40), st.integers(9, 40), st.integers(0, 7), st.integers(0, 7))
def test_the_peak_is_found_again_from_the_original_image(height: int, width: int, y: int, x: int) -> None:
    anomaly_map = np.random.default_rng(y * 8 + x).uniform(0, 0.5, (8, 8)).astype(np.float32)
    anomaly_map[y, x] = 1.0
    for size in ((height, width), (5, 6)):  # larger and smaller than the map
        regions = find_regions(anomaly_map, 0.9, size)
        picture = np.zeros((8, 8, 3), np.uint8)
        inspection = Inspection("a", 1.0, 0.9, anomaly_map, {}, picture, size, regions)
        assert peak_in_map(regions[0], inspection) == (y, x)
