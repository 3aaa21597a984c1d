from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from scipy import ndimage  # type: ignore[import-untyped]

from patchsvdd.scoring.components import label_components
from patchsvdd.scoring.regions import Region, find_regions, region_mask

masks = npst.arrays(np.bool_, st.tuples(st.integers(1, 24), st.integers(1, 24)))


@given(masks)
def test_components_are_scipys(mask: NDArray[np.bool_]) -> None:
    labels, count = label_components(mask)
    expected, expected_count = ndimage.label(mask, structure=np.ones((3, 3)))
    assert count == expected_count
    assert np.array_equal(labels, expected), "the labels, in reading order"


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.9])
def test_components_of_large_noise_are_scipys(share: float) -> None:
    mask = np.random.default_rng(0).random((300, 217)) < share
    labels, count = label_components(mask)
    expected, expected_count = ndimage.label(mask, structure=np.ones((3, 3)))
    assert count == expected_count
    assert np.array_equal(labels, expected)


def test_a_spiral_is_one_component() -> None:
    mask = np.zeros((41, 41), bool)
    for ring in range(0, 20, 2):
        mask[ring, ring : 41 - ring] = mask[40 - ring, ring : 41 - ring] = True
        mask[ring : 41 - ring, ring] = mask[ring : 41 - ring, 40 - ring] = True
        mask[ring + 1, ring] = False
        mask[ring + 2, ring + 1] = True
    labels, count = label_components(mask)
    expected, expected_count = ndimage.label(mask, structure=np.ones((3, 3)))
    assert (count, expected_count) == (1, 1)
    assert np.array_equal(labels, expected)


def test_nothing_above_the_threshold_is_no_region() -> None:
    assert find_regions(np.full((8, 8), 0.5, np.float32), 0.5) == ()
    assert find_regions(np.ones((8, 8), np.float32), float("inf")) == ()


def test_regions_come_highest_peak_first() -> None:
    anomaly_map = np.zeros((20, 30), np.float32)
    anomaly_map[2:5, 3:9] = 1.0
    anomaly_map[3, 4] = 2.0
    anomaly_map[10:12, 20:21] = 3.0
    assert find_regions(anomaly_map, 0.5) == (
        Region(box=(20, 10, 21, 12), area=2, peak=3.0, peak_at=(20, 10), score=3.0),
        Region(box=(3, 2, 9, 5), area=18, peak=2.0, peak_at=(4, 3), score=2.0),
    )


def test_boxes_are_in_pixels_of_the_original_image() -> None:
    anomaly_map = np.zeros((64, 64), np.float32)
    anomaly_map[16:32, 8:24] = 1.0
    anomaly_map[20, 10] = 4.0
    (region,) = find_regions(anomaly_map, 0.5, (128, 640))  # twice as high, ten times as wide
    assert region.box == (80, 32, 240, 64)
    assert region.area == 16 * 16 * 20
    assert region.peak == 4.0
    assert region.peak_at == (105, 41)


def assert_inside(region: Region, height: int, width: int) -> None:
    left, top, right, bottom = region.box
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    x, y = region.peak_at
    assert left <= x < right
    assert top <= y < bottom
    assert region.area >= 1


@given(masks, st.integers(1, 400), st.integers(1, 400))
def test_boxes_lie_inside_the_original_image(mask: NDArray[np.bool_], height: int, width: int) -> None:
    for region in find_regions(mask.astype(np.float32), 0.5, (height, width)):
        assert_inside(region, height, width)


@given(st.integers(16, 400), st.integers(16, 4000))
@example(19, 21)  # 19 · (21 / 19) is a little more than 21 in floating point
def test_a_region_that_fills_the_map_fills_the_image(side: int, width: int) -> None:
    (region,) = find_regions(np.ones((1, side), np.float32), 0.5, (7, width))
    assert region.box == (0, 0, width, 7)
    assert region.area == 7 * width


