"""Graph nodes from distances to the anomaly map. Each function returns the name of its output."""

from __future__ import annotations

import numpy as np
import torch

from patchsvdd.core.onnx_writer import Graph
from patchsvdd.core.roi import PixelMask, RoiCrop
from patchsvdd.encoder.onnx_features import array_of
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.scoring.anomaly_map import memberships
from patchsvdd.scoring.fusion import LEAST, MOST, SMALLEST, Fusion, TailQuantiles, knots_and_slopes
from patchsvdd.scoring.position_statistics import PositionStatistics

CPU = torch.device("cpu")


def add_patch_average(graph: Graph, distances: str, grid: PatchGrid) -> str:
    """Map (N, H, W) of the mean distance of the patches that cover each pixel, from distances (N · P,)."""
    down, across = memberships(grid, CPU)
    by_place = graph.node("Reshape", _add_left_out(graph, distances, grid), graph.constant([-1, *grid.shape]))
    rows = graph.node("MatMul", graph.constant(array_of(down)), by_place)
    return add_mask(graph, graph.node("MatMul", rows, graph.constant(array_of(across.T))), grid.area)


def _add_left_out(graph: Graph, distances: str, grid: PatchGrid) -> str:
    """Distances with a 0 for each patch that is left out."""
    kept = grid.kept
    if kept is None:
        return distances
    by_image = graph.node("Reshape", distances, graph.constant([-1, len(kept)]))
    padded = graph.node("Pad", by_image, graph.constant([0, 0, 0, 1]), mode="constant")
    number = np.full(grid.shape[0] * grid.shape[1], len(kept), np.int64)
    number[kept.numpy()] = np.arange(len(kept))
    return graph.node("Gather", padded, graph.constant(number), axis=1)


def add_mask(graph: Graph, maps: str, area: PixelMask | None) -> str:
    """Maps (N, H, W) that are 0 where pixels are not valid."""
    return maps if area is None else graph.node("Mul", maps, graph.constant(area.mask.astype(np.float32)))


def add_roi_padding(graph: Graph, frame: RoiCrop, maps: str) -> str:
    """Maps (N, H, W) of whole images from maps (N, h, w) of the crop, with 0 outside it."""
    top, left, bottom, right = frame.box
    padding = [0, top, left, 0, frame.full[0] - bottom, frame.full[1] - right]
    return graph.node("Pad", maps, graph.constant(padding), mode="constant")


def add_positions(graph: Graph, positions: PositionStatistics, product: str, size: tuple[int, int]) -> str:
    """The map divided by the typical value at each pixel; unchanged if the statistics are for another size."""
    if positions.mean.shape != size:
        return product
    return graph.node("Div", product, graph.constant(array_of(positions.mean + positions.deviation)))


def add_fusion(graph: Graph, fusion: Fusion, product: str, critic_maps: str) -> str:
    """Map (N, H, W) of rarity, from the memory's and the critic's maps (N, H, W)."""
    parts = []
    if fusion.share > 0:
        logarithm = graph.node("Log", graph.node("Add", product, graph.constant(SMALLEST)))
        parts.append((fusion.share, add_rarity(graph, fusion.memory, logarithm)))
    if fusion.share < 1:
        clipped = graph.node("Clip", critic_maps, graph.constant(LEAST), graph.constant(MOST))
        odds = graph.node("Div", clipped, graph.node("Sub", graph.constant(1.0), clipped))
        parts.append((1 - fusion.share, add_rarity(graph, fusion.critic, graph.node("Log", odds))))
    weighted = [graph.node("Mul", rarity, graph.constant(weight)) for weight, rarity in parts]
    return weighted[0] if len(weighted) == 1 else graph.node("Add", *weighted)


def add_rarity(graph: Graph, tail: TailQuantiles, values: str) -> str:
    """``tail(values)``: the knot below each value is found by binary search."""
    lines = [array_of(array) for array in knots_and_slopes(tail, CPU)]
    count = len(lines[0])
    steps = [2**power for power in reversed(range((count - 1).bit_length()))]
    above = np.full(2 ** len(steps) - count, np.finfo(np.float32).max, np.float32)
    knots = graph.constant(np.concatenate((lines[0], above)))
    index = graph.node("Cast", graph.node("Mul", values, graph.constant(0.0)), to=6)  # int32 zeros of that shape
    for step in steps:
        further = graph.node("Add", index, graph.constant(np.array(step, np.int32)))
        beyond = graph.node("Greater", values, graph.node("Gather", knots, further))
        index = graph.node("Where", beyond, further, index)
    knot = graph.node("Gather", knots, index)
    height, slope = (graph.node("Gather", graph.constant(array), index) for array in lines[1:])
    rise = graph.node("Mul", slope, graph.node("Sub", values, knot))
    return graph.node("Relu", graph.node("Add", height, rise))
