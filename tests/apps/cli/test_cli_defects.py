from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from patchsvdd.core.presets import preset
from patchsvdd.critic.synthetic_defects import KINDS
from patchsvdd.images.loading import sized_for
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.report.contact_sheet import TRUTH
from patchsvdd.report.defect_sheet import Examples, draw_defect_sheet, draw_examples, save_examples
from support.command_line import Ended, draw_parts, files, run
from support.parts import draw_part, save_picture

FEW = ("--image-size", 72, "--columns", 2)


@pytest.fixture(scope="module")
def category(bolt: Path) -> Path:
    return bolt


@pytest.fixture(scope="module")
def good() -> torch.Tensor:
    pictures = 255 * torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(pictures, (72, 90)).byte()


def draw(source: Path, out: Path, *arguments: object) -> Ended:
    return run("defects", source, "--out", out, *FEW, *arguments)


def pixels(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    with Image.open(path) as picture:
        return np.asarray(picture)


# The sheet


def test_every_kind_is_on_the_sheet(category: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "sheet.png"
    told = draw(category, out, "--json").json()
    assert told["sheet"] == str(out)
    assert told["saved"] is None
    assert told["images"] == 6
    assert told["image_size"] == [72, 72]
    assert told["skipped"] == []
    assert tuple(told["kinds"]) == KINDS
    for one in told["kinds"].values():
        assert 0 <= one["drawn"] <= 2
        assert 0 <= one["visible"] <= 1
        if one["drawn"]:
            area = one["area"]
            assert 0 < area["smallest"] <= area["median"] <= area["largest"] < 0.5
    assert sum(one["drawn"] for one in told["kinds"].values()) > len(KINDS)
    sheet = pixels(out)
    assert (sheet == TRUTH).all(axis=-1).any()
    assert sheet.shape[0] > sheet.shape[1]  # one block below the other


def test_one_seed_draws_one_sheet(category: Path, tmp_path: Path) -> None:
    sheets = []
    for index, seed in enumerate((1, 1, 2)):
        out = tmp_path / f"{index}.png"
        assert draw(category, out, "--seed", seed, "--kinds", "hole").code == 0
        sheets.append(out.read_bytes())
    assert sheets[0] == sheets[1] != sheets[2]


def test_the_kinds_asked_for_in_their_order(category: Path, tmp_path: Path) -> None:
    told = draw(category, tmp_path / "sheet.jpg", "--kinds", "paint, hole,paint", "--per-kind", 5, "--json").json()
    assert list(told["kinds"]) == ["paint", "hole"]
    assert told["kinds"]["paint"]["drawn"] == 5
    with Image.open(tmp_path / "sheet.jpg") as sheet:
        assert sheet.format == "JPEG"


def test_people_get_a_table(category: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    ended = draw(category, out, "--kinds", "hole,crack")
    assert ended.code == 0
    assert all(word in ended.stdout for word in ("hole", "crack", "visible", str(out)))
    assert "drawing" in ended.stderr


def test_a_plain_folder_with_one_image_will_do(tmp_path: Path) -> None:
    draw_parts(tmp_path / "good", 1)
    told = draw(tmp_path / "good", tmp_path / "sheet.png", "--kinds", "paint", "--json").json()
    assert (told["images"], told["kinds"]["paint"]["drawn"]) == (1, 2)


def test_broken_files_are_named_and_skipped(tmp_path: Path) -> None:
    draw_parts(tmp_path / "good", 2)
    (tmp_path / "good" / "broken.png").write_bytes(b"no image")
    ended = draw(tmp_path / "good", tmp_path / "sheet.png", "--kinds", "paint", "--json")
    assert ended.json()["images"] == 2
    assert "broken.png" in ended.json()["skipped"][0]
    assert "skipped: " in ended.stderr


# A set to test with


def test_saved_images_make_a_test_set(category: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    kinds = draw(
        category, tmp_path / "sheet.png", "--kinds", "paint,hole", "--per-kind", 3, "--save", folder, "--json"
    ).json()["kinds"]
    assert {path for path in files(folder) if path.startswith(("test/paint", "ground_truth/paint"))} == {
        f"{half}/paint/{index:03d}{end}.png"
        for half, end in (("test", ""), ("ground_truth", "_mask"))
        for index in range(3)
    }
    found = find_test_images(folder)
    assert not found.broken
    assert not found.stray_masks
    drawn = [image for image in found.images if not image.is_good]
    assert len(found.images) - len(drawn) == 6
    assert len(drawn) == sum(one["drawn"] for one in kinds.values())
    for image in drawn:
        assert image.mask is not None
        mask = pixels(image.mask)
        assert mask.shape == pixels(image.file).shape[:2] == (72, 72)
        assert set(np.unique(mask)) == {0, 255}


def test_a_saved_set_is_replaced_on_request_only(category: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "sheet.png", tmp_path / "set"
    first = ("--kinds", "paint", "--save", folder)
    assert draw(category, out, *first).code == 0
    before = files(tmp_path)
    assert "choose another --out, or replace it with --overwrite" in draw(category, out, *first).error()
    assert "replace it with --overwrite" in draw(category, tmp_path / "other.png", *first).error()
    assert files(tmp_path) == before
    assert draw(category, out, *first, "--seed", 1, "--overwrite").code == 0
    after = files(tmp_path)
    assert after.keys() == before.keys()
    assert after["set/test/paint/000.png"] != before["set/test/paint/000.png"]


def test_real_data_is_never_replaced(category: Path, tmp_path: Path) -> None:
    mine = tmp_path / "bolt"
    shutil.copytree(category, mine)
    before = files(mine)
    error = draw(mine, tmp_path / "sheet.png", "--save", mine, "--overwrite").error()
    assert "already contains" in error
    assert files(mine) == before
    assert not (tmp_path / "sheet.png").exists()


# What cannot be done


@pytest.mark.parametrize("kinds", ["dent", "hole,dent", ",", ""])
def test_kinds_that_are_none(category: Path, tmp_path: Path, kinds: str) -> None:
    error = draw(category, tmp_path / "sheet.png", "--kinds", kinds).error()
    assert "--kinds must be some of blend, " in error
    assert "dent" in error or "dent" not in kinds
    assert files(tmp_path) == {}


def test_folders_without_images(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "there is no image in" in draw(tmp_path / "empty", tmp_path / "sheet.png").error()
    assert "there is no folder" in draw(tmp_path / "nowhere", tmp_path / "sheet.png").error()


@pytest.mark.parametrize("name", ["sheet", "sheet.svg", "sheet.png.txt"])
def test_a_sheet_is_a_png_or_a_jpeg(category: Path, tmp_path: Path, name: str) -> None:
    assert ".png, .jpg, .jpeg" in draw(category, tmp_path / name).error()


def test_places_that_cannot_be_written(category: Path, tmp_path: Path) -> None:
    assert "choose another folder" in draw(category, Path("/proc/patchsvdd/sheet.png")).error()
    (tmp_path / "folder.png").mkdir()
    assert "is a folder" in draw(category, tmp_path / "folder.png").error()
    (tmp_path / "file").write_text("mine")
    assert "there is a file where" in draw(category, tmp_path / "file" / "sheet.png").error()
    assert "there is a file where" in draw(category, tmp_path / "sheet.png", "--save", tmp_path / "file").error()
    assert files(tmp_path) == {"file": b"mine"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(category: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "make the folder writable" in draw(category, tmp_path / "sheet.png").error()


def test_sizes_that_cannot_be_used(category: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    assert "native; got 'large'" in run("defects", category, "--out", out, "--image-size", "large").error()
    assert run("defects", category, "--out", out, "--columns", 0).code == 2
    assert files(tmp_path) == {}


# Examples


def test_examples_do_not_depend_on_other_kinds_and_none_is_empty(good: torch.Tensor) -> None:
    first, again, other = (draw_examples(good, "hole", 7, seed) for seed in (3, 3, 4))
    assert first.images.shape == (7, 72, 90, 3)
    assert first.images.dtype == np.uint8
    assert first.masks.any(axis=(1, 2)).all()
    np.testing.assert_array_equal(first.images, again.images)
    assert not np.array_equal(first.images, other.images)
    assert not np.array_equal(first.masks, draw_examples(good, "missing", 7, 3).masks)


def test_images_in_which_nothing_can_be_seen_are_left_out() -> None:
    flat = torch.full((2, 3, 64, 64), 128, dtype=torch.uint8)
    examples = draw_examples(flat, "smear", 3)
    assert examples.images.shape == (0, 64, 64, 3)
    assert examples.visible == 0
    assert examples.to_json() == {
        "drawn": 0,
        "visible": 0.0,
        "area": {"smallest": None, "median": None, "largest": None},
    }
    assert min(draw_defect_sheet([examples]).size) > 0


def test_a_smaller_set_leaves_nothing_of_a_larger_one(good: torch.Tensor, tmp_path: Path) -> None:
    examples = draw_examples(good, "hole", 4)
    save_examples(examples, tmp_path)
    save_examples(examples.first(2), tmp_path)
    assert set(files(tmp_path)) == {f"test/hole/00{index}.png" for index in range(2)} | {
        f"ground_truth/hole/00{index}_mask.png" for index in range(2)
    }


def test_examples_are_saved_at_the_scale_of_the_original_images(good: torch.Tensor, tmp_path: Path) -> None:
    examples = draw_examples(good, "hole", 2)
    save_examples(examples, tmp_path, pixel_scale=0.5)
    image, mask = (pixels(tmp_path / name) for name in ("test/hole/001.png", "ground_truth/hole/001_mask.png"))
    assert image.shape == (144, 180, 3)
    np.testing.assert_array_equal(mask > 0, examples.masks[1].repeat(2, axis=0).repeat(2, axis=1))


def test_the_size_is_chosen_from_all_images_by_default(tmp_path: Path) -> None:
    sizes = [(90, 60), (60, 90), (80, 80), (60, 70)]
    for seed, size in enumerate(sizes):
        save_picture(tmp_path / "good" / f"{seed}.png", draw_part(seed, size))
    one = ("--kinds", "hole", "--columns", 1, "--save", tmp_path / "saved", "--json")
    told = run("defects", tmp_path / "good", "--out", tmp_path / "sheet.png", *one).json()
    config = sized_for(tmp_path / "good", preset())
    assert tuple(told["image_size"]) == config.image_size
    assert config.pixel_scale is not None
    saved = pixels(tmp_path / "saved" / "test" / "good" / "000.png")
    assert config.placement((saved.shape[0], saved.shape[1])).is_whole
    assert saved.shape == (90, 90, 3)


def test_pairs_stand_side_by_side_and_wrap() -> None:
    mask = np.zeros((6, 40, 80), dtype=bool)
    mask[:, 10:20, 10:20] = True
    examples = Examples("hole", np.full((6, 40, 80, 3), 7, dtype=np.uint8), mask, 1.0)
    wide, narrow = (draw_defect_sheet([examples], columns=columns, panel=80) for columns in (6, 3))
    assert wide.width > 1.8 * narrow.width
    assert narrow.height > wide.height + 40
    outlined = np.asarray(wide)
    assert (outlined == TRUTH).all(axis=-1).sum() == 6 * 40  # a line of one pixel around 10 x 10, corners left out
