"""Graph nodes that find near normal patches among clusters and cells, without comparing with every patch.

Like the graph search of a CPU, the search is approximate, and the queries with the largest distances, which decide an
image's score, are searched again with more cells. ``parity`` measures what that costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from patchsvdd.core.onnx_writer import Graph
from patchsvdd.memory.cell_tree import CELL, WINDOW, CellTree
from patchsvdd.memory.graph_search import RETRIED_SHARE

MIN_ROWS = 65_536
"""Number of rows from which the search by cells is used."""
CLUSTERS, CELLS = 4, 8
"""Clusters and cells that are visited for a query."""
CLUSTERS_AGAIN, CELLS_AGAIN = 16, 32
"""Clusters and cells that are visited for the queries with the largest distances."""
BUDGET = 16 * 2**20
"""Limit in bytes for the vectors that are gathered at once for the queries of one image."""
AT_ONCE = 4096
"""Queries of one image that are searched at once."""


def add_tree_distances(graph: Graph, tree: CellTree, queries: str, per_image: int) -> str:
    """Add the distances (Q,) from queries (Q, D), ``per_image`` for each image, to near rows; return their name."""
    tables = _Tables.add(graph, tree)
    images = graph.node("Reshape", queries, graph.constant([-1, per_image, tables.length]))
    squares = _add_squares(graph, tables, images, per_image)
    retried = math.ceil(RETRIED_SHARE * per_image)
    before, place = graph.nodes("TopK", squares, graph.constant([retried]), outputs=2, axis=1)
    index = graph.node("Unsqueeze", place, graph.constant([2]))
    again = graph.node("GatherND", images, index, batch_dims=1)  # (N, retried, D)
    again = graph.node("Reshape", again, graph.constant([-1, tables.length]))
    after = tables.search(again, retried, CLUSTERS_AGAIN, CELLS_AGAIN)
    nearer = graph.node("Min", before, graph.node("Reshape", after, graph.constant([-1, retried])))
    squares = graph.node("ScatterElements", squares, place, nearer, axis=1)
    # Rounding can make the square of a tiny distance negative.
    distances = graph.node("Sqrt", graph.node("Max", squares, graph.constant(0.0)))
    return graph.node("Reshape", distances, graph.constant([-1]))


def _add_squares(graph: Graph, tables: _Tables, images: str, per_image: int) -> str:
    """(N, per_image): squared distances of the queries of images (N, per_image, D) to near rows."""
    parts = []
    for start in range(0, per_image, AT_ONCE):
        stop = min(start + AT_ONCE, per_image)
        part = images
        if stop - start < per_image:
            part = graph.node("Slice", images, *(graph.constant([one]) for one in (start, stop, 1)))
        flat = graph.node("Reshape", part, graph.constant([-1, tables.length]))
        squares = tables.search(flat, stop - start, CLUSTERS, CELLS)
        parts.append(graph.node("Reshape", squares, graph.constant([-1, stop - start])))
    return graph.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class _Tables:
    """A tree as constants of a graph; the names of these."""

    graph: Graph
    clusters: str
    """(D, clusters) centres."""
    cluster_halves: str
    """(clusters,): −|c|²/2 of each centre c."""
    first: str
    """(clusters,): the first cell of each."""
    centers: str
    """(cells, D), relative to ``middle``."""
    center_halves: str
    """(cells,): −|c|²/2 of each centre c."""
    rows: str
    """(cells, CELL, D), relative to the centre of their cell."""
    squares: str
    """(cells, CELL): squared distance of each row from its cell's centre."""
    middle: str
    """(D,): subtracted from queries and centres, which reduces rounding errors."""
    length: int
    count: int
    """Number of clusters."""
    window: int
    """Cells that are looked at for a cluster: its own, and perhaps some that follow."""

    @classmethod
    def add(cls, graph: Graph, tree: CellTree) -> _Tables:
        """Add the constants."""
        middle = tree.centers.mean(0, dtype=np.float64).astype(np.float32)
        window = min(WINDOW, len(tree.centers))
        clusters, centers = tree.clusters - middle, tree.centers.astype(np.float32) - middle
        # Runtimes compute this once, when they load the file: on disk a row needs a byte per number.
        steps = graph.node("Unsqueeze", graph.node("Cast", graph.constant(tree.steps), to=1), graph.constant([1]))
        # By way of int32, because OpenVINO would otherwise defer it to the search, with wrong results.
        rows = graph.node("Cast", graph.node("Cast", graph.constant(tree.rows), to=6), to=1)
        rows = graph.node("Mul", rows, steps)
        return cls(
            graph,
            graph.constant(np.ascontiguousarray(clusters.T)),
            graph.constant(-np.square(clusters).sum(1) / 2),
            graph.constant(np.minimum(tree.first, len(centers) - window)),
            graph.constant(centers),
            graph.constant(-np.square(centers).sum(1) / 2),
            rows,
            graph.node("ReduceSumSquare", rows, axes=[2], keepdims=0),
            graph.constant(middle),
            tree.centers.shape[1],
            len(clusters),
            window,
        )

    def search(self, queries: str, per_image: int, clusters: int, cells: int) -> str:
        """Squared distances (Q, 1) from queries (Q, D) to the nearest row in the given number of cells and clusters."""
        graph = self.graph
        clusters = min(clusters, self.count)
        cells = min(cells, clusters * self.window)
        centred = graph.node("Sub", queries, self.middle)
        cell = self._nearest_cells(centred, per_image, clusters, cells)
        query = graph.node("Unsqueeze", centred, graph.constant([1]))
        found = []
        for part in _parts(cells, per_image * CELL * self.length * 4):
            some = graph.node("Gather", cell, graph.constant(np.arange(part.start, part.stop)), axis=1)  # (Q, c)
            offset = graph.node("Sub", query, graph.node("Gather", self.centers, some))  # (Q, c, D)
            column = graph.node("Unsqueeze", offset, graph.constant([3]))
            product = graph.node("MatMul", graph.node("Gather", self.rows, some), column)  # (Q, c, CELL, 1)
            product = graph.node("Squeeze", product, graph.constant([3]))
            # |q − b|² = |q − c|² + |b − c|² − 2 (q − c)·(b − c)
            own = graph.node("Sub", graph.node("Gather", self.squares, some), graph.node("Add", product, product))
            least = graph.node("ReduceMin", own, axes=[2], keepdims=0)  # (Q, c)
            found.append(graph.node("Add", least, graph.node("ReduceSumSquare", offset, axes=[2], keepdims=0)))
        squares = graph.node("Concat", *found, axis=1) if len(found) > 1 else found[0]
        return graph.node("ReduceMin", squares, axes=[1], keepdims=1)

    def _nearest_cells(self, centred: str, per_image: int, clusters: int, cells: int) -> str:
        """(Q, cells): the cells nearest to each query (Q, D), relative to the middle, in its nearest clusters."""
        graph = self.graph
        column = graph.node("Unsqueeze", centred, graph.constant([2]))  # (Q, D, 1)
        # a·c − |c|²/2 is −|a − c|²/2, but for a number that depends only on the query a.
        closeness = graph.node("Gemm", centred, self.clusters, self.cluster_halves)
        _, nearest = graph.nodes("TopK", closeness, graph.constant([clusters]), outputs=2, axis=1)
        first = graph.node("Gather", self.first, nearest)  # (Q, clusters)
        within = graph.constant(np.arange(self.window, dtype=np.int64))
        numbers, values = [], []
        for part in _parts(clusters, per_image * self.window * self.length * 4):
            some = graph.node("Gather", first, graph.constant(np.arange(part.start, part.stop)), axis=1)
            number = graph.node("Add", graph.node("Unsqueeze", some, graph.constant([2])), within)
            number = graph.node("Reshape", number, graph.constant([0, -1]))  # (Q, part · window)
            centers = graph.node("Gather", self.centers, number)
            product = graph.node("Squeeze", graph.node("MatMul", centers, column), graph.constant([2]))
            numbers.append(number)
            values.append(graph.node("Add", product, graph.node("Gather", self.center_halves, number)))
        joined = [graph.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0] for parts in (values, numbers)]
        _, place = graph.nodes("TopK", joined[0], graph.constant([cells]), outputs=2, axis=1)
        return graph.node("GatherElements", joined[1], place, axis=1)


def _parts(count: int, bytes_each: int) -> Iterator[range]:
    """Ranges of 0 … count − 1 whose vectors fit the budget, or of one at a time."""
    at_once = max(1, BUDGET // bytes_each)
    for start in range(0, count, at_once):
        yield range(start, min(start + at_once, count))
