from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.training.pair_sampler import DIRECTIONS, PairSampler, cut_patches, perturb_colour


class WithoutClipping(PairSampler):
    """The same draws before they are clipped into the image."""

    def _clip(self, corner: Tensor, patch_size: int) -> Tensor:  # noqa: ARG002
        return corner


def sampler(size: tuple[int, int], seed: int = 0, kind: type[PairSampler] = PairSampler) -> PairSampler:
    return kind(3, size, torch.Generator().manual_seed(seed))


class TestPairs:
    @given(
        height=st.integers(64, 130),
        width=st.integers(64, 130),
        patch_size=st.sampled_from([32, 64]),
        seed=st.integers(0, 1000),
    )
    def test_lie_inside_the_image(self, height: int, width: int, patch_size: int, seed: int) -> None:
        draw = sampler((height, width), seed)
        for pairs in (draw.position_pairs(200, patch_size), draw.jitter_pairs(200, patch_size)):
            for corner in (pairs.first, pairs.second):
                assert corner.min() >= 0
                assert corner[:, 0].max() <= height - patch_size
                assert corner[:, 1].max() <= width - patch_size
            assert 0 <= int(pairs.image.min()) <= int(pairs.image.max()) < 3

    @pytest.mark.parametrize("patch_size", [32, 64, 128])
    def test_position_offsets_before_clipping(self, patch_size: int) -> None:
        pairs = sampler((256, 200), kind=WithoutClipping).position_pairs(20_000, patch_size)
        direction = torch.tensor(DIRECTIONS)[pairs.label]
        offset = pairs.second - pairs.first
        assert torch.equal(offset.sign(), direction)
        lengths = offset.abs()[direction != 0]
        assert set(lengths.tolist()) == set(range(3 * patch_size // 4, patch_size))
        assert set(pairs.label.tolist()) == set(range(8))

    def test_label_agrees_with_the_direction_unless_clipped(self) -> None:
        size, patch_size = (300, 280), 32
        pairs = sampler(size).position_pairs(5_000, patch_size)
        unclipped = sampler(size, kind=WithoutClipping).position_pairs(5_000, patch_size)
        untouched = (pairs.second == unclipped.second).all(1)
        offset = (pairs.second - pairs.first)[untouched]
        assert torch.equal(offset.sign(), torch.tensor(DIRECTIONS)[pairs.label[untouched]])
        # A clipped pair ends at the edge it ran into.
        changed = pairs.second != unclipped.second
        edge = torch.where(unclipped.second < 0, 0, torch.tensor(size) - patch_size)
        assert torch.equal(pairs.second[changed], edge[changed])

    @pytest.mark.parametrize(("patch_size", "share"), [(64, 0.39), (32, 0.18)])
    def test_share_of_clipped_pairs_is_the_references(self, patch_size: int, share: float) -> None:
        count = 100_000
        clipped = sampler((256, 256)).position_pairs(count, patch_size)
        unclipped = sampler((256, 256), kind=WithoutClipping).position_pairs(count, patch_size)
        assert torch.equal(clipped.first, unclipped.first)
        altered = (clipped.second != unclipped.second).any(1).float().mean()
        assert float(altered) == pytest.approx(share, abs=0.006)

    @pytest.mark.parametrize("patch_size", [32, 64])
    def test_jitter_is_every_small_shift_but_none(self, patch_size: int) -> None:
        pairs = sampler((128, 128), kind=WithoutClipping).jitter_pairs(20_000, patch_size)
        reach = patch_size // 32
        counts = Counter((y, x) for y, x in (pairs.second - pairs.first).tolist())
        expected = {(y, x) for y in range(-reach, reach + 1) for x in range(-reach, reach + 1)} - {(0, 0)}
        assert set(counts) == expected
        assert min(counts.values()) > 0.8 * 20_000 / len(expected)

    def test_first_patches_reach_every_corner(self) -> None:
        first = sampler((66, 40)).position_pairs(5_000, 32).first
        assert first.amin(0).tolist() == [0, 0]
        assert first.amax(0).tolist() == [34, 8]

    def test_an_image_of_one_patch(self) -> None:
        pairs = sampler((64, 64)).position_pairs(50, 64)
        assert not pairs.first.any()
        assert not pairs.second.any()

    def test_the_seed_decides(self) -> None:
        again, same = sampler((90, 90), 5).position_pairs(50, 32), sampler((90, 90), 5).position_pairs(50, 32)
        other = sampler((90, 90), 6).position_pairs(50, 32)
        assert torch.equal(again.second, same.second)
        assert not torch.equal(again.second, other.second)


@given(seed=st.integers(0, 1000), patch_size=st.integers(1, 20))
def test_cut_patches_is_slicing(seed: int, patch_size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(2, 3, 24, 20, generator=generator)
    image = torch.randint(0, 2, (6,), generator=generator)
    rows = torch.randint(0, 24 - patch_size + 1, (6,), generator=generator)
    columns = torch.randint(0, 20 - patch_size + 1, (6,), generator=generator)
    patches = cut_patches(images, image, torch.stack((rows, columns), 1), patch_size)
    for patch, n, y, x in zip(patches, image, rows, columns, strict=True):
        assert torch.equal(patch, images[n, :, y : y + patch_size, x : x + patch_size])


def test_colour_shift_is_one_number_per_channel() -> None:
    patches = torch.randn(500, 3, 8, 8)
    shift = perturb_colour(patches, 0.02, 0.0, torch.Generator().manual_seed(0)) - patches
    assert shift.std((2, 3)).max() < 1e-6
    assert float(shift.mean((2, 3)).std()) == pytest.approx(0.02, rel=0.1)


def test_noise_differs_from_pixel_to_pixel() -> None:
    patches = torch.randn(50, 3, 16, 16)
    grain = perturb_colour(patches, 0.0, 0.02, torch.Generator().manual_seed(0)) - patches
    assert float(grain.std()) == pytest.approx(0.02, rel=0.05)
    assert grain.mean((2, 3)).abs().max() < 0.01
