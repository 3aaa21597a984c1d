from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from patchsvdd.core.errors import DatasetError
from patchsvdd.images.mvtec_layout import find_good_images, find_test_images
from support.parts import draw_part, save_picture


class TestGoodImages:
    def test_of_a_category_are_its_train_good(self, category: Path) -> None:
        good = find_good_images(category)
        assert good.root == category / "train" / "good"
        assert [name for name, _ in good.named()] == ["000.png", "001.png", "002.png"]
        assert good.broken == ()

    def test_of_a_plain_folder_are_all_its_images(self, tmp_path: Path) -> None:
        for name in ("b.png", "a/1.jpg"):
            save_picture(tmp_path / name, draw_part(0))
        assert [name for name, _ in find_good_images(tmp_path).named()] == ["a/1.jpg", "b.png"]

    def test_broken_files_are_set_aside(self, category: Path) -> None:
        (category / "train" / "good" / "broken.png").write_text("text")
        good = find_good_images(category)
        assert len(good.files) == 3
        assert [Path(error.name).name for error in good.broken] == ["broken.png"]

    def test_a_category_without_train_good_is_an_error(self, category: Path) -> None:
        shutil.rmtree(category / "train")
        with pytest.raises(DatasetError, match="no train/good folder; put the good training images there"):
            find_good_images(category)

    def test_a_folder_of_categories_is_not_taken_for_good_images(self, category: Path) -> None:
        # Its images are those of all categories, defects and masks included.
        with pytest.raises(DatasetError):
            find_good_images(category.parent)

    @pytest.mark.parametrize(("name", "reason"), [("nowhere", "no folder"), ("file.png", "is a file")])
    def test_what_is_no_folder_is_an_error(self, tmp_path: Path, name: str, reason: str) -> None:
        save_picture(tmp_path / "file.png", draw_part(0))
        with pytest.raises(DatasetError, match=reason):
            find_good_images(tmp_path / name)

    def test_an_empty_folder_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"no image in .*; give PNG"):
            find_good_images(tmp_path)

    def test_a_folder_of_broken_files_says_what_is_wrong_with_them(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").touch()
        with pytest.raises(DatasetError, match=r"a\.png: is an empty file"):
            find_good_images(tmp_path)


class TestTestImages:
    def test_masks_are_matched_by_name(self, category: Path) -> None:
        test = find_test_images(category)
        assert [(image.defect, image.file.name, image.mask and image.mask.name) for image in test.images] == [
            ("crack", "000.png", "000_mask.png"),
            ("crack", "001.png", "001_mask.png"),
            ("good", "000.png", None),
            ("good", "001.png", None),
        ]
        assert [image.is_good for image in test.images] == [False, False, True, True]
        assert (test.broken, test.stray_masks) == ((), ())

    def test_masks_may_bear_the_images_own_name_and_another_format(self, category: Path) -> None:
        masks = category / "ground_truth" / "crack"
        (masks / "000_mask.png").rename(masks / "000.png")
        save_picture(masks / "001.bmp", np.zeros((64, 64), np.uint8))
        (masks / "001_mask.png").unlink()
        names = [image.mask.name for image in find_test_images(category).images if image.mask is not None]
        assert names == ["000.png", "001.bmp"]

    def test_masks_that_fit_no_image_are_stray(self, category: Path) -> None:
        masks = category / "ground_truth" / "crack"
        (masks / "001_mask.png").rename(masks / "other_mask.png")
        test = find_test_images(category)
        assert [path.name for path in test.stray_masks] == ["other_mask.png"]
        assert [image.mask is not None for image in test.images] == [True, False, False, False]

    def test_masks_of_another_defect_do_not_fit(self, category: Path) -> None:
        (category / "ground_truth" / "crack").rename(category / "ground_truth" / "dent")
        test = find_test_images(category)
        assert all(image.mask is None for image in test.images)
        assert len(test.stray_masks) == 2

    def test_a_missing_mask_does_not_shift_the_others(self, category: Path) -> None:
        (category / "ground_truth" / "crack" / "000_mask.png").unlink()
        masks = [image.mask and image.mask.name for image in find_test_images(category).images]
        assert masks == [None, "001_mask.png", None, None]

    def test_a_category_without_masks(self, category: Path) -> None:
        shutil.rmtree(category / "ground_truth")
        test = find_test_images(category)
        assert len(test.images) == 4
        assert all(image.mask is None for image in test.images)

    def test_broken_images_and_masks_are_named(self, category: Path) -> None:
        (category / "test" / "crack" / "x.png").touch()
        (category / "ground_truth" / "crack" / "y.png").write_text("text")
        broken = {Path(error.name).name for error in find_test_images(category).broken}
        assert broken == {"x.png", "y.png"}

    def test_loose_files_are_an_error(self, category: Path) -> None:
        save_picture(category / "test" / "loose.png", draw_part(0))
        with pytest.raises(DatasetError, match=r"loose\.png' is directly in test/; move it to test/good"):
            find_test_images(category)

    def test_no_test_folder_is_an_error(self, category: Path) -> None:
        shutil.rmtree(category / "test")
        with pytest.raises(DatasetError, match="has no test folder"):
            find_test_images(category)

    def test_an_empty_test_folder_is_an_error(self, category: Path) -> None:
        shutil.rmtree(category / "test")
        (category / "test" / "good").mkdir(parents=True)
        with pytest.raises(DatasetError, match="no image in"):
            find_test_images(category)
