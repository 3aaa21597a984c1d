from __future__ import annotations

import io
import os
import struct
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile

from patchsvdd.core.config import Config
from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.core.presets import preset
from patchsvdd.images.image_files import find_images
from patchsvdd.images.image_set import (
    ImageLike,
    each_image,
    load_image,
    load_image_set,
    load_mask,
    resize_pixels,
)
from support.parts import draw_part, save_picture

NATIVE = preset("paper", image_size="native", encoder="raw", scales=(preset("paper").scales[0],))
"""Images as they are, at least 32 px a side."""
PART = draw_part(0, (40, 48))


def pixels_of(source: ImageLike, config: Config = NATIVE) -> NDArray[Any]:
    return load_image(source, config).pixels


def png_header(width: int, height: int, bits: int = 1) -> bytes:
    """A PNG that claims any size: signature, header, and the rows it needs, of zeros."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes((width * bits + 7) // 8 + 1) * height, 1)
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def save_rotated(path: Path, orientation: int) -> Path:
    """PART as a camera held in one of eight ways stores it, with the tag that says so."""
    turn = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    picture = Image.fromarray(PART)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    (picture if turn is None else picture.transpose(turn)).save(path, exif=exif)
    return path


class TestFormats:
    @pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.tiff"])
    def test_lossless_formats_keep_every_pixel(self, tmp_path: Path, name: str) -> None:
        assert np.array_equal(pixels_of(save_picture(tmp_path / name, PART)), PART)

    def test_lossless_webp_keeps_every_pixel(self, tmp_path: Path) -> None:
        Image.fromarray(PART).save(tmp_path / "a.webp", lossless=True)
        assert np.array_equal(pixels_of(tmp_path / "a.webp"), PART)

    def test_jpeg(self, tmp_path: Path) -> None:
        path = save_picture(tmp_path / "a.jpg", PART)
        assert np.array_equal(pixels_of(path), np.asarray(Image.open(path)))

    def test_grey_is_replicated(self, tmp_path: Path) -> None:
        grey = PART[..., 0]
        path = save_picture(tmp_path / "grey.png", grey)
        assert np.array_equal(pixels_of(path), np.stack([grey] * 3, axis=-1))

    def test_one_bit(self, tmp_path: Path) -> None:
        Image.fromarray(PART[..., 0]).convert("1").save(tmp_path / "bits.png")
        pixels = pixels_of(tmp_path / "bits.png")
        assert pixels.dtype == np.uint8
        assert set(np.unique(pixels)) == {0, 255}

    @pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
    def test_16_bit_grey_keeps_its_precision(self, tmp_path: Path, name: str) -> None:
        deep = (np.arange(40 * 48, dtype=np.uint16) * 34).reshape(40, 48)
        Image.fromarray(deep).save(tmp_path / name)
        pixels = pixels_of(tmp_path / name)
        assert pixels.dtype == np.float32
        assert len(np.unique(pixels)) == 40 * 48
        np.testing.assert_allclose(pixels[..., 1], deep / 257, rtol=1e-6)

    def test_16_bit_white_is_8_bit_white(self, tmp_path: Path) -> None:
        Image.fromarray(np.full((40, 40), 65535, np.uint16)).save(tmp_path / "white.png")
        assert pixels_of(tmp_path / "white.png").max() == 255

    def test_16_bit_big_endian_tiff(self, tmp_path: Path) -> None:
        deep = np.arange(40 * 40, dtype=np.uint16).reshape(40, 40) * 40
        picture = Image.frombytes("I;16B", (40, 40), deep.astype(">u2").tobytes())
        picture.save(tmp_path / "big.tif")
        np.testing.assert_allclose(pixels_of(tmp_path / "big.tif")[..., 0], deep / 257, rtol=1e-6)

    def test_palette(self, tmp_path: Path) -> None:
        palette = Image.fromarray(PART).quantize(16)
        palette.save(tmp_path / "palette.png")
        assert np.array_equal(pixels_of(tmp_path / "palette.png"), np.asarray(palette.convert("RGB")))

    def test_palette_with_transparency_is_laid_on_white(self, tmp_path: Path) -> None:
        indices = np.zeros((40, 40), np.uint8)
        indices[:, 20:] = 1
        picture = Image.frombytes("P", (40, 40), indices.tobytes())
        picture.putpalette([10, 20, 30, 200, 0, 0])
        picture.save(tmp_path / "palette.png", transparency=1)
        pixels = pixels_of(tmp_path / "palette.png")
        assert pixels[0, 0].tolist() == [10, 20, 30]
        assert pixels[0, 39].tolist() == [255, 255, 255]

    def test_rgba_is_laid_on_white(self, tmp_path: Path) -> None:
        rgba = np.dstack([PART, np.full(PART.shape[:2], 255, np.uint8)])
        rgba[:20, :, 3] = 0
        save_picture(tmp_path / "a.png", rgba)
        for pixels in (pixels_of(tmp_path / "a.png"), pixels_of(rgba)):
            assert (pixels[:20] == 255).all()
            assert np.array_equal(pixels[20:], PART[20:])

    def test_half_transparent_black_is_grey(self, tmp_path: Path) -> None:
        Image.new("LA", (40, 40), (0, 128)).save(tmp_path / "la.png")
        assert np.unique(pixels_of(tmp_path / "la.png")).tolist() == [127]

    def test_grey_with_alpha(self, tmp_path: Path) -> None:
        picture = Image.new("LA", (40, 40), (90, 255))
        picture.paste((90, 0), (0, 0, 40, 10))
        picture.save(tmp_path / "la.png")
        pixels = pixels_of(tmp_path / "la.png")
        assert (pixels[:10] == 255).all()
        assert (pixels[10:] == 90).all()

    def test_cmyk_jpeg(self, tmp_path: Path) -> None:
        Image.new("CMYK", (40, 40), (0, 255, 255, 0)).save(tmp_path / "red.jpg", quality=95)
        red, green, blue = pixels_of(tmp_path / "red.jpg").reshape(-1, 3).mean(0)
        assert red > 240
        assert max(green, blue) < 15

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_rotated_photographs_are_put_upright(self, tmp_path: Path, orientation: int) -> None:
        path = save_rotated(tmp_path / "photo.png", orientation)
        loaded = load_image(path, NATIVE)
        assert np.array_equal(loaded.pixels, PART)
        assert loaded.original_size == (40, 48)

    def test_a_rotated_photograph_opened_by_the_caller_is_put_upright(self, tmp_path: Path) -> None:
        with Image.open(save_rotated(tmp_path / "photo.jpg", 6)) as opened:
            assert np.array_equal(pixels_of(opened), pixels_of(tmp_path / "photo.jpg"))

    def test_a_photograph_with_damaged_metadata_is_still_a_photograph(self, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation], exif[ExifTags.Base.XResolution] = 6, 72.0
        rational, undefined = (struct.pack(">HH", ExifTags.Base.XResolution, kind) for kind in (5, 7))
        metadata = exif.tobytes().replace(rational, undefined)
        assert undefined in metadata
        turned = Image.fromarray(PART).transpose(Image.Transpose.ROTATE_90)
        turned.save(tmp_path / "photo.jpg", exif=metadata, quality=100, subsampling=0)
        assert np.abs(pixels_of(tmp_path / "photo.jpg").astype(int) - PART).max() < 10

    def test_float_tiff_is_refused(self, tmp_path: Path) -> None:
        Image.fromarray(np.random.default_rng(0).random((40, 40), np.float32)).save(tmp_path / "f.tif")
        with pytest.raises(ImageError, match="32-bit floats"):
            pixels_of(tmp_path / "f.tif")

    def test_the_content_counts_not_the_name(self, tmp_path: Path) -> None:
        save_picture(tmp_path / "a.png", PART).rename(tmp_path / "a.dat")
        assert np.array_equal(pixels_of(tmp_path / "a.dat"), PART)


class TestFinding:
    def test_in_order_of_name_at_any_depth(self, tmp_path: Path) -> None:
        names = ["b.png", "a/2.jpg", "a/10.webp", "c/d/e.bmp"]
        for name in names:
            save_picture(tmp_path / name, PART)
        found, broken = find_images(tmp_path)
        assert found == sorted(tmp_path / name for name in names)
        assert broken == []

    def test_by_content(self, tmp_path: Path) -> None:
        save_picture(tmp_path / "a.png", PART).rename(tmp_path / "photo.dat")
        (tmp_path / "notes.txt").write_text("no image, and no claim to be one")
        (tmp_path / "gif.png").write_bytes(_gif())
        found, broken = find_images(tmp_path)
        assert found == [tmp_path / "photo.dat"]
        assert [Path(error.name).name for error in broken] == ["gif.png"]

    def test_hidden_files_and_folders_are_ignored(self, tmp_path: Path) -> None:
        save_picture(tmp_path / "seen.png", PART)
        save_picture(tmp_path / ".hidden.png", PART)
        save_picture(tmp_path / ".cache" / "thumb.png", PART)
        (tmp_path / "._seen.png").write_bytes(b"resource fork")
        assert find_images(tmp_path) == ([tmp_path / "seen.png"], [])

    def test_files_that_only_claim_to_be_images_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "text.png").write_text("I am a text file")
        (tmp_path / "empty.JPG").touch()
        found, broken = find_images(tmp_path)
        assert found == []
        reasons = {Path(error.name).name: error.reason for error in broken}
        assert "empty file" in reasons["empty.JPG"]
        assert "despite its name" in reasons["text.png"]

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="no folder"):
            find_images(tmp_path / "nowhere")


def _gif() -> bytes:
    file = io.BytesIO()
    Image.fromarray(PART).save(file, "GIF")
    return file.getvalue()


class TestBroken:
    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"", "empty file"),
            (b"I am a text file", "is not a PNG, JPEG, WebP, BMP or TIFF"),
            (_gif(), "is not a PNG, JPEG, WebP, BMP or TIFF"),
            (b"\x89PNG\r\n\x1a\n", "damaged|is not a PNG"),
        ],
    )
    def test_what_is_no_image_is_refused_with_the_reason(self, tmp_path: Path, content: bytes, reason: str) -> None:
        path = tmp_path / "odd.png"
        path.write_bytes(content)
        with pytest.raises(ImageError, match=reason) as error:
            pixels_of(path)
        assert error.value.name == str(path)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match="no such file"):
            pixels_of(tmp_path / "nowhere.png")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match="is a folder"):
            pixels_of(tmp_path)

    @pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp", "a.tif"])
    def test_a_truncated_file(self, tmp_path: Path, name: str) -> None:
        path = save_picture(tmp_path / name, PART)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 2 // 3])
        with pytest.raises(ImageError, match=r"damaged|is not a"):
            pixels_of(path)

    def test_a_truncated_file_opened_by_the_caller(self, tmp_path: Path) -> None:
        path = save_picture(tmp_path / "a.jpg", PART)
        path.write_bytes(path.read_bytes()[:-300])
        with Image.open(path) as picture, pytest.raises(ImageError, match="damaged"):
            pixels_of(picture)

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
    def test_damage_anywhere_gives_pixels_or_an_image_error(
        self, tmp_path_factory: pytest.TempPathFactory, kind: str
    ) -> None:
        file = io.BytesIO()
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        Image.fromarray(PART).save(file, kind, **({} if kind == "BMP" else {"exif": exif}))
        whole = file.getvalue()
        path = tmp_path_factory.mktemp("damaged") / "a"

        @given(st.lists(st.tuples(st.integers(0, min(len(whole), 700) - 1), st.integers(0, 255)), max_size=4))
        def load_damaged(changes: list[tuple[int, int]]) -> None:
            content = bytearray(whole)
            for position, value in changes:
                content[position] = value
            path.write_bytes(content)
            with suppress(ImageError):
                assert pixels_of(path).shape[2] == 3

        load_damaged()

    @pytest.mark.parametrize("size", [(1, 1), (15, 100), (100, 15)])
    def test_an_image_too_small_to_inspect(self, tmp_path: Path, size: tuple[int, int]) -> None:
        path = save_picture(tmp_path / "tiny.png", np.zeros((*size, 3), np.uint8))
        for source in (path, np.zeros((*size, 3), np.uint8)):
            with pytest.raises(ImageError, match=f"{size[1]}x{size[0]} pixels; the smallest usable"):
                pixels_of(source, preset("paper"))

    def test_an_image_smaller_than_a_patch_at_native_size(self) -> None:
        with pytest.raises(ImageError, match=r"smaller than the largest patch \(64 px\)"):
            pixels_of(np.zeros((60, 80, 3), np.uint8), preset("paper", image_size="native"))

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("side", [20_000, 12_000])
    def test_a_decompression_bomb_is_refused_before_decoding(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int
    ) -> None:
        path = tmp_path / "bomb.png"
        path.write_bytes(png_header(side, side))  # small on disk, 400 MB (144 MB) decoded

        def decode(picture: ImageFile.ImageFile) -> None:
            pytest.fail("the image was decoded")

        monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
        start = time.perf_counter()
        found, broken = find_images(tmp_path)
        assert (found, broken) == ([path], []), "it is an image, though not one to use"
        with pytest.raises(ImageError, match="more than 128 million pixels"):
            pixels_of(path)
        assert time.perf_counter() - start < 1

    @pytest.mark.filterwarnings("error")
    def test_a_large_image_below_the_limit_raises_no_warning(self, tmp_path: Path) -> None:
        path = tmp_path / "large.png"
        path.write_bytes(png_header(10_000, 10_000))  # Pillow warns from 89 million pixels on
        assert find_images(tmp_path) == ([path], [])


class TestMemory:
    def test_arrays_tensors_and_pil_images_give_the_files_pixels(self, tmp_path: Path) -> None:
        path = save_picture(tmp_path / "a.png", PART)
        tensor = torch.from_numpy(PART.copy()).permute(2, 0, 1)
        sources: list[ImageLike] = [path, str(path), PART, Image.fromarray(PART), tensor]
        for source in sources:
            loaded = load_image(source, NATIVE)
            assert np.array_equal(loaded.pixels, PART)
            assert torch.equal(loaded.tensor, tensor)
            assert np.array_equal(loaded.display_pixels, PART)
            assert loaded.original_size == (40, 48)

    def test_floats_lie_between_0_and_1(self) -> None:
        floats = PART.astype(np.float64) / 255
        for source in (floats, floats.astype(np.float32), torch.from_numpy(floats).permute(2, 0, 1)):
            np.testing.assert_allclose(pixels_of(source), PART, atol=1e-4)
        np.testing.assert_allclose(pixels_of(floats.astype(np.float16)), PART, atol=0.1)

    def test_bfloat16_tensors(self) -> None:
        tensor = torch.from_numpy(PART / 255.0).permute(2, 0, 1).bfloat16()
        np.testing.assert_allclose(pixels_of(tensor), PART, atol=1)

    def test_grey_arrays(self) -> None:
        grey = PART[..., 0]
        for source in (grey, grey[..., None], torch.from_numpy(grey.copy()), torch.from_numpy(grey.copy())[None]):
            assert np.array_equal(pixels_of(source), np.stack([grey] * 3, axis=-1))

    def test_uint16_and_bool_arrays(self) -> None:
        np.testing.assert_allclose(pixels_of(PART.astype(np.uint16) * 257), PART, rtol=1e-6)
        assert np.array_equal(pixels_of(PART > 100), (PART > 100) * 255)

    def test_a_tensor_that_needs_a_gradient(self) -> None:
        assert pixels_of(torch.rand(3, 40, 40, requires_grad=True)).shape == (40, 40, 3)

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            (PART.astype(np.int64), "holds int64; give uint8"),
            (PART.astype(np.int8), "holds int8"),
            (PART.astype(np.complex64), "holds complex64"),
            (PART.astype(np.float32), "floats from 44 to 198; scale them to 0 … 1"),
            (PART / 255.0 - 0.5, "floats from -0.327 to 0.276; scale them"),
            (np.full((40, 40, 3), np.nan), "floats from nan"),
            (np.full((40, 40, 3), np.inf, np.float32), "floats from inf"),
            (np.zeros((40, 40, 2), np.uint8), r"has shape \(40, 40, 2\); arrays are"),
            (np.zeros((3, 40, 40), np.uint8), r"has shape \(3, 40, 40\); arrays are"),
            (np.zeros((2, 40, 40, 3), np.uint8), r"has shape \(2, 40, 40, 3\)"),
            (np.zeros(40, np.uint8), r"has shape \(40,\)"),
            (np.zeros((0, 0, 3), np.uint8), "0x0 pixels"),
            (np.zeros((0, 40, 3), np.float32), "40x0 pixels"),
            (torch.zeros(40, 40, 3), r"has shape \(40, 40, 3\); tensors are"),
            (torch.zeros(3, 40, 40, dtype=torch.int32), "holds int32"),
            (Image.new("F", (40, 40)), "32-bit floats"),
            (object(), "is a object; give a file"),
            ([[1, 2], [3, 4]], "is a list; give a file"),
        ],
    )
    def test_what_cannot_be_pixels_is_refused_with_the_reason(self, source: Any, reason: str) -> None:
        with pytest.raises(ImageError, match=reason):
            pixels_of(source)

    def test_the_name_is_in_the_message(self) -> None:
        with pytest.raises(ImageError, match=r"^camera 3: holds int64"):
            load_image(PART.astype(np.int64), NATIVE, "camera 3")


class TestResize:
    def test_nearest_takes_pixels_as_they_are(self) -> None:
        small = pixels_of(PART, preset("paper", image_size=64))
        assert small.shape == (64, 64, 3)
        assert {tuple(pixel) for pixel in small.reshape(-1, 3)} <= {tuple(pixel) for pixel in PART.reshape(-1, 3)}

    def test_area_averages(self) -> None:
        checkers = np.zeros((64, 64, 3), np.uint8)
        checkers[::2, ::2] = checkers[1::2, 1::2] = 200
        assert np.unique(resize_pixels(checkers, (32, 32), "area")).tolist() == [100]
        assert np.unique(resize_pixels(checkers.astype(np.float32), (32, 32), "area")).tolist() == [100]

    @pytest.mark.parametrize("resize", ["nearest", "area", "bicubic"])
    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    def test_height_comes_first_and_the_range_stays(self, resize: Any, dtype: Any) -> None:
        extreme = (np.random.default_rng(0).random((40, 48, 3)) > 0.5).astype(dtype) * dtype(255)
        resized = resize_pixels(extreme, (70, 100), resize)
        assert resized.shape == (70, 100, 3)
        assert resized.dtype == dtype
        assert resized.min() >= 0
        assert resized.max() <= 255

    @given(st.sampled_from(["nearest", "area", "bicubic"]), st.integers(16, 60), st.integers(16, 60))
    def test_a_constant_stays_constant(self, resize: Any, height: int, width: int) -> None:
        flat = np.full((33, 47, 3), (10, 128, 250), np.uint8)
        resized = resize_pixels(flat, (height, width), resize)
        assert (resized == np.array([10, 128, 250])).all()

    def test_the_original_size_is_remembered(self) -> None:
        loaded = load_image(PART, preset("paper", image_size="80x64"))
        assert loaded.pixels.shape == (64, 80, 3)
        assert loaded.original_size == (40, 48)


class TestSets:
    def test_images_of_one_size_become_one_tensor(self) -> None:
        images = load_image_set([("a", PART), ("b", PART[::-1])], NATIVE)
        assert images.names == ("a", "b")
        assert images.pixels.shape == (2, 3, 40, 48)
        assert images.pixels.dtype == torch.uint8
        assert images.size == (40, 48)
        assert len(images) == 2

    def test_one_deep_image_makes_the_set_float(self) -> None:
        images = load_image_set([("a", PART), ("b", PART.astype(np.uint16) * 257)], NATIVE)
        assert images.pixels.dtype == torch.float32
        torch.testing.assert_close(images.pixels[0], images.pixels[1])

    def test_broken_images_are_set_aside(self, tmp_path: Path) -> None:
        (tmp_path / "b.png").write_text("text")
        images = load_image_set([("a", PART), ("b", tmp_path / "b.png"), ("c", PART)], NATIVE)
        assert images.names == ("a", "c")
        assert [error.name for error in images.skipped] == ["b"]

    def test_nothing_usable_is_an_error_with_reasons(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"none of the 1 images could be used .*no such file"):
            load_image_set([("a", tmp_path / "nowhere.png")], NATIVE)

    def test_sizes_that_differ_are_named(self) -> None:
        with pytest.raises(DatasetError, match=r"a is 48x40, b is 40x48; give a fixed `image_size`"):
            load_image_set([("a", PART), ("b", PART.transpose(1, 0, 2))], NATIVE)

    def test_progress_counts_every_image(self, tmp_path: Path) -> None:
        seen: list[tuple[int, int]] = []
        sources: list[tuple[str, ImageLike]] = [("a", PART), ("b", tmp_path / "no"), ("c", PART)]
        load_image_set(sources, NATIVE, lambda done, total: seen.append((done, total)))
        assert seen == [(1, 3), (2, 3), (3, 3)]

    def test_decoding_in_threads_leaves_the_callers_warning_filters_alone(self, tmp_path: Path) -> None:
        path = save_picture(tmp_path / "a.png", PART)
        before = list(warnings.filters)
        load_image_set([(str(index), path) for index in range(500)], NATIVE)
        assert warnings.filters == before

    def test_the_fingerprint_is_of_names_pixels_and_order(self) -> None:
        def fingerprint(*sources: tuple[str, ImageLike]) -> str:
            return load_image_set(sources, NATIVE).fingerprint()

        other = PART.copy()
        other[3, 3, 0] ^= 1
        base = fingerprint(("a", PART), ("b", other))
        assert base == fingerprint(("a", PART), ("b", other))
        different = [
            fingerprint(("a", PART), ("b", PART)),
            fingerprint(("b", other), ("a", PART)),
            fingerprint(("a", PART), ("c", other)),
            fingerprint(("a", PART)),
        ]
        assert base not in different

    def test_names_that_are_not_unicode(self, tmp_path: Path) -> None:
        name = os.fsdecode(b"gr\xfcn.png")  # Latin-1, as old cameras and shares write it
        try:
            save_picture(tmp_path / "a.png", PART).rename(tmp_path / name)
        except OSError:
            pytest.skip("this disk takes only Unicode names")
        found, _ = find_images(tmp_path)
        assert len(found) == 1
        assert load_image_set([(name, found[0])], NATIVE).fingerprint()


class TestEachImage:
    def test_a_folder_gives_names_relative_to_it(self, tmp_path: Path) -> None:
        save_picture(tmp_path / "x" / "a.png", PART)
        assert list(each_image(tmp_path)) == [("x/a.png", tmp_path / "x" / "a.png")]

    def test_a_file(self, tmp_path: Path) -> None:
        path = save_picture(tmp_path / "a.png", PART)
        assert list(each_image(path)) == [(str(path), path)]

    @pytest.mark.parametrize(
        "one", [PART, PART[..., 0], Image.fromarray(PART), torch.zeros(3, 40, 40), torch.zeros(40, 40)]
    )
    def test_one_image_is_one(self, one: ImageLike) -> None:
        assert [name for name, _ in each_image(one)] == ["image 0"]

    @pytest.mark.parametrize(
        "stack",
        [
            np.stack([PART] * 5),
            np.stack([PART[..., 0]] * 5),
            torch.zeros(5, 3, 40, 40),
            [PART] * 5,
            tuple([Image.fromarray(PART)] * 5),
        ],
    )
    def test_a_stack_is_many(self, stack: Any) -> None:
        assert [name for name, _ in each_image(stack)] == [f"image {index}" for index in range(5)]

    def test_files_keep_their_names(self, tmp_path: Path) -> None:
        path = save_picture(tmp_path / "a.png", PART)
        assert [name for name, _ in each_image([path, PART])] == [str(path), "image 1"]


def draw_mask(low: int, high: int) -> NDArray[np.uint8]:
    mask = np.full((64, 64), low, np.uint8)
    mask[16:32, 8:24] = high
    return mask


class TestMasks:
    @pytest.mark.parametrize("resize", ["nearest", "area", "bicubic"])
    @pytest.mark.parametrize(
        "write",
        [
            lambda path: save_picture(path, draw_mask(0, 255)),
            lambda path: save_picture(path, draw_mask(0, 1)),
            lambda path: Image.fromarray(draw_mask(0, 255)).convert("1").save(path),
            lambda path: Image.fromarray(draw_mask(0, 255)).convert("RGB").save(path),
        ],
        ids=["0-255", "0-1", "one bit", "colour"],
    )
    def test_every_way_to_draw_a_mask(self, tmp_path: Path, write: Callable[[Path], Any], resize: Any) -> None:
        write(tmp_path / "mask.png")
        mask = load_mask(tmp_path / "mask.png", (64, 64), resize)
        assert mask.dtype == np.bool_
        assert np.array_equal(mask, draw_mask(0, 1).astype(bool))
        half = load_mask(tmp_path / "mask.png", (32, 32), resize)
        assert np.array_equal(half, draw_mask(0, 1)[::2, ::2].astype(bool))

    def test_grey_up_to_128_is_no_defect(self, tmp_path: Path) -> None:
        save_picture(tmp_path / "mask.png", draw_mask(128, 129))
        assert load_mask(tmp_path / "mask.png", (64, 64), "nearest").sum() == 256

    def test_an_empty_mask(self, tmp_path: Path) -> None:
        save_picture(tmp_path / "mask.png", draw_mask(0, 0))
        assert not load_mask(tmp_path / "mask.png", (64, 64), "area").any()

    def test_a_broken_mask(self, tmp_path: Path) -> None:
        (tmp_path / "mask.png").write_text("text")
        with pytest.raises(ImageError, match=r"mask\.png"):
            load_mask(tmp_path / "mask.png", (64, 64), "nearest")
