from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import read_model, write_model
from patchsvdd.images import thumbnails as pictures_module
from patchsvdd.images.thumbnails import Thumbnails
from support.parts import draw_part


def decibels(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Peak signal-to-noise ratio."""
    error = np.square(one.astype(np.float64) - other).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def tensors(*seeds: int) -> list[torch.Tensor]:
    return [torch.from_numpy(draw_part(seed)).permute(2, 0, 1) for seed in seeds]


def test_pictures_are_close_to_the_images() -> None:
    found = Thumbnails.from_images(tensors(0, 1, 2))
    assert len(found) == 3
    for seed, picture in enumerate(found):
        assert picture.shape == (64, 64, 3)
        assert decibels(picture, draw_part(seed)) > 30
        assert decibels(picture, draw_part(seed + 1)) < 30, "the parts differ, and each is shown as itself"


def test_images_of_more_than_8_bits_are_rounded() -> None:
    (image,) = tensors(0)
    assert Thumbnails.from_images([image.float() + 0.4]) == Thumbnails.from_images([image])


@pytest.mark.parametrize("size", [(1, 90), (90, 31)])
def test_any_shape(size: tuple[int, int]) -> None:
    assert Thumbnails.from_images([torch.full((3, *size), 7, dtype=torch.uint8)])[0].shape == (*size, 3)


def test_an_image_that_webp_cannot_hold_is_kept_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures_module, "MAX_WEBP_SIDE", 63)
    assert np.array_equal(Thumbnails.from_images(tensors(0))[0], draw_part(0))


def test_numbers_go_on_where_pictures_are_joined() -> None:
    both = Thumbnails.from_images(tensors(0, 1)) + Thumbnails.from_images(tensors(2))
    assert both == Thumbnails.from_images(tensors(0, 1, 2))


def test_a_file_keeps_numbers_above_nine_in_order() -> None:
    found = Thumbnails.from_images(tensors(*range(12)))
    assert Thumbnails.from_state(found.state()) == found
    assert all(one.dtype == torch.uint8 and one.ndim == 1 for one in found.state().values())


def test_a_model_keeps_its_good_images(
    detector: PatchSVDD, good_pictures: list[NDArray[np.uint8]], tmp_path: Path
) -> None:
    detector.save(tmp_path)
    loaded = PatchSVDD.load(tmp_path, device="cpu")
    assert loaded.pictures is not None
    assert loaded.pictures == detector.pictures
    assert all(decibels(one, other) > 30 for one, other in zip(loaded.pictures, good_pictures, strict=True))


def test_pictures_do_not_count_for_a_models_identity(detector: PatchSVDD, tmp_path: Path) -> None:
    detector.save(tmp_path)
    stored = read_model(tmp_path)
    without = {name: part for name, part in stored.parts.items() if name != "pictures"}
    assert write_model(tmp_path, stored.about, without) == stored.identity
    assert not list(tmp_path.glob("pictures-*")), "a part that the model no longer names is removed"
    assert PatchSVDD.load(tmp_path, device="cpu").pictures is None
