# ruff: noqa: N803 (compile-time arguments of kernels are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The paper's training step in a few Triton kernels: cutting patches, and the small encoder forth and back.

Importing this module takes Triton, which comes with PyTorch's CUDA builds; ``pairs`` does it where both are there.
The mathematics is that of ``pairs.CutPairs`` and ``encoder.SmallEncoder`` under bfloat16 autocast, with one rounding
per layer instead of three. All sums run in a fixed order (no atomics), so equal runs are equal bit by bit.

Layout everywhere: channels last. A convolution is a matrix product over (position) × (tap · channel): bias and
LeakyReLU go into its epilogue, their gradients into the epilogue of the next layer's input gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor, nn

from patchsvdd.config import SMALLEST_PATCH, Config
from patchsvdd.encoder import SLOPE, HierarchicalEncoder, Merge, SmallEncoder
from patchsvdd.pairs import EmbeddedPairs, PositionPairs

jit: Any = triton.jit
CHANNELS = 4
"""Channels of a cut patch: red, green, blue and a zero, so that a pixel is read at once."""


# --- Kernels -------------------------------------------------------------------------------------------------------


@jit
def _random(seed, step, index, purpose: tl.constexpr):
    """Four uint32 that depend on nothing but (seed, step, purpose, index)."""
    zero = index * 0
    return tl.philox(seed, index, zero + step, zero + purpose, zero)


@jit
def _normals(seed, step, index, purpose: tl.constexpr):
    """Four standard normals that depend on nothing but (seed, step, purpose, index)."""
    a, b, c, d = _random(seed, step, index, purpose)
    e, f = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(a), tl.uint_to_uniform_float(b))
    g, h = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(c), tl.uint_to_uniform_float(d))
    return e, f, g, h


@jit
def _below(bits, high):
    """An integer in 0 … high − 1 from 32 random bits."""
    return ((bits.to(tl.uint64) * high) >> 32).to(tl.int32)


@jit
def _signed(bits):
    """A number in −1 … 1 from 32 random bits."""
    return 2 * tl.uint_to_uniform_float(bits) - 1


@jit
def _tanh(x):
    square = x * x
    near = x * (1 - square * (1 / 3 - square * (2 / 15 - square * 17 / 315)))  # to the last digit near zero
    return tl.where(square < 0.01, near, 2 / (1 + tl.exp(-2 * x)) - 1)


