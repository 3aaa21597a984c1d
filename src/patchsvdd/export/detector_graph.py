"""The complete detector as one ONNX graph, from uint8 pixels to map, score and verdict."""

from __future__ import annotations

from collections.abc import Mapping

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.onnx_writer import Graph
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.encoder.networks import RawPixels
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.export.map_nodes import add_fusion, add_mask, add_patch_average, add_positions, add_roi_padding
from patchsvdd.export.network_nodes import add_critic, add_embeddings, add_normalization, add_roi_crop
from patchsvdd.export.search_nodes import add_distances
from patchsvdd.export.tree_nodes import add_tree_distances
from patchsvdd.memory.cell_tree import CellTree
from patchsvdd.runtime.contract import IMAGES, IS_ANOMALOUS, MAP, SCORE, THRESHOLD
from patchsvdd.scoring.regions import round_down


def detector_graph(
    detector: PatchSVDD,
    size: tuple[int, int],
    *,
    threshold_has_default: bool,
    trees: Mapping[int, CellTree] | None = None,
) -> Graph:
    """The graph of a detector for images of (height, width); raise ConfigError for a raw-pixel encoder.

    ``trees`` holds the patch sizes whose memory is searched by cells; all others are searched exactly.

    uint8 "images" (N, H, W, 3), float32 "threshold" () → float32 "map" (N, H, W), "score" (N,); bool "is_anomalous"
    (N,).
    """
    refuse_raw(detector)
    graph = Graph("patchsvdd")
    images = graph.input(IMAGES, "uint8", ["count", *size, 3])
    threshold = graph.input(THRESHOLD, "float32", [])
    if threshold_has_default:
        graph.constant(round_down(detector.threshold), name=THRESHOLD)
    pixels = graph.node("Transpose", graph.node("Cast", images, to=1), perm=[0, 3, 1, 2])  # (N, 3, H, W) float32
    combined = graph.node("Identity", _add_map(graph, detector, pixels, size, trees or {}), output=MAP)
    score = graph.node("ReduceMax", combined, axes=[1, 2], keepdims=0, output=SCORE)
    graph.node("Greater", score, threshold, output=IS_ANOMALOUS)
    graph.output(MAP, "float32", ["count", *size])
    graph.output(SCORE, "float32", ["count"])
    graph.output(IS_ANOMALOUS, "bool", ["count"])
    return graph


def refuse_raw(detector: PatchSVDD) -> None:
    """Raise ConfigError if the model compares raw pixels, which cannot be exported."""
    if isinstance(detector.encoder, RawPixels):
        raise ConfigError(
            "a model that compares raw pixels (`encoder=raw`) cannot be exported: its memory is thousands of numbers "
            "for every patch; export one with another encoder"
        )


def refuse_min_area(detector: PatchSVDD) -> None:
    """Raise ConfigError if the verdict depends on more than the map's highest pixel."""
    if detector.min_area:
        raise ConfigError(
            f"a model with `min_area={detector.min_area}` cannot be exported: ONNX has no operator that finds "
            f"connected regions; recalibrate it with `min_area=0`, then export"
        )


def _add_map(
    graph: Graph, detector: PatchSVDD, pixels: str, size: tuple[int, int], trees: Mapping[int, CellTree]
) -> str:
    """Add the anomaly map of the whole image; return its name."""
    frame = detector.config.frame
    if frame is None:
        return _add_crop_map(graph, detector, pixels, size, trees)
    crop_map = _add_crop_map(graph, detector, add_roi_crop(graph, frame, pixels), frame.size, trees)
    return add_roi_padding(graph, frame, crop_map)


def _add_crop_map(
    graph: Graph, detector: PatchSVDD, pixels: str, size: tuple[int, int], trees: Mapping[int, CellTree]
) -> str:
    """Add ``detector.anomaly_maps(pixels).combined``; return its name."""
    grids = detector.embedder.grids(size)
    map_builder = detector.map_builder
    if map_builder.fusion is not None and detector.critic is not None and map_builder.ignores_memory:
        return add_fusion(graph, map_builder.fusion, "", _add_critic_maps(graph, detector.critic, pixels, grids[0]))
    images = add_normalization(graph, detector.normalization, pixels, size)
    product = ""
    for grid, queries in zip(grids, add_embeddings(graph, detector.encoder, grids, images), strict=True):
        patch_size = grid.scale.patch_size
        if patch_size in trees:
            distances = add_tree_distances(graph, trees[patch_size], queries, grid.count)
        else:
            distances = add_distances(graph, detector.memory.scales[patch_size], queries, grid.count)
        average = add_patch_average(graph, distances, grid)
        product = graph.node("Mul", product, average) if product else average
    if map_builder.positions is not None:
        product = add_positions(graph, map_builder.positions, product, size)
    if map_builder.fusion is None or detector.critic is None:
        return product
    if map_builder.fusion.share == 1:
        return add_fusion(graph, map_builder.fusion, product, "")
    return add_fusion(graph, map_builder.fusion, product, _add_critic_maps(graph, detector.critic, pixels, grids[0]))


def _add_critic_maps(graph: Graph, critic: TrainedCritic, pixels: str, grid: PatchGrid) -> str:
    """Add the critic's maps (N, H, W), 0 where pixels do not count; return their name."""
    maps = graph.node("Squeeze", add_critic(graph, critic, pixels, grid.image_size), graph.constant([1]))
    return add_mask(graph, maps, grid.area)
