from __future__ import annotations

import pytest
import torch

from patchsvdd.core.config import Config
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.encoder.networks import HierarchicalEncoder, PatchEncoder, PositionClassifier, build_encoder, grids_for
from patchsvdd.encoder.patch_grid import PatchGrid
from support.encoders import lively, patch_by_patch

TWO_SCALES = (Scale(32, 4), Scale(64, 16))
THREE_SCALES = (Scale(32, 8), Scale(64, 16), Scale(128, 32))


def lively_encoder(config: Config) -> PatchEncoder:
    return lively(build_encoder(config))


@pytest.mark.parametrize(
    ("kind", "scales", "size"),
    [
        ("hierarchical", TWO_SCALES, (96, 96)),
        ("hierarchical", TWO_SCALES, (64, 64)),
        ("hierarchical", TWO_SCALES, (64, 110)),
        ("hierarchical", TWO_SCALES, (101, 65)),
        ("hierarchical", TWO_SCALES, (67, 83)),
        ("hierarchical", THREE_SCALES, (160, 128)),
        ("hierarchical", THREE_SCALES, (129, 163)),
        ("random", TWO_SCALES, (70, 81)),
        ("flat", (Scale(64, 16),), (96, 96)),
        ("flat", (Scale(64, 8),), (64, 101)),
        ("flat", (Scale(64, 16),), (117, 75)),
        ("raw", (Scale(16, 4), Scale(32, 6)), (48, 48)),
        ("raw", (Scale(16, 4), Scale(32, 6)), (41, 53)),
    ],
)
def test_dense_equals_patch_by_patch(kind: str, scales: tuple[Scale, ...], size: tuple[int, int]) -> None:
    config = preset("paper", encoder=kind, scales=scales, image_size=size)
    encoder = lively_encoder(config)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    grids = grids_for(encoder, config, size)
    dense = encoder.dense(images, grids)
    assert len(dense) == len(scales)
    for grid, embeddings in zip(grids, dense, strict=True):
        assert embeddings.shape[2:] == grid.shape
        assert embeddings[1].std() > 0.1  # they tell patches apart, so equality says something
        torch.testing.assert_close(embeddings[1], patch_by_patch(encoder, images[1], grid), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "scales", "size"),
    [
        ("hierarchical", TWO_SCALES, (70, 76)),
        ("hierarchical", TWO_SCALES, (65, 71)),
        ("hierarchical", THREE_SCALES, (128, 134)),
        ("flat", (Scale(64, 16),), (80, 91)),
        ("raw", (Scale(16, 4), Scale(32, 6)), (33, 40)),
    ],
)
def test_every_position_is_dense_at_the_encoders_own_stride(
    kind: str, scales: tuple[Scale, ...], size: tuple[int, int]
) -> None:
    encoder = lively_encoder(preset("paper", encoder=kind, scales=scales, image_size=size))
    image = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(2))
    maps = encoder.every_position(image)
    assert tuple(maps) == encoder.patch_sizes
    for patch_size, embeddings in maps.items():
        # Some of the positions, the last included: one by one they take long.
        grid = PatchGrid(size, Scale(patch_size, 5 * encoder.alignment), encoder.alignment)
        rows, columns = (torch.tensor(places) // encoder.alignment for places in (grid.rows, grid.columns))
        expected = patch_by_patch(encoder, image[0], grid)
        torch.testing.assert_close(embeddings[0][:, rows][:, :, columns], expected, rtol=0, atol=2e-5)
        # An image a pixel or more too large may hold one more position: the last pixel of a patch is not looked at.
        assert embeddings.shape[2] - int(rows[-1]) in (1, 2)
        assert embeddings.shape[3] - int(columns[-1]) in (1, 2)


def test_encoding_sizes_together_equals_encoding_them_apart() -> None:
    encoder = lively_encoder(preset("paper"))
    generator = torch.Generator().manual_seed(3)
    patches = {k: torch.randn(2, 3, k, k, generator=generator) for k in (32, 64)}
    together = encoder.encode(patches)
    for size, patch in patches.items():
        assert together[size].shape == (2, 64)
        torch.testing.assert_close(together[size], encoder.encode({size: patch})[size], rtol=0, atol=2e-5)


def test_both_hierarchical_encoders_have_401984_parameters() -> None:
    encoder = build_encoder(preset("paper"))
    assert isinstance(encoder, HierarchicalEncoder)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 401_984


def test_embeddings_lie_between_minus_one_and_one() -> None:
    encoder = lively_encoder(preset("paper"))
    embeddings = encoder.encode({64: 100 * torch.randn(4, 3, 64, 64)})[64]
    assert embeddings.abs().max() <= 1


def test_the_small_encoder_sees_31_of_32_pixels() -> None:
    encoder = lively_encoder(preset("paper"))
    patch = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    unseen, seen = patch.clone(), patch.clone()
    unseen[:, :, 31, :] = unseen[:, :, :, 31] = 9.0
    seen[:, :, 30, 30] = 9.0
    before = encoder.encode({32: patch})[32]
    assert torch.equal(encoder.encode({32: unseen})[32], before)
    assert not torch.equal(encoder.encode({32: seen})[32], before)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(99)
    expected = torch.rand(3)
    torch.manual_seed(99)
    first = build_encoder(preset("paper", seed=1)).state_dict()
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers were touched"
    again, other = (build_encoder(preset("paper", seed=seed)).state_dict() for seed in (1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["small.head.weight"], other["small.head.weight"])


def test_only_encoders_that_learn_are_trainable() -> None:
    flat = {"scales": (Scale(64, 16),)}
    kinds = {"hierarchical": {}, "flat": flat, "random": {}, "raw": {}}
    trainable = {kind: build_encoder(preset("paper", encoder=kind, **extra)).trainable for kind, extra in kinds.items()}
    assert trainable == {"hierarchical": True, "flat": True, "random": False, "raw": False}


def test_raw_embedding_is_the_patch() -> None:
    patches = torch.randn(3, 3, 32, 32)
    encoder = build_encoder(preset("paper", encoder="raw"))
    assert torch.equal(encoder.encode({32: patches})[32], patches.flatten(1))


@pytest.mark.parametrize("frozen", [True, False])
def test_position_classifier_looks_at_the_difference(frozen: bool) -> None:
    torch.manual_seed(0)
    classifier = PositionClassifier(16, frozen)
    first, second, shift = torch.randn(5, 16), torch.randn(5, 16), torch.randn(16)
    logits = classifier(first, second)
    assert logits.shape == (5, 8)
    torch.testing.assert_close(classifier(first + shift, second + shift), logits, rtol=1e-4, atol=1e-4)
    assert classifier.output.weight.requires_grad is not frozen
    assert classifier.output.bias.requires_grad
    if frozen:
        torch.testing.assert_close(classifier.output.weight.norm(dim=0), torch.ones(128))
