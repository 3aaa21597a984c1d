"""The small encoder in kernels against the plain one, through Triton's interpreter on a CPU, in float32."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from patchsvdd.core.presets import preset
from patchsvdd.encoder.networks import HierarchicalEncoder, build_encoder
from patchsvdd.training.fused_encoder import WIDTHS, Layer, SmallStack, compile_together, stack_runs_on, tiles_for

pytestmark = pytest.mark.interpreter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def hierarchical() -> HierarchicalEncoder:
    """A fresh encoder whose weights are large enough for gradients to differ from zero."""
    encoder = build_encoder(preset("paper")).to(DEVICE)
    assert isinstance(encoder, HierarchicalEncoder)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.7)
    return encoder


def test_it_is_the_small_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr("patchsvdd.training.fused_encoder._WEIGHT_COLUMNS", 4096)  # fewer programs to interpret
    small = hierarchical().small
    images = torch.randn(1, 3, 34, 32, device=DEVICE)
    maps = nn.functional.pad(images, (0, 0, 0, 0, 0, 1)).permute(0, 2, 3, 1).contiguous()
    plain = small(images).permute(0, 2, 3, 1).flatten(0, 2)
    direction = torch.randn_like(plain)
    plain.backward(direction)
    expected = {name: parameter.grad for name, parameter in small.named_parameters()}
    small.zero_grad(set_to_none=True)
    stack = SmallStack(small, (1, 34, 32), torch.float32)
    compile_together(stack.launches(), DEVICE)  # must leave no trace
    fused = stack(maps)
    fused.backward(direction)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(fused, plain, atol=1e-3, rtol=1e-3)
    for name, parameter in small.named_parameters():
        wanted = expected[name]
        assert parameter.grad is not None
        assert wanted is not None
        assert (parameter.grad - wanted).norm() <= 1e-2 * wanted.norm(), name  # TF32 on a GPU


CHANNELS = (4, 32, 64, 128, 128, 64, 32, 32)


@pytest.mark.parametrize("embedding_dim", WIDTHS)
@pytest.mark.parametrize("shape", [(1280, 32, 32), (4, 192, 192), (1, 34, 32), (1, 1024, 1024)])
def test_tiles_fit_every_shape(shape: tuple[int, int, int], embedding_dim: int) -> None:
    count, height, width = shape
    for index, (cin, cout) in enumerate(pairwise((*CHANNELS, embedding_dim))):
        layer = Layer(count, height, width, cin, cin, cout, 1 if index else 2, index == 7)
        tiles = tiles_for(layer)
        assert (
            cout % tiles.forward.n == cin % tiles.input_gradient.n == cout % tiles.weight_gradient.n == 0 or not index
        )
        assert not index or (cin % tiles.forward.k == 0 and cout % tiles.input_gradient.k == 0)
        assert 1 <= tiles.splits <= layer.rows
        height, width = layer.out_height, layer.out_width


def test_it_runs_on_a_gpu_only() -> None:
    encoder = hierarchical()
    assert not stack_runs_on(encoder, torch.device("cpu"), (1, 32, 32))
    assert stack_runs_on(encoder, DEVICE, (1, 32, 32)) == (DEVICE.type == "cuda")
    assert not stack_runs_on(build_encoder(preset("paper", encoder="raw")), DEVICE, (1, 32, 32))
    assert not stack_runs_on(encoder, DEVICE, (10_000, 512, 512))
