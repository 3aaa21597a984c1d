"""The critic's network on a GPU: half-precision products of float32 accuracy, as in ``encoder.gpu_features``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchsvdd.core import triton_support as kernels
from patchsvdd.core.device import reproducible
from patchsvdd.core.split_float16 import split
from patchsvdd.critic.network import (
    FEATURE_STEP,
    Critic,
    CriticNetwork,
    Residual,
    UpsampleBlock,
    early_features,
    padded_images,
)
from patchsvdd.critic.tiles import STEP
from patchsvdd.encoder.gpu_features import convolve, lay_out, split_images

Pair = tuple[Tensor, Tensor]
"""Value and remainder (N, h, w, channels) float16."""
LAST_CHANNELS = 16
"""Channels of the last layer's products, of which the first is used: tensor cores need as many."""
TRUSTED_ERROR = 1e-4
"""A network whose logits deviate more from PyTorch's, relative to the largest, is not used."""
PROBE_SIDE = 64
BUSY = 264
"""Programs that keep a GPU busy; small layers are divided into as many."""


@dataclass(frozen=True)
class _Weight:
    """A convolution's weight, laid out for the kernel."""

    pair: Pair
    """Value and remainder (window · window · channels in, channels out)."""
    window: int
    stride: int

    @property
    def channels(self) -> int:
        """Number of input channels."""
        return len(self.pair[0]) // self.window**2

    @classmethod
    def of(cls, weight: Tensor, stride: int = 1) -> _Weight:
        """Lay out the weight (out, in, window, window) of a convolution."""
        flat = weight.detach().permute(2, 3, 1, 0).flatten(0, 2)
        return cls(split(flat.contiguous()), weight.shape[2], stride)