@given(masks)
def test_areas_add_up(mask: NDArray[np.bool_]) -> None:
    regions = find_regions(mask.astype(np.float32), 0.5)
    assert sum(region.area for region in regions) == mask.sum()


def test_json_holds_plain_numbers() -> None:
    region = Region(box=(1, 2, 3, 4), area=4, peak=0.5, peak_at=(1, 2), score=0.25)
    facts = {"box": [1, 2, 3, 4], "area": 4, "peak": 0.5, "peak_at": [1, 2], "score": 0.25}
    assert region.to_json() == {**facts, "kind": None, "like": None}


def flood(anomaly_map: NDArray[np.float32], threshold: float, outline: float) -> list[tuple[object, ...]]:
    """(box, area, peak) of each region, grown pixel by pixel from those above the threshold, in order."""
    height, width = anomaly_map.shape
    seen: set[tuple[int, int]] = set()
    found: list[tuple[object, ...]] = []
    for start in zip(*np.nonzero(anomaly_map > threshold), strict=True):
        if start in seen:
            continue
        region, waiting = {start}, [start]
        while waiting:
            y, x = waiting.pop()
            for near in ((y + down, x + right) for down in (-1, 0, 1) for right in (-1, 0, 1)):
                inside = 0 <= near[0] < height and 0 <= near[1] < width
                if inside and near not in region and anomaly_map[near] > outline:
                    region.add(near)
                    waiting.append(near)
        seen |= region
        ys, xs = zip(*region, strict=True)
        box = (min(xs), min(ys), max(xs) + 1, max(ys) + 1)
        found.append((box, len(region), max(float(anomaly_map[place]) for place in region)))
    return sorted(found, key=str)


