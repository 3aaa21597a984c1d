# ruff: noqa: N803 (compile-time arguments of kernels are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels of the training step: cutting patches, the small encoder's passes, the losses.

Imported only if Triton is installed: see ``available``. All sums run in a fixed order (no atomics), so equal runs are
bit-identical.

Layout everywhere: channels last. A convolution is a matrix product over (position) × (tap · channel): bias and
LeakyReLU are in its epilogue, their gradients in the epilogue of the next layer's input gradient.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit
def _random(seed, step, index, purpose: tl.constexpr):
    """Four uint32 that depend only on (seed, step, purpose, index)."""
    zero = index * 0
    return tl.philox(seed, index, zero + step, zero + purpose, zero)


@triton.jit
def _normals(seed, step, index, purpose: tl.constexpr):
    """Four standard normals that depend only on (seed, step, purpose, index)."""
    a, b, c, d = _random(seed, step, index, purpose)
    e, f = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(a), tl.uint_to_uniform_float(b))
    g, h = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(c), tl.uint_to_uniform_float(d))
    return e, f, g, h


@triton.jit
def _below(bits, high):
    """An integer in 0 … high − 1 from 32 random bits."""
    return ((bits.to(tl.uint64) * high) >> 32).to(tl.int32)


@triton.jit
def _signed(bits):
    """A number in −1 … 1 from 32 random bits."""
    return 2 * tl.uint_to_uniform_float(bits) - 1


@triton.jit
def _tanh(x):
    square = x * x
    near = x * (1 - square * (1 / 3 - square * (2 / 15 - square * 17 / 315)))  # accurate near zero
    return tl.where(square < 0.01, near, 2 / (1 + tl.exp(-2 * x)) - 1)


@triton.jit(do_not_specialize=["seed", "count"])
def cut(
    images, step, patches, labels, seed, count, height, width, shift, noise, light,
    BATCH: tl.constexpr, LEVELS: tl.constexpr, SIDE: tl.constexpr, LIT: tl.constexpr,
):  # fmt: skip
    """Cut one sub-patch (SIDE, SIDE, 4) per program: choose its pair and position, and perturb its colour.

    Sub-patches are ordered by level, then stream (first and second of position pairs, first and second of jitter
    pairs), then patch, and within a patch in reading order.
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

    # Position of the pair.
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
    # Jitter pairs: any non-zero shift within K/32.
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

    # Pixels of the sub-patch.
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


@triton.jit
def convolve(
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


@triton.jit
def input_gradient(
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


@triton.jit
def weight_gradient(
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


@triton.jit
def tanh_gradient(g, y, out, sums, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out = g · (1 − y²), all (rows, WIDTH), and its sum per tile into sums."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, WIDTH)
    at = m[:, None] * WIDTH + n[None, :]
    known = (m < rows)[:, None]
    after = tl.load(y + at, known, 0.0)
    before = tl.load(g + at, known, 0.0) * (1 - after * after)
    tl.store(out + at, before, known)
    tl.store(sums + tl.program_id(0) * WIDTH + n, tl.sum(before, 0))


@triton.jit
def sum_columns(parts, table, out, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sum the columns of many matrices in a fixed order; each row of ``table`` describes one program's task."""
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


@triton.jit
def merge(
    e, gather, gather_bias, mix, mix_bias, copy, hidden, out, rows,
    WIDTH: tl.constexpr, HIDDEN: tl.constexpr, D: tl.constexpr, SLOPE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """hidden (rows, HIDDEN) and embeddings out (rows, D) of patches from e (rows, WIDTH), as ``Merge`` computes them.

    e is copied to ``copy``, next to the other factors of the sums over rows.
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


@triton.jit
def merge_gradient(
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


@triton.jit
def loss(
    e, label, w1, b1, w2, b2, w3, b3, de, x_out, a1_out, a2_out, g1_out, g2_out, g3_out, compact, count, weight,
    BATCH: tl.constexpr, D: tl.constexpr, H: tl.constexpr, SLOPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Eq. 6 of one scale and its gradient: L_SSL in tiles of BLOCK pairs, λ L_SVDD' in the last program.

    e, de: (4 · count, D), stream by stream; w1 (H, D), w2 (H, H), w3 (8, H): the position classifier. Inputs a and
    output gradients g of its layers go to the work space; columns 8 and 9 of g3 (count, 16) hold each pair's share of
    L_SSL and of the accuracy. ``compact`` receives L_SVDD' and the spread.
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
        correct = (right >= best).to(tl.float32) / count
        both = tl.where(o[None, :] == 8, share[:, None], tl.where(o[None, :] == 9, correct[:, None], g3))
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


@triton.jit
def outer_products(work, table, out, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """Many aᵀ b (M, N) of a (rows, M) and b (rows, N), and the sums (M,) of a's columns; one tile per program.

    A row of ``table``: offset of a and M, offset of b and N, rows, the tile's corner, offsets of product and sums.
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
