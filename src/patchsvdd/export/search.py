"""The nearest normal patch as nodes of a graph: the same care as ``neighbors.ExactSearch`` takes, block by block."""

from __future__ import annotations

import math

import numpy as np

from patchsvdd.memory import ScaleMemory
from patchsvdd.neighbors import ExactSearch
from patchsvdd.onnx_file import Graph
from patchsvdd.onnx_graph import array_of

GROUP = ExactSearch.BLOCK
"""Rows that are proposed together."""
PROPOSALS = ExactSearch.PROPOSALS
"""Groups looked at closely for each query."""
PRODUCT_BYTES = 64 * 2**20
"""What the products of one image's queries with one block of rows may take."""
LARGEST_BLOCK = 8192


def add_distances(graph: Graph, memory: ScaleMemory, queries: str, per_image: int) -> str:
    """The name of the distances (Q,) from queries (Q, D), of which an image has so many, to the nearest embedding.

    A matrix product in float32 proposes groups of rows; differences decide. They are in units of the found row's reach
    where the memory knows it. Nothing is proposed twice: among more near ties than proposals, a distance may be off by
    the product's rounding.
    """
    rows = _rows_per_block(len(memory.embeddings), per_image)
    blocks = -(-len(memory.embeddings) // rows)
    length = memory.embeddings.shape[1]
    # The last row fills the last block up: a second time it is no nearer.
    last = np.full(blocks * rows - len(memory.embeddings), len(memory.embeddings) - 1)
    order = np.concatenate((np.arange(len(memory.embeddings)), last))
    embeddings = array_of(memory.embeddings)
    groups = graph.constant(embeddings[order].reshape(-1, GROUP, length))
    center = graph.constant(embeddings.mean(0, dtype=np.float64).astype(np.float32))  # which makes rounding small
    proposed = _add_proposals(graph, groups, queries, center, (blocks, rows, length), per_image)
    reach = None
    if memory.reach is not None:
        reach = graph.constant(array_of(memory.reach)[order].reshape(-1, GROUP))
    return _add_decision(graph, groups, queries, proposed, min(PROPOSALS, blocks * rows // GROUP), reach)


def _rows_per_block(count: int, per_image: int) -> int:
    """Rows that are multiplied at once: a multiple of the group, and blocks about equal."""
    fitting = min(LARGEST_BLOCK, max(GROUP, PRODUCT_BYTES // (4 * per_image)))
    blocks = math.ceil(count / fitting)
    return math.ceil(count / blocks / GROUP) * GROUP


def _add_proposals(
    graph: Graph, groups: str, queries: str, center: str, shape: tuple[int, int, int], per_image: int
) -> str:
    """Numbers (Q, proposals) of the groups nearest to each query, as products tell."""
    blocks, rows, length = shape
    per_block = rows // GROUP
    kept = min(PROPOSALS, per_block)
    body = Graph(f"block{per_image}", prefix="block_")
    several = f"queries of {per_image}"  # equal names of sizes mean equal sizes
    # What does not change is handed on from block to block: not every runtime lets a body look outside.
    centred = body.input("block_queries", "float32", [several, length])
    middle = body.input("block_center", "float32", [length])
    block = body.input("block_rows", "float32", [rows, length])
    first = body.input("block_first", "int64", [])
    for name, given, sizes in (("same_queries", centred, [several, length]), ("same_center", middle, [length])):
        body.node("Identity", given, output=f"block_{name}")
        body.output(f"block_{name}", "float32", sizes)
    vectors = body.node("Sub", block, middle)
    squares = body.node("ReduceSumSquare", vectors, axes=[1], keepdims=0)
    # (a − c)·(b − c) − |b − c|²/2 differs from −|a − b|²/2 by a constant of the query alone.
    halves = body.node("Mul", squares, body.constant(-0.5))
    closeness = body.node("Gemm", centred, vectors, halves, transB=1)  # (Q, rows)
    grouped = body.node("Reshape", closeness, body.constant([-1, per_block, GROUP]))
    best = body.node("ReduceMax", grouped, axes=[2], keepdims=0)
    _, number = body.nodes("TopK", best, body.constant([kept]), outputs=["block_best", "block_number"], axis=1)
    body.node("Add", number, first, output="block_group")
    body.output("block_best", "float32", [several, kept])
    body.output("block_group", "int64", [several, kept])

    by_block = graph.node("Reshape", groups, graph.constant([blocks, rows, length]))
    starts = graph.constant(np.arange(blocks, dtype=np.int64) * per_block)
    given = [graph.node("Sub", queries, center), center, by_block, starts]
    found = graph.nodes("Scan", *given, outputs=4, body=body, num_scan_inputs=2, scan_output_axes=[1, 1])
    flat = graph.constant([-1, blocks * kept])
    scores, numbers = (graph.node("Reshape", one, flat) for one in found[2:])  # (Q, blocks · kept)
    wanted = graph.constant([min(PROPOSALS, blocks * per_block)])
    _, place = graph.nodes("TopK", scores, wanted, outputs=2, axis=1)
    return graph.node("GatherElements", numbers, place, axis=1)


def _add_decision(graph: Graph, groups: str, queries: str, proposed: str, count: int, reach: str | None) -> str:
    """Distances (Q,) to the nearest row of the proposed groups, by the differences themselves."""
    around = graph.node("Unsqueeze", queries, graph.constant([1]))
    squares, units = [], []
    for index in range(count):  # one after another: all at once would take the memory of all
        group = graph.node("Gather", proposed, graph.constant(np.array(index)), axis=1)  # (Q,)
        difference = graph.node("Sub", graph.node("Gather", groups, group, axis=0), around)  # (Q, GROUP, D)
        squared = graph.node("ReduceSumSquare", difference, axes=[2], keepdims=0)
        squares.append(graph.node("ReduceMin", squared, axes=[1], keepdims=1))
        if reach is not None:
            nearest = graph.node("ArgMin", squared, axis=1, keepdims=1)
            units.append(graph.node("GatherElements", graph.node("Gather", reach, group, axis=0), nearest, axis=1))
    every = graph.node("Concat", *squares, axis=1)  # (Q, count)
    distances = graph.node("Sqrt", graph.node("ReduceMin", every, axes=[1], keepdims=1))
    if reach is not None:
        nearest = graph.node("ArgMin", every, axis=1, keepdims=1)
        unit = graph.node("GatherElements", graph.node("Concat", *units, axis=1), nearest, axis=1)
        distances = graph.node("Div", distances, unit)
    return graph.node("Squeeze", distances, graph.constant([1]))
