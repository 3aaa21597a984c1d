# ruff: noqa: N803 (compile-time arguments of kernels are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels of the critic on a GPU; requires ``triton_support.available``."""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit
def _add_products(
    value, x, x_rest, weight, weight_rest, image, row, column, inside, out, height, width,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr, SHRUNK: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Add the products of a window of x (images, height, width, CHANNELS) around each position, zero outside.

    Images stored with half the height and width (``SHRUNK`` = 2) are doubled.
    """
    k = tl.arange(0, BK)
    chunks: tl.constexpr = CHANNELS // BK
    for index in range(WINDOW * WINDOW * chunks):
        tap = index // chunks
        start = (index % chunks) * BK
        down = row * STRIDE + tap // WINDOW - WINDOW // 2
        across = column * STRIDE + tap % WINDOW - WINDOW // 2
        valid = inside & (down >= 0) & (down < height) & (across >= 0) & (across < width)
        at = ((image * (height // SHRUNK) + down // SHRUNK) * (width // SHRUNK) + across // SHRUNK) * CHANNELS
        at = at[:, None] + start + k[None, :]
        a = tl.load(x + at, mask=valid[:, None], other=0.0)
        a_rest = tl.load(x_rest + at, mask=valid[:, None], other=0.0)
        place = (tap * CHANNELS + start + k[:, None]) * OUT + out[None, :]
        b = tl.load(weight + place)
        # A sum of many products on tensor cores is less accurate than a sum of such sums.
        product = tl.dot(a_rest, b)
        product = tl.dot(a, tl.load(weight_rest + place), product)
        value += tl.dot(a, b, product)
    return value


@triton.jit
def convolve_layer(
    x, x_rest, weight, weight_rest, coarse, coarse_rest, coarse_weight, coarse_weight_rest,
    skip, skip_rest, skip_weight, skip_weight_rest, bias, y, y_rest, rows, columns, total,
    CHANNELS: tl.constexpr, COARSE: tl.constexpr, SKIP: tl.constexpr, SKIP_WINDOW: tl.constexpr, OUT: tl.constexpr,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, SKIP_STRIDE: tl.constexpr, LAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, COARSE_BK: tl.constexpr, SKIP_BK: tl.constexpr,
):  # fmt: skip
    """One layer at ``BM`` positions, for ``BN`` channels: convolutions of up to three inputs, bias, ReLU.

    ``coarse`` has half the height and width, and COARSE channels. ``skip`` is added as it is if SKIP_WINDOW is 0,
    otherwise convolved with its weight. COARSE or SKIP = 0: no such input. The last layer returns its first channel.
    """
    position = tl.program_id(0) * BM + tl.arange(0, BM)
    out = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = position < total
    column = position % columns
    row = (position // columns) % rows
    image = position // (columns * rows)
    value = tl.zeros((BM, BN), tl.float32)
    if COARSE > 0:
        value = _add_products(
            value, coarse, coarse_rest, coarse_weight, coarse_weight_rest, image, row, column, inside, out,
            rows, columns, COARSE, OUT, WINDOW, 1, 2, COARSE_BK,
        )  # fmt: skip
    value = _add_products(
        value, x, x_rest, weight, weight_rest, image, row, column, inside, out, rows * STRIDE, columns * STRIDE,
        CHANNELS, OUT, WINDOW, STRIDE, 1, BK,
    )  # fmt: skip
    target = position[:, None] * OUT + out[None, :]
    if SKIP > 0:
        if SKIP_WINDOW > 0:
            value = _add_products(
                value, skip, skip_rest, skip_weight, skip_weight_rest, image, row, column, inside, out,
                rows * SKIP_STRIDE, columns * SKIP_STRIDE, SKIP, OUT, SKIP_WINDOW, SKIP_STRIDE, 1, SKIP_BK,
            )  # fmt: skip
        else:
            value += tl.load(skip + target, mask=inside[:, None], other=0.0).to(tl.float32)
            value += tl.load(skip_rest + target, mask=inside[:, None], other=0.0).to(tl.float32)
    value += tl.load(bias + out)[None, :]
    if LAST:
        tl.store(y + position[:, None] + 0 * out[None, :], value, mask=inside[:, None] & (out == 0)[None, :])
    else:
        value = tl.maximum(value, 0.0)
        number = value.to(tl.float16)
        tl.store(y + target, number, mask=inside[:, None])
        tl.store(y_rest + target, (value - number.to(tl.float32)).to(tl.float16), mask=inside[:, None])


@triton.jit
def least_row(
    queries, rows, rows_rest, offset, least, count, total, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """The least of offset − 2 · query · row over all rows, for each query of a tile."""
    place = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, D)
    query = tl.load(queries + place[:, None] * D + k[None, :], mask=place[:, None] < count, other=0.0)
    number = query.to(tl.float16)
    rest = (query - number.to(tl.float32)).to(tl.float16)
    found = tl.full((BM,), float("inf"), tl.float32)
    for start in range(0, total, BN):
        column = start + tl.arange(0, BN)
        at = column[None, :] * D + k[:, None]
        b = tl.load(rows + at, mask=(column < total)[None, :], other=0.0)
        product = tl.dot(rest, b)
        product = tl.dot(number, tl.load(rows_rest + at, mask=(column < total)[None, :], other=0.0), product)
        product = tl.dot(number, b, product)
        outer = tl.load(offset + column, mask=column < total, other=float("inf"))
        found = tl.minimum(found, tl.min(outer[None, :] - 2.0 * product, 1))
    tl.store(least + place, found, mask=place < count)
