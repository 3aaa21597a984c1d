"""The critic's fused layers, run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from patchsvdd.core import triton_support as kernels
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.critic import feature_coreset
from patchsvdd.critic.gpu_network import FusedCriticNetwork, fastest_network
from patchsvdd.critic.network import Critic, build_critic, without_norms

pytestmark = pytest.mark.interpreter

needs_triton = pytest.mark.skipif(not kernels.available(), reason="Triton is not installed")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def folded() -> Critic:
    """A network whose normalisations have statistics, as after training."""
    critic = build_critic(CriticSettings(width=16))
    generator = torch.Generator().manual_seed(0)
    for module in critic.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            module.bias.data.normal_(0, 0.3, generator=generator)
    return without_norms(critic).requires_grad_(False).to(DEVICE)


def images_of(count: int, height: int, width: int) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1)).to(DEVICE)


@needs_triton
@pytest.mark.parametrize("size", [(32, 64), (45, 30)])
def test_equals_the_network(folded: Critic, size: tuple[int, int]) -> None:
    images = images_of(2, *size)
    with torch.inference_mode():
        expected = folded.with_all_features(images)
        found = FusedCriticNetwork(folded).with_all_features(images)
    assert expected[0].std() > 0.05, "logits that are all alike would prove nothing"
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)


@needs_triton
def test_every_answer_comes_from_the_same_layers(folded: Critic) -> None:
    fused, images = FusedCriticNetwork(folded), images_of(1, 32, 32)
    with torch.inference_mode():
        logits, features, _ = fused.with_all_features(images)
        assert torch.equal(fused(images), logits)
        assert torch.equal(fused.features(images), features)
        assert all(torch.equal(a, b) for a, b in zip(fused.with_features(images), (logits, features), strict=True))


@needs_triton
@pytest.mark.parametrize("rows", [1, 64, 150])
def test_the_nearest_row_equals_that_of_convolutions(rows: int) -> None:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(2, 32, 5, 7, generator=generator).to(DEVICE)
    known = torch.randn(rows, 32, generator=generator).to(DEVICE)
    found = feature_coreset._fused_least(features, known)
    torch.testing.assert_close(found, feature_coreset._least(features, known), rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_pytorch_computes_the_network_without_a_gpu(folded: Critic) -> None:
    assert fastest_network(folded) is folded


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_only_a_network_that_the_kernels_compute_well_is_fused(folded: Critic) -> None:
    assert isinstance(fastest_network(folded), FusedCriticNetwork)
    with torch.no_grad():
        broken = without_norms(build_critic(CriticSettings(width=16))).to(DEVICE)
        broken.stem.weight.mul_(1e6)  # too large for half precision
    assert fastest_network(broken) is broken