class FusedCriticNetwork:
    """What ``Critic`` computes, with batch normalisation folded into its convolutions."""

    def __init__(self, folded: Critic) -> None:
        self._stem = lay_out(folded.stem, 2, False)
        self._quarter, self._eighth, self._sixteenth = (
            [_FusedResidual(block) for block in stage.children() if isinstance(block, Residual)]
            for stage in (folded.quarter, folded.eighth, folded.sixteenth)
        )
        self._deepest = _FusedResidual(folded.deepest)
        self._upsampling = [_FusedUpsampling(b) for b in (folded.to_sixteenth, folded.to_eighth, folded.to_quarter)]
        missing = LAST_CHANNELS - folded.head.out_channels
        self._head = _Weight.of(nn.functional.pad(folded.head.weight, (0, 0, 0, 0, 0, 0, 0, missing)))
        assert folded.head.bias is not None
        self._head_bias = nn.functional.pad(folded.head.bias.detach(), (0, missing))

    def __call__(self, images: Tensor) -> Tensor:
        """Return logits (N, ⌈H/4⌉, ⌈W/4⌉) of normalised images (N, 3, H, W)."""
        return self._layers(images)[0]

    def with_all_features(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Like ``Critic.with_all_features``."""
        logits, *layers = self._layers(images)
        quarter, eighth = (_float32(layer) for layer in layers)
        rows, columns = (-(-side // FEATURE_STEP) for side in images.shape[2:])
        return logits, eighth[:, :, :rows, :columns], early_features(images, quarter, eighth)

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Like ``Critic.with_features``."""
        return self.with_all_features(images)[:2]

    def features(self, images: Tensor) -> Tensor:
        """Like ``Critic.features``."""
        return self.with_all_features(images)[1]

    def _layers(self, images: Tensor) -> tuple[Tensor, Pair, Pair]:
        """Return logits, and the layers with a quarter and an eighth of the height and width."""
        height, width = images.shape[2:]
        hidden = convolve(split_images(padded_images(images), self._stem.kernel // 2), self._stem, 0.0)
        stages = []
        for stage in (self._quarter, self._eighth, self._sixteenth):
            for block in stage:
                hidden = block(hidden)
            stages.append(hidden)
        hidden = self._deepest(hidden)
        for upsample, fine in zip(self._upsampling, reversed(stages), strict=True):
            hidden = upsample(hidden, fine)
        logits = _convolve(hidden, self._head, self._head_bias, is_last=True)[0]
        return logits[:, : -(-height // STEP), : -(-width // STEP), 0], stages[0], stages[1]


class _FusedResidual:
    def __init__(self, block: Residual) -> None:
        self._first = _Weight.of(block.first.weight, block.first.stride[0])
        self._second = _Weight.of(block.second.weight)
        self._skip = _Weight.of(block.skip.weight, block.skip.stride[0]) if block.skip is not None else None
        assert block.first.bias is not None
        assert block.second.bias is not None
        self._biases = block.first.bias.detach(), block.second.bias.detach()

    def __call__(self, x: Pair) -> Pair:
        inner = _convolve(x, self._first, self._biases[0])
        return _convolve(inner, self._second, self._biases[1], skip=x, skip_weight=self._skip)


class _FusedUpsampling:
    def __init__(self, block: UpsampleBlock) -> None:
        coarse_weight, fine_weight = block.mix.weight.chunk(2, dim=1)  # both inputs have equally many channels
        self._coarse, self._fine = _Weight.of(coarse_weight), _Weight.of(fine_weight)
        assert block.mix.bias is not None
        self._bias = block.mix.bias.detach()

    def __call__(self, coarse: Pair, fine: Pair) -> Pair:
        return _convolve(fine, self._fine, self._bias, coarse=coarse, coarse_weight=self._coarse)


def _convolve(
    x: Pair,
    weight: _Weight,
    bias: Tensor,
    *,
    coarse: Pair | None = None,
    coarse_weight: _Weight | None = None,
    skip: Pair | None = None,
    skip_weight: _Weight | None = None,
    is_last: bool = False,
) -> Pair:
    """Apply one layer: see the kernel. The last layer returns float32 (N, h, w, 1) twice."""
    from patchsvdd.critic import gpu_network_kernels as kernel

    count, height, width, channels = x[0].shape
    rows, columns = height // weight.stride, width // weight.stride
    out_channels = weight.pair[0].shape[1]
    dtype = torch.float32 if is_last else torch.float16
    number = x[0].new_empty((count, rows, columns, 1 if is_last else out_channels), dtype=dtype)
    rest = number if is_last else torch.empty_like(number)
    total = count * rows * columns
    block, part = _program_size(total, out_channels)
    coarse_channels = coarse_weight.channels if coarse_weight is not None else 0
    skip_channels = skip[0].shape[3] if skip is not None else 0
    kernel.convolve_layer[(kernels.blocks(total, block), out_channels // part)](
        *x,
        *weight.pair,
        *(coarse or x),
        *(coarse_weight or weight).pair,
        *(skip or x),
        *(skip_weight or weight).pair,
        bias,
        number,
        rest,
        rows,
        columns,
        total,
        CHANNELS=channels,
        COARSE=coarse_channels,
        SKIP=skip_channels,
        SKIP_WINDOW=skip_weight.window if skip_weight is not None else 0,
        OUT=out_channels,
        WINDOW=weight.window,
        STRIDE=weight.stride,
        SKIP_STRIDE=skip_weight.stride if skip_weight is not None else 1,
        LAST=is_last,
        BM=block,
        BN=part,
        BK=_depth(channels),
        COARSE_BK=_depth(coarse_channels),
        SKIP_BK=_depth(skip_channels),
        num_warps=4,
        num_stages=3,
    )
    return number, rest


def _program_size(positions: int, channels: int) -> tuple[int, int]:
    """Positions and channels of one program."""
    block, part = 64, min(channels, 128)
    while block > 32 and kernels.blocks(positions, block) * (channels // part) < BUSY:
        block, part = block // 2, max(16, part // 2)
    return block, part


def _depth(channels: int) -> int:
    """Length of the inner dimension per product."""
    return max(16, min(channels, 64))


def _float32(pair: Pair) -> Tensor:
    """Return (N, channels, h, w) float32."""
    return (pair[0].float() + pair[1].float()).permute(0, 3, 1, 2)


def fastest_network(folded: Critic) -> CriticNetwork:
    """Return what computes a network without batch normalisation fastest: itself, or fused on a GPU."""
    width = folded.stem.out_channels
    device = folded.stem.weight.device
    if device.type != "cuda" or not kernels.available() or not 16 <= width <= 64 or width & (width - 1):
        return folded
    fused = FusedCriticNetwork(folded)
    generator = torch.Generator(device).manual_seed(0)
    probe = torch.randn((1, 3, PROBE_SIDE, PROBE_SIDE), generator=generator, device=device)
    with torch.inference_mode(), reproducible():
        expected = folded(probe)
        error = (fused(probe) - expected).abs().amax() / expected.abs().amax()
    return fused if float(error) <= TRUSTED_ERROR else folded  # False for NaN
