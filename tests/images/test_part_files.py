"""Which files are views of which part."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.images.part_files import group_parts
from support.parts import draw_part, save_picture

PATTERN = r"(?P<part>.+)_(?P<view>top|side)\.png"
VIEWS = ("top", "side")


def save(folder: Path, *names: str) -> Path:
    for name in names:
        save_picture(folder / name, draw_part(0, (16, 16)))
    return folder


def test_a_pattern_finds_part_and_view(tmp_path: Path) -> None:
    save(tmp_path, "b/2_top.png", "1_top.png", "1_side.png", "b/2_side.png", "overview.png")
    (tmp_path / "notes.txt").write_text("no image")
    found = group_parts(tmp_path, VIEWS, PATTERN)
    assert found.parts == {
        "1": {"side": tmp_path / "1_side.png", "top": tmp_path / "1_top.png"},
        "b/2": {"side": tmp_path / "b/2_side.png", "top": tmp_path / "b/2_top.png"},
    }
    assert found.ignored == (tmp_path / "overview.png",)


def test_folders_of_views_need_no_pattern(tmp_path: Path) -> None:
    save(tmp_path, "top/lot 7/1.png", "side/lot 7/1.png", "top/2.png", "other/2.png", "3.png")
    found = group_parts(tmp_path, VIEWS)
    assert found.parts == {
        "2": {"top": tmp_path / "top/2.png"},
        "lot 7/1": {"side": tmp_path / "side/lot 7/1.png", "top": tmp_path / "top/lot 7/1.png"},
    }
    assert found.ignored == (tmp_path / "3.png", tmp_path / "other/2.png")


def test_a_damaged_file_is_still_a_view_of_its_part(tmp_path: Path) -> None:
    save(tmp_path, "1_top.png")
    (tmp_path / "1_side.png").write_bytes(b"no picture")
    assert set(group_parts(tmp_path, VIEWS, PATTERN).parts["1"]) == {"top", "side"}


def test_two_files_of_one_view_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "top/1.png", "side/1.png", "top/1.bmp")
    with pytest.raises(DatasetError, match=r"top/1.bmp' and '.*top/1.png' are both the view 'top' of the part '1'"):
        group_parts(tmp_path, VIEWS)


def test_a_folder_without_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no image in it; put the images of each view in a folder of its name"):
        group_parts(tmp_path, VIEWS)
    save(tmp_path, "1.png")
    with pytest.raises(DatasetError, match=r"1.png' and other images belong to no part; check `pattern`"):
        group_parts(tmp_path, VIEWS, PATTERN)
    with pytest.raises(DatasetError, match="there is no folder"):
        group_parts(tmp_path / "nowhere", VIEWS)


def test_a_view_without_a_model_is_refused(tmp_path: Path) -> None:
    save(tmp_path, "1_top.png", "1_side.png")
    with pytest.raises(ConfigError, match=r"`pattern` finds the view 'side' in '.*1_side.png', and there is no model"):
        group_parts(tmp_path, ["top"], PATTERN)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "is no regular expression"),
        (r"(?P<part>.+)\.png", "has no group 'view'"),
        (r"(.+)_(?P<view>top)\.png", "has no group 'part'"),
    ],
)
def test_a_pattern_that_cannot_work_is_refused(tmp_path: Path, pattern: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"`pattern` {problem}"):
        group_parts(tmp_path, VIEWS, pattern)
