from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.report.rows import (
    CSV_COLUMNS,
    LONGEST_NAME,
    csv_cells,
    error_row,
    file_for,
    inspection_row,
    json_line,
    npy_bytes,
    timed,
)
from support.parts import draw_part

ORIGIN = {"image": "a/b.png", "path": "/photos/a/b.png", "model": "abc"}


def test_a_row_has_the_result_and_the_origin(detector: PatchSVDD) -> None:
    inspection = detector.inspect(draw_part(11, defect=True))
    row = inspection_row(inspection, **ORIGIN, seconds=0.123456, overlay="overlays/a/b.png.jpg")
    expected = inspection.to_json() | ORIGIN | {"seconds": 0.1235, "overlay": "overlays/a/b.png.jpg"}
    assert {key: value for key, value in row.items() if key != "inspected"} == expected
    assert abs((datetime.now(UTC) - datetime.fromisoformat(row["inspected"])).total_seconds()) < 60
    assert json.loads(json_line(row)) == row
    cells = dict(zip(CSV_COLUMNS, csv_cells(row), strict=True))
    assert cells["regions"] == len(inspection.regions) > 0
    assert cells["largest_region_area"] == max(region.area for region in inspection.regions)
    assert all(cells[name] == row.get(name) for name in CSV_COLUMNS if name not in ("regions", "largest_region_area"))


def test_the_row_of_an_unreadable_image_has_the_reason_only() -> None:
    row = error_row("truncated file", **ORIGIN)
    assert row.keys() == {*ORIGIN, "inspected", "error"}
    cells = dict(zip(CSV_COLUMNS, csv_cells(row), strict=True))
    assert {name for name, cell in cells.items() if cell is not None} == {"inspected", "image", "model", "error"}


@pytest.mark.parametrize("name", ["a.png", "a/ü.png", "a/" + "x" * (LONGEST_NAME - 4)])
def test_a_name_that_fits_is_kept(name: str) -> None:
    assert file_for("overlays", name, ".jpg") == Path("overlays", name + ".jpg")


@pytest.mark.parametrize("name", ["x" * LONGEST_NAME, "../x.png", "/x.png", "s3://bucket/x.png", "a//x.png"])
def test_a_name_that_does_not_fit_becomes_its_hash(name: str) -> None:
    path = file_for("overlays", name, ".jpg")
    assert path.parts[0] == "overlays"
    assert ".." not in path.parts
    assert len(path.name) == 36
    assert path != file_for("overlays", name + "x", ".jpg")


def test_maps_are_stored_to_the_bit() -> None:
    values = np.random.default_rng(0).random((4, 6), dtype=np.float32).T  # not contiguous
    assert np.array_equal(np.load(io.BytesIO(npy_bytes(values)), allow_pickle=False), values)


def test_times_are_those_between_items() -> None:
    assert [item for item, _ in timed("abc")] == ["a", "b", "c"]
    assert all(0 <= seconds < 1 for _, seconds in timed("abc"))
