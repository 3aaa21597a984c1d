from __future__ import annotations

import pytest
import torch

from patchsvdd.baselines.deep_svdd import NEAR_ZERO, SIDE, Decoder, DeepSvdd, normalized_contrast


def images(count: int = 6, size: int = 80) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def network(boundary: str = "hard") -> DeepSvdd:
    torch.manual_seed(0)
    return DeepSvdd(8, "soft" if boundary == "soft" else "hard", 0.25)


def test_has_no_biases() -> None:
    """With biases, the network could map every image onto the centre (Proposition 2 of the paper)."""
    assert not [name for name, _ in network().named_parameters() if "bias" in name]
    assert all(not one.affine for one in network().modules() if isinstance(one, torch.nn.BatchNorm2d))


def test_the_centre_is_the_mean_embedding_away_from_zero() -> None:
    svdd = network().eval()
    svdd.set_center(images())
    with torch.no_grad():
        mean = svdd(images()).mean(0)
    assert bool((svdd.center.abs() >= NEAR_ZERO - 1e-6).all())
    far = mean.abs() >= NEAR_ZERO
    assert torch.allclose(svdd.center[far], mean[far], atol=1e-5)
    assert bool((torch.sign(svdd.center) == torch.where(mean < 0, -1.0, 1.0)).all())


def test_losses_are_the_formulas() -> None:
    for boundary in ("hard", "soft"):
        svdd = network(boundary).eval()
        svdd.set_center(images())
        svdd.radius.fill_(0.3)
        with torch.no_grad():
            distances = (svdd(images()) - svdd.center).norm(dim=1) ** 2
            soft = 0.3**2 + torch.clamp(distances - 0.3**2, min=0).mean() / 0.25
            assert torch.allclose(svdd.loss(images()), distances.mean() if boundary == "hard" else soft, rtol=1e-4)


def test_a_soft_boundary_leaves_its_share_outside() -> None:
    svdd = network("soft")
    distances = torch.arange(1.0, 101.0)
    svdd.update_radius(distances)
    assert float((distances > svdd.radius.square()).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert bool((svdd.scores(images()) <= svdd.distances(images())).all())


def test_gradients_match_differences() -> None:
    svdd = network().double().eval()
    svdd.set_center(images().double())
    svdd.loss(images(2).double()).backward()  # type: ignore[no-untyped-call]
    weight = svdd.features[-1].weight
    assert isinstance(weight, torch.nn.Parameter)
    assert weight.grad is not None
    step = 1e-6
    with torch.no_grad():
        weight[2, 5] += step
        above = svdd.loss(images(2).double())
        weight[2, 5] -= 2 * step
        below = svdd.loss(images(2).double())
    assert float(weight.grad[2, 5]) == pytest.approx(float((above - below) / (2 * step)), rel=1e-4)


def test_the_decoder_mirrors_the_network() -> None:
    assert Decoder(8)(network()(images())).shape == (6, 3, SIDE, SIDE)


def test_brightness_and_contrast_do_not_matter() -> None:
    one = images()
    assert torch.allclose(normalized_contrast(one), normalized_contrast(0.5 * one + 0.2), atol=1e-4)
    assert normalized_contrast(torch.ones(1, 3, 4, 4)).abs().max() == 0
