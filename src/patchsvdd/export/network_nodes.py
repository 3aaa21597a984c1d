"""Graph nodes for normalisation, encoder and critic. Each function returns the name of its output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from patchsvdd.core.onnx_writer import Graph
from patchsvdd.core.roi import RoiCrop
from patchsvdd.critic.network import TrainedCritic, gaussian_kernel
from patchsvdd.critic.onnx_logits import add_logits, add_padding
from patchsvdd.encoder.networks import SLOPE, HierarchicalEncoder, Merge, PatchEncoder
from patchsvdd.encoder.onnx_features import add_convolution, add_features, array_of
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.images.normalization import LEAST_CONTRAST, PER_IMAGE, Normalization


def add_normalization(graph: Graph, normalization: Normalization, pixels: str, size: tuple[int, int]) -> str:
    """Normalised images (N, 3, H, W) from pixels (N, 3, H, W) float32 in 0 … 255 of that size."""
    scale = graph.constant(array_of(normalization.scale))
    if normalization.centering not in PER_IMAGE:
        mean = normalization.mean
        if mean.shape[1:] not in ((1, 1), size):
            mean = mean.mean((1, 2), keepdim=True)
        return graph.node("Div", graph.node("Sub", pixels, graph.constant(array_of(mean))), scale)
    image_mean = _add_mean(graph, pixels, (3, 2))
    centred = graph.node("Div", graph.node("Sub", pixels, image_mean), scale)
    if normalization.centering == "image":
        return centred
    squared = graph.node("Mul", centred, centred)
    contrast = graph.node("Sqrt", _add_mean(graph, squared, (3, 2, 1)))
    return graph.node("Div", centred, graph.node("Max", contrast, graph.constant(LEAST_CONTRAST)))


def _add_mean(graph: Graph, values: str, axes: Sequence[int]) -> str:
    """The mean over axes, one after the other.

    ONNX Runtime adds up all values of a mean in one float32 number: over a whole image it loses four digits, and the
    critic's features amplify that.
    """
    for axis in axes:
        values = graph.node("ReduceMean", values, axes=[axis], keepdims=1)
    return values


def add_roi_crop(graph: Graph, frame: RoiCrop, pixels: str) -> str:
    """The crop (N, 3, h, w) of pixels (N, 3, H, W) float32, with pixels outside the region filled."""
    top, left, bottom, right = frame.box
    crop = graph.node("Slice", pixels, *(graph.constant(bounds) for bounds in ([top, left], [bottom, right], [2, 3])))
    if frame.area is None:
        return crop
    fill = graph.constant(np.array(frame.fill, np.float32).reshape(1, 3, 1, 1))
    return graph.node("Where", graph.constant(frame.area.mask), crop, fill)


# Encoder


def add_embeddings(graph: Graph, encoder: PatchEncoder, grids: Sequence[PatchGrid], images: str) -> list[str]:
    """Embeddings (N · P, D) on each grid; raise ConfigError for raw pixels."""
    natives = []
    for part in encoder.parts:
        step = part.feature_step(grids)
        natives.append((part, add_features(graph, part, step, images), part.alignment * step))  # (N, D, h, w)
    embeddings = []
    for grid in grids:
        size = grid.scale.patch_size
        part, native, spacing = next(one for one in natives if size in one[0].patch_sizes)
        rows, columns = ([place // spacing for place in places] for places in (grid.rows, grid.columns))
        level = part.patch_sizes.index(size)
        level_map = _add_level(graph, part, level, native, spacing, rows, columns)  # (N, D, rows, columns)
        values = graph.node("Transpose", level_map, perm=[0, 2, 3, 1])
        shape = graph.node("Shape", values, start=3)  # (1,): D
        if grid.kept is not None:
            places = graph.constant([-1, grid.shape[0] * grid.shape[1]])
            every = graph.node("Reshape", values, graph.node("Concat", places, shape, axis=0))  # (N, patches, D)
            values = graph.node("Gather", every, graph.constant(grid.kept.numpy()), axis=1)
        embeddings.append(graph.node("Reshape", values, graph.node("Concat", graph.constant([-1]), shape, axis=0)))
    return embeddings


def _add_level(
    graph: Graph,
    encoder: PatchEncoder,
    level: int,
    native: str,
    spacing: int,
    rows: Sequence[int],
    columns: Sequence[int],
) -> str:
    """Embeddings (N, D, len(rows), len(columns)) of one level, like ``HierarchicalEncoder._at``."""
    if level == 0:
        picked = graph.node("Gather", native, graph.constant(list(rows)), axis=2)
        return graph.node("Gather", picked, graph.constant(list(columns)), axis=3)
    assert isinstance(encoder, HierarchicalEncoder)
    child = encoder.patch_sizes[level - 1] // spacing
    both_rows = [place for row in rows for place in (row, row + child)]
    both_columns = [place for column in columns for place in (column, column + child)]
    parts = _add_level(graph, encoder, level - 1, native, spacing, both_rows, both_columns)
    merge = encoder.merges[level - 1]
    assert isinstance(merge, Merge)
    gathered = graph.node("LeakyRelu", add_convolution(graph, merge.gather, parts, stride=2), alpha=SLOPE)
    return graph.node("Tanh", add_convolution(graph, merge.mix, gathered))


# Critic


def add_critic(graph: Graph, critic: TrainedCritic, pixels: str, size: tuple[int, int]) -> str:
    """The critic's maps (N, 1, H, W) in 0 … 1 of pixels (N, 3, H, W) float32 in 0 … 255."""
    images = add_normalization(graph, critic.normalization, pixels, size)
    logits = add_logits(graph, critic, images, size)
    maps = graph.node("Sigmoid", logits)
    sizes = graph.node(
        "Concat", graph.node("Shape", maps, start=0, end=2), graph.constant(list(size)), axis=0
    )  # (N, 1, H, W)
    maps = graph.node("Resize", maps, "", "", sizes, mode="linear", coordinate_transformation_mode="half_pixel")
    return _add_gaussian(graph, maps, critic.smoothing * min(size) / 256, size)


def _add_gaussian(graph: Graph, maps: str, sigma: float, size: tuple[int, int]) -> str:
    """Maps (N, 1, H, W) smoothed like ``critic.gaussian``."""
    kernel = gaussian_kernel(sigma, size)
    radius = len(kernel) // 2
    maps = add_padding(graph, maps, [radius, radius], [radius, radius])
    maps = graph.node("Conv", maps, graph.constant(array_of(kernel.view(1, 1, -1, 1))))
    return graph.node("Conv", maps, graph.constant(array_of(kernel.view(1, 1, 1, -1))))
