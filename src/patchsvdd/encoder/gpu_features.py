"""The encoder's convolutions on a GPU, in three half-precision products each: float32's digits at tensor-core speed.

Plain float32 convolutions do without tensor cores, and half precision or TF32 keep too few digits for distances
between near-equal embeddings. So every number is split into a half-precision number and the half-precision rest of
it, and three of the four products of such pairs are added up in float32. Bias and LeakyReLU or tanh happen
before the result is written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchsvdd.core import triton_support as kernels
from patchsvdd.core.split_float16 import split
from patchsvdd.encoder.networks import SLOPE, FlatEncoder, HierarchicalEncoder, PatchEncoder

ROWS = 128
"""Positions of a layer that one program computes."""
DEPTH = 32
"""Numbers of a row of the window per product."""
WARPS, STAGES = 8, 3


@dataclass(frozen=True)
class _Layer:
    """One convolution, its weight laid out for the kernel."""

    weight: tuple[Tensor, Tensor]
    """Twice (rows of the window, padded row, channels out) float16, the number and its rest: a row of the window is one
    run of numbers in memory."""
    bias: Tensor
    kernel: int
    stride: int
    is_last: bool


class FusedFeatures:
    """``encoder.features`` at one step, for normalised images on a GPU."""

    name = "triton"
    precision = "float32"

    def __init__(self, encoder: PatchEncoder, step: int) -> None:
        body, head = _stack(encoder)
        self._layers = [_lay_out(layer, layer.stride[0], False) for layer in body if isinstance(layer, nn.Conv2d)]
        self._layers.append(_lay_out(head, step, True))

    def __call__(self, images: Tensor) -> Tensor:
        """(N, C, h, w) float32 of images (N, 3, H, W)."""
        # A fourth channel of zeros makes a row of the first window twelve numbers, less than sixteen.
        hidden = split(torch.nn.functional.pad(images.permute(0, 2, 3, 1), (0, 1)).contiguous())
        for layer in self._layers[:-1]:
            hidden = self._convolve(hidden, layer)
        return self._convolve(hidden, self._layers[-1])[0].permute(0, 3, 1, 2)

    def _convolve(self, x: tuple[Tensor, Tensor], layer: _Layer) -> tuple[Tensor, Tensor]:
        """Number and rest (N, h', w', channels out) of x (N, h, w, channels in); both the float32 whole at the end."""
        from patchsvdd.encoder import gpu_features_kernels as kernel

        count, height, width, channels = x[0].shape
        rows = (height - layer.kernel) // layer.stride + 1
        columns = (width - layer.kernel) // layer.stride + 1
        _, run, out_channels = layer.weight[0].shape
        shape = (count, rows, columns, out_channels)
        number = x[0].new_empty(shape, dtype=torch.float32 if layer.is_last else torch.float16)
        rest = number if layer.is_last else torch.empty_like(number)
        total = count * rows * columns
        kernel.convolve_window[(kernels.blocks(total, ROWS),)](
            *x,
            *layer.weight,
            layer.bias,
            number,
            rest,
            height,
            width,
            rows,
            columns,
            total,
            x[0].numel(),
            CHANNELS=channels,
            OUT=out_channels,
            WINDOW=layer.kernel,
            RUN=run,
            STRIDE=layer.stride,
            LAST=layer.is_last,
            SLOPE=SLOPE,
            BM=ROWS,
            BK=min(DEPTH, run),
            num_warps=WARPS,
            num_stages=STAGES,
        )
        return number, rest


def fused_features_run_on(encoder: PatchEncoder, device: torch.device) -> bool:
    """Whether ``FusedFeatures`` can stand in for this encoder on this device."""
    if device.type != "cuda" or not kernels.available() or not isinstance(encoder, HierarchicalEncoder | FlatEncoder):
        return False
    width = _stack(encoder)[1].out_channels
    return 16 <= width <= 256 and width & (width - 1) == 0


def _stack(encoder: PatchEncoder) -> tuple[nn.Sequential, nn.Conv2d]:
    """The hidden layers and the last one."""
    if isinstance(encoder, HierarchicalEncoder):
        return encoder.small.body, encoder.small.head
    if isinstance(encoder, FlatEncoder):
        return encoder.layers, encoder.head
    raise TypeError(f"{type(encoder).__name__} has no stack of convolutions")


def _lay_out(layer: nn.Conv2d, stride: int, is_last: bool) -> _Layer:
    assert layer.bias is not None
    weight = layer.weight.detach().permute(2, 3, 1, 0)  # (window, window, in, out)
    weight = torch.nn.functional.pad(weight, (0, 0, 0, weight.shape[2] % 2))  # three channels become four
    weight = weight.flatten(1, 2)  # (window, window · in, out)
    weight = torch.nn.functional.pad(weight, (0, 0, 0, -weight.shape[1] % (32 if weight.shape[1] > 16 else 16)))
    return _Layer(split(weight.contiguous()), layer.bias.detach(), layer.kernel_size[0], stride, is_last)
