"""Contact sheets of the maps that experiments kept; test images are of one colour each, so that they can be told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.evaluation.experiment import Experiment, ExperimentResult
from patchsvdd.evaluation.paper.map_sheets import compare_maps, map_sheet
from patchsvdd.evaluation.sample_maps import SampleMaps
from patchsvdd.report.contact_sheet import SHADES
from support.paper_study import CONFIG
from support.parts import save_picture

Colour = tuple[int, int, int]
COLOURS: dict[str, Colour] = {
    "test/dent/0.png": (0, 90, 200),
    "test/dent/1.png": (0, 200, 90),
    "test/dent/2.png": (200, 0, 200),
    "test/crack/0.png": (0, 200, 200),
}
RANKS = dict(zip(COLOURS, ("highest", "median", "lowest", "median"), strict=True))
NAMES = {64: "64 px", 32: "32 px", 0: "product"}


@pytest.fixture
def category(tmp_path: Path) -> Path:
    for name, colour in COLOURS.items():
        save_picture(tmp_path / "bottle" / name, np.full((64, 64, 3), colour, np.uint8))
    return tmp_path / "bottle"


def result(
    category: Path, name: str, ranks: Mapping[str, str] = RANKS, *, lowest: int = 0, peak: float = 1.0
) -> ExperimentResult:
    """A result that was never computed: its maps are 0 … ``peak``, from ``lowest`` in 255 steps of it on."""
    about = [
        {"image": image, "defect": image.split("/")[1], "rank": rank, "score": peak, "anomalous": True}
        | {"ranges": {size: [0.0, peak] for size in ("0", "32", "64")}}
        for image, rank in ranks.items()
    ]
    ramp = np.linspace(lowest, 255, 64).round().astype(np.uint8)[None].repeat(64, axis=0)
    arrays = {f"{index}.{size}": ramp for index in range(len(about)) for size in NAMES}
    folder = category.parent / "runs"
    SampleMaps(None, about, arrays).write(folder / f"{name}.npz")
    return ExperimentResult(Experiment(category, CONFIG), {"kept": about}, folder, name)


def colours(path: Path | None) -> set[Colour]:
    """The colours of test images that a sheet shows."""
    assert path is not None
    return {colour for colour in COLOURS.values() if count(path, colour)}


def count(path: Path, colour: Colour) -> int:
    """Pixels of about that colour."""
    with Image.open(path) as sheet:
        pixels: NDArray[np.int16] = np.asarray(sheet.convert("RGB")).astype(np.int16)
    return int((np.abs(pixels - colour) <= 2).all(axis=-1).sum())


def test_the_median_image_of_each_kind_is_shown(category: Path, tmp_path: Path) -> None:
    path = map_sheet(category, result(category, "a"), NAMES, tmp_path / "sheet.png")
    assert path == tmp_path / "sheet.png"
    assert colours(path) == {COLOURS["test/dent/1.png"], COLOURS["test/crack/0.png"]}


def test_every_map_asked_for_is_shown(category: Path, tmp_path: Path) -> None:
    one = map_sheet(category, result(category, "a"), {0: "product"}, tmp_path / "one.png")
    three = map_sheet(category, result(category, "a"), NAMES, tmp_path / "three.png")
    assert one is not None
    assert three is not None
    with Image.open(one) as narrow, Image.open(three) as wide:
        assert wide.width * wide.height > 1.5 * narrow.width * narrow.height


def test_images_that_are_gone_are_left_out(category: Path, tmp_path: Path) -> None:
    found = result(category, "a")
    (category / "test" / "dent" / "1.png").unlink()
    assert colours(map_sheet(category, found, NAMES, tmp_path / "a.png")) == {COLOURS["test/crack/0.png"]}
    expected = {COLOURS["test/crack/0.png"], COLOURS["test/dent/0.png"]}  # not the median, but of its kind
    assert colours(compare_maps(category, {"x": found, "y": found}, tmp_path / "b.png")) == expected


@pytest.mark.parametrize("lost", ["images", "maps"])
def test_there_is_no_sheet_where_nothing_can_be_shown(category: Path, tmp_path: Path, lost: str) -> None:
    found = result(category, "a")
    for path in (category if lost == "images" else found.folder).rglob("*.*"):
        path.unlink()
    assert map_sheet(category, found, NAMES, tmp_path / "sheet.png") is None
    assert compare_maps(category, {"x": found, "y": found}, tmp_path / "sheet.png") is None
    assert not (tmp_path / "sheet.png").exists()


def test_detectors_are_compared_on_the_median_image_of_the_last_if_both_kept_it(category: Path, tmp_path: Path) -> None:
    last = result(category, "b")
    all_kept = compare_maps(category, {"L_SVDD": result(category, "a"), "L_SSL": last}, tmp_path / "sheet.png")
    assert colours(all_kept) == {COLOURS["test/dent/1.png"], COLOURS["test/crack/0.png"]}
    first = result(category, "a", {"test/dent/2.png": "highest", "test/crack/0.png": "lowest"})
    path = compare_maps(category, {"L_SVDD": first, "L_SSL": last}, tmp_path / "sheet.png")
    assert colours(path) == {COLOURS["test/dent/2.png"], COLOURS["test/crack/0.png"]}


def test_each_detector_s_maps_span_all_colours(category: Path, tmp_path: Path) -> None:
    """Those of L_SVDD lie within a percent of one another, at another height than the others."""
    narrow, wide = result(category, "a", lowest=250, peak=5.0), result(category, "b")
    path = compare_maps(category, {"L_SVDD": narrow, "L_SSL": wide}, tmp_path / "sheet.png")
    both_wide = compare_maps(category, {"L_SVDD": wide, "L_SSL": wide}, tmp_path / "wide.png")
    assert path is not None
    assert both_wide is not None
    for shade in (SHADES[0], SHADES[-1]):
        assert count(path, shade) >= 0.9 * count(both_wide, shade) > 100
