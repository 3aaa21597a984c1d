from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.critic.network import (
    CENTERING,
    SMOOTHING,
    TrainedCritic,
    build_critic,
    critic_map,
    critic_normalization,
    gaussian_kernel,
    without_norms,
)
from patchsvdd.critic.tiles import STEP
from support.parts import draw_part

SETTINGS = CriticSettings(width=2)


def pixels(count: int = 2, size: tuple[int, int] = (64, 64)) -> Tensor:
    """Good images (N, 3, H, W) uint8."""
    pictures = [torch.from_numpy(draw_part(seed, size)) for seed in range(count)]
    return torch.stack(pictures).permute(0, 3, 1, 2).contiguous()


def gaussian(maps: Tensor, sigma: float) -> Tensor:
    """Maps (N, 1, H, W) convolved with the Gaussian along both axes; edge values are repeated beyond the edge."""
    kernel = gaussian_kernel(sigma, (maps.shape[2], maps.shape[3]), maps)
    reach = len(kernel) // 2
    maps = F.pad(maps, (reach, reach, reach, reach), mode="replicate")
    return F.conv2d(F.conv2d(maps, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))


@pytest.fixture(scope="module")
def trained() -> TrainedCritic:
    """A critic whose head is not quite random: its maps differ from place to place."""
    critic = build_critic(SETTINGS)
    critic.train()
    normalization = critic_normalization(pixels())
    for _ in range(3):  # running means and variances of its batch normalisation
        critic(normalization(pixels()))
    return TrainedCritic(critic, normalization)


class TestLogits:
    @pytest.mark.parametrize("size", [(64, 64), (33, 70), (127, 65), (96, 32), (1, 5)])
    def test_one_for_every_four_pixels(self, size: tuple[int, int]) -> None:
        critic = build_critic(SETTINGS).eval()
        logits = critic(torch.randn(2, 3, *size))
        assert logits.shape == (2, -(-size[0] // STEP), -(-size[1] // STEP))
        assert logits.isfinite().all()

    def test_an_image_does_not_depend_on_its_batch(self, trained: TrainedCritic) -> None:
        images = trained.normalization(pixels(3, (40, 72)))
        whole = trained.critic(images)
        for index in range(3):
            torch.testing.assert_close(trained.critic(images[index : index + 1])[0], whole[index])

    def test_a_shifted_image_has_shifted_logits(self, trained: TrainedCritic) -> None:
        # By a whole cell of the deepest layer; far from the edge, where padding is not seen.
        wide = torch.randn(1, 3, 416, 448, generator=torch.Generator().manual_seed(0))
        first, second = trained.critic(wide[:, :, :, :416]), trained.critic(wide[:, :, :, 32:])
        inner = slice(44, 60)
        torch.testing.assert_close(first[:, inner, 52:60], second[:, inner, 44:52])

    def test_padding_repeats_the_edge(self, trained: TrainedCritic) -> None:
        image = torch.randn(1, 3, 50, 61, generator=torch.Generator().manual_seed(1))
        padded = F.pad(image, (0, 3, 0, 14), mode="replicate")
        torch.testing.assert_close(trained.critic(image), trained.critic(padded)[:, :13, :16])

    @pytest.mark.parametrize("size", [(64, 64), (50, 61)])
    def test_folded_normalisations_change_nothing(self, trained: TrainedCritic, size: tuple[int, int]) -> None:
        images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(2))
        before = {name: value.clone() for name, value in trained.critic.state_dict().items()}
        quick = without_norms(trained.critic)
        torch.testing.assert_close(quick(images), trained.critic(images), rtol=1e-4, atol=1e-5)
        assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in quick.modules())
        assert all(torch.equal(before[name], value) for name, value in trained.critic.state_dict().items())


