from __future__ import annotations

import pytest
import torch

from patchsvdd.core.presets import preset
from patchsvdd.images.normalization import Normalization


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randint(0, 256, (4, 3, 20, 24), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_the_paper_subtracts_the_mean_image_and_divides_by_255(pixels: torch.Tensor) -> None:
    normalized = Normalization.fit(pixels, preset("paper"))(pixels)
    expected = (pixels.double() - pixels.double().mean(0)) / 255
    assert normalized.dtype == torch.float32
    torch.testing.assert_close(normalized.double(), expected, rtol=0, atol=1e-6)


def test_standardised_channels_have_mean_0_and_deviation_1(pixels: torch.Tensor) -> None:
    pixels = pixels // torch.tensor([1, 2, 5], dtype=torch.uint8)[:, None, None]
    normalized = Normalization.fit(pixels, preset("encoder", centering="channel", standardize=True))(pixels)
    torch.testing.assert_close(normalized.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(normalized.std((0, 2, 3), correction=0), torch.ones(3), rtol=0, atol=1e-4)


def test_other_sizes_get_the_mean_per_channel(pixels: torch.Tensor) -> None:
    normalization = Normalization.fit(pixels, preset("paper"))
    other = torch.zeros(1, 3, 30, 20, dtype=torch.uint8)
    expected = -pixels.double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(normalization(other)[0, :, 7, 9].double(), expected, rtol=0, atol=1e-6)


def test_a_constant_channel_stays_finite(pixels: torch.Tensor) -> None:
    pixels[:, 1] = 17
    normalized = Normalization.fit(pixels, preset("encoder", standardize=True))(pixels)
    assert normalized.isfinite().all()
    assert not normalized[:, 1].any()


def test_floats_and_bytes_are_the_same_pixels(pixels: torch.Tensor) -> None:
    normalization = Normalization.fit(pixels, preset("encoder"))
    again = Normalization.fit(pixels.float(), preset("encoder"))
    assert torch.equal(normalization(pixels), again(pixels.float()))


class TestEachImageByItself:
    def test_how_light_an_image_is_plays_no_part(self, pixels: torch.Tensor) -> None:
        normalization = Normalization.fit(pixels, preset("encoder", centering="image"))
        darker = pixels.float() - torch.tensor([14.0, 9.0, 3.0])[:, None, None]
        torch.testing.assert_close(normalization(darker), normalization(pixels), rtol=0, atol=1e-5)

    def test_the_scale_is_the_deviation_within_images(self, pixels: torch.Tensor) -> None:
        pixels = (pixels // 8 + torch.tensor([0, 50, 100, 200])[:, None, None, None]).byte()
        normalized = Normalization.fit(pixels, preset("encoder", centering="image"))(pixels)
        torch.testing.assert_close(normalized.mean((2, 3)), torch.zeros(4, 3), rtol=0, atol=1e-5)
        torch.testing.assert_close(normalized.std((0, 2, 3), correction=0), torch.ones(3), rtol=0, atol=1e-4)

    def test_any_size_and_device_copy(self, pixels: torch.Tensor) -> None:
        normalization = Normalization.fit(pixels, preset("encoder", centering="image")).to(torch.device("cpu"))
        other = torch.full((1, 3, 30, 20), 77, dtype=torch.uint8)
        assert not normalization(other).any()

    def test_how_long_an_image_was_exposed_plays_no_part(self, pixels: torch.Tensor) -> None:
        normalization = Normalization.fit(pixels, preset("encoder", centering="exposure"))
        darker = 0.9 * pixels.float() - 5
        torch.testing.assert_close(normalization(darker), normalization(pixels), rtol=0, atol=1e-5)
        torch.testing.assert_close(normalization(pixels).square().mean((1, 2, 3)), torch.ones(len(pixels)))

    def test_an_empty_image_stays_empty(self, pixels: torch.Tensor) -> None:
        normalization = Normalization.fit(pixels, preset("encoder", centering="exposure"))
        assert not normalization(torch.full((1, 3, 30, 20), 77, dtype=torch.uint8)).any()
