from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.core.presets import preset
from patchsvdd.report.contact_sheet import (
    SHADES,
    TRUTH,
    Seen,
    SheetCell,
    SheetRow,
    draw_sheet,
    look_at,
    map_colours,
    outline_truth,
)
from patchsvdd.report.overlay import save_image
from support.parts import draw_part

PART = (0, 90, 200)
"""Colour of the test image, found nowhere else on a sheet."""


def hill(peak: float, shape: tuple[int, int] = (64, 64), *, y: int = 20, x: int = 40) -> NDArray[np.float32]:
    """A smooth hill with its top at (y, x)."""
    rows, columns = np.indices(shape)
    values: NDArray[np.float32] = (peak * np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 50)).astype(np.float32)
    return values


def cell(
    *maps: NDArray[np.float32], full: float = 1.0, shape: tuple[int, int] = (64, 64), caption: str = ""
) -> SheetCell:
    image = np.full((*shape, 3), PART, dtype=np.uint8)
    named = {f"map {index}": values for index, values in enumerate(maps)}
    return SheetCell(image, None, named, dict.fromkeys(named, full), caption)


def look(category: Path, *names: str, image_size: int = 64) -> dict[str, Seen]:
    return look_at(category, [f"test/{name}" for name in names], preset(image_size=image_size))


def sheet_of(*cells: SheetCell, panel: int = 128) -> NDArray[np.uint8]:
    return np.asarray(draw_sheet([SheetRow("scratch", cells)], panel=panel))


