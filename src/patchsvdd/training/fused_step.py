"""The paper's training step in a few Triton kernels: cutting patches, the small encoder, losses and gradients.

The mathematics is that of ``pairs.CutPairs`` and ``losses``, with fewer roundings. Nothing depends on timing and all
sums run in a fixed order, so equal runs are bit-identical.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from patchsvdd.core.config import Config
from patchsvdd.core.scales import SMALLEST_PATCH
from patchsvdd.core.triton_support import blocks
from patchsvdd.encoder.networks import SLOPE, HierarchicalEncoder, Merge, PatchEncoder
from patchsvdd.training.fused_encoder import CHANNELS, SmallStack, compile_together, stack_runs_on

MAX_BATCH = 256
"""Maximum number of pairs whose L_SVDD' one program can hold."""
_ROWS = 16
"""Rows in a tile of pairs."""


def fused_step_runs_on(encoder: PatchEncoder, images: Tensor, config: Config) -> bool:
    """Return whether ``FusedStep`` supports the training set in ``config`` on the images' device."""
    return (
        config.sampling == "patches"
        and config.learns_positions
        and not config.relative_svdd
        and not config.svdd_before_tanh
        and config.lamp == 0
        and config.area((int(images.shape[2]), int(images.shape[3]))) is None
        and len(config.scales) <= 2
        and config.batch_size <= MAX_BATCH
        and stack_runs_on(encoder, images.device, _sub_patches(len(config.scales), config.batch_size))
    )


def _sub_patches(levels: int, batch_size: int) -> tuple[int, int, int]:
    """Return count, height and width of all sub-patches of a step."""
    return sum(4 * batch_size * 4**level for level in range(levels)), SMALLEST_PATCH, SMALLEST_PATCH


