from __future__ import annotations

import pytest
import torch

from patchsvdd.baselines.autoencoder import CROP, IMAGE, Autoencoder, Loss, starts
from patchsvdd.baselines.ssim import ssim_map


def views(side: int, count: int = 2) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("side", [CROP, IMAGE])
def test_code_and_reconstruction_have_the_published_shapes(side: int) -> None:
    network = Autoencoder("l2", 100, side)
    assert network.encoder(views(side)).shape == (2, 100, 1, 1)
    assert network(views(side)).shape == (2, 3, side, side)


def test_has_the_published_layers() -> None:
    """Table 1 of Bergmann et al. (VISAPP 2019), for 128 px and a code of 100 numbers."""
    convolutions = [one for one in Autoencoder("l2", 100, CROP).encoder if isinstance(one, torch.nn.Conv2d)]
    assert [one.out_channels for one in convolutions] == [32, 32, 32, 64, 64, 128, 64, 32, 100]
    assert [one.kernel_size[0] for one in convolutions] == [4, 4, 3, 4, 3, 4, 3, 3, 8]
    assert [one.stride[0] for one in convolutions] == [2, 2, 1, 2, 1, 2, 1, 1, 1]
    sides, side = [], CROP
    for one in convolutions:
        side = (side + 2 * int(one.padding[0]) - one.kernel_size[0]) // one.stride[0] + 1
        sides.append(side)
    assert sides == [64, 32, 32, 16, 16, 8, 8, 8, 1]


def test_losses_are_the_formulas() -> None:
    images = views(CROP)
    for kind in ("l2", "ssim"):
        network = Autoencoder(kind, 10, CROP)
        reconstruction = network(images)
        squared = (images - reconstruction).pow(2).sum(1).mean()
        expected = squared if kind == "l2" else 1 - ssim_map(images, reconstruction).mean()
        assert torch.allclose(network.loss(images), expected)
        assert torch.allclose(network.loss(images, half=True), expected, rtol=0.02)


@pytest.mark.parametrize("kind", ["l2", "ssim"])
def test_gradients_match_differences(kind: Loss) -> None:
    network = Autoencoder(kind, 4, CROP).double()
    images, bias = views(CROP, 1).double(), network.decoder[-1].bias
    assert isinstance(bias, torch.nn.Parameter)
    network.loss(images).backward()  # type: ignore[no-untyped-call]
    assert bias.grad is not None
    step = 1e-6
    with torch.no_grad():
        bias[1] += step
        above = network.loss(images)
        bias[1] -= 2 * step
        below = network.loss(images)
    assert float(bias.grad[1]) == pytest.approx(float((above - below) / (2 * step)), rel=1e-5)


def test_a_map_of_crops_is_the_mean_of_their_residuals() -> None:
    network = Autoencoder("l2", 4, CROP).eval()
    image = torch.rand(3, 150, 170, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = network.maps(image[None])[0]
        total, seen = torch.zeros(150, 170), torch.zeros(150, 170)
        for top in (0, 22):
            for left in (0, 30, 42):
                crop = image[None, :, top : top + CROP, left : left + CROP]
                total[top : top + CROP, left : left + CROP] += (crop - network(crop))[0].square().sum(0)
                seen[top : top + CROP, left : left + CROP] += 1
    assert torch.allclose(found, total / seen, atol=1e-5)


def test_crops_cover_a_side() -> None:
    assert starts(128) == [0]
    assert starts(150) == [0, 22]
    assert starts(256) == [0, 30, 60, 90, 120, 128]


@pytest.mark.parametrize("side", [CROP, IMAGE])
def test_maps_have_the_size_of_the_images(side: int) -> None:
    network = Autoencoder("ssim", 4, side).eval()
    with torch.no_grad():
        assert network.maps(torch.rand(2, 3, 140, 160)).shape == (2, 140, 160)