class TestOutline:
    """A region is found by its peak and drawn at a lower value."""

    @pytest.fixture
    def hill(self) -> NDArray[np.float32]:
        """A hill with two peaks, and a lower one apart from it."""
        anomaly_map = np.zeros((20, 30), np.float32)
        anomaly_map[5:15, 4:20] = 1.0
        anomaly_map[8, 6], anomaly_map[12, 17] = 3.0, 4.0
        anomaly_map[2:4, 25:28] = 1.5
        return anomaly_map

    @pytest.mark.parametrize("outline", [None, 2.0, 3.5, float("inf")])
    def test_none_below_the_threshold_changes_nothing(self, hill: NDArray[np.float32], outline: float | None) -> None:
        plain = find_regions(hill, 2.0, (40, 90))
        assert len(plain) == 2
        assert find_regions(hill, 2.0, (40, 90), outline) == plain

    def test_two_peaks_in_one_outline_are_one_region_that_fills_it(self, hill: NDArray[np.float32]) -> None:
        assert find_regions(hill, 2.0, outline=0.5) == (
            Region(box=(4, 5, 20, 15), area=160, peak=4.0, peak_at=(17, 12), score=4.0),
        )

    def test_two_peaks_with_outlines_of_their_own_are_two_regions(self, hill: NDArray[np.float32]) -> None:
        hill[:, 11:13] = 0
        boxes = [region.box for region in find_regions(hill, 2.0, outline=0.5)]
        assert boxes == [(13, 5, 20, 15), (4, 5, 11, 15)]

    def test_what_lies_above_the_outline_only_is_no_region(self, hill: NDArray[np.float32]) -> None:
        assert (25, 2, 28, 4) not in [region.box for region in find_regions(hill, 2.0, outline=0.5)]
        assert (25, 2, 28, 4) in [region.box for region in find_regions(hill, 1.2, outline=0.5)]
        assert find_regions(hill, 5.0, outline=0.5) == ()
        assert find_regions(hill, float("inf"), outline=0.5) == ()

    def test_pixels_below_a_share_of_the_peak_are_left_out(self, hill: NDArray[np.float32]) -> None:
        hill[8, 7] = 2.0
        hill[2, 25] = 2.5
        found = find_regions(hill, 2.0, outline=0.5, share=0.5)
        assert [(one.box, one.area, one.peak) for one in found] == [((6, 8, 18, 13), 2, 4.0), ((25, 2, 28, 4), 6, 2.5)]
        mask = region_mask(hill, 2.0, 0.5, share=0.5)
        assert mask.sum() == 8
        assert not mask[8, 7]  # exactly half of the peak

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
    @pytest.mark.parametrize("outline", [None, 0.5, 0.95])
    def test_a_share_of_the_peak_is_taken_of_each_region(self, share: float, outline: float | None) -> None:
        anomaly_map = np.random.default_rng(1).random((40, 50), np.float32) ** 4
        whole = region_mask(anomaly_map, 0.8, outline)
        labels, count = ndimage.label(region_mask(anomaly_map, 0.8, min(outline or 0.8, 0.8)), np.ones((3, 3)))
        peaks = ndimage.maximum(anomaly_map, labels, np.arange(count + 1))
        expected = whole & (anomaly_map > share * np.asarray(peaks)[labels])
        np.testing.assert_array_equal(region_mask(anomaly_map, 0.8, outline, share=share), expected)
        assert sum(one.area for one in find_regions(anomaly_map, 0.8, None, outline, share=share)) == expected.sum()

    def test_a_lower_outline_never_makes_a_region_smaller(self) -> None:
        anomaly_map = np.random.default_rng(0).random((60, 60), np.float32) ** 2
        areas = [
            sum(region.area for region in find_regions(anomaly_map, 0.9, outline=outline))
            for outline in (0.9, 0.8, 0.6, 0.4, 0.2)
        ]
        assert areas == sorted(areas)
        assert areas[0] < areas[-1]

    @given(
        npst.arrays(np.int8, st.tuples(st.integers(1, 12), st.integers(1, 12))), st.integers(0, 7), st.integers(0, 7)
    )
    def test_is_filled_as_pixel_by_pixel(self, values: NDArray[np.int8], threshold: int, outline: int) -> None:
        anomaly_map = (values % 8).astype(np.float32)
        outline = min(outline, threshold)
        found = find_regions(anomaly_map, threshold, outline=outline)
        expected = flood(anomaly_map, threshold, outline)
        assert sorted(((region.box, region.area, region.peak) for region in found), key=str) == expected
        assert [region.peak for region in found] == sorted((region.peak for region in found), reverse=True)
        for region in found:
            assert_inside(region, *anomaly_map.shape)
            assert anomaly_map[region.peak_at[::-1]] == region.peak

    @pytest.mark.parametrize(("threshold", "outline"), [(0.95, 0.7), (0.8, 0.55), (0.99, 0.4)])
    def test_of_large_noise_is_scipys(self, threshold: float, outline: float) -> None:
        anomaly_map = np.random.default_rng(1).random((200, 157), np.float32)
        seeds, wide = anomaly_map > threshold, anomaly_map > outline
        filled = ndimage.binary_propagation(seeds, structure=np.ones((3, 3)), mask=wide)
        _, count = ndimage.label(filled, structure=np.ones((3, 3)))
        found = find_regions(anomaly_map, threshold, outline=outline)
        assert len(found) == count
        assert sum(region.area for region in found) == filled.sum()