class FusedStep:
    """A training step on a GPU, from images to the gradients of all parameters."""

    def __init__(
        self, encoder: HierarchicalEncoder, classifiers: nn.ModuleDict, images: Tensor, config: Config, step: Tensor,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:  # fmt: skip
        self._pairs = FusedCutPairs(encoder, images, config, step, dtype)
        self._loss = FusedLoss(encoder, classifiers, config)
        self._device = images.device

    def compile(self) -> None:
        """Compile all kernels; takes seconds unless an earlier run left them in Triton's cache."""
        compile_together([*self._loss.launches(), *self._pairs.launches()], self._device)

    def backward(self) -> Tensor:
        """Set the gradients of all parameters for this step and return ``step.METRICS`` (scales, 4)."""
        return self._loss.backward(*self._pairs.embed())


class FusedCutPairs:
    """The patches of ``pairs.CutPairs`` and the small encoder's embeddings of them.

    Pairs and noise follow the same distributions, but are drawn by Philox from (seed, step) instead of from a
    generator: ``step`` is a device tensor () that the caller increments.
    """

    def __init__(
        self, encoder: HierarchicalEncoder, images: Tensor, config: Config, step: Tensor,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:  # fmt: skip
        self.images, self.config, self.step = images.contiguous(), config, step
        self._levels = len(encoder.patch_sizes)
        self.stack = SmallStack(encoder.small, _sub_patches(self._levels, config.batch_size), dtype)
        self._dtype = dtype

    def launches(self) -> list[Callable[[], object]]:
        """Return a launch of every kernel, for ``compile_together``."""
        return [self.cut, *self.stack.launches()]

    def embed(self) -> tuple[Tensor, Tensor]:
        """Return embeddings (count, D) of all sub-patches and labels (scales, B), for ``FusedLoss``."""
        maps, labels = self.cut()
        return self.stack(maps), labels

    def cut(self) -> tuple[Tensor, Tensor]:
        """Return sub-patches (count, 32, 32, 4) of all scales and streams, and labels (scales, B), of this step."""
        from patchsvdd.training import fused_kernels as training

        images, config = self.images, self.config
        shape, (height, width) = _sub_patches(self._levels, config.batch_size), images.shape[2:]
        maps = torch.empty((*shape, CHANNELS), dtype=self._dtype, device=images.device)
        labels = torch.empty((self._levels, config.batch_size), dtype=torch.int64, device=images.device)
        training.cut[(len(maps),)](
            images, self.step, maps, labels, config.seed, len(images), height, width,
            config.rgb_shift, config.noise, config.photometric,
            config.batch_size, self._levels, SMALLEST_PATCH, config.photometric > 0,
        )  # fmt: skip
        return maps, labels


class FusedLoss:
    """Eq. 6 over one or two scales, from the small encoder's embeddings to all gradients, in six kernels."""

    def __init__(self, encoder: HierarchicalEncoder, classifiers: nn.ModuleDict, config: Config) -> None:
        self.config = config
        self._device = next(encoder.parameters()).device
        self._rows, self._products = 4 * config.batch_size, _Products(self._device)
        self._layers: list[list[tuple[nn.Linear, _Product]]] = []
        for size in encoder.patch_sizes:
            layers = [layer for layer in classifiers[str(size)].modules() if isinstance(layer, nn.Linear)]
            # The eight outputs are stored in rows of 16, with room for the pair's share of the metrics.
            widths = [layer.out_features for layer in layers[:2]] + [16]
            products = [
                self._products.add(config.batch_size, m, layer.in_features)
                for m, layer in zip(widths, layers, strict=True)
            ]
            self._layers.append(list(zip(layers, products, strict=True)))
        self._merge: _FusedMerge | None = None
        if len(self._layers) > 1:
            merge = encoder.merges[0]
            assert isinstance(merge, Merge)
            self._merge = _FusedMerge(merge, self._rows, self._products)
        self._products.lay_out()

    def launches(self) -> list[Callable[[], object]]:
        """Return a launch of every kernel on uninitialised memory, for ``compile_together``."""
        e, gradient = torch.empty((2, 4 * self._rows, self.config.embedding_dim), device=self._device)
        big = e[: self._rows]
        labels = torch.empty((1, self.config.batch_size), dtype=torch.int64, device=self._device)
        calls: list[Callable[[], object]] = [
            partial(self._scale, 0, big, labels, gradient, e.new_empty((1, 4))),
            self._products.compute,
        ]
        if self._merge is not None:
            calls += [partial(self._merge.forward, e), partial(self._merge.backward, big, big, gradient)]
        return calls

    def backward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Set the gradients of all parameters and return L_SVDD', spread, L_SSL and accuracy (scales, 4)."""
        e = embeddings.detach()
        gradient = torch.empty_like(e)
        compact = e.new_empty((len(labels), 4))  # two are used: rows of 16 bytes share one compiled kernel
        self._scale(0, e[: self._rows], labels, gradient[: self._rows], compact)
        if self._merge is not None:
            big = self._merge.forward(e[self._rows :])
            big_gradient = torch.empty_like(big)
            self._scale(1, big, labels, big_gradient, compact)
            self._merge.backward(big_gradient, big, gradient[self._rows :])
        self._products.compute()
        position = []
        for layers in self._layers:
            for layer, product in layers:
                weight, bias = layer.weight, layer.bias
                if weight.requires_grad:
                    weight.grad = self._products.product(product)[: len(bias)]
                bias.grad = self._products.sums(product)[: len(bias)]
            position.append(self._products.sums(layers[-1][1])[8:10])
        embeddings.backward(gradient)  # type: ignore[no-untyped-call]
        return torch.cat([part for row, pair in zip(compact, position, strict=True) for part in (row[:2], pair)]).view(
            len(labels), 4
        )

    def _scale(self, index: int, e: Tensor, labels: Tensor, gradient: Tensor, compact: Tensor) -> None:
        """Compute the loss of one scale's embeddings (4 · B, D) and its gradient."""
        from patchsvdd.training import fused_kernels as training

        (first, one), (second, two), (third, three) = self._layers[index]
        products, batch = self._products, self.config.batch_size
        training.loss[(blocks(batch, _ROWS) + 1,)](
            e, labels[index], first.weight, first.bias, second.weight, second.bias, third.weight, third.bias, gradient,
            products.right(one), products.right(two), products.right(three),
            products.left(one), products.left(two), products.left(three),
            compact[index], batch, self.config.lambda_,
            max(16, 1 << (batch - 1).bit_length()), e.shape[1], one.m, SLOPE, _ROWS, num_warps=8,
        )  # fmt: skip


class _FusedMerge:
    """``encoder.networks.Merge`` of ``rows`` patches whose four sub-patches are consecutive."""

    def __init__(self, merge: Merge, rows: int, products: _Products) -> None:
        self._layer, self._rows, self._products = merge, rows, products
        hidden, width = merge.gather.out_channels, merge.gather.in_channels
        self._gather, self._mix = products.add(rows, hidden, 4 * width), products.add(rows, width, hidden)
        self._shape = (4 * width, hidden, width, SLOPE, _ROWS, 64)

    def forward(self, e: Tensor) -> Tensor:
        """Return embeddings (rows, D), given those of the sub-patches (4 · rows, D)."""
        from patchsvdd.training import fused_kernels as training

        gather, mix, products = self._layer.gather, self._layer.mix, self._products
        out = e.new_empty((self._rows, e.shape[1]))
        training.merge[(blocks(self._rows, _ROWS),)](
            e, gather.weight, gather.bias, mix.weight, mix.bias,
            products.right(self._gather), products.right(self._mix), out, self._rows, *self._shape,
        )  # fmt: skip
        return out

    def backward(self, gradient: Tensor, out: Tensor, e_gradient: Tensor) -> None:
        """Fill ``e_gradient`` (4 · rows, D) from that of ``out`` (rows, D); the products fill the parameters'."""
        from patchsvdd.training import fused_kernels as training

        gather, mix, products = self._layer.gather, self._layer.mix, self._products
        training.merge_gradient[(blocks(self._rows, _ROWS),)](
            gradient, out, products.right(self._mix), gather.weight, mix.weight,
            products.left(self._mix), products.left(self._gather), e_gradient, self._rows, *self._shape,
        )  # fmt: skip
        for layer, product in ((gather, self._gather), (mix, self._mix)):
            side = layer.kernel_size[0]
            shaped = products.product(product).view(layer.out_channels, side, side, layer.in_channels)
            assert layer.bias is not None
            layer.weight.grad, layer.bias.grad = shaped.permute(0, 3, 1, 2), products.sums(product)


class _Product(NamedTuple):
    """Offsets of aᵀ b, a (rows, m) and b (rows, n): its factors in the work space, its results in the output."""

    rows: int
    m: int
    n: int
    a: int
    b: int
    product: int
    sums: int


class _Products:
    """Weight gradients of plain matrix products, all computed in one kernel."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._all: list[_Product] = []
        self._work_size = self._out_size = 0

    def add(self, rows: int, m: int, n: int) -> _Product:
        work, out = self._work_size, self._out_size
        product = _Product(rows, m, n, work, work + rows * m, out, out + m * n)
        self._all.append(product)
        self._work_size, self._out_size = product.b + rows * n, product.sums + m
        return product

    def lay_out(self) -> None:
        rows = [
            (p.a, p.m, p.b, p.n, p.rows, m, n, p.product, p.sums)
            for p in self._all
            for m in range(0, p.m, 32)
            for n in range(0, p.n, 32)
        ]
        self._table = torch.tensor(rows, dtype=torch.int32, device=self._device)
        self._work = torch.zeros(self._work_size, device=self._device)
        self._out = torch.zeros(self._out_size, device=self._device)

    def left(self, p: _Product) -> Tensor:
        return self._work[p.a : p.a + p.rows * p.m]

    def right(self, p: _Product) -> Tensor:
        return self._work[p.b : p.b + p.rows * p.n]

    def product(self, p: _Product) -> Tensor:
        return self._out[p.product : p.product + p.m * p.n].view(p.m, p.n)

    def sums(self, p: _Product) -> Tensor:
        return self._out[p.sums : p.sums + p.m]

    def compute(self) -> None:
        """Fill the output; all gradients are views of it."""
        from patchsvdd.training import fused_kernels as training

        training.outer_products[(len(self._table),)](self._work, self._table, self._out, 32, 64)
