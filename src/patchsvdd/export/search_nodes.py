"""Graph nodes for the nearest normal patch: a block-wise version of ``exact_search.ExactSearch``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd.core.onnx_writer import Graph
from patchsvdd.encoder.onnx_features import array_of
from patchsvdd.memory.bank import ScaleMemory
from patchsvdd.memory.cells import arrange
from patchsvdd.memory.exact_search import ExactSearch

LARGEST_GROUP, SMALLEST_GROUP = ExactSearch.BLOCK, 4
"""Rows that are proposed together."""
PROPOSALS = ExactSearch.PROPOSALS
"""Groups per query whose differences are computed."""
BUDGET = 64 * 2**20
"""Limit in bytes for the products of one image's queries with one block of rows, and for their proposed groups."""
LARGEST_BLOCK = 2048


@dataclass(frozen=True)
class Blocks:
    """How the rows of a memory are split: blocks are multiplied at once, groups are proposed together."""

    count: int
    rows: int
    """Rows per block."""
    group: int
    """Rows per group."""
    length: int
    """Dimension of an embedding."""

    @classmethod
    def within_budget(cls, rows: int, length: int, per_image: int) -> Blocks:
        """Blocks of about equal size, as large as the budget allows for ``per_image`` queries."""
        group = LARGEST_GROUP
        while group > SMALLEST_GROUP and 4 * per_image * group * length > BUDGET:
            group //= 2
        fitting = min(LARGEST_BLOCK, max(group, BUDGET // (4 * per_image)))
        count = math.ceil(rows / fitting)
        return cls(count, math.ceil(rows / count / group) * group, group, length)

    @property
    def groups(self) -> int:
        """Groups per block."""
        return self.rows // self.group

    @property
    def proposals(self) -> int:
        """Groups per query whose differences are computed."""
        return min(PROPOSALS, self.count * self.groups)


def add_distances(graph: Graph, memory: ScaleMemory, queries: str, per_image: int) -> str:
    """Add the distances (Q,) from queries (Q, D), ``per_image`` for each image, to the nearest embedding.

    A float32 matrix product proposes groups of rows; differences decide. Distances are divided by the local scale of
    the matched row if the memory has one. Unlike in ``ExactSearch`` there is no second check: with more near ties than
    proposals, a distance may be off by the product's rounding. That error is as small as a block, because similar rows
    are in one block and are multiplied as differences from its centre. On a plain background, patches differ by less
    than the rounding of products of the embeddings themselves. Returns the name of the output.
    """
    rows, length = memory.embeddings.shape
    blocks = Blocks.within_budget(rows, length, per_image)
    order, centers = sort_into_blocks(memory.embeddings.cpu(), blocks)
    groups = graph.constant(array_of(memory.embeddings)[order].reshape(-1, blocks.group, length))
    proposed = _add_proposals(graph, groups, queries, graph.constant(centers), blocks, f"queries of {per_image}")
    local_scale = None
    if memory.local_scale is not None:
        local_scale = graph.constant(array_of(memory.local_scale)[order].reshape(-1, blocks.group))
    return _add_decision(graph, groups, queries, proposed, blocks.proposals, local_scale)


def sort_into_blocks(vectors: Tensor, blocks: Blocks) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows (blocks · rows per block,) of vectors (M, D), with similar rows together, and the centre of each block.

    Cells have equally many rows: where rows are dense, cells are small. Centres are medians, which a few distant rows
    do not move. The last row pads the last block: a repeated row does not change the result.
    """
    cells = arrange(vectors, blocks.rows)
    held = cells.rows[cells.rows >= 0]
    order = held[torch.arange(blocks.count * blocks.rows).clamp_max(len(vectors) - 1)]
    centers = [vectors[block].median(0).values for block in order.view(blocks.count, -1)]
    return order.numpy(), array_of(torch.stack(centers))


def _add_proposals(graph: Graph, groups: str, queries: str, centers: str, blocks: Blocks, query_axis: str) -> str:
    """Indices (Q, proposals) of the groups nearest to each query, by products; ``query_axis`` names the size Q."""
    kept = min(PROPOSALS, blocks.groups)
    body = _block_body(blocks, kept, query_axis)
    by_block = graph.node("Reshape", groups, graph.constant([blocks.count, blocks.rows, blocks.length]))
    starts = graph.constant(np.arange(blocks.count, dtype=np.int64) * blocks.groups)
    inputs = [queries, by_block, centers, starts]
    outputs = graph.nodes("Scan", *inputs, outputs=3, body=body, num_scan_inputs=3, scan_output_axes=[1, 1])
    flat = graph.constant([-1, blocks.count * kept])
    scores, numbers = (graph.node("Reshape", output, flat) for output in outputs[1:])  # (Q, blocks · kept)
    _, place = graph.nodes("TopK", scores, graph.constant([blocks.proposals]), outputs=2, axis=1)
    return graph.node("GatherElements", numbers, place, axis=1)


def _block_body(blocks: Blocks, kept: int, query_axis: str) -> Graph:
    """The body for each block: products with all queries, and the groups that are nearest according to them."""
    body = Graph("block", prefix="block_")
    length = blocks.length
    # Constants are passed on from block to block: not every runtime lets a body access outer values.
    queries = body.input("block_queries", "float32", [query_axis, length])
    block = body.input("block_rows", "float32", [blocks.rows, length])
    center = body.input("block_middle", "float32", [length])
    first = body.input("block_first", "int64", [])
    body.output(body.node("Identity", queries, output="block_same_queries"), "float32", [query_axis, length])
    vectors, centred = body.node("Sub", block, center), body.node("Sub", queries, center)
    squares = body.node("ReduceSumSquare", vectors, axes=[1], keepdims=0)
    # −|a − b|²/2 = (a − c)·(b − c) − |b − c|²/2 − |a − c|²/2; the last is the same for all rows of a block.
    halves = body.node("Mul", squares, body.constant(-0.5))
    closeness = body.node("Gemm", centred, vectors, halves, transB=1)  # (Q, rows)
    grouped = body.node("Reshape", closeness, body.constant([-1, blocks.groups, blocks.group]))
    best = body.node("ReduceMax", grouped, axes=[2], keepdims=0)
    nearest, number = body.nodes("TopK", best, body.constant([kept]), outputs=2, axis=1)
    offset = body.node("Mul", body.node("ReduceSumSquare", centred, axes=[1], keepdims=1), body.constant(-0.5))
    body.node("Add", nearest, offset, output="block_best")
    body.node("Add", number, first, output="block_group")
    body.output("block_best", "float32", [query_axis, kept])
    body.output("block_group", "int64", [query_axis, kept])
    return body


def _add_decision(graph: Graph, groups: str, queries: str, proposed: str, count: int, local_scale: str | None) -> str:
    """Distances (Q,) to the nearest row of the proposed groups, by the differences themselves."""
    expanded = graph.node("Unsqueeze", queries, graph.constant([1]))
    squares, units = [], []
    for index in range(count):  # one by one, to limit memory
        group = graph.node("Gather", proposed, graph.constant(np.array(index)), axis=1)  # (Q,)
        difference = graph.node("Sub", graph.node("Gather", groups, group, axis=0), expanded)  # (Q, group, D)
        squared = graph.node("ReduceSumSquare", difference, axes=[2], keepdims=0)
        squares.append(graph.node("ReduceMin", squared, axes=[1], keepdims=1))
        if local_scale is not None:
            nearest = graph.node("ArgMin", squared, axis=1, keepdims=1)
            scales = graph.node("Gather", local_scale, group, axis=0)
            units.append(graph.node("GatherElements", scales, nearest, axis=1))
    all_squares = graph.node("Concat", *squares, axis=1)  # (Q, count)
    distances = graph.node("Sqrt", graph.node("ReduceMin", all_squares, axes=[1], keepdims=1))
    if local_scale is not None:
        nearest = graph.node("ArgMin", all_squares, axis=1, keepdims=1)
        unit = graph.node("GatherElements", graph.node("Concat", *units, axis=1), nearest, axis=1)
        distances = graph.node("Div", distances, unit)
    return graph.node("Squeeze", distances, graph.constant([1]))
