from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.presets import preset
from patchsvdd.images.image_set import ImageLike, load_image_set
from patchsvdd.images.loading import good_sources, load_training_images
from patchsvdd.images.roi_input import roi_for
from patchsvdd.images.sizing import MOST_PIXELS, SHORT_SIDE, SizeChoice, choose_size, texture_size, with_chosen_size
from support.parts import draw_part, save_picture

AUTO = preset("encoder", image_size="auto")


def chosen(images: list[ImageLike], smallest_defect: float | None = None) -> SizeChoice:
    sources = [(str(index), image) for index, image in enumerate(images)]
    choice = with_chosen_size(AUTO.replace(smallest_defect=smallest_defect), sources)[1]
    assert choice is not None
    return choice


def blobs(seed: int, size: tuple[int, int]) -> np.ndarray:
    """Smooth noise (H, W, 3) with details of about 8 pixels."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (-(-size[0] // 8), -(-size[1] // 8)), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return np.repeat(np.asarray(smooth)[..., None], 3, axis=2)


class TestImagesOfOneSize:
    @pytest.mark.parametrize(
        ("original", "expected"),
        [
            ((512, 512), (256, 256)),
            ((448, 336), (341, 256)),
            ((1000, 400), (640, 256)),  # the narrowest with the full short side
            ((3000, 500), (991, 165)),  # the budget of pixels decides
            ((64, 64), (256, 256)),
        ],
    )
    def test_the_aspect_ratio_is_kept(self, original: tuple[int, int], expected: tuple[int, int]) -> None:
        choice = choose_size([original] * 3, common=False)
        assert choice.image_size == expected
        assert choice.pixel_scale is None

    @given(st.integers(16, 5000), st.integers(16, 5000))
    def test_the_canvas_stays_within_its_budget(self, height: int, width: int) -> None:
        canvas = choose_size([(height, width)], common=False).image_size
        assert min(canvas) >= SHORT_SIDE // 4
        if min(canvas) > SHORT_SIDE // 4:
            assert math.prod(canvas) <= 1.02 * MOST_PIXELS

    def test_small_defects_require_more_pixels(self) -> None:
        plain, fine = (choose_size([(512, 512)], common=False, smallest_defect=size) for size in (None, 6.0))
        assert fine.image_size == (427, 427)
        assert (round(plain.visible_defect), round(fine.visible_defect)) == (10, 6)
        assert not fine.limited

    def test_large_defects_do_not_lower_the_resolution(self) -> None:
        assert choose_size([(512, 512)], common=False, smallest_defect=100.0).image_size == (256, 256)

    @pytest.mark.parametrize("size", [(512, 512), (4000, 4000)])
    def test_the_resolution_has_limits(self, size: tuple[int, int]) -> None:
        choice = choose_size([size], common=False, smallest_defect=2.0)
        assert choice.limited
        assert math.prod(choice.image_size) <= min(1_000_000, math.prod(size))
        assert "would need more pixels" in choice.sentence

    def test_the_sentence_says_what_is_visible(self) -> None:
        assert choose_size([(448, 336)], common=False).sentence == (
            "images of 336x448 are seen at 256x341; the smallest visible defect is about 7 px wide; time and "
            "memory are about 1.3 times those of 256x256"
        )


class TestMixedSizes:
    def test_the_same_part_at_several_resolutions_is_resized_to_fit(self) -> None:
        choice = chosen([draw_part(0, (60, 80)), draw_part(1, (120, 160)), draw_part(2, (240, 321))])
        assert choice.pixel_scale is None
        assert choice.image_size == (256, 341)

    def test_parts_of_several_sizes_are_resized_by_one_factor(self) -> None:
        sizes = [(200 + 7 * seed, 420 - 13 * seed) for seed in range(16)]
        choice = chosen([blobs(seed, size) for seed, size in enumerate(sizes)])
        assert choice.pixel_scale == choice.scale
        assert "mirrored where they do not fill it" in choice.sentence

    def test_a_texture_that_grows_with_the_image_shows_the_same_part(self) -> None:
        def resized(seed: int) -> np.ndarray:
            whole = Image.fromarray(blobs(seed, (200, 300 if seed % 2 else 320)))
            factor = 0.5 + seed / 10
            size = (round(whole.width * factor), round(whole.height * factor))
            return np.asarray(whole.resize(size, Image.Resampling.BOX if factor < 1 else Image.Resampling.BICUBIC))

        assert chosen([resized(seed) for seed in range(16)]).pixel_scale is None

    def test_no_image_is_stretched(self) -> None:
        images = [draw_part(0, (64, 64)), draw_part(1, (64, 160)), draw_part(2, (160, 64)), draw_part(3, (100, 100))]
        loaded, config = load_training_images(images, preset("encoder", image_size="auto", aim="few-alarms"))
        height, width = loaded.size
        assert config.image_size == loaded.size
        assert loaded.sizing is not None
        assert loaded.sizing["image_size"] == [height, width]
        for index, image in enumerate(images):
            content = config.placement((image.shape[0], image.shape[1])).content
            assert content[0] / content[1] == pytest.approx(image.shape[0] / image.shape[1], rel=0.02)
            pixels = loaded.pixels[index].numpy()
            shown = pixels[:, : content[0]]
            np.testing.assert_array_equal(shown[..., -1], shown[..., _mirrored(content[1], width)])

    def test_the_size_of_an_upright_photograph_is_used(self, tmp_path: Path) -> None:
        """A camera held upright stores a wide image and an orientation."""
        for seed in range(3):
            exif = Image.Exif()
            exif[0x0112] = 6
            Image.fromarray(draw_part(seed, (90, 120))).save(tmp_path / f"{seed}.jpg", exif=exif)
        config, _ = with_chosen_size(AUTO, good_sources(tmp_path))
        assert config.image_size == (341, 256)
        assert load_image_set(good_sources(tmp_path), config).size == (341, 256)


def _mirrored(length: int, whole: int) -> int:
    """The column of an image of this length that its mirror image shows last."""
    place = (whole - 1) % (2 * length)
    return place if place < length else 2 * length - 1 - place


def test_broken_files_do_not_decide(tmp_path: Path) -> None:
    for seed in range(3):
        save_picture(tmp_path / f"{seed}.png", draw_part(seed, (60, 120)))
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    config, _ = with_chosen_size(AUTO, good_sources(tmp_path))
    assert config.image_size == (256, 512)


def test_a_given_size_is_not_changed() -> None:
    config = preset("encoder", image_size="96x64")
    assert with_chosen_size(config, [("a", draw_part(0))]) == (config, None)


def test_texture_sizes_grow_with_the_resolution() -> None:
    fine = texture_size(blobs(0, (128, 128))[..., 0].astype(np.float32))
    doubled = Image.fromarray(blobs(0, (128, 128))).resize((256, 256), Image.Resampling.BICUBIC)
    coarse = texture_size(np.asarray(doubled)[..., 0].astype(np.float32))
    assert coarse == pytest.approx(2 * fine, rel=0.1)
    assert texture_size(np.full((8, 8), 3, np.float32)) == math.inf


def test_a_smallest_defect_without_auto_is_refused() -> None:
    with pytest.raises(ConfigError, match="`smallest_defect` chooses the image size"):
        preset("encoder", image_size=256, smallest_defect=4)
    with pytest.raises(ConfigError, match="above 0 pixels"):
        preset("encoder", image_size="auto", smallest_defect=-1)


def test_a_region_of_interest_decides_the_shape() -> None:
    """Images of another shape are skipped anyway."""
    roi = roi_for([[(10, 10), (80, 40)]], [("a", draw_part(0, (60, 120)))])
    sources = [("a", draw_part(0, (60, 120))), ("b", draw_part(1, (200, 60))), ("c", draw_part(2, (120, 240)))]
    config, _ = with_chosen_size(AUTO.replace(roi=roi), sources)
    assert config.image_size == (256, 512)
    assert config.pixel_scale is None
    assert [error.name for error in load_image_set(sources, config).skipped] == ["b"]


def test_images_of_unknown_size_get_the_default() -> None:
    config, choice = with_chosen_size(AUTO, [("a", "nowhere.png")])
    assert (config.image_size, config.fit, config.auto_size, choice) == ((256, 256), "letterbox", False, None)
