# ruff: noqa: N803 (compile-time arguments of kernels are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels of the exact search on a GPU; requires ``triton_support.available``."""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit
def _key(close, at):
    """Closeness and index as one integer: the maximum over all programs does not depend on their order."""
    bits = close.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # an integer of the same order
    return (bits.to(tl.int64) << 32) | at.to(tl.int64)


@triton.jit
def nearest_column(
    queries, mean, vectors, offset, best, count, blocks,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Key of the vector nearest to each query of a tile among some blocks, with half-precision products."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, D)
    a = tl.load(queries + rows[:, None] * D + k[None, :], mask=rows[:, None] < count, other=0.0)
    a = (a - tl.load(mean + k)[None, :]).to(tl.float16)
    # Maxima of each column of the blocks are kept apart until the end: that is cheaper than one of each block.
    top = tl.full((BM, BN), float("-inf"), tl.float32)
    at = tl.zeros((BM, BN), tl.int32)
    first = tl.program_id(1) * PART
    for block in range(first, tl.minimum(first + PART, blocks)):
        column = block * BN + tl.arange(0, BN)
        b = tl.load(vectors + column[None, :] * D + k[:, None])  # (D, BN)
        close = tl.dot(a, b) + tl.load(offset + column)[None, :]
        at = tl.where(close > top, block, at)
        top = tl.maximum(close, top)
    highest = tl.max(top, 1)
    where = tl.where(top == highest[:, None], at * BN + tl.arange(0, BN)[None, :], 0x7FFFFFFF)
    tl.atomic_max(best + rows, _key(highest, tl.min(where, 1)), mask=rows < count)


@triton.jit
def sort_queries(
    queries, mean, order, ordered, half, squares, rounding, count, D: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    """Queries in their order, relative to the mean, also in half precision; its squared length and its error."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < count
    k = tl.arange(0, D)
    source = tl.load(order + rows, mask=inside, other=0)
    value = tl.load(queries + source[:, None] * D + k[None, :], mask=inside[:, None], other=0.0)
    value -= tl.load(mean + k)[None, :]
    number = value.to(tl.float16)
    short = number.to(tl.float32)
    target = rows[:, None] * D + k[None, :]
    tl.store(ordered + target, value, mask=inside[:, None])
    tl.store(half + target, number, mask=inside[:, None])
    tl.store(squares + rows, tl.sum(short * short, 1), mask=inside)
    error = short - value
    tl.store(rounding + rows, tl.sqrt(tl.sum(error * error, 1)), mask=inside)


@triton.jit
def needed_cells(
    queries, squares, bound, rounding, centers, offset, radii, needed, count, cells, blocks,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Which cells of some blocks may contain a vector within the bound of at least one query of a tile."""
    tile = tl.program_id(0)
    rows = tile * BM + tl.arange(0, BM)
    k = tl.arange(0, D)
    inside = rows < count
    a = tl.load(queries + rows[None, :] * D + k[:, None], mask=inside[None, :], other=0.0)  # (D, BM)
    square = tl.load(squares + rows, mask=inside, other=0.0)
    reach = tl.load(bound + rows, mask=inside, other=float("-inf")) + tl.load(rounding + rows, mask=inside, other=0.0)
    # Covers the rounding of the sum below: a few millionths of the vectors' squared norm.
    least = square - 4e-6 * square
    first = tl.program_id(1) * PART
    for block in range(first, tl.minimum(first + PART, blocks)):
        column = block * BN + tl.arange(0, BN)
        b = tl.load(centers + column[:, None] * D + k[None, :])
        close = tl.dot(b, a) + tl.load(offset + column)[:, None]  # −|a − b|²/2 + |a|²/2
        radius = reach[None, :] + tl.load(radii + column)[:, None]
        can_hold = ((radius > 0.0) & (least[None, :] - 2.0 * close <= radius * radius)).to(tl.int32)
        tl.store(needed + tile * cells + column, tl.max(can_hold, 1).to(tl.int8))


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
def promising_cells(
    queries, squares, bound, rounding, keys, order, vectors, offset, errors, lists, counts, promising, count, cells,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Which listed cells contain a vector that may be nearer than the bound of at least one query of a tile.

    The bound comes from the cell in the query's key, so that one is not promising. Keys are in the original order.
    Queries and vectors are half-precision numbers. What each of them has lost adds to the bound.
    """
    tile = tl.program_id(0)
    last = tl.load(counts + tile)
    if tl.program_id(1) < last:
        rows = tile * BM + tl.arange(0, BM)
        k = tl.arange(0, D)
        inside = rows < count
        a = tl.load(queries + rows[None, :] * D + k[:, None], mask=inside[None, :], other=0.0)  # (D, BM)
        square = tl.load(squares + rows, mask=inside, other=0.0)
        reach = tl.load(bound + rows, mask=inside, other=0.0) + tl.load(rounding + rows, mask=inside, other=0.0)
        reach = tl.minimum(reach, 1e18)  # its square stays finite
        known = tl.load(keys + tl.load(order + rows, mask=inside, other=0), mask=inside, other=0).to(tl.int32)
        # Covers the rounding of the sum below: a few millionths of the vectors' squared norm.
        least = tl.where(inside, 0.5 * (square - 4e-6 * square), float("inf"))
        for index in range(tl.program_id(1), last, tl.num_programs(1)):
            cell = tl.load(lists + tile * cells + index)
            column = cell * BN + tl.arange(0, BN)
            b = tl.load(vectors + column[:, None] * D + k[None, :])
            close = tl.dot(b, a) + tl.load(offset + column)[:, None]  # −|a − b|²/2 + |a|²/2
            radius = reach + tl.load(errors + cell)
            limit = tl.where(known == cell, float("inf"), least - 0.5 * radius * radius)
            beyond = close - limit[None, :]
            tl.store(promising + tile * cells + index, (tl.max(tl.max(beyond, 1), 0) >= 0.0).to(tl.int8))


@triton.jit
def nearest_cell(
    queries, within, rest, centers, offset, bound, lists, counts, promising, best, count, cells,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Key of the cell that contains the vector nearest to each query, if it is nearer than the bound.

    The programs of a tile share the promising ones of its list of cells.
    """
    tile = tl.program_id(0)
    last = tl.load(counts + tile)
    if tl.program_id(1) < last:
        rows = tile * BM + tl.arange(0, BM)
        k = tl.arange(0, D)
        a = tl.load(queries + rows[:, None] * D + k[None, :], mask=rows[:, None] < count, other=0.0)
        top = tl.load(bound + rows, mask=rows < count, other=0.0)
        top = -top * top
        at = tl.full((BM,), -1, tl.int32)
        for index in range(tl.program_id(1), last, tl.num_programs(1)):
            if tl.load(promising + tile * cells + index) != 0:
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
        tl.atomic_max(best + rows, _key(top, at), mask=(rows < count) & (at >= 0))


@triton.jit
def _nearest(queries, within, centers, offset, query, cell, D: tl.constexpr, BN: tl.constexpr):
    """Squared distance and place of the vector of a cell that is nearest to a query, by the differences."""
    k = tl.arange(0, D)
    from_center = tl.load(queries + query * D + k) - tl.load(centers + cell * D + k)
    row = cell * BN + tl.arange(0, BN)
    difference = tl.load(within + row[:, None] * D + k[None, :]) - from_center[None, :]
    square = tl.sum(difference * difference, 1)
    square = tl.where(tl.load(offset + row) > float("-inf"), square, float("inf"))
    return tl.min(square, 0), cell * BN + tl.argmin(square, 0).to(tl.int64)


@triton.jit
def nearest_in_cell(
    queries, within, centers, offset, keys, order, distance, place, D: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Distance and place of the vector of a query's cell that is nearest to it; keys are in the original order."""
    query = tl.program_id(0)
    cell = tl.load(keys + tl.load(order + query)) & 0xFFFFFFFF
    square, row = _nearest(queries, within, centers, offset, query, cell, D, BN)
    tl.store(distance + query, tl.sqrt(square))
    tl.store(place + query, row)


@triton.jit
def nearer_row(
    queries, within, centers, offset, keys, order, rows, distance, place, out_distance, out_row,
    NONE: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Distance and row of the nearest vector, in the original order: the one at hand, or one in the query's cell."""
    query = tl.program_id(0)
    key = tl.load(keys + query)
    nearest = tl.load(distance + query)
    at = tl.load(place + query)
    if key != NONE:
        square, row = _nearest(queries, within, centers, offset, query, key & 0xFFFFFFFF, D, BN)
        other = tl.sqrt(square)
        at = tl.where(other < nearest, row, at)
        nearest = tl.minimum(other, nearest)
    target = tl.load(order + query)
    tl.store(out_distance + target, nearest)
    tl.store(out_row + target, tl.load(rows + at))
