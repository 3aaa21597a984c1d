"""Forward and backward pass of the small encoder in Triton kernels, over maps of one shape.

The mathematics is that of ``SmallEncoder`` under bfloat16 autocast, with one rounding per layer instead of three.
Layout: channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchsvdd.core import triton_support as kernels
from patchsvdd.core.triton_support import blocks
from patchsvdd.encoder.networks import SLOPE, HierarchicalEncoder, PatchEncoder, SmallEncoder

CHANNELS = 4
"""Channels of a map: red, green, blue and zero padding, so that a pixel is one load."""
WIDTHS = (16, 32, 64, 128)
"""Embedding dimensions that the kernels support."""
PROGRAMS = 260
"""Programs that share a weight gradient's sum over positions: two for each multiprocessor of an H200."""
MAX_PIXELS = 2**24
"""Total over all maps; the kernels use 32-bit indices."""
_TANH_ROWS = 32
_WEIGHT_ROWS, _WEIGHT_COLUMNS = 8, 128
_BIAS_ROWS, _BIAS_COLUMNS = 256, 16


def stack_runs_on(encoder: PatchEncoder, device: torch.device, shape: tuple[int, int, int]) -> bool:
    """Return whether ``SmallStack`` can replace the small encoder on this device, for maps (count, height, width)."""
    return (
        device.type == "cuda"
        and kernels.available()
        and device.index in (None, torch.cuda.current_device())  # Triton launches on that one
        and isinstance(encoder, HierarchicalEncoder)
        and encoder.small.head.out_channels in WIDTHS
        and shape[0] * shape[1] * shape[2] <= MAX_PIXELS
    )


def compile_together(launches: Iterable[Callable[[], object]], device: torch.device) -> None:
    """Launch each kernel once, in parallel: a first launch mostly waits for the compiler."""
    if device.type != "cuda":  # Triton's interpreter does not compile
        return
    here = torch.cuda.current_device()
    with ThreadPoolExecutor(initializer=torch.cuda.set_device, initargs=(here,)) as pool:
        for done in [pool.submit(launch) for launch in launches]:
            done.result()
    torch.cuda.synchronize(device)


class Tile(NamedTuple):
    """Tile sizes and launch options of a kernel's matrix product."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    registers: int | None = None
    """Maximum per thread: with 128, two programs of 8 warps share a multiprocessor."""

    @property
    def options(self) -> dict[str, int | None]:
        """Launch options."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


class Tiles(NamedTuple):
    """Tiles of a layer's three products, and the number of parts of the sum over positions."""

    forward: Tile
    input_gradient: Tile
    weight_gradient: Tile
    splits: int


@dataclass(frozen=True)
class Layer:
    """One valid 3 × 3 convolution over ``count`` maps of (height, width)."""

    count: int
    height: int
    width: int
    cin: int
    """Channels in memory; only the first ``real`` are used."""
    real: int
    cout: int
    stride: int
    tanh: bool

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return (self.height - 3) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return (self.width - 3) // self.stride + 1

    @property
    def rows(self) -> int:
        """Positions of the output, over all maps."""
        return self.count * self.out_height * self.out_width

    @property
    def rows_in(self) -> int:
        """Positions of the input, over all maps."""
        return self.count * self.height * self.width


