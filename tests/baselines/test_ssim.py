from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from patchsvdd.baselines.ssim import mirrored, ssim_map


def pair(seed: int, size: tuple[int, int], noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """An image (1, 3, H, W) in 0 … 1 and a noisy copy."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(1, 3, *size, generator=generator, dtype=torch.float64)
    image = torch.nn.functional.avg_pool2d(image, 5, 1, 2)
    return image, (image + noise * torch.randn(image.shape, generator=generator, dtype=torch.float64)).clamp(0, 1)


@pytest.mark.parametrize("size", [(32, 32), (40, 23), (11, 64)])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5])
def test_equals_scikit_image(size: tuple[int, int], noise: float) -> None:
    one, other = pair(0, size, noise)
    found = ssim_map(one, other)
    for channel in range(3):
        _, expected = structural_similarity(  # type: ignore[no-untyped-call]
            one[0, channel].numpy(),
            other[0, channel].numpy(),
            data_range=1.0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            full=True,
        )
        assert np.abs(found[0, channel].numpy() - expected).max() < 1e-6


def test_equals_scikit_image_in_float32() -> None:
    one, other = pair(1, (64, 64), 0.1)
    expected = ssim_map(one, other)
    assert float((ssim_map(one.float(), other.float()) - expected).abs().max()) < 1e-4


def test_an_image_is_like_itself_and_unlike_its_negative() -> None:
    image, _ = pair(2, (32, 32), 0)
    assert torch.allclose(ssim_map(image, image), torch.ones_like(image))
    assert float(ssim_map(image, 1 - image).mean()) < 0.2


def test_gradients_match_differences() -> None:
    one, other = pair(3, (12, 13), 0.2)
    assert torch.autograd.gradcheck(lambda x: ssim_map(one, x).mean(), other.requires_grad_())


def test_mirrors_with_the_edge_repeated() -> None:
    line = torch.arange(6.0).view(1, 6)
    assert mirrored(line, 1).flatten().tolist() == [4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1]
    with pytest.raises(ValueError, match="a side of 4 px is too short"):
        mirrored(torch.zeros(1, 4), 1)