class TestOutlineAboveTheThreshold:
    MAP = np.array(
        [
            [0, 2, 2, 2, 0, 0, 0],
            [0, 2, 5, 2, 0, 0, 0],
            [0, 2, 6, 2, 0, 2, 3],
            [0, 2, 2, 2, 0, 0, 0],
        ],
        dtype=np.float32,
    )

    def test_a_strong_region_is_cut_and_a_weak_one_is_whole(self) -> None:
        strong, weak = find_regions(self.MAP, 1.0, outline=4.0)
        assert (strong.box, strong.area, strong.peak, strong.peak_at) == ((2, 1, 3, 3), 2, 6.0, (2, 2))
        assert (weak.box, weak.area, weak.peak) == ((5, 2, 7, 3), 2, 3.0)

    def test_the_mask_has_the_same_pixels(self) -> None:
        mask = region_mask(self.MAP, 1.0, 4.0)
        assert np.argwhere(mask).tolist() == [[1, 2], [2, 2], [2, 5], [2, 6]]

    def test_pieces_of_one_region_stay_one_region(self) -> None:
        bridge = np.array([[6, 2, 7]], dtype=np.float32)
        (region,) = find_regions(bridge, 1.0, outline=4.0)
        assert (region.box, region.area) == ((0, 0, 3, 1), 2)

    def test_the_smallest_region_counts_at_the_threshold(self) -> None:
        (region,) = find_regions(self.MAP, 1.0, outline=4.0, min_area=5)
        assert (region.area, region.score) == (2, 2.0)

    @given(
        npst.arrays(np.float32, (6, 7), elements=st.integers(0, 6).map(float)),
        st.integers(0, 5),
        st.integers(0, 6),
        st.integers(0, 4),
    )
    def test_verdicts_and_scores_do_not_depend_on_it(
        self, values: NDArray[np.float32], threshold: int, outline: int, min_area: int
    ) -> None:
        plain = find_regions(values, threshold, min_area=min_area)
        cut = find_regions(values, threshold, outline=float(max(outline, threshold)), min_area=min_area)
        assert [region.score for region in cut] == [region.score for region in plain]
        assert [region.peak_at for region in cut] == [region.peak_at for region in plain]
        mask = region_mask(values, threshold, float(max(outline, threshold)), min_area)
        assert int(mask.sum()) == sum(region.area for region in cut)

    @given(
        npst.arrays(np.float32, (6, 7), elements=st.integers(0, 6).map(float)),
        st.integers(0, 5),
        st.one_of(st.none(), st.integers(0, 7)),
        st.integers(0, 4),
    )
    def test_every_pixel_is_where_the_definition_puts_it(
        self, values: NDArray[np.float32], threshold: int, outline: int | None, min_area: int
    ) -> None:
        """Outlines below, equal to and above the threshold, with and without a smallest area."""
        bound = threshold if outline is None else outline
        labels, count = label_components(values > min(bound, threshold))
        strong, pieces = label_components(values > threshold)
        expected = []
        for one in range(1, count + 1):
            inside = labels == one
            sizes = np.bincount(strong[inside & (strong > 0)], minlength=pieces + 1)
            if sizes.max() >= max(1, min_area):
                is_cut = bound > threshold and values[inside].max() > bound
                expected.append(inside & (values > bound) if is_cut else inside)
        level = None if outline is None else float(outline)
        mask = region_mask(values, threshold, level, min_area)
        np.testing.assert_array_equal(mask, np.any([*expected, np.zeros_like(mask)], axis=0))
        found = find_regions(values, threshold, outline=level, min_area=min_area)
        boxes = sorted((region.box, region.area) for region in found)
        assert boxes == sorted((box_of(inside), int(inside.sum())) for inside in expected)

    def test_an_outline_that_is_no_float32_is_not_rounded_up(self) -> None:
        pixel = np.float32(0.1)
        values = np.array([[pixel, 0.05]], dtype=np.float32)
        below, at = np.nextafter(float(pixel), 0.0), float(pixel)
        assert [region.area for region in find_regions(values, 0.01, outline=below)] == [1]  # the pixel exceeds it
        assert [region.area for region in find_regions(values, 0.01, outline=at)] == [2]  # nothing exceeds it
        assert [region.area for region in find_regions(values, at, outline=0.01)] == []
        assert [region.area for region in find_regions(values, below, outline=0.01)] == [2]
        assert [region.area for region in find_regions(values, below, outline=below)] == [1]


def box_of(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero(mask)
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1