class TestMap:
    @pytest.mark.parametrize("size", [(64, 64), (65, 90)])
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
    def test_probabilities_of_the_images_size(
        self, trained: TrainedCritic, size: tuple[int, int], dtype: torch.dtype
    ) -> None:
        maps = trained(pixels(2, size).to(dtype))
        assert maps.shape == (2, *size)
        assert maps.dtype == torch.float32
        assert float(maps.min()) >= 0
        assert float(maps.max()) <= 1
        assert float(maps.std()) > 0

    def test_no_logit_is_too_large(self) -> None:
        maps = critic_map(torch.tensor([[[-1e4, 1e4], [0.0, 0.0]]]).repeat_interleave(8, 1), (64, 8))
        assert maps.isfinite().all()
        assert float(maps.min()) >= 0
        assert float(maps.max()) <= 1 + 1e-6

    @pytest.mark.parametrize("size", [(64, 64), (50, 91), (300, 256)])
    def test_equal_logits_give_a_constant_map(self, size: tuple[int, int]) -> None:
        logits = torch.full((1, -(-size[0] // STEP), -(-size[1] // STEP)), 0.7)
        torch.testing.assert_close(critic_map(logits, size), torch.full((1, *size), 0.7).sigmoid())


class TestExposure:
    """How an image was lit says nothing about whether it was tampered with."""

    def test_longer_exposure_gives_the_same_map(self, trained: TrainedCritic) -> None:
        images = pixels().float()
        maps = trained(images)
        assert float(maps.max() - maps.min()) > 0.01, "there is something to be seen in them"
        torch.testing.assert_close(trained(0.8 * images + 10), maps, rtol=1e-4, atol=1e-5)

    def test_nearly_so_in_whole_grey_levels(self, trained: TrainedCritic) -> None:
        images = pixels()
        maps, again = trained(images), trained((0.8 * images.float() + 10).round().byte())
        assert float((again - maps).abs().max()) < 0.1 * float(maps.max() - maps.min())

    def test_it_would_not_if_all_images_were_centred_alike(self, trained: TrainedCritic) -> None:
        images, normalization = pixels().float(), dataclasses.replace(trained.normalization, centering="channel")
        other = TrainedCritic(trained.critic, normalization)
        maps = other(images)
        assert float((other(0.8 * images + 10) - maps).abs().max()) > 0.1 * float(maps.max() - maps.min())

    def test_a_kept_critic_does_not_mind_it_either(self, trained: TrainedCritic) -> None:
        again = TrainedCritic.from_state(trained.state(), SETTINGS)
        assert again.normalization.centering == trained.normalization.centering == CENTERING
        images = pixels().float()
        torch.testing.assert_close(again(0.8 * images + 10), trained(images), rtol=1e-4, atol=1e-5)

    def test_images_do_not_depend_on_each_other(self, trained: TrainedCritic) -> None:
        bright = pixels(1).float()
        dark = 0.5 * pixels(2)[1:].float()
        apart = torch.cat((trained(dark), trained(bright)))
        torch.testing.assert_close(trained(torch.cat((dark, bright))), apart, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("level", [0, 128, 255])
    def test_an_image_of_nothing_has_a_map(self, trained: TrainedCritic, level: int) -> None:
        maps = trained(torch.full((1, 3, 64, 64), level, dtype=torch.uint8))
        assert maps.isfinite().all()


class TestSmoothing:
    @pytest.mark.parametrize("sigma", [0.2, 1.0, 4.0, 50.0])
    @pytest.mark.parametrize("size", [(2, 9), (64, 64)])
    def test_a_constant_stays_what_it_is(self, sigma: float, size: tuple[int, int]) -> None:
        maps = torch.full((2, 1, *size), 0.3)
        torch.testing.assert_close(gaussian(maps, sigma), maps)

    def test_a_spot_is_spread_and_nothing_of_it_lost(self) -> None:
        maps = torch.zeros(1, 1, 31, 31)
        maps[0, 0, 15, 15] = 1
        smooth = gaussian(maps, 2.0)
        assert float(smooth.sum()) == pytest.approx(1, abs=1e-5)
        assert int(smooth.argmax()) == 15 * 31 + 15
        torch.testing.assert_close(smooth, smooth.transpose(2, 3))
        torch.testing.assert_close(smooth, smooth.flip(3))


class TestKeeping:
    def test_what_was_kept_is_the_same_critic(self, trained: TrainedCritic) -> None:
        again = TrainedCritic.from_state(trained.state(), SETTINGS)
        assert torch.equal(again(pixels()), trained(pixels()))
        assert again.state().keys() == trained.state().keys()
        assert not any(value.requires_grad for value in again.critic.parameters())
        assert not again.critic.training

    def test_the_seed_decides_and_the_callers_random_numbers_are_left_alone(self) -> None:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        first, same, other = (build_critic(SETTINGS, seed).state_dict() for seed in (1, 1, 2))
        state = TrainedCritic(build_critic(SETTINGS), critic_normalization(pixels())).state()
        TrainedCritic.from_state(state, SETTINGS)
        assert torch.equal(torch.rand(3), expected)
        assert all(torch.equal(first[name], same[name]) for name in first)
        assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_images_are_standardised() -> None:
    images = pixels(4)
    seen = critic_normalization(images)(images)
    torch.testing.assert_close(seen.square().mean((1, 2, 3)), torch.ones(4), rtol=0, atol=1e-3)
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-3)
    torch.testing.assert_close(seen.std((0, 2, 3)), torch.ones(3), rtol=0, atol=1e-2)


@pytest.mark.parametrize("size", [(64, 64), (256, 256), (50, 61), (33, 127), (300, 180)])
def test_a_map_is_upsampled_and_smoothed(size: tuple[int, int]) -> None:
    logits = 4 * torch.randn(2, -(-size[0] // STEP), -(-size[1] // STEP), generator=torch.Generator().manual_seed(0))
    upsampled = F.interpolate(torch.sigmoid(logits)[:, None].double(), size, mode="bilinear", align_corners=False)
    expected = gaussian(upsampled, SMOOTHING * min(size) / 256)[:, 0]
    torch.testing.assert_close(critic_map(logits, size).double(), expected, rtol=1e-5, atol=1e-6)