def tiles_for(layer: Layer) -> Tiles:
    """Choose tiles by shape only, never by timing: other tiles round differently, and equal runs must be identical.

    These were fastest on an H200 for 1,280 maps of 32 × 32, the paper's step.
    """
    if layer.tanh:  # float32 operands
        forward = Tile(32 if layer.rows <= 8192 else 64, layer.cout, 32, 4, 3)
        input_gradient = Tile(64, layer.cin, min(32, layer.cout), 4, 3)
        weight_gradient = Tile(64, layer.cout, 32, 4, 3)
    else:
        deep = min(64, layer.cin) if layer.cin >= 32 else 64
        if layer.cout >= 128:
            forward = Tile(128, layer.cout, deep, 8, 3, registers=128)
        else:
            forward = Tile(128, layer.cout, deep, 4, 4 if layer.cout == 64 else 3)
        input_gradient = Tile(128, layer.cin, min(64, layer.cout), 4, 3)
        rows = 128 if layer.cin >= 128 else 64
        weight_gradient = Tile(rows, layer.cout, 64, 4, 4 if rows == 64 and layer.cout >= 64 else 3)
    tiles = blocks(9 * layer.cin, weight_gradient.m) * blocks(layer.cout, weight_gradient.n)
    most = blocks(layer.rows, 4 * weight_gradient.k)  # each program should sum a few blocks
    return Tiles(forward, input_gradient, weight_gradient, max(1, min(PROGRAMS // tiles, most)))


class SmallStack:
    """``SmallEncoder`` over maps of a fixed shape, sharing its weights.

    Maps (count, H, W, 4) in ``dtype`` → embeddings (count · h · w, D) in float32, with gradients to the weights but
    not to the maps.
    """

    def __init__(self, small: SmallEncoder, shape: tuple[int, int, int], dtype: torch.dtype = torch.bfloat16) -> None:
        from patchsvdd.training import fused_kernels as training

        self._kernels = training
        convolutions = [layer for layer in (*small.body, small.head) if isinstance(layer, nn.Conv2d)]
        self.weights = [layer.weight for layer in convolutions]
        self.biases = [_present(layer.bias) for layer in convolutions]
        if not all(weight.permute(0, 2, 3, 1).is_contiguous() for weight in self.weights):
            raise ValueError("the encoder's weights must be in channels-last format, as build_encoder creates them")
        device = self.weights[0].device
        self.dtype = dtype
        self.layers = _layers(convolutions, shape)
        self.tiles = [tiles_for(layer) for layer in self.layers]
        # Copies for the tensor cores, refilled in every step; the last layer stays in float32.
        self._cast = [torch.empty_like(weight, dtype=dtype) for weight in self.weights[:-1]]
        self._used = [*self._cast, self.weights[-1].detach()]
        self._lay_out(device)

    def _lay_out(self, device: torch.device) -> None:
        """Allocate memory for partial sums and gradients."""
        self._sizes = [weight.numel() for weight in self.weights]
        channels = [layer.cout for layer in self.layers]
        splits = [tiles.splits for tiles in self.tiles]
        # The bias gradient of a layer is summed per tile by the kernel that computes the layer's gradient.
        heights = [
            blocks(layer.rows_in, tiles.input_gradient.m)
            for layer, tiles in zip(self.layers[1:], self.tiles[1:], strict=True)
        ]
        heights.append(blocks(self.layers[-1].rows, _TANH_ROWS))
        self._parts = torch.empty(sum(n * s for n, s in zip(self._sizes, splits, strict=True)), device=device)
        self._sums = torch.empty(sum(c * h for c, h in zip(channels, heights, strict=True)), device=device)
        self._part_of = torch.split(self._parts, [n * s for n, s in zip(self._sizes, splits, strict=True)])
        self._sum_of = torch.split(self._sums, [c * h for c, h in zip(channels, heights, strict=True)])
        self._weight_table = _sum_table(self._sizes, splits, _WEIGHT_COLUMNS, device)
        self._bias_table = _sum_table(channels, heights, _BIAS_COLUMNS, device)

    def __call__(self, maps: Tensor) -> Tensor:
        """Return embeddings (count · h · w, D) of maps (count, H, W, 4)."""
        return _SmallStackFunction.apply(self, maps, *self.weights, *self.biases)  # type: ignore[no-any-return, no-untyped-call]

    def launches(self) -> list[Callable[[], object]]:
        """Return a launch of every kernel on uninitialised memory, for ``compile_together``."""
        device, calls = self.biases[0].device, list[Callable[[], object]]()
        for index, layer in enumerate(self.layers):
            x = torch.empty((layer.rows_in, layer.cin), dtype=self.dtype, device=device)
            g = torch.empty((layer.rows, layer.cout), dtype=torch.float32 if layer.tanh else self.dtype, device=device)
            calls += [partial(self.convolve, index, x), partial(self.weight_gradient, index, x, g)]
            if index > 0:
                calls.append(partial(self.input_gradient, index, x, g))
            if layer.tanh:
                calls.append(partial(self.tanh_gradient, g, g))
        return [*calls, self.gradients]

    def forward(self, maps: Tensor) -> list[Tensor]:
        """Return the maps and the output (rows, channels) of every layer."""
        torch._foreach_copy_(self._cast, self.weights[:-1])
        outputs = [maps]
        for index in range(len(self.layers)):
            outputs.append(self.convolve(index, outputs[-1]))
        return outputs

    def backward(self, outputs: Sequence[Tensor], gradient: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return gradients of weights and biases, given that of the embeddings (rows, D)."""
        g = self.tanh_gradient(outputs[-1], gradient.contiguous())
        for index in reversed(range(len(self.layers))):
            self.weight_gradient(index, outputs[index], g)
            if index > 0:
                g = self.input_gradient(index, outputs[index], g)
        return self.gradients()

    def gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return gradients of weights and biases by summing the parts in the work space."""
        weights = self._parts.new_empty(sum(self._sizes))
        biases = self._sums.new_empty(sum(layer.cout for layer in self.layers))
        self._kernels.sum_columns[(len(self._weight_table),)](
            self._parts, self._weight_table, weights, _WEIGHT_ROWS, _WEIGHT_COLUMNS
        )
        self._kernels.sum_columns[(len(self._bias_table),)](
            self._sums, self._bias_table, biases, _BIAS_ROWS, _BIAS_COLUMNS
        )
        shaped = [
            flat.view(layer.cout, 3, 3, layer.real).permute(0, 3, 1, 2)
            for flat, layer in zip(torch.split(weights, self._sizes), self.layers, strict=True)
        ]
        return shaped, list(torch.split(biases, [layer.cout for layer in self.layers]))

    def convolve(self, index: int, x: Tensor) -> Tensor:
        """Return the output (rows, cout) of one layer, including the activation."""
        layer, tile = self.layers[index], self.tiles[index].forward
        y = torch.empty((layer.rows, layer.cout), dtype=torch.float32 if layer.tanh else self.dtype, device=x.device)
        self._kernels.convolve[(blocks(layer.rows, tile.m), layer.cout // tile.n)](
            x, self._used[index], self.biases[index], y, layer.rows,
            layer.height, layer.width, layer.cin, layer.cout, layer.stride, layer.real, layer.tanh, SLOPE,
            tile.m, tile.n, tile.k, **tile.options,
        )  # fmt: skip
        return y

    def tanh_gradient(self, y: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient before the last layer's tanh, given the gradient after it."""
        before = torch.empty_like(y)
        rows, width = y.shape
        self._kernels.tanh_gradient[(blocks(rows, _TANH_ROWS),)](
            gradient, y, before, self._sum_of[-1], rows, width, _TANH_ROWS
        )
        return before

    def input_gradient(self, index: int, x: Tensor, g: Tensor) -> Tensor:
        """Return the gradient before the previous layer's activation, given that before this layer's."""
        layer, tile = self.layers[index], self.tiles[index].input_gradient
        out = torch.empty((layer.rows_in, layer.cin), dtype=self.dtype, device=g.device)
        self._kernels.input_gradient[(blocks(layer.rows_in, tile.m), layer.cin // tile.n)](
            g, self._used[index], x, out, self._sum_of[index - 1], layer.rows_in,
            layer.height, layer.width, layer.cin, layer.cout, SLOPE,
            tile.m, tile.n, tile.k, **tile.options,
        )  # fmt: skip
        return out

    def weight_gradient(self, index: int, x: Tensor, g: Tensor) -> None:
        """Write the parts of one weight's gradient to the work space."""
        layer, tile, splits = self.layers[index], self.tiles[index].weight_gradient, self.tiles[index].splits
        share = blocks(layer.rows, splits * tile.k) * tile.k
        self._kernels.weight_gradient[(blocks(9 * layer.cin, tile.m), layer.cout // tile.n, splits)](
            g, x, self._part_of[index], layer.rows, share,
            layer.height, layer.width, layer.cin, layer.cout, layer.stride, layer.real,
            tile.m, tile.n, tile.k, **tile.options,
        )  # fmt: skip


class _SmallStackFunction(torch.autograd.Function):
    """``SmallStack`` for autograd."""

    @staticmethod
    def forward(ctx: Any, stack: SmallStack, maps: Tensor, *parameters: Tensor) -> Tensor:
        del parameters  # the stack has them
        outputs = stack.forward(maps)
        ctx.stack = stack
        ctx.save_for_backward(*outputs)
        return outputs[-1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, biases = ctx.stack.backward(ctx.saved_tensors, gradient)
        return None, None, *weights, *biases


def _layers(convolutions: Sequence[nn.Conv2d], shape: tuple[int, int, int]) -> list[Layer]:
    """Return the convolutions as layers over maps of (count, height, width)."""
    count, height, width = shape
    layers: list[Layer] = []
    for convolution in convolutions:
        real, cout, stride = convolution.in_channels, convolution.out_channels, int(convolution.stride[0])
        cin = CHANNELS if not layers else real
        layers.append(Layer(count, height, width, cin, real, cout, stride, convolution is convolutions[-1]))
        height, width = layers[-1].out_height, layers[-1].out_width
    return layers


def _sum_table(widths: Sequence[int], heights: Sequence[int], columns: int, device: torch.device) -> Tensor:
    """Return one row for each program of ``sum_columns``: source, height, width, first column, target."""
    rows = []
    source = target = 0
    for width, height in zip(widths, heights, strict=True):
        rows += [(source, height, width, first, target) for first in range(0, width, columns)]
        source += width * height
        target += width
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _present(bias: Tensor | None) -> Tensor:
    assert bias is not None
    return bias
