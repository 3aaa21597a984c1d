"""The encoder's convolutions on a GPU as three half-precision products: float32 accuracy at tensor-core speed.

Plain float32 convolutions do not use tensor cores, and half precision or TF32 is too coarse for distances between
nearly equal embeddings. So every number is split into a half-precision value and a half-precision remainder, and three
of the four products of such pairs are accumulated in float32. Bias and LeakyReLU or tanh are fused into the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchsvdd.core import triton_support as kernels
from patchsvdd.core.split_float16 import split
from patchsvdd.encoder.networks import SLOPE, PatchEncoder

ROWS = 128
"""Output positions per program."""
DEPTH = 32
"""Length of the inner dimension per product."""
WARPS, STAGES = 8, 3


@dataclass(frozen=True)
class _Layer:
    """One convolution, with its weight laid out for the kernel."""

    weight: tuple[Tensor, Tensor]
    """Value and remainder, (window rows, padded row, channels out) float16 each; a window row is contiguous."""
    bias: Tensor
    kernel: int
    stride: int
    is_last: bool


class FusedFeatures:
    """``encoder.features`` with one step, for normalised images on a GPU."""

    name = "triton"
    precision = "float32"

    def __init__(self, encoder: PatchEncoder, step: int) -> None:
        stack = encoder.stack()
        if stack is None:
            raise TypeError(f"{type(encoder).__name__} has no stack of convolutions")
        (body, head), self._shrink = stack, encoder.shrink
        self._layers = [_lay_out(layer, layer.stride[0], False) for layer in body if isinstance(layer, nn.Conv2d)]
        self._layers.append(_lay_out(head, step, True))

    def __call__(self, images: Tensor) -> Tensor:
        """(N, C, h, w) float32 of images (N, 3, H, W)."""
        if self._shrink > 1:
            images = torch.nn.functional.avg_pool2d(images, self._shrink)
        # A fourth, zero channel: a row of the first window then has 12 numbers, which fit into 16.
        hidden = split(torch.nn.functional.pad(images.permute(0, 2, 3, 1), (0, 1)).contiguous())
        for layer in self._layers[:-1]:
            hidden = self._convolve(hidden, layer)
        return self._convolve(hidden, self._layers[-1])[0].permute(0, 3, 1, 2)

    def _convolve(self, x: tuple[Tensor, Tensor], layer: _Layer) -> tuple[Tensor, Tensor]:
        """Value and remainder (N, h', w', channels out) of x (N, h, w, channels in); float32 twice for the last
        layer."""
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
    """Whether ``FusedFeatures`` supports this encoder on this device."""
    stack = encoder.stack()
    if device.type != "cuda" or not kernels.available() or stack is None:
        return False
    width = stack[1].out_channels
    return 16 <= width <= 256 and width & (width - 1) == 0


def _lay_out(layer: nn.Conv2d, stride: int, is_last: bool) -> _Layer:
    assert layer.bias is not None
    weight = layer.weight.detach().permute(2, 3, 1, 0)  # (window, window, in, out)
    weight = torch.nn.functional.pad(weight, (0, 0, 0, weight.shape[2] % 2))  # three channels become four
    weight = weight.flatten(1, 2)  # (window, window · in, out)
    weight = torch.nn.functional.pad(weight, (0, 0, 0, -weight.shape[1] % (32 if weight.shape[1] > 16 else 16)))
    return _Layer(split(weight.contiguous()), layer.bias.detach(), layer.kernel_size[0], stride, is_last)
