from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from patchsvdd.apps.line.sources.pixel_formats import BAYER, GREY_SHIFTS, demosaic, to_pixels

COLOUR = np.array([200, 100, 50], np.uint8)


def mosaic(rgb: NDArray[np.uint8], pixel_format: str) -> NDArray[np.uint8]:
    """What a sensor with this pattern sees."""
    raw = np.empty(rgb.shape[:2], np.uint8)
    for row, colours in enumerate(BAYER[pixel_format]):
        for column, colour in enumerate(colours):
            raw[row::2, column::2] = rgb[row::2, column::2, "RGB".index(colour)]
    return raw


@pytest.mark.parametrize(("pixel_format", "shift"), GREY_SHIFTS.items())
def test_deep_grey_is_scaled_to_8_bits(pixel_format: str, shift: int) -> None:
    deep = (np.arange(256, dtype="<u2").reshape(8, 32) << shift) + (1 << shift) - 1
    assert np.array_equal(to_pixels(deep.tobytes(), 32, 8, pixel_format), np.arange(256).reshape(8, 32))


def test_colours_are_rgb_and_rows_have_no_padding() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    padded = np.pad(rgb.reshape(3, 15), ((0, 0), (0, 1)))
    assert np.array_equal(to_pixels(padded.tobytes(), 5, 3, "RGB8", padding=1), rgb)
    assert np.array_equal(to_pixels(rgb[..., ::-1].tobytes(), 5, 3, "BGR8Packed"), rgb)
    grey = rgb[..., 0]
    assert np.array_equal(to_pixels(grey.tobytes(), 5, 3, "Mono8"), grey)


@pytest.mark.parametrize("pixel_format", BAYER)
@pytest.mark.parametrize("size", [(8, 10), (7, 9), (2, 2)])
def test_a_plain_colour_survives_a_bayer_pattern(pixel_format: str, size: tuple[int, int]) -> None:
    rgb = np.broadcast_to(COLOUR, (*size, 3)).astype(np.uint8)
    assert np.array_equal(demosaic(mosaic(rgb, pixel_format), pixel_format), rgb)


@pytest.mark.parametrize("pixel_format", BAYER)
def test_missing_colours_are_interpolated_bilinearly(pixel_format: str) -> None:
    rows, columns = np.mgrid[:12, :14]
    rgb = np.stack([10 + 4 * columns, 20 + 6 * rows, 30 + 2 * columns + 2 * rows], axis=-1).astype(np.uint8)
    found = demosaic(mosaic(rgb, pixel_format), pixel_format)
    assert np.array_equal(found[1:-1, 1:-1], rgb[1:-1, 1:-1])  # bilinear interpolation is exact on planes


def test_unknown_formats_and_short_images_are_refused() -> None:
    with pytest.raises(ValueError, match="YUV422_8 cannot be converted"):
        to_pixels(b"", 4, 4, "YUV422_8")
    with pytest.raises(ValueError, match="has 15 bytes; 16 are expected"):
        to_pixels(bytes(15), 4, 4, "Mono8")
