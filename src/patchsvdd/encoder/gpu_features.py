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
PIXELS = 256
"""Pixels per program."""
DEPTH = 32
"""Length of the inner dimension per product."""
WARPS, STAGES = 8, 3


@dataclass(frozen=True)
class FusedLayer:
    """One convolution, with its weight laid out for the kernel."""

    weight: tuple[Tensor, Tensor]
    """Value and remainder, (window rows, padded row, channels out) float16 each; a window row is contiguous."""
    bias: Tensor
    kernel: int
    stride: int
    is_last: bool
    is_rounded: bool
    """Whether all remainders of the weight are zero, so that a product less is needed."""


class FusedFeatures:
    """``encoder.features`` with one step, for normalised images on a GPU."""

    name = "triton"
    precision = "float32"

    def __init__(self, encoder: PatchEncoder, step: int) -> None:
        stack = encoder.stack()
        if stack is None:
            raise TypeError(f"{type(encoder).__name__} has no stack of convolutions")
        (body, head), self._shrink = stack, encoder.shrink
        self._layers = [lay_out(layer, layer.stride[0], False) for layer in body if isinstance(layer, nn.Conv2d)]
        self._layers.append(lay_out(head, step, True))

    def __call__(self, images: Tensor) -> Tensor:
        """(N, C, h, w) float32 of images (N, 3, H, W)."""
        if self._shrink > 1:
            images = torch.nn.functional.avg_pool2d(images, self._shrink)
        hidden = split_images(images)
        for layer in self._layers[:-1]:
            hidden = convolve(hidden, layer, SLOPE)
        return convolve(hidden, self._layers[-1], SLOPE)[0].permute(0, 3, 1, 2)


def fused_features_run_on(encoder: PatchEncoder, device: torch.device) -> bool:
    """Whether ``FusedFeatures`` supports this encoder on this device."""
    stack = encoder.stack()
    if device.type != "cuda" or not kernels.available() or stack is None:
        return False
    width = stack[1].out_channels
    return 16 <= width <= 256 and width & (width - 1) == 0


def convolve(x: tuple[Tensor, Tensor], layer: FusedLayer, slope: float) -> tuple[Tensor, Tensor]:
    """Value and remainder (N, h', w', channels out) of x (N, h, w, channels in); float32 twice for the last layer."""
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
        ROUNDED=layer.is_rounded,
        SLOPE=slope,
        BM=ROWS,
        BK=min(DEPTH, run),
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return number, rest


def split_images(images: Tensor, border: int = 0) -> tuple[Tensor, Tensor]:
    """Value and remainder (N, h + 2 · border, w + 2 · border, 4) float16 of images (N, 3, h, w).

    The fourth channel and the border are zero.
    """
    from patchsvdd.encoder import gpu_features_kernels as kernel

    count, _, height, width = images.shape
    number = images.new_empty((count, height + 2 * border, width + 2 * border, 4), dtype=torch.float16)
    rest = torch.empty_like(number)
    total = number.numel() // 4
    kernel.split_images[(kernels.blocks(total, PIXELS),)](
        images.contiguous(), number, rest, height, width, total, PAD=border, BM=PIXELS
    )
    return number, rest


def lay_out(layer: nn.Conv2d, stride: int, is_last: bool) -> FusedLayer:
    """Lay out a convolution's weight for the kernel."""
    assert layer.bias is not None
    weight = layer.weight.detach().permute(2, 3, 1, 0)  # (window, window, in, out)
    weight = torch.nn.functional.pad(weight, (0, 0, 0, weight.shape[2] % 2))  # three channels become four
    weight = weight.flatten(1, 2)  # (window, window · in, out)
    weight = torch.nn.functional.pad(weight, (0, 0, 0, -weight.shape[1] % (32 if weight.shape[1] > 16 else 16)))
    pair = split(weight.contiguous())
    is_rounded = not bool(pair[1].any())
    return FusedLayer(pair, layer.bias.detach(), layer.kernel_size[0], stride, is_last, is_rounded)
