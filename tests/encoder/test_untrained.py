"""Untrained encoders of larger patches."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from patchsvdd.core import triton_support as kernels
from patchsvdd.core.config import Config
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.presets import preset
from patchsvdd.core.roi import PixelMask
from patchsvdd.core.scales import Scale
from patchsvdd.encoder import networks
from patchsvdd.encoder.embedder import Embedder
from patchsvdd.encoder.engines import EngineName, open_engine
from patchsvdd.encoder.gpu_features import FusedFeatures
from patchsvdd.encoder.networks import HierarchicalEncoder, build_encoder, grids_for
from patchsvdd.encoder.onnx_features import EncoderFeatures
from patchsvdd.encoder.patch_grid import Band, PatchGrid, trim
from patchsvdd.encoder.untrained import MixedEncoder, inspection_encoder
from patchsvdd.images.normalization import Normalization
from support.encoders import lively, patch_by_patch

TWO_SCALES = (Scale(32, 4), Scale(64, 16))
THREE_SCALES = (Scale(32, 8), Scale(64, 16), Scale(128, 32))
ENGINES = ["torch", *(name for name in ("openvino", "onnxruntime") if importlib.util.find_spec(name) is not None)]
CPU = torch.device("cpu")


def config_of(scales: tuple[Scale, ...] = TWO_SCALES, **changes: object) -> Config:
    return preset("paper", larger_patches="untrained", scales=scales, **changes)


def encoder_of(config: Config) -> MixedEncoder:
    """An encoder whose embeddings differ from place to place, as after training."""
    encoder = inspection_encoder(build_encoder(config), config)
    assert isinstance(encoder, MixedEncoder)
    return lively(encoder)


def images_of(count: int, height: int, width: int) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("scales", "size"),
    [
        (TWO_SCALES, (96, 96)),
        (TWO_SCALES, (64, 64)),
        (TWO_SCALES, (101, 65)),
        (TWO_SCALES, (67, 83)),
        (TWO_SCALES, (70, 90)),
        ((Scale(32, 2), Scale(64, 4)), (70, 66)),
        ((Scale(32, 32), Scale(64, 16)), (96, 112)),
        (THREE_SCALES, (129, 163)),
    ],
)
def test_dense_equals_patch_by_patch(scales: tuple[Scale, ...], size: tuple[int, int]) -> None:
    config = config_of(scales)
    encoder, images = encoder_of(config), images_of(2, *size)
    grids = grids_for(encoder, config, size)
    dense = encoder.dense(images, grids)
    assert len(dense) == len(scales)
    for grid, embeddings in zip(grids, dense, strict=True):
        assert embeddings.shape[2:] == grid.shape
        assert embeddings[1].std() > 0.1  # they tell patches apart, so equality says something
        torch.testing.assert_close(embeddings[1], patch_by_patch(encoder, images[1], grid), rtol=0, atol=2e-5)


def test_every_position() -> None:
    encoder, image = encoder_of(config_of()), images_of(1, 72, 80)
    maps = encoder.every_position(image)
    assert {size: tuple(one.shape) for size, one in maps.items()} == {32: (1, 64, 21, 25), 64: (1, 64, 3, 5)}
    corner = encoder.encode({64: image[:, :, 4:68, 8:72]})[64]
    torch.testing.assert_close(maps[64][:, :, 1, 2], corner, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_embeds_alike(name: EngineName) -> None:
    config, size = config_of(), (70, 101)
    encoder, images = encoder_of(config), images_of(2, *size)
    grids = grids_for(encoder, config, size)
    engines = [open_engine(name, "float32", EncoderFeatures(part, part.feature_step(grids))) for part in encoder.parts]
    for got, expected in zip(encoder.dense(images, grids, engines), encoder.dense(images, grids), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.interpreter
@pytest.mark.skipif(not kernels.available(), reason="Triton is not installed")
def test_fused_convolutions_shrink_the_image_too() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    part, images = encoder_of(config_of()).parts[1], images_of(1, 70, 66)
    fused = FusedFeatures(part.to(device), 1)(images.to(device)).cpu()
    torch.testing.assert_close(fused, part.to(CPU).features(images), rtol=0, atol=1e-4)


@pytest.mark.parametrize("budget", [1, 2 * 2**20])
def test_strips_equal_one_pass(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config, size = config_of(), (150, 72)
    encoder, images = encoder_of(config), images_of(1, *size)
    grids = grids_for(encoder, config, size)
    whole = encoder.dense(images, grids)
    monkeypatch.setitem(networks.STRIP_BYTES, "cpu", budget)
    for got, expected in zip(encoder.dense(images, grids), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("corner", [(0, 0), (38, 43), (6, 50), (30, 2)])
def test_a_part_of_the_image_gives_the_same_embeddings(corner: tuple[int, int]) -> None:
    config, size = config_of(), (134, 150)
    encoder, images = encoder_of(config), images_of(1, *size)
    mask = np.zeros(size, bool)
    mask[corner[0] : corner[0] + 40, corner[1] : corner[1] + 30] = True
    grids = [
        PatchGrid(size, one.scale, one.alignment, area=PixelMask.of(mask)) for one in grids_for(encoder, config, size)
    ]
    trimmed, down, across = trim(grids)
    assert (down.start % 4, across.start % 4) == (0, 0)
    whole = encoder.embed(images, grids)
    for got, expected in zip(encoder.embed(images[:, :, down, across], trimmed), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_band_of_a_large_image_gives_the_same_embeddings(first: int) -> None:
    config, size = config_of((Scale(32, 6), Scale(64, 16))), (134, 150)
    encoder, pixels = encoder_of(config), (images_of(1, *size) * 20 + 100).round().clamp(0, 255).byte()
    embedder = Embedder(encoder, Normalization.fit(pixels, config), config, CPU)
    grids, numbers = embedder.grids(size), range(first, first + 3)
    bands = [
        PatchGrid(size, grid.scale, grid.alignment, Band(numbers.start, numbers.stop, 0), Band(0, grid.shape[1], 0))
        for grid in grids
    ]
    whole = embedder(pixels)
    for grid, got, expected in zip(grids, embedder.embed_part(pixels, bands), whole, strict=True):
        rows = expected.view(1, *grid.shape, -1)[:, numbers.start : numbers.stop].flatten(1, 2)
        torch.testing.assert_close(got, rows, rtol=0, atol=2e-5)


class TestInspectionEncoder:
    def test_the_smallest_patches_keep_the_trained_weights(self) -> None:
        config = config_of()
        trained = build_encoder(config)
        assert isinstance(trained, HierarchicalEncoder)
        nn.init.normal_(trained.small.head.weight)
        mixed = inspection_encoder(trained, config)
        patches = images_of(2, 32, 32)
        torch.testing.assert_close(mixed.encode({32: patches})[32], trained.encode({32: patches})[32])

    def test_the_others_depend_only_on_the_seed(self) -> None:
        patches = images_of(2, 64, 64)

        def embedded(seed: int, spread: float) -> Tensor:
            config = config_of(seed=seed)
            trained = build_encoder(config)
            assert isinstance(trained, HierarchicalEncoder)
            nn.init.normal_(trained.small.head.weight, 0.0, spread)
            return inspection_encoder(trained, config).encode({64: patches})[64]

        assert torch.equal(embedded(0, 0.1), embedded(0, 0.2))
        assert not torch.equal(embedded(0, 0.1), embedded(1, 0.1))

    def test_an_encoder_that_inspects_stays_as_it_is(self) -> None:
        config = config_of()
        mixed = inspection_encoder(build_encoder(config), config)
        assert inspection_encoder(mixed, config) is mixed

    @pytest.mark.parametrize(
        "changes",
        [
            {"larger_patches": "trained"},
            {"scales": (Scale(32, 4),)},
            {"encoder": "flat", "scales": (Scale(64, 16),)},
            {"encoder": "raw"},
        ],
    )
    def test_without_untrained_patches_it_is_the_trained_one(self, changes: dict[str, object]) -> None:
        config = preset("paper", **{"larger_patches": "untrained", **changes})
        encoder = build_encoder(config)
        assert inspection_encoder(encoder, config) is encoder


def test_strides_must_fit_the_shrunk_image() -> None:
    with pytest.raises(ConfigError, match="the stride of 64-px patches must be a multiple of 4"):
        config_of((Scale(32, 4), Scale(64, 6)))
    with pytest.raises(ConfigError, match="`larger_patches` must be one of trained, untrained; got 'no'"):
        preset("paper", larger_patches="no")
    preset("paper", scales=(Scale(32, 4), Scale(64, 6)))
