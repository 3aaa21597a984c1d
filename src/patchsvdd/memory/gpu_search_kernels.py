# ruff: noqa: N803 (compile-time arguments of kernels are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels of the exact search on a GPU; requires ``triton_support.available``."""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit
def nearest_column(queries, vectors, offset, best, count, blocks, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Index of the vector nearest to each query of a tile, with half-precision products."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, D)
    a = tl.load(queries + rows[:, None] * D + k[None, :], mask=rows[:, None] < count, other=0.0)
    top = tl.full((BM,), float("-inf"), tl.float32)
    at = tl.zeros((BM,), tl.int32)
    for block in range(blocks):
        column = block * BN + tl.arange(0, BN)
        b = tl.load(vectors + column[None, :] * D + k[:, None])  # (D, BN)
        close = tl.dot(a, b) + tl.load(offset + column)[None, :]
        highest = tl.max(close, 1)
        where = tl.argmax(close, 1).to(tl.int32) + block * BN
        better = highest > top
        top = tl.where(better, highest, top)
        at = tl.where(better, where, at)
    tl.store(best + rows, at, mask=rows < count)


@triton.jit
def needed_cells(
    queries, squares, bound, centers, offset, radii, needed, count, cells,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Which cells may contain a vector within the bound of at least one query of a tile."""
    tile = tl.program_id(0)
    rows = tile * BM + tl.arange(0, BM)
    k = tl.arange(0, D)
    inside = rows < count
    a = tl.load(queries + rows[:, None] * D + k[None, :], mask=inside[:, None], other=0.0)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    b = tl.load(centers + column[None, :] * D + k[:, None])
    close = tl.dot(a, b) + tl.load(offset + column)[None, :]  # −|a − b|²/2 + |a|²/2
    square = tl.load(squares + rows, mask=inside, other=0.0)[:, None] - 2.0 * close
    radius = tl.load(bound + rows, mask=inside, other=float("-inf"))[:, None] + tl.load(radii + column)[None, :]
    # Covers the rounding of the sum above: a few millionths of the vectors' squared norm.
    slack = 4e-6 * tl.load(squares + rows, mask=inside, other=0.0)[:, None]
    can_hold = ((radius > 0.0) & (square - slack <= radius * radius)).to(tl.int32)
    tl.store(needed + tile * cells + column, tl.max(can_hold, 0).to(tl.int8))


@triton.jit
def list_cells(needed, lists, counts, cells, BN: tl.constexpr):
    """The indices and the number of the cells that a tile needs."""
    tile = tl.program_id(0)
    total = 0
    for start in range(0, cells, BN):
        cell = start + tl.arange(0, BN)
        is_needed = tl.load(needed + tile * cells + cell, mask=cell < cells, other=0).to(tl.int32)
        place = total + tl.cumsum(is_needed, 0) - is_needed
        tl.store(lists + tile * cells + place, cell, mask=is_needed > 0)
        total += tl.sum(is_needed, 0)
    tl.store(counts + tile, total)


@triton.jit
def nearest_cell(
    queries, within, rest, centers, offset, lists, counts, best, count, cells,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The cell that contains the vector nearest to each query of a tile, among a part of the tile's list."""
    tile = tl.program_id(0)
    first = tl.program_id(1) * PART
    last = tl.minimum(first + PART, tl.load(counts + tile))
    if first < last:
        rows = tile * BM + tl.arange(0, BM)
        k = tl.arange(0, D)
        a = tl.load(queries + rows[:, None] * D + k[None, :], mask=rows[:, None] < count, other=0.0)
        top = tl.full((BM,), float("-inf"), tl.float32)
        at = tl.zeros((BM,), tl.int32)
        for index in range(first, last):
            cell = tl.load(lists + tile * cells + index)
            column = cell * BN + tl.arange(0, BN)
            # Relative to the cell's centre both vectors are short, so rounding errors are small.
            from_center = a - tl.load(centers + cell * D + k)[None, :]
            number = from_center.to(tl.float16)
            a_rest = (from_center - number.to(tl.float32)).to(tl.float16)
            at_column = column[None, :] * D + k[:, None]  # (D, BN)
            b = tl.load(within + at_column)
            product = tl.dot(a_rest, b)
            product = tl.dot(number, tl.load(rest + at_column), product)
            product = tl.dot(number, b, product)
            close = tl.max(2.0 * product + tl.load(offset + column)[None, :], 1)
            close -= tl.sum(from_center * from_center, 1)  # −|a − b|²
            better = close > top
            top = tl.where(better, close, top)
            at = tl.where(better, cell, at)
        # Upper half: the float as an integer of the same order; lower half: its cell. The maximum over all
        # programs does not depend on their order.
        key = top.to(tl.int32, bitcast=True)
        key = key ^ ((key >> 31) & 0x7FFFFFFF)
        tl.atomic_max(best + rows, (key.to(tl.int64) << 32) | at.to(tl.int64), mask=rows < count)


@triton.jit
def nearest_in_cell(queries, within, centers, offset, cells, distance, place, D: tl.constexpr, BN: tl.constexpr):
    """Distance and place of the vector of one cell that is nearest to one query."""
    query = tl.program_id(0)
    k = tl.arange(0, D)
    cell = tl.load(cells + query).to(tl.int64)
    from_center = tl.load(queries + query * D + k) - tl.load(centers + cell * D + k)
    row = cell * BN + tl.arange(0, BN)
    difference = tl.load(within + row[:, None] * D + k[None, :]) - from_center[None, :]
    square = tl.sum(difference * difference, 1)
    square = tl.where(tl.load(offset + row) > float("-inf"), square, float("inf"))
    tl.store(distance + query, tl.sqrt(tl.min(square, 0)))
    tl.store(place + query, cell * BN + tl.argmin(square, 0).to(tl.int64))
