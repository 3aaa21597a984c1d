"""The fused convolutions, run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.core import triton_support as kernels
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.core.split_float16 import split
from patchsvdd.encoder.gpu_features import FusedFeatures, fused_features_run_on
from patchsvdd.encoder.networks import HierarchicalEncoder, PatchEncoder, build_encoder

pytestmark = pytest.mark.interpreter

needs_triton = pytest.mark.skipif(not kernels.available(), reason="Triton is not installed")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def encoder_of(kind: str, length: int = 64) -> PatchEncoder:
    """An encoder whose embeddings differ from place to place, as after training."""
    scales = {"flat": (Scale(64, 16),), "raw": (Scale(32, 4),)}.get(kind, (Scale(32, 4), Scale(64, 16)))
    encoder = build_encoder(preset("paper", encoder=kind, scales=scales, embedding_dim=length))
    generator = torch.Generator().manual_seed(3)
    for name, value in encoder.named_parameters():
        fan_in = max(1, value[0].numel())
        spread = (1.5 / fan_in) ** 0.5 if name.endswith("weight") else 0.1
        torch.nn.init.normal_(value, 0.0, spread, generator=generator)
    return encoder.eval().requires_grad_(False)


def images_of(count: int, height: int, width: int) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(0))


def assert_equal(encoder: PatchEncoder, step: int, images: Tensor) -> None:
    expected = encoder.features(images, step)
    assert expected.std() > 0.1, "embeddings that are all alike would prove nothing"
    fused = FusedFeatures(encoder.to(DEVICE), step)(images.to(DEVICE))
    assert fused.dtype == torch.float32
    torch.testing.assert_close(fused.cpu(), expected, rtol=0, atol=1e-5)


@needs_triton
@pytest.mark.parametrize(("kind", "step", "size"), [("hierarchical", 2, (35, 33)), ("flat", 1, (66, 65))])
def test_equals_the_encoder(kind: str, step: int, size: tuple[int, int]) -> None:
    assert_equal(encoder_of(kind), step, images_of(1, *size))


@needs_triton
@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("size", [(15, 22), (27, 19), (20, 40)])
def test_equals_three_of_the_layers_at_every_step(step: int, size: tuple[int, int]) -> None:
    encoder = encoder_of("hierarchical")
    assert isinstance(encoder, HierarchicalEncoder)
    layers = list(encoder.small.body)
    encoder.small.body = torch.nn.Sequential(*layers[:2], *layers[12:])  # all eight take the interpreter seconds
    assert_equal(encoder, step, images_of(2, *size))


@pytest.mark.parametrize(
    ("kind", "length", "fits"),
    [
        ("hierarchical", 64, True),
        ("flat", 16, True),
        ("hierarchical", 8, False),
        ("flat", 48, False),
        ("raw", 64, False),
    ],
)
def test_stands_in_only_where_it_can(kind: str, length: int, fits: bool) -> None:
    encoder = encoder_of(kind, length)
    assert fused_features_run_on(encoder, torch.device("cuda")) == (fits and kernels.available())
    assert not fused_features_run_on(encoder, torch.device("cpu"))


def test_raw_pixels_have_no_convolutions() -> None:
    with pytest.raises(TypeError, match="RawPixels has no stack of convolutions"):
        FusedFeatures(encoder_of("raw"), 1)


@given(st.lists(st.floats(-65504, 65504, width=32), min_size=1, max_size=50))
def test_two_halves_keep_22_bits(values: list[float]) -> None:
    whole = torch.tensor(values)
    number, rest = split(whole)
    assert number.dtype == rest.dtype == torch.float16
    lost = (whole.double() - number.double() - rest.double()).abs()
    # Below an eighth the rest is smaller than half precision's finest step, 2⁻²⁴.
    assert (lost <= (whole.double().abs() * 2.0**-22).clamp_min(2.0**-25)).all()


@given(st.lists(st.floats(-2048, 2048, width=16), min_size=1, max_size=50))
def test_a_half_precision_number_has_no_rest(values: list[float]) -> None:
    number, rest = split(torch.tensor(values))
    assert number.tolist() == values
    assert not rest.any()