@jit
def _cut_kernel(
    images, step, patches, labels, seed, count, height, width, shift, noise, light,
    BATCH: tl.constexpr, LEVELS: tl.constexpr, SIDE: tl.constexpr, LIT: tl.constexpr,
):  # fmt: skip
    """One sub-patch (SIDE, SIDE, 4) per program: of which pair, where it lies and how it is coloured.

    Sub-patches lie level by level; in a level stream by stream (first and second of position pairs, first and second
    of jitter pairs); in a stream patch by patch; in a patch in reading order.
    """
    pid = tl.program_id(0)
    now = tl.load(step).to(tl.int32)
    level = pid * 0
    start = pid * 0
    for other in tl.static_range(1, LEVELS):
        begin = 4 * BATCH * ((1 << (2 * other)) - 1) // 3
        level = tl.where(pid >= begin, other, level)
        start = tl.where(pid >= begin, begin, start)
    across = 1 << level
    size = SIDE * across
    patch = (pid - start) // (across * across)
    within = (pid - start) % (across * across)
    stream, member = patch // BATCH, patch % BATCH
    is_position, is_second = stream < 2, stream % 2

    # Where the pair lies.
    pair = (level * 2 + stream // 2) * BATCH + member
    pick_image, pick_y, pick_x, pick_other = _random(seed, now, pair, 0)
    away_y, away_x, _c, _d = _random(seed, now, pair, 1)
    image = _below(pick_image, count)
    y = _below(pick_y, height - size + 1)
    x = _below(pick_x, width - size + 1)
    label = _below(pick_other, 8)
    # Position pairs: one of the eight cells around the centre of 3 × 3, 3K/4 … K − 1 pixels apart.
    cell = label + (label >= 4).to(tl.int32)
    near = 3 * size // 4
    far_y = (cell // 3 - 1) * (near + _below(away_y, size // 4))
    far_x = (cell % 3 - 1) * (near + _below(away_x, size // 4))
    # Jitter pairs: any shift within K/32 but none at all.
    reach = size // 32
    side = 2 * reach + 1
    place = _below(pick_other, side * side - 1)
    place = place + (place >= side * side // 2).to(tl.int32)
    dy = tl.where(is_position, far_y, place // side - reach)
    dx = tl.where(is_position, far_x, place % side - reach)
    y = tl.minimum(tl.maximum(y + is_second * dy, 0), height - size)
    x = tl.minimum(tl.maximum(x + is_second * dx, 0), width - size)
    if is_position & (is_second == 0) & (within == 0):
        tl.store(labels + level * BATCH + member, label.to(tl.int64))

    # Its pixels.
    pixel = tl.arange(0, SIDE * SIDE)
    row = y + (within // across) * SIDE + pixel // SIDE
    column = x + (within % across) * SIDE + pixel % SIDE
    at = images + image.to(tl.int64) * (3 * height * width) + row * width + column
    red = tl.load(at)
    green = tl.load(at + height * width)
    blue = tl.load(at + 2 * height * width)
    if is_position:
        known = (level * 4 + stream) * BATCH + member
        shift_r, shift_g, shift_b, _h = _normals(seed, now, known, 2)
        grain_r, grain_g, grain_b, _k = _normals(seed, now, pid * SIDE * SIDE + pixel, 3)
        red += shift * shift_r + noise * grain_r
        green += shift * shift_g + noise * grain_g
        blue += shift * shift_b + noise * grain_b
    if LIT:
        known = (level * 4 + stream) * BATCH + member
        dim, bright, _m, _n = _random(seed, now, known, 4)
        tint_r, tint_g, tint_b, _o = _random(seed, now, known, 5)
        contrast = tl.exp(0.45 * light * _signed(dim))
        brightness = light * _signed(bright)
        red = red * contrast + brightness + 0.18 * light * _signed(tint_r)
        green = green * contrast + brightness + 0.18 * light * _signed(tint_g)
        blue = blue * contrast + brightness + 0.18 * light * _signed(tint_b)
    four = tl.reshape(tl.join(tl.join(red, blue), tl.join(green, tl.zeros_like(red))), (SIDE * SIDE, 4))
    to = patches + pid.to(tl.int64) * (SIDE * SIDE * 4) + pixel[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(to, four.to(patches.dtype.element_ty))


@jit
def _convolve_kernel(
    x, w, bias, y, rows,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, STRIDE: tl.constexpr,
    REAL: tl.constexpr, TANH: tl.constexpr, SLOPE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y (rows, COUT) = activation(x ∗ w + bias), x (n, HEIGHT, WIDTH, CIN), w (COUT, 3, 3, REAL); rows: positions."""
    out_height: tl.constexpr = (HEIGHT - 3) // STRIDE + 1
    out_width: tl.constexpr = (WIDTH - 3) // STRIDE + 1
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    place = tl.minimum(m, rows - 1)
    image, within = place // (out_height * out_width), place % (out_height * out_width)
    base = ((image * HEIGHT + within // out_width * STRIDE) * WIDTH + within % out_width * STRIDE) * CIN
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if CIN >= BLOCK_K:
        for i in range(9 * CIN // BLOCK_K):
            tap = i // (CIN // BLOCK_K)
            channel = i % (CIN // BLOCK_K) * BLOCK_K + k
            a = tl.load(x + base[:, None] + ((tap // 3 * WIDTH + tap % 3) * CIN + channel)[None, :])
            b = tl.load(w + n[None, :] * (9 * CIN) + (i * BLOCK_K + k)[:, None])
            total = tl.dot(a.to(w.dtype.element_ty), b, total, input_precision="tf32")
    else:  # the first layer: all nine taps at once
        tap, channel = k // CIN, k % CIN
        offset = (tap // 3 * WIDTH + tap % 3) * CIN + channel
        a = tl.load(x + base[:, None] + offset[None, :], (tap < 9)[None, :], 0.0)
        known = ((tap < 9) & (channel < REAL))[:, None]
        b = tl.load(w + n[None, :] * (9 * REAL) + (tap * REAL + channel)[:, None], known, 0.0)
        total = tl.dot(a, b, total, input_precision="tf32")
    total += tl.load(bias + n)[None, :]
    if TANH:  # noqa: SIM108
        total = _tanh(total)
    else:
        total = tl.where(total > 0, total, total * SLOPE)
    tl.store(y + m[:, None].to(tl.int64) * COUT + n[None, :], total.to(y.dtype.element_ty), (m < rows)[:, None])


@jit
def _input_gradient_kernel(
    g, w, x, out, sums, rows,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, SLOPE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out (rows, CIN): gradient before the LeakyReLU that made x (n, HEIGHT, WIDTH, CIN); its sum per tile into sums.

    g (n, HEIGHT − 2, WIDTH − 2, COUT): gradient before this layer's activation; w (COUT, 3, 3, CIN).
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    place = tl.minimum(m, rows - 1)
    image, within = place // (HEIGHT * WIDTH), place % (HEIGHT * WIDTH)
    row, column = within // WIDTH, within % WIDTH
    base = ((image * (HEIGHT - 2) + row) * (WIDTH - 2) + column) * COUT
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in range(9 * COUT // BLOCK_K):
        tap = i // (COUT // BLOCK_K)
        channel = i % (COUT // BLOCK_K) * BLOCK_K + k
        up, left = row - tap // 3, column - tap % 3
        inside = (up >= 0) & (up < HEIGHT - 2) & (left >= 0) & (left < WIDTH - 2)
        back = (tap // 3 * (WIDTH - 2) + tap % 3) * COUT
        a = tl.load(g + base[:, None] + (channel - back)[None, :], inside[:, None], 0.0)
        b = tl.load(w + channel[:, None] * (9 * CIN) + (tap * CIN + n)[None, :])
        total = tl.dot(a, b, total, input_precision="tf32")
    to = m[:, None].to(tl.int64) * CIN + n[None, :]
    within_rows = (m < rows)[:, None]
    before = tl.load(x + to, within_rows, 0.0)
    total = tl.where(before > 0, total, total * SLOPE)
    tl.store(out + to, total.to(out.dtype.element_ty), within_rows)
    tl.store(sums + tl.program_id(0) * CIN + n, tl.sum(tl.where(within_rows, total, 0.0), 0))


@jit
def _weight_gradient_kernel(
    g, x, parts, rows, share,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, STRIDE: tl.constexpr,
    REAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """parts[s] (COUT, 3, 3, REAL) = Σ g (position, COUT) · x at its taps, over the s-th ``share`` of positions."""
    out_height: tl.constexpr = (HEIGHT - 3) // STRIDE + 1
    out_width: tl.constexpr = (WIDTH - 3) // STRIDE + 1
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # tap · channel
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)  # channel of g
    split = tl.program_id(2)
    tap, channel = m // CIN, m % CIN
    offset = (tap // 3 * WIDTH + tap % 3) * CIN + channel
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in range(split * share, (split + 1) * share, BLOCK_K):
        at = i + k
        place = tl.minimum(at, rows - 1)
        image, within = place // (out_height * out_width), place % (out_height * out_width)
        base = ((image * HEIGHT + within // out_width * STRIDE) * WIDTH + within % out_width * STRIDE) * CIN
        if 9 * CIN % BLOCK_M == 0:
            a = tl.load(x + base[:, None] + offset[None, :])
        else:
            a = tl.load(x + base[:, None] + offset[None, :], (tap < 9)[None, :], 0.0)
        b = tl.load(g + place[:, None] * COUT + n[None, :], (at < rows)[:, None], 0.0)
        total = tl.dot(tl.trans(a.to(g.dtype.element_ty)), b, total, input_precision="tf32")
    to = n[None, :] * (9 * REAL) + (tap * REAL + channel)[:, None]
    tl.store(parts + split * (COUT * 9 * REAL) + to, total, ((tap < 9) & (channel < REAL))[:, None])


@jit
def _tanh_gradient_kernel(g, y, out, sums, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out = g · (1 − y²), all (rows, WIDTH), and its sum per tile into sums."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, WIDTH)
    at = m[:, None] * WIDTH + n[None, :]
    known = (m < rows)[:, None]
    after = tl.load(y + at, known, 0.0)
    before = tl.load(g + at, known, 0.0) * (1 - after * after)
    tl.store(out + at, before, known)
    tl.store(sums + tl.program_id(0) * WIDTH + n, tl.sum(before, 0))


@jit
def _sum_kernel(parts, table, out, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Columns of many matrices at once, summed in a fixed order; a row of ``table`` says what each program does."""
    row = table + tl.program_id(0) * 5
    source, height, width = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    first, target = tl.load(row + 3), tl.load(row + 4)
    c = first + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(0, height, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        known = (r < height)[:, None] & (c < width)[None, :]
        total += tl.load(parts + source + r[:, None] * width + c[None, :], known, 0.0)
    tl.store(out + target + c, tl.sum(total, 0), c < width)


@jit
def _merge_kernel(
    e, gather, gather_bias, mix, mix_bias, copy, hidden, out, rows,
    WIDTH: tl.constexpr, HIDDEN: tl.constexpr, D: tl.constexpr, SLOPE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """hidden (rows, HIDDEN) and embeddings out (rows, D) of patches from e (rows, WIDTH), as ``encoder.Merge``.

    ``copy`` gets e, beside what else the sums over rows take.
    """
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = (m < rows)[:, None]
    h, d, k = tl.arange(0, HIDDEN), tl.arange(0, D), tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK, HIDDEN), tl.float32)
    for i in range(0, WIDTH, BLOCK_K):
        at = m[:, None] * WIDTH + (i + k)[None, :]
        a = tl.load(e + at, known, 0.0)
        tl.store(copy + at, a, known)
        b = tl.load(gather + h[None, :] * WIDTH + (i + k)[:, None])
        total = tl.dot(a, b, total, input_precision="tf32")
    total += tl.load(gather_bias + h)[None, :]
    total = tl.where(total > 0, total, total * SLOPE)
    tl.store(hidden + m[:, None] * HIDDEN + h[None, :], total, known)
    w = tl.load(mix + d[None, :] * HIDDEN + h[:, None])
    merged = tl.dot(total, w, input_precision="tf32") + tl.load(mix_bias + d)[None, :]
    tl.store(out + m[:, None] * D + d[None, :], _tanh(merged), known)


@jit
def _merge_gradient_kernel(
    g, out, hidden, gather, mix, mix_gradient, gather_gradient, e_gradient, rows,
    WIDTH: tl.constexpr, HIDDEN: tl.constexpr, D: tl.constexpr, SLOPE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """From g (rows, D): the gradient before the tanh, that before the LeakyReLU, and that of e (rows, WIDTH)."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = (m < rows)[:, None]
    h, d, n = tl.arange(0, HIDDEN), tl.arange(0, D), tl.arange(0, BLOCK_N)
    after = tl.load(out + m[:, None] * D + d[None, :], known, 0.0)
    before = tl.load(g + m[:, None] * D + d[None, :], known, 0.0) * (1 - after * after)
    tl.store(mix_gradient + m[:, None] * D + d[None, :], before, known)
    inner = tl.dot(before, tl.load(mix + d[:, None] * HIDDEN + h[None, :]), input_precision="tf32")
    at = m[:, None] * HIDDEN + h[None, :]
    inner = tl.where(tl.load(hidden + at, known, 0.0) > 0, inner, inner * SLOPE)
    tl.store(gather_gradient + at, inner, known)
    for i in range(0, WIDTH, BLOCK_N):
        w = tl.load(gather + h[:, None] * WIDTH + (i + n)[None, :])
        part = tl.dot(inner, w, input_precision="tf32")
        tl.store(e_gradient + m[:, None] * WIDTH + (i + n)[None, :], part, known)


@jit
def _loss_kernel(
    e, label, w1, b1, w2, b2, w3, b3, de, x_out, a1_out, a2_out, g1_out, g2_out, g3_out, compact, count, weight,
    BATCH: tl.constexpr, D: tl.constexpr, H: tl.constexpr, SLOPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Eq. 6 of one scale and its gradient: L_SSL in tiles of BLOCK pairs, λ L_SVDD' in the last program.

    e, de: (4 · count, D), stream by stream; w1 (H, D), w2 (H, H), w3 (8, H): the position classifier. Inputs a and
    output gradients g of its layers go to the work space; columns 8 and 9 of g3 (count, 16) hold each pair's share of
    L_SSL and of the accuracy. ``compact`` gets L_SVDD' and the spread.
    """
    d, h, o = tl.arange(0, D), tl.arange(0, H), tl.arange(0, 16)
    block = count * D
    if tl.program_id(0) * BLOCK < count:
        r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        known = (r < count)[:, None]
        at, at_h = r[:, None] * D + d[None, :], r[:, None] * H + h[None, :]
        x = tl.load(e + at, known, 0.0) - tl.load(e + block + at, known, 0.0)
        tl.store(x_out + at, x, known)
        h1 = tl.dot(x, tl.load(w1 + h[None, :] * D + d[:, None]), input_precision="tf32") + tl.load(b1 + h)[None, :]
        a1 = tl.where(h1 > 0, h1, h1 * SLOPE)
        tl.store(a1_out + at_h, a1, known)
        h2 = tl.dot(a1, tl.load(w2 + h[None, :] * H + h[:, None]), input_precision="tf32") + tl.load(b2 + h)[None, :]
        a2 = tl.where(h2 > 0, h2, h2 * SLOPE)
        tl.store(a2_out + at_h, a2, known)
        third = tl.load(w3 + o[None, :] * H + h[:, None], (o < 8)[None, :], 0.0)
        logits = tl.dot(a2, third, input_precision="tf32") + tl.load(b3 + o, o < 8, -float("inf"))[None, :]
        best = tl.max(logits, 1)
        power = tl.exp(logits - best[:, None])
        whole = tl.sum(power, 1)
        hit = o[None, :] == tl.load(label + r, r < count, 0).to(tl.int32)[:, None]
        right = tl.sum(tl.where(hit, logits, 0.0), 1)
        g3 = tl.where(known, (power / whole[:, None] - hit.to(tl.float32)) / count, 0.0)
        share = (best + tl.log(whole) - right) / count
        told = (right >= best).to(tl.float32) / count
        both = tl.where(o[None, :] == 8, share[:, None], tl.where(o[None, :] == 9, told[:, None], g3))
        tl.store(g3_out + r[:, None] * 16 + o[None, :], both, known)
        back = tl.load(w3 + o[:, None] * H + h[None, :], (o < 8)[:, None], 0.0)
        g2 = tl.dot(g3, back, input_precision="tf32")
        g2 = tl.where(a2 > 0, g2, g2 * SLOPE)
        tl.store(g2_out + at_h, g2, known)
        g1 = tl.dot(g2, tl.load(w2 + h[:, None] * H + h[None, :]), input_precision="tf32")
        g1 = tl.where(a1 > 0, g1, g1 * SLOPE)
        tl.store(g1_out + at_h, g1, known)
        g0 = tl.dot(g1, tl.load(w1 + h[:, None] * D + d[None, :]), input_precision="tf32")
        tl.store(de + at, g0, known)
        tl.store(de + block + at, -g0, known)
    else:
        q = tl.arange(0, BATCH)
        there = (q < count)[:, None]
        on = q[:, None] * D + d[None, :]
        near = tl.load(e + 2 * block + on, there, 0.0)
        apart = near - tl.load(e + 3 * block + on, there, 0.0)
        distance = tl.sqrt(tl.sum(apart * apart, 1))
        tl.store(compact, tl.sum(distance, 0) / count)
        gradient = apart * (weight / (count * tl.where(distance > 0, distance, 1.0)))[:, None]  # zero at distance zero
        tl.store(de + 2 * block + on, gradient, there)
        tl.store(de + 3 * block + on, -gradient, there)
        off = tl.where(there, near - (tl.sum(near, 0) / count)[None, :], 0.0)
        tl.store(compact + 1, tl.sum(tl.sqrt(tl.sum(off * off, 0) / count), 0) / D)


@jit
def _outer_kernel(work, table, out, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """Many aᵀ b (M, N) of a (rows, M) and b (rows, N), and the sums (M,) of a's columns; one tile per program.

    A row of ``table``: where a lies and M, where b lies and N, rows, the tile's corner, where product and sums go.
    """
    row = table + tl.program_id(0) * 9
    a, width_m, b, width_n = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    rows, first_m, first_n = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    product, sums = tl.load(row + 7), tl.load(row + 8)
    m, n = first_m + tl.arange(0, BLOCK), first_n + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    column = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        known = (k < rows)[:, None]
        left = tl.load(work + a + k[:, None] * width_m + m[None, :], known & (m < width_m)[None, :], 0.0)
        right = tl.load(work + b + k[:, None] * width_n + n[None, :], known & (n < width_n)[None, :], 0.0)
        total = tl.dot(tl.trans(left), right, total, input_precision="tf32")
        column += tl.sum(left, 0)
    inside = (m < width_m)[:, None] & (n < width_n)[None, :]
    tl.store(out + product + m[:, None] * width_n + n[None, :], total, inside)
    if first_n == 0:
        tl.store(out + sums + m, column, m < width_m)


# --- The small encoder ---------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """How a kernel cuts up its matrix product."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    registers: int | None = None
    """At most so many per thread: with 128, two programs of 8 warps share a multiprocessor."""

    @property
    def options(self) -> dict[str, int | None]:
        """What a launch takes beside the arguments."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


class Tiles(NamedTuple):
    """The tiles of a layer's three products, and into how many parts the sum over positions is split."""

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
    """Channels in memory, of which the first ``real`` count."""
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
    """Tiles by shape alone, never by a timing: other tiles round differently, and equal runs shall be equal."""
    if layer.tanh:  # float32 operands
        forward, input_gradient = Tile(32, layer.cout, 32, 4, 3), Tile(64, layer.cin, 32, 4, 3)
        weight_gradient = Tile(64, layer.cout, 32, 4, 3)
    else:
        deep = min(64, layer.cin) if layer.cin >= 32 else 64
        forward = Tile(128, layer.cout, deep, 8 if layer.cout >= 128 else 4, 3)
        deep = min(64, layer.cout)
        input_gradient = Tile(128, layer.cin, deep, 8, 3, 128) if layer.cin >= 128 else Tile(128, layer.cin, deep, 4, 3)
        rows = 64 if layer.cin < 64 else 128
        weight_gradient = Tile(rows, layer.cout, 64, 8 if rows * layer.cout >= 128 * 128 else 4, 3)
    tiles = -(-9 * layer.cin // weight_gradient.m) * -(-layer.cout // weight_gradient.n)
    most = -(-layer.rows // (4 * weight_gradient.k))  # a program should have a few blocks to add up
    return Tiles(forward, input_gradient, weight_gradient, max(1, min(260 // tiles, most)))


class SmallStack:
    """``SmallEncoder`` over maps of a fixed shape, sharing its weights.

    Called with maps (count, H, W, 4) in ``dtype`` it returns embeddings (count · h · w, D) in float32, with gradients
    to the weights (none to the maps).
    """

    def __init__(self, small: SmallEncoder, shape: tuple[int, int, int], dtype: torch.dtype = torch.bfloat16) -> None:
        convolutions = [layer for layer in (*small.body, small.head) if isinstance(layer, nn.Conv2d)]
        self.weights = [layer.weight for layer in convolutions]
        self.biases = [_present(layer.bias) for layer in convolutions]
        if not all(weight.permute(0, 2, 3, 1).is_contiguous() for weight in self.weights):
            raise ValueError("the encoder's weights must lie in memory channels last, as build_encoder makes them")
        device = self.weights[0].device
        self.dtype = dtype
        self.layers = _layers(convolutions, shape)
        self.tiles = [tiles_for(layer) for layer in self.layers]
        # Copies for the tensor cores, filled anew in every step; the last layer stays in float32.
        self._cast = [torch.empty_like(weight, dtype=dtype) for weight in self.weights[:-1]]
        self._used = [*self._cast, self.weights[-1].detach()]
        self.prepare(device)

    def prepare(self, device: torch.device) -> None:
        """Lay out partial sums and gradients for the present tiles."""
        self._sizes = [weight.numel() for weight in self.weights]
        channels = [layer.cout for layer in self.layers]
        splits = [tiles.splits for tiles in self.tiles]
        # The bias gradient of a layer is summed per tile by the kernel that computes the layer's gradient.
        heights = [
            -(-layer.rows_in // tiles.input_gradient.m)
            for layer, tiles in zip(self.layers[1:], self.tiles[1:], strict=True)
        ]
        heights.append(-(-self.layers[-1].rows // _TANH_ROWS))
        self._parts = torch.empty(sum(n * s for n, s in zip(self._sizes, splits, strict=True)), device=device)
        self._sums = torch.empty(sum(c * h for c, h in zip(channels, heights, strict=True)), device=device)
        self._part_of = torch.split(self._parts, [n * s for n, s in zip(self._sizes, splits, strict=True)])
        self._sum_of = torch.split(self._sums, [c * h for c, h in zip(channels, heights, strict=True)])
        self._weight_table = _sum_table(self._sizes, splits, _WEIGHT_COLUMNS, device)
        self._bias_table = _sum_table(channels, heights, _BIAS_COLUMNS, device)

    def __call__(self, maps: Tensor) -> Tensor:
        """Embeddings (count · h · w, D) of maps (count, H, W, 4)."""
        return _SmallStackFunction.apply(self, maps, *self.weights, *self.biases)  # type: ignore[no-any-return, no-untyped-call]

    def forward(self, maps: Tensor) -> list[Tensor]:
        """The maps and the output (rows, channels) of every layer."""
        torch._foreach_copy_(self._cast, self.weights[:-1])
        outputs = [maps]
        for index in range(len(self.layers)):
            outputs.append(self.convolve(index, outputs[-1]))
        return outputs

    def backward(self, outputs: Sequence[Tensor], gradient: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of weights and biases from that of the embeddings (rows, D)."""
        g = self.tanh_gradient(outputs[-1], gradient.contiguous())
        for index in reversed(range(len(self.layers))):
            self.weight_gradient(index, outputs[index], g)
            if index > 0:
                g = self.input_gradient(index, outputs[index], g)
        return self.gradients()

    def gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of weights and biases from the parts in the work space."""
        weights = self._parts.new_empty(sum(self._sizes))
        biases = self._sums.new_empty(sum(layer.cout for layer in self.layers))
        _sum_kernel[(len(self._weight_table),)](self._parts, self._weight_table, weights, 1, _WEIGHT_COLUMNS)
        _sum_kernel[(len(self._bias_table),)](self._sums, self._bias_table, biases, _BIAS_ROWS, _BIAS_COLUMNS)
        shaped = [
            flat.view(layer.cout, 3, 3, layer.real).permute(0, 3, 1, 2)
            for flat, layer in zip(torch.split(weights, self._sizes), self.layers, strict=True)
        ]
        return shaped, list(torch.split(biases, [layer.cout for layer in self.layers]))

    def convolve(self, index: int, x: Tensor) -> Tensor:
        """Output (rows, cout) of one layer, activation included."""
        layer, tile = self.layers[index], self.tiles[index].forward
        y = torch.empty((layer.rows, layer.cout), dtype=torch.float32 if layer.tanh else self.dtype, device=x.device)
        _convolve_kernel[(-(-layer.rows // tile.m), layer.cout // tile.n)](
            x, self._used[index], self.biases[index], y, layer.rows,
            layer.height, layer.width, layer.cin, layer.cout, layer.stride, layer.real, layer.tanh, SLOPE,
            tile.m, tile.n, tile.k, **tile.options,
        )  # fmt: skip
        return y

    def tanh_gradient(self, y: Tensor, gradient: Tensor) -> Tensor:
        """Gradient before the tanh of the last layer, from that after it."""
        before = torch.empty_like(y)
        rows, width = y.shape
        _tanh_gradient_kernel[(-(-rows // _TANH_ROWS),)](gradient, y, before, self._sum_of[-1], rows, width, _TANH_ROWS)
        return before

    def input_gradient(self, index: int, x: Tensor, g: Tensor) -> Tensor:
        """Gradient before the activation of the layer below, from that before the activation of this one."""
        layer, tile = self.layers[index], self.tiles[index].input_gradient
        out = torch.empty((layer.rows_in, layer.cin), dtype=self.dtype, device=g.device)
        _input_gradient_kernel[(-(-layer.rows_in // tile.m), layer.cin // tile.n)](
            g, self._used[index], x, out, self._sum_of[index - 1], layer.rows_in,
            layer.height, layer.width, layer.cin, layer.cout, SLOPE,
            tile.m, tile.n, tile.k, **tile.options,
        )  # fmt: skip
        return out

    def weight_gradient(self, index: int, x: Tensor, g: Tensor) -> None:
        """Leave the parts of one weight's gradient in the work space."""
        layer, tile, splits = self.layers[index], self.tiles[index].weight_gradient, self.tiles[index].splits
        share = -(-layer.rows // (splits * tile.k)) * tile.k
        _weight_gradient_kernel[(-(-9 * layer.cin // tile.m), layer.cout // tile.n, splits)](
            g, x, self._part_of[index], layer.rows, share,
            layer.height, layer.width, layer.cin, layer.cout, layer.stride, layer.real,
            tile.m, tile.n, tile.k, **tile.options,
        )  # fmt: skip


_TANH_ROWS = 32
_WEIGHT_COLUMNS = 512
_BIAS_ROWS, _BIAS_COLUMNS = 256, 16


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
    """The convolutions as layers over maps of (count, height, width)."""
    count, height, width = shape
    layers: list[Layer] = []
    for convolution in convolutions:
        real, cout, stride = convolution.in_channels, convolution.out_channels, int(convolution.stride[0])
        cin = CHANNELS if not layers else real
        layers.append(Layer(count, height, width, cin, real, cout, stride, convolution is convolutions[-1]))
        height, width = layers[-1].out_height, layers[-1].out_width
    return layers


def _sum_table(widths: Sequence[int], heights: Sequence[int], columns: int, device: torch.device) -> Tensor:
    """What each program of ``_sum_kernel`` does: source, height, width, first column, target; one row each."""
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


# --- The pairs -----------------------------------------------------------------------------------------------------


def supported(encoder: nn.Module, images: Tensor, config: Config) -> bool:
    """Whether this module can do the training that ``config`` asks for: the paper's, on the present GPU."""
    return (
        images.is_cuda
        and images.device.index in (None, torch.cuda.current_device())  # Triton launches there
        and isinstance(encoder, HierarchicalEncoder)
        and config.sampling == "patches"
        and config.learns_positions
        and not config.relative_svdd
        and len(config.scales) <= 2
        and config.batch_size <= 256
        and config.embedding_dim in (16, 32, 64, 128)
    )


class FusedCutPairs:
    """``pairs.CutPairs`` for the hierarchical encoder on a GPU.

    Pairs and noise follow the same distributions, but are drawn by Philox from (seed, step) instead of from a
    generator: ``step`` is a device tensor () that the caller counts up.
    """

    def __init__(
        self, encoder: HierarchicalEncoder, images: Tensor, config: Config, step: Tensor,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:  # fmt: skip
        self.encoder, self.images, self.config, self.step = encoder, images.contiguous(), config, step
        self._batch = config.batch_size
        self._counts = [4 * self._batch * 4**level for level in range(len(encoder.patch_sizes))]
        self._stack = SmallStack(encoder.small, (sum(self._counts), SMALLEST_PATCH, SMALLEST_PATCH), dtype)

    def draw(self) -> dict[int, EmbeddedPairs]:
        """Pairs of all scales, through one pass of the encoder."""
        small, labels = self.embed()
        embeddings = {}
        with torch.autocast(small.device.type, enabled=False):
            for size, part in zip(self.encoder.patch_sizes, torch.split(small, self._counts), strict=True):
                embeddings[size] = self._merged(part, size // SMALLEST_PATCH)
        pairs = {}
        for (size, rows), label in zip(embeddings.items(), labels, strict=True):
            first, second, jitter_first, jitter_second = rows.chunk(4)
            pairs[size] = EmbeddedPairs(jitter_first, jitter_second, PositionPairs(first, second, label))
        return pairs

    def embed(self) -> tuple[Tensor, Tensor]:
        """Embeddings (count, D) of all sub-patches, and labels (scales, B): what ``FusedLoss`` takes."""
        maps, labels = self.cut()
        return self._stack(maps), labels

    def cut(self) -> tuple[Tensor, Tensor]:
        """Sub-patches (count, 32, 32, 4) of all scales and streams, and labels (scales, B), of the present step."""
        images, config = self.images, self.config
        total, levels, height, width = sum(self._counts), len(self._counts), *images.shape[2:]
        maps = torch.empty(
            (total, SMALLEST_PATCH, SMALLEST_PATCH, CHANNELS), dtype=self._stack.dtype, device=images.device
        )
        labels = torch.empty((levels, self._batch), dtype=torch.int64, device=images.device)
        _cut_kernel[(total,)](
            images, self.step, maps, labels, config.seed, len(images), height, width,
            config.rgb_shift, config.noise, config.photometric,
            self._batch, levels, SMALLEST_PATCH, config.photometric > 0,
        )  # fmt: skip
        return maps, labels

    def _merged(self, rows: Tensor, across: int) -> Tensor:
        """Embeddings (B, D) of patches from those (B · across · across, D) of their sub-patches."""
        for merge in self.encoder.merges:
            if across == 1:
                break
            assert isinstance(merge, Merge)
            grid = rows.view(-1, across // 2, 2, across // 2, 2, rows.shape[1])
            rows = merge_rows(merge, grid.permute(0, 1, 3, 2, 4, 5).flatten(0, 2).flatten(1))
            across //= 2
        return rows


def merge_rows(merge: Merge, four: Tensor) -> Tensor:
    """``Merge`` of the sub-patches' embeddings (B, 4 · D) side by side, as plain matrix products."""
    gather = merge.gather.weight.permute(0, 2, 3, 1).flatten(1)  # a view where the weight is channels last
    gathered = F.leaky_relu(F.linear(four, gather, merge.gather.bias), SLOPE)
    return F.linear(gathered, merge.mix.weight.flatten(1), merge.mix.bias).tanh()


class FusedLoss:
    """Eq. 6 over one or two scales, from the small encoder's embeddings to all gradients, in six kernels."""

    def __init__(self, encoder: HierarchicalEncoder, classifiers: nn.ModuleDict, config: Config) -> None:
        self.encoder, self.config = encoder, config
        device = next(encoder.parameters()).device
        self._rows, self._products = 4 * config.batch_size, _Products(device)
        self._layers: list[list[tuple[nn.Linear, _Product]]] = []
        for size in encoder.patch_sizes:
            layers = [layer for layer in classifiers[str(size)].modules() if isinstance(layer, nn.Linear)]
            # The eight outputs go into rows of 16, which have room for the pair's share of the metrics.
            widths = [layer.out_features for layer in layers[:2]] + [16]
            products = [
                self._products.add(config.batch_size, m, layer.in_features)
                for m, layer in zip(widths, layers, strict=True)
            ]
            self._layers.append(list(zip(layers, products, strict=True)))
        self._merge: Merge | None = None
        if len(self._layers) > 1:
            merge = encoder.merges[0]
            assert isinstance(merge, Merge)
            self._merge, width = merge, config.embedding_dim
            self._gather = self._products.add(self._rows, merge.gather.out_channels, 4 * width)
            self._mix = self._products.add(self._rows, width, merge.gather.out_channels)
        self._products.lay_out()

    def backward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Leave gradients in all parameters; returns L_SVDD', spread, L_SSL and accuracy (scales, 4)."""
        e = embeddings.detach()
        gradient = torch.empty_like(e)
        compact = e.new_empty((len(labels), 2))
        self._scale(0, e[: self._rows], labels, gradient[: self._rows], compact)
        if self._merge is not None:
            self._merged(self._merge, e[self._rows :], labels, gradient[self._rows :], compact)
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
        return torch.cat([part for pair in zip(compact, position, strict=True) for part in pair]).view(len(labels), 4)

    def _scale(self, index: int, e: Tensor, labels: Tensor, gradient: Tensor, compact: Tensor) -> None:
        """Loss of one scale's embeddings (4 · B, D), and its gradient."""
        (first, one), (second, two), (third, three) = self._layers[index]
        products, batch = self._products, self.config.batch_size
        hidden = one.m
        _loss_kernel[(-(-batch // 16) + 1,)](
            e, labels[index], first.weight, first.bias, second.weight, second.bias, third.weight, third.bias, gradient,
            products.right(one), products.right(two), products.right(three),
            products.left(one), products.left(two), products.left(three),
            compact[index], batch, self.config.lambda_,
            max(16, triton.next_power_of_2(batch)), e.shape[1], hidden, SLOPE, 16, num_warps=8,
        )  # fmt: skip

    def _merged(self, merge: Merge, e: Tensor, labels: Tensor, gradient: Tensor, compact: Tensor) -> None:
        """Loss of the larger scale from its sub-patches' embeddings (4 · B · 4, D), and its gradient."""
        products, rows, width = self._products, self._rows, e.shape[1]
        big, big_gradient = e.new_empty((2, rows, width))
        shape = (4 * width, merge.gather.out_channels, width, SLOPE, 16, 64)
        grid = (-(-rows // 16),)
        gather, mix = merge.gather, merge.mix
        hidden = products.right(self._mix)
        _merge_kernel[grid](
            e, gather.weight, gather.bias, mix.weight, mix.bias, products.right(self._gather), hidden, big, rows, *shape
        )
        self._scale(1, big, labels, big_gradient, compact)
        _merge_gradient_kernel[grid](
            big_gradient, big, hidden, gather.weight, mix.weight, products.left(self._mix), products.left(self._gather),
            gradient, rows, *shape,
        )  # fmt: skip
        for layer, product in ((gather, self._gather), (mix, self._mix)):
            side = layer.kernel_size[0]
            shaped = products.product(product).view(layer.out_channels, side, side, layer.in_channels)
            layer.weight.grad, _present(layer.bias).grad = shaped.permute(0, 3, 1, 2), products.sums(product)


class _Product(NamedTuple):
    """Where aᵀ b of a (rows, m) and b (rows, n) lies: its factors in the work space, its results in the output."""

    rows: int
    m: int
    n: int
    a: int
    b: int
    product: int
    sums: int


class _Products:
    """The weight gradients of plain matrix products: all of them in one kernel."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._all: list[_Product] = []
        self._work_size = self._out_size = 0

    def add(self, rows: int, m: int, n: int) -> _Product:
        work, out = self._work_size, self._out_size
        made = _Product(rows, m, n, work, work + rows * m, out, out + m * n)
        self._all.append(made)
        self._work_size, self._out_size = made.b + rows * n, made.sums + m
        return made

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
        """Fill the output, on which all gradients are views."""
        _outer_kernel[(len(self._table),)](self._work, self._table, self._out, 32, 64)
