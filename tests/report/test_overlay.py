from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.report.overlay import (
    MAX_SIDE,
    OUTLINE,
    contour,
    draw_overlay,
    heat_colours,
    heat_ratio,
    panel_size,
    save_overlay,
)
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.regions import find_regions

THRESHOLD = 0.05


def inspection(anomaly_map: NDArray[np.float32], threshold: float = THRESHOLD) -> Inspection:
    image = np.random.default_rng(0).integers(0, 200, (*anomaly_map.shape, 3), dtype=np.uint8)
    return Inspection(
        name="part.png",
        score=float(anomaly_map.max()),
        threshold=threshold,
        anomaly_map=anomaly_map,
        scale_maps={},
        image=image,
        image_size=image.shape[:2],
        regions=find_regions(anomaly_map, threshold),
    )


def bump(peak: float, size: int = 256) -> NDArray[np.float32]:
    """A smooth hill of height ``peak`` on a floor of a fifth of the threshold."""
    y, x = np.mgrid[:size, :size] / size
    hill = peak * np.exp(-((y - 0.4) ** 2 + (x - 0.6) ** 2) / 0.01)
    values: NDArray[np.float32] = np.maximum(hill, 0.2 * THRESHOLD).astype(np.float32)
    return values


def panels(sheet: Image.Image, height: int, width: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(outlined image, heat map), both (height, width, 3)."""
    pixels = np.asarray(sheet)
    return pixels[:height, :width], pixels[:height, -width:]


def warm(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return pixels[..., 0] > pixels[..., 2]


def outlined(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (pixels == OUTLINE).all(axis=-1)
    return found


def test_a_good_image_is_calm() -> None:
    left, right = panels(draw_overlay(inspection(bump(0.5 * THRESHOLD))), 256, 256)
    assert not warm(right).any()
    assert not outlined(left).any()


def test_a_defect_is_warm_exactly_where_the_map_exceeds_the_threshold() -> None:
    anomaly_map = bump(2 * THRESHOLD)
    _, right = panels(draw_overlay(inspection(anomaly_map)), 256, 256)
    np.testing.assert_array_equal(warm(right), anomaly_map > THRESHOLD)


def test_the_outline_surrounds_exactly_the_region() -> None:
    anomaly_map = np.zeros((256, 256), dtype=np.float32)
    anomaly_map[100:140, 60:90] = 2 * THRESHOLD
    left, _ = panels(draw_overlay(inspection(anomaly_map)), 256, 256)
    line = outlined(left)
    rows, columns = np.nonzero(line)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (98, 141, 58, 91)  # two pixels wide
    assert not line[100:140, 60:90].any()  # the defect itself stays visible
    assert line[98:100, 60:90].all()
    assert line[140:142, 60:90].all()


def test_colours_are_fixed_by_the_threshold_not_by_the_image() -> None:
    weak, strong = bump(1.5 * THRESHOLD), bump(6 * THRESHOLD)
    far = np.s_[200:, :100]  # away from the hill, both maps are the floor
    _, heat_weak = panels(draw_overlay(inspection(weak)), 256, 256)
    _, heat_strong = panels(draw_overlay(inspection(strong)), 256, 256)
    np.testing.assert_array_equal(heat_weak[far], heat_strong[far])

    _, stricter = panels(draw_overlay(inspection(weak, THRESHOLD / 2)), 256, 256)
    assert warm(stricter).sum() > warm(heat_weak).sum()


def test_an_uncalibrated_map_uses_its_own_maximum_and_has_no_outline() -> None:
    sheet = draw_overlay(inspection(bump(0.3), math.inf))
    left, right = panels(sheet, 256, 256)
    assert warm(right).any()
    assert not outlined(left).any()
    assert sheet.tobytes() != draw_overlay(inspection(bump(0.3), 0.1)).tobytes()


@pytest.mark.parametrize("threshold", [0.0, math.inf])
def test_a_map_of_zeros_is_cold_at_any_threshold(threshold: float) -> None:
    assert not heat_ratio(np.zeros((4, 5), dtype=np.float32), threshold).any()


def test_one_pixel_above_the_threshold_survives_shrinking() -> None:
    anomaly_map = np.zeros((1500, 1500), dtype=np.float32)
    anomaly_map[777, 333] = 1.1 * THRESHOLD
    left, right = panels(draw_overlay(inspection(anomaly_map)), MAX_SIDE, MAX_SIDE)
    assert outlined(left).any()
    assert warm(right).any()


def test_regions_that_touch_only_when_shrunk_keep_their_own_outlines() -> None:
    """A weak region next to one that is bounded above the threshold is outlined as a whole."""
    anomaly_map = np.zeros((1536, 1536), dtype=np.float32)
    anomaly_map[400:600, 400:600] = 2 * THRESHOLD
    anomaly_map[450:550, 450:550] = 8 * THRESHOLD
    anomaly_map[400:600, 601:800] = 2 * THRESHOLD  # one pixel away: together once two pixels become one
    bounded = replace(inspection(anomaly_map), outline=4 * THRESHOLD)
    regions = find_regions(anomaly_map, THRESHOLD, outline=bounded.outline)
    assert [region.box for region in regions] == [(450, 450, 550, 550), (601, 400, 800, 600)]
    left, _ = panels(draw_overlay(bounded), MAX_SIDE, MAX_SIDE)
    line = outlined(left)
    assert line[224, 225:275].all()  # above the strong region
    assert line[199, 301:399].all()  # above the weak one
    assert not line[199, 200:290].any()


@pytest.mark.parametrize(
    ("shape", "panel"),
    [
        ((256, 256), (256, 256)),
        ((28, 28), (256, 256)),
        ((128, 256), (256, 512)),
        ((3000, 2000), (768, 512)),
        ((10, 1000), (8, 768)),
    ],
)
def test_panels_are_neither_tiny_nor_huge(shape: tuple[int, int], panel: tuple[int, int]) -> None:
    assert panel_size(shape, 256) == panel


@pytest.mark.parametrize("shape", [(1, 1), (28, 30), (400, 20), (20, 400), (900, 300)])
def test_any_shape_can_be_drawn(shape: tuple[int, int]) -> None:
    sheet = draw_overlay(inspection(np.full(shape, 2 * THRESHOLD, dtype=np.float32)))
    assert sheet.mode == "RGB"
    assert sheet.width >= 480  # the legend needs room


def test_heat_gets_lighter_all_the_way_and_saturates() -> None:
    colours = heat_colours(np.linspace(0, 3, 500)[None])
    lightness = np.asarray(Image.fromarray(colours).convert("L"), dtype=int)[0]
    assert (np.diff(lightness) >= 0).all()
    np.testing.assert_array_equal(heat_colours(np.array([[3.0]])), heat_colours(np.array([[99.0]])))
    assert not warm(heat_colours(np.array([[0.0, 0.5, 1.0]]))).any()
    assert warm(heat_colours(np.array([[1.001, 2.0, 3.0]]))).all()


def test_contour_is_the_ring_beside_the_mask() -> None:
    mask = np.zeros((9, 12), dtype=bool)
    mask[3:6, 4:8] = True
    ring = contour(mask)
    assert ring.sum() == 2 * 3 + 2 * 4
    assert not (ring & mask).any()


def test_contour_closes_along_the_edge_of_the_image() -> None:
    ring = contour(np.ones((5, 6), dtype=bool))
    assert ring[[0, -1], :].all()
    assert ring[:, [0, -1]].all()
    assert not ring[1:-1, 1:-1].any()
    assert not contour(np.zeros((5, 6), dtype=bool)).any()


@pytest.mark.parametrize("name", ["part.png.jpg", "deep/er/part.png"])
def test_saved_overlays_can_be_read_back(tmp_path: Path, name: str) -> None:
    seen = replace(inspection(bump(2 * THRESHOLD)), name=name)
    with Image.open(save_overlay(seen, tmp_path / name)) as saved:
        difference = np.asarray(saved, dtype=float) - np.asarray(draw_overlay(seen), dtype=float)
    assert np.abs(difference).mean() < 5
