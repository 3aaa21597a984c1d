# ruff: noqa: N803 (compile-time arguments of kernels are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernel for a convolution as three half-precision products; requires ``triton_support.available``."""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit
def convolve_window(
    x, x_rest, weight, weight_rest, bias, y, y_rest, height, width, rows, columns, total, size,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, WINDOW: tl.constexpr, RUN: tl.constexpr, STRIDE: tl.constexpr,
    LAST: tl.constexpr, ROUNDED: tl.constexpr, SLOPE: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One layer at ``BM`` positions: products, bias, activation. Channels last; a window row is contiguous.

    ``ROUNDED``: the weights are half-precision numbers, without remainders.
    """
    position = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = position < total
    column = position % columns
    row = (position // columns) % rows
    image = position // (columns * rows)
    corner = ((image * height + row * STRIDE) * width + column * STRIDE) * CHANNELS
    out = tl.arange(0, OUT)
    k = tl.arange(0, BK)
    value = tl.zeros((BM, OUT), tl.float32)
    for index in range(WINDOW * (RUN // BK)):
        line = index // (RUN // BK)  # of the window
        start = (index % (RUN // BK)) * BK
        at = corner[:, None] + line * width * CHANNELS + start + k[None, :]
        valid = inside[:, None] & (at < size)
        a = tl.load(x + at, mask=valid, other=0.0)
        a_rest = tl.load(x_rest + at, mask=valid, other=0.0)
        place = (line * RUN + start + k[:, None]) * OUT + out[None, :]
        b = tl.load(weight + place)
        value = tl.dot(a_rest, b, value)
        if not ROUNDED:
            value = tl.dot(a, tl.load(weight_rest + place), value)
        value = tl.dot(a, b, value)
    value += tl.load(bias + out)[None, :]
    target = position[:, None] * OUT + out[None, :]
    if LAST:
        tl.store(y + target, 2.0 * tl.sigmoid(2.0 * value) - 1.0, mask=inside[:, None])  # tanh
    else:
        value = tl.where(value > 0, value, SLOPE * value)
        number = value.to(tl.float16)
        tl.store(y + target, number, mask=inside[:, None])
        tl.store(y_rest + target, (value - number.to(tl.float32)).to(tl.float16), mask=inside[:, None])


@triton.jit
def split_images(images, y, y_rest, height, width, total, PAD: tl.constexpr, BM: tl.constexpr):
    """Images (N, 3, height, width), with a border of zeros, as pairs with channels last.

    A fourth channel is zero: a row of a window is then aligned.
    """
    position = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    channel = tl.arange(0, 4)[None, :]
    wide = width + 2 * PAD
    tall = height + 2 * PAD
    column = position % wide - PAD
    row = (position // wide) % tall - PAD
    source = ((position // (wide * tall) * 3 + channel) * height + row) * width + column
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    value = tl.load(images + source, mask=inside & (position < total) & (channel < 3), other=0.0)
    number = value.to(tl.float16)
    target = position * 4 + channel
    tl.store(y + target, number, mask=position < total)
    tl.store(y_rest + target, (value - number.to(tl.float32)).to(tl.float16), mask=position < total)