def corners(sheet: NDArray[np.uint8], colour: tuple[int, int, int] = PART) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of the part of a sheet in one colour, ends included."""
    rows, columns = np.nonzero((sheet == colour).all(axis=-1))
    return int(rows.min()), int(rows.max()), int(columns.min()), int(columns.max())


def map_panel(sheet: NDArray[np.uint8], panel: int = 128) -> NDArray[np.uint8]:
    """The map right of the only image."""
    top, bottom, left, right = corners(sheet)
    step = right - left + 1 + 2 + panel // 32  # the frames and the gap
    return sheet[top : bottom + 1, left + step : right + step + 1]


def lightness(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(pixels).convert("L"))


def test_the_darkest_pixel_is_at_the_maximum() -> None:
    panel = map_panel(sheet_of(cell(hill(0.8))))
    assert panel.shape == (128, 128, 3)
    y, x = divmod(int(lightness(panel).argmin()), 128)
    assert (y // 2, x // 2) == (20, 40)
    np.testing.assert_array_equal(panel[-1, 0], SHADES[0])  # far from the hill


def test_values_above_the_full_one_saturate() -> None:
    values = np.zeros((64, 64), dtype=np.float32)
    values[:32] = 5.0
    values[0, 0] = np.inf
    panel = map_panel(sheet_of(cell(values, full=2.0)))
    assert (panel[:60] == SHADES[-1]).all()
    assert (panel[-60:] == SHADES[0]).all()


def test_colours_are_fixed_by_the_scale_not_by_the_image() -> None:
    weak, strong = (map_panel(sheet_of(cell(hill(peak), full=1.0))) for peak in (0.3, 0.9))
    assert lightness(weak).min() > 2 * lightness(strong).min()
    np.testing.assert_array_equal(strong, map_panel(sheet_of(cell(2 * hill(0.9), full=2.0))))


@pytest.mark.parametrize("peak", [0.0, 1.0])
def test_a_scale_of_zero_is_allowed(peak: float) -> None:
    panel = map_panel(sheet_of(cell(np.full((64, 64), peak, dtype=np.float32), full=0.0)))
    assert (panel == SHADES[-1 if peak else 0]).all()


def test_shades_get_darker_all_the_way() -> None:
    shown = lightness(map_colours(np.linspace(0, 1, 300)[None]))[0].astype(int)
    assert (np.diff(shown) <= 0).all()
    assert shown[0] > 240
    assert shown[-1] < 15
    assert np.abs(np.diff(shown)).max() <= 3  # no step stands out


def test_the_outline_surrounds_the_defect_and_has_a_halo() -> None:
    mask = np.zeros((100, 100), dtype=bool)
    mask[40:60, 30:50] = True
    seen = np.asarray(outline_truth(Image.new("RGB", (100, 100), PART), mask, thickness=2))
    assert corners(seen, TRUTH) == (38, 61, 28, 51)
    assert corners(seen, (255, 255, 255)) == (37, 62, 27, 52)
    assert (seen[40:60, 30:50] == PART).all()  # the defect itself stays visible
    assert (seen[38:40, 30:50] == TRUTH).all()
    assert (seen[37, 30:50] == 255).all()


def test_the_outline_of_a_mask_at_the_edge_is_closed() -> None:
    seen = np.asarray(outline_truth(Image.new("RGB", (50, 50), PART), np.ones((50, 50), dtype=bool), thickness=1))
    assert (seen[[0, -1]] == TRUTH).all()
    assert (seen[:, [0, -1]] == TRUTH).all()
    assert (seen[1:-1, 1:-1] == PART).all()


def test_one_defective_pixel_survives_shrinking() -> None:
    mask = np.zeros((3000, 3000), dtype=bool)
    mask[1500, 600] = True
    seen = np.asarray(outline_truth(Image.new("RGB", (100, 100), PART), mask, thickness=1))
    assert corners(seen, TRUTH) == (49, 51, 19, 21)


def test_a_sheet_outlines_the_annotated_defect_only() -> None:
    mask = np.zeros((64, 64), dtype=bool)
    mask[10:20, 30:50] = True
    outlined = sheet_of(replace(cell(hill(0.5)), mask=mask))
    top, _, left, _ = corners(outlined)
    line = corners(outlined, TRUTH)
    assert (line[0] - top, line[1] - top, line[2] - left, line[3] - left) == (19, 40, 59, 100)  # one pixel beside
    assert not (sheet_of(cell(hill(0.5))) == TRUTH).all(axis=-1).any()
    assert not (sheet_of(replace(cell(hill(0.5)), mask=mask & False)) == TRUTH).all(axis=-1).any()


@pytest.mark.parametrize(
    ("shape", "size"), [((64, 64), (128, 128)), ((30, 60), (64, 128)), ((900, 300), (128, 43)), ((10, 2000), (1, 128))]
)
def test_images_keep_their_shape(shape: tuple[int, int], size: tuple[int, int]) -> None:
    top, bottom, left, right = corners(sheet_of(cell(np.zeros(shape, dtype=np.float32), shape=shape)))
    assert (bottom - top + 1, right - left + 1) == size


def test_a_long_row_wraps_and_short_rows_share_a_line() -> None:
    one = cell(hill(0.5))
    narrow, wide, wrapped = (draw_sheet([SheetRow("a", [one] * number)], panel=128) for number in (1, 3, 4))
    assert wide.width > 2.5 * narrow.width
    assert wrapped.width == wide.width
    assert wrapped.height > wide.height + 128
    rows = [SheetRow(name, [one]) for name in "abc"]
    together = draw_sheet(rows, panel=128)
    assert together.width > 2.5 * narrow.width
    assert together.height <= narrow.height


def test_words_are_drawn_and_long_ones_cut() -> None:
    plain = draw_sheet([SheetRow("", [cell()])], panel=128)
    captioned = draw_sheet([SheetRow("", [cell(caption="x" * 500)])], panel=128)
    labelled = draw_sheet([SheetRow("broken", [cell()])], panel=128)
    titled = draw_sheet([SheetRow("", [cell()])], title="bottle", panel=128)
    assert {captioned.width, labelled.width, titled.width} == {plain.width}
    assert all(sheet.height > plain.height for sheet in (captioned, labelled, titled))
    assert (lightness(np.asarray(labelled)) < 60).any()


def test_words_beyond_ascii_are_no_reason_to_stop() -> None:
    sheet = draw_sheet([SheetRow("Kratzer – größer", [cell(caption="L_SVDD′ × λ")])], title="瓶")
    assert sheet.mode == "RGB"


def test_the_colour_bar_shows_the_whole_scale_if_there_is_a_map() -> None:
    with_map, without = sheet_of(cell(hill(0.0))), sheet_of(cell())
    below = with_map[corners(with_map)[1] + 2 :]
    assert (below == SHADES[0]).all(axis=-1).any()
    assert (below == SHADES[-1]).all(axis=-1).any()
    assert not (without == SHADES[-1]).all(axis=-1).any()


def test_differing_scales_are_written_above_each_map() -> None:
    same = sheet_of(cell(hill(0.5), full=1.0), cell(hill(0.5), full=1.0))
    other = sheet_of(cell(hill(0.5), full=1.0), cell(hill(0.5), full=2.0))
    top = corners(same)[0]
    assert corners(other)[0] == top
    assert (lightness(other[:top]) < 100).sum() > (lightness(same[:top]) < 100).sum()


@pytest.mark.parametrize("rows", [[], [SheetRow("empty", [])], [SheetRow("", [])]])
def test_a_sheet_without_images_can_be_drawn(rows: list[SheetRow]) -> None:
    assert min(draw_sheet(rows, title="nothing").size) > 0
    assert min(draw_sheet(rows).size) > 0


@pytest.mark.parametrize(("name", "kind"), [("a/sheet.jpg", "JPEG"), ("sheet.PNG", "PNG")])
def test_sheets_are_saved_by_suffix_with_the_same_bytes_each_time(tmp_path: Path, name: str, kind: str) -> None:
    sheet = draw_sheet([SheetRow("scratch", [cell(hill(0.5), hill(1.5))])])
    first = save_image(sheet, tmp_path / name).read_bytes()
    assert (
        save_image(draw_sheet([SheetRow("scratch", [cell(hill(0.5), hill(1.5))])]), tmp_path / name).read_bytes()
        == first
    )
    with Image.open(tmp_path / name) as saved:
        assert saved.format == kind
        assert saved.size == sheet.size
        assert np.abs(np.asarray(saved, dtype=float) - np.asarray(sheet, dtype=float)).mean() < 2


def test_test_images_and_masks_are_seen_at_the_detector_s_size(category: Path) -> None:
    seen = look(category, "good/000.png", "crack/001.png")
    picture, mask = seen["test/crack/001.png"]
    np.testing.assert_array_equal(picture, draw_part(21, defect=True))
    assert mask is not None
    assert mask[27:37, 27:37].all()
    assert mask.sum() == 100
    assert seen["test/good/000.png"][1] is None
    larger, mask = look(category, "crack/001.png", image_size=128)["test/crack/001.png"]
    assert larger.shape == (128, 128, 3)
    assert mask is not None
    assert mask.shape == (128, 128)


def test_images_and_masks_that_are_gone_or_broken_are_left_out(category: Path) -> None:
    (category / "test" / "good" / "000.png").write_bytes(b"no image")
    mask = category / "ground_truth" / "crack" / "001_mask.png"
    mask.write_bytes(mask.read_bytes()[:60])
    seen = look(category, "good/000.png", "good/001.png", "crack/000.png", "crack/001.png", "crack/009.png")
    assert list(seen) == ["test/good/001.png", "test/crack/000.png"]


def test_images_without_masks_are_seen_all_the_same(category: Path) -> None:
    shutil.rmtree(category / "ground_truth")
    assert look(category, "crack/000.png")["test/crack/000.png"][1] is None


def test_nothing_is_seen_of_a_category_that_is_gone(category: Path) -> None:
    shutil.rmtree(category)
    assert look(category, "crack/000.png") == {}
