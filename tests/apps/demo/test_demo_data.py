from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchsvdd.apps.demo.dataset import CATEGORIES, GOOD, RenderedImage, Shot, draw_dataset, render_image
from patchsvdd.apps.demo.defects import DEFECTS
from patchsvdd.core.errors import ConfigError, DatasetError, OutputError

pytestmark = pytest.mark.slow

SIZE = 96
KINDS = [(category, defect) for category in CATEGORIES for defect in DEFECTS[category]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return draw_dataset(tmp_path_factory.mktemp("demo"), size=SIZE, train=3, test_good=2, per_defect=1)


@pytest.fixture(scope="module")
def pictures() -> dict[tuple[str, str, int], RenderedImage]:
    return {
        (category, defect, index): render_image(Shot(0, category, "test", defect, index), SIZE)
        for category, defect in KINDS
        for index in range(2)
    }


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.png")}


def test_the_folder_has_the_layout_of_mvtec(dataset: dict[str, Path]) -> None:
    assert tuple(dataset) == CATEGORIES
    for category, folder in dataset.items():
        expected = {f"train/good/{i:03d}.png" for i in range(3)} | {f"test/good/{i:03d}.png" for i in range(2)}
        for defect in DEFECTS[category]:
            expected |= {f"test/{defect}/000.png", f"ground_truth/{defect}/000_mask.png"}
        assert set(files(folder)) == expected


def test_files_are_colour_images_and_single_channel_masks(dataset: dict[str, Path]) -> None:
    for folder in dataset.values():
        for path in folder.rglob("*.png"):
            with Image.open(path) as image:
                assert image.size == (SIZE, SIZE)
                if path.name.endswith("_mask.png"):
                    assert image.mode == "L"
                    assert set(np.unique(np.asarray(image))) == {0, 255}
                else:
                    assert image.mode == "RGB"


def test_every_category_has_four_kinds_of_defect_and_all_five_occur() -> None:
    assert all(len(kinds) >= 4 for kinds in DEFECTS.values())
    kinds = {"scratch", "stain", "hole", "missing_part", "wrong_colour"}
    assert {defect for _, defect in KINDS} == kinds


def test_one_seed_gives_one_set_of_bytes_and_another_seed_another(tmp_path: Path, dataset: dict[str, Path]) -> None:
    same = draw_dataset(tmp_path / "same", size=SIZE, train=1, test_good=1, per_defect=1, categories=["board"])
    again = files(same["board"])
    first = files(dataset["board"])
    assert again == {name: first[name] for name in again}  # and counts do not matter to a picture

    other = draw_dataset(
        tmp_path / "other", size=SIZE, train=1, test_good=1, per_defect=1, seed=1, categories=["board"]
    )
    others = files(other["board"])
    assert others.keys() == again.keys()
    images = [name for name in again if not name.endswith("_mask.png")]
    assert all(others[name] != again[name] for name in images)


@pytest.mark.parametrize(("category", "defect"), KINDS)
def test_masks_are_there_and_small(
    pictures: dict[tuple[str, str, int], RenderedImage], category: str, defect: str
) -> None:
    for index in range(2):
        mask = pictures[category, defect, index].mask
        assert mask.shape == (SIZE, SIZE)
        assert 3 <= mask.sum() < 0.25 * mask.size


@pytest.mark.parametrize(("category", "defect"), KINDS)
def test_the_picture_is_the_clean_one_outside_its_mask_and_another_inside(
    pictures: dict[tuple[str, str, int], RenderedImage], category: str, defect: str
) -> None:
    for index in range(2):
        picture = pictures[category, defect, index]
        np.testing.assert_array_equal(picture.image[~picture.mask], picture.clean[~picture.mask])
        change = np.abs(picture.image.astype(int) - picture.clean).max(axis=-1)
        assert np.quantile(change[picture.mask], 0.9) > 15


@pytest.mark.parametrize("category", CATEGORIES)
def test_defects_lie_on_the_part(pictures: dict[tuple[str, str, int], RenderedImage], category: str) -> None:
    for (name, _, _), picture in pictures.items():
        if name == category:
            rows, columns = np.nonzero(picture.mask)
            middle = np.hypot(rows.mean() / SIZE - 0.5, columns.mean() / SIZE - 0.5)
            assert middle < (0.46 if category == "washer" else 0.65)


@pytest.mark.parametrize("category", CATEGORIES)
def test_good_pictures_differ_by_more_than_noise(category: str) -> None:
    shots = [render_image(Shot(0, category, "train", GOOD, i), SIZE) for i in range(3)]
    for a, b in combinations(shots, 2):
        assert not a.mask.any()
        assert np.abs(a.image.astype(int) - b.image).mean() > 2.5  # sensor noise alone gives about 1


def test_train_and_test_share_no_picture() -> None:
    train, test = (render_image(Shot(0, "weave", split, GOOD, 0), SIZE).image for split in ("train", "test"))
    assert not np.array_equal(train, test)


def test_a_second_call_may_repeat_the_first_but_not_mix_with_another(tmp_path: Path) -> None:
    draw_dataset(tmp_path, size=64, train=2, test_good=0, per_defect=0, categories=["weave"])
    before = files(tmp_path)
    draw_dataset(tmp_path, size=64, train=2, test_good=0, per_defect=0, categories=["weave"])
    assert files(tmp_path) == before
    with pytest.raises(DatasetError, match=r"001\.png"):
        draw_dataset(tmp_path, size=64, train=1, test_good=0, per_defect=0, categories=["weave"])


def test_settings_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="washer, board, weave"):
        draw_dataset(tmp_path, categories=["bottle"])
    with pytest.raises(ConfigError, match="size is 32"):
        draw_dataset(tmp_path, size=32)
    with pytest.raises(ConfigError, match="train is -1"):
        draw_dataset(tmp_path, train=-1)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose another folder"):
        draw_dataset(tmp_path / "file", size=64, train=1, test_good=0, per_defect=0, categories=["weave"])
