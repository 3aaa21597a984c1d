"""The critic's logits for engines, also as an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from patchsvdd.core.onnx_writer import Graph, model_pieces
from patchsvdd.critic.defect_filters import DefectFilters
from patchsvdd.critic.feature_coreset import LEAST, FeatureCoreset
from patchsvdd.critic.network import FEATURE_STEP, Critic, Residual, TrainedCritic, UpsampleBlock
from patchsvdd.critic.tiles import COARSEST, STEP
from patchsvdd.encoder.onnx_features import add_convolution, array_of


@dataclass(frozen=True)
class CriticLogits:
    """The logits of normalised images of one size, which engines compute."""

    critic: TrainedCritic
    size: tuple[int, int]
    """(height, width) of the images."""

    @property
    def has_graph(self) -> bool:
        """Always true."""
        return True

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images (N, 3, H, W) → logits (N, ⌈H/4⌉, ⌈W/4⌉)."""
        return self.critic.logits_of(images)

    def graph(self) -> bytes:
        """ONNX file "images" (N, 3, H, W) float32 → "logits" (N, ⌈H/4⌉, ⌈W/4⌉)."""
        graph = Graph("critic")
        images = graph.input("images", "float32", ["count", 3, *self.size])
        logits = add_logits(graph, self.critic, images, self.size)
        graph.node("Squeeze", logits, graph.constant([1]), output="logits")
        graph.output("logits", "float32", ["count", *_shrunk(self.size, STEP)])
        return b"".join(model_pieces(graph))


def add_logits(graph: Graph, critic: TrainedCritic, images: str, size: tuple[int, int]) -> str:
    """Logits (N, 1, ⌈H/4⌉, ⌈W/4⌉) of normalised images (N, 3, H, W) of that size."""
    missing = [-length % COARSEST for length in size]
    padded = add_padding(graph, images, [0, 0], missing)
    logits, quarter, features = _add_network(graph, critic.folded, padded)
    logits = _add_cut(graph, logits, _shrunk(size, STEP))
    if critic.measures_features:
        assert critic.feature_coreset is not None
        seen = _add_cut(graph, features, _shrunk(size, FEATURE_STEP))
        evidence = _add_evidence(graph, critic.feature_coreset, seen)
        logits = graph.node("Add", logits, _add_cut(graph, evidence, _shrunk(size, STEP)))
    if critic.filters is None:
        return logits
    pooled = graph.node("AveragePool", quarter, kernel_shape=[2, 2], strides=[2, 2])
    stages = _add_cut(graph, graph.node("Concat", pooled, features, axis=1), _shrunk(size, FEATURE_STEP))
    highest = graph.node("MaxPool", logits, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    early = graph.node("Concat", stages, highest, axis=1)
    found = _add_filters(graph, critic.filters, early)
    return graph.node("Max", logits, _add_cut(graph, found, _shrunk(size, STEP)))


def _shrunk(size: tuple[int, int], step: int) -> list[int]:
    return [-(-length // step) for length in size]


def _add_cut(graph: Graph, maps: str, size: Sequence[int]) -> str:
    """The first ``size`` rows and columns of maps (N, C, h, w)."""
    return graph.node("Slice", maps, *(graph.constant(bounds) for bounds in ([0, 0], list(size), [2, 3])))


def _add_evidence(graph: Graph, known: FeatureCoreset, features: str) -> str:
    """What features (N, C, h, w) add to logits (N, 1, 2h, 2w), like ``FeatureCoreset.evidence``."""
    mean = _add_smoothing(graph, features)
    centred = graph.node("Sub", mean, graph.constant(array_of(known.mean[None, :, None, None])))
    standard = graph.node("Div", centred, graph.constant(array_of(known.scale[None, :, None, None])))
    weights, bias = -2 * known.rows[:, :, None, None], known.rows.square().sum(1)
    beyond = graph.node("Conv", standard, graph.constant(array_of(weights)), graph.constant(array_of(bias)))
    least = graph.node("ReduceMin", beyond, axes=[1], keepdims=1)
    squared = graph.node("Add", least, graph.node("ReduceSumSquare", standard, axes=[1], keepdims=1))
    scaled = graph.node("Mul", squared, graph.constant(np.array(1 / known.rows.shape[1], np.float32)))
    floor = graph.node("Max", scaled, graph.constant(np.array(LEAST**2, np.float32)))
    # The logarithm of the root is half of that of the square.
    risen = graph.node("Sub", graph.node("Log", floor), graph.constant(np.array(2 * float(known.typical), np.float32)))
    raised = graph.node("Mul", risen, graph.constant(np.array(float(known.weight) / 2, np.float32)))
    return _add_doubling(graph, raised)


def _add_filters(graph: Graph, filters: DefectFilters, early: str) -> str:
    """Logits (N, 1, 2h, 2w) of early features (N, C, h, w), like ``DefectFilters.logits``."""
    weights, bias = filters.weights[:, :, None, None], filters.offsets + filters.levels
    outputs = graph.node(
        "Conv", _add_smoothing(graph, early), graph.constant(array_of(weights)), graph.constant(array_of(bias))
    )
    return _add_doubling(graph, graph.node("ReduceMax", outputs, axes=[1], keepdims=1))


def _add_smoothing(graph: Graph, features: str) -> str:
    """The mean of each feature and its neighbours, like ``feature_coreset.smoothed``."""
    return graph.node("AveragePool", features, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])


def _add_doubling(graph: Graph, maps: str) -> str:
    scales = graph.constant(np.array([1, 1, 2, 2], np.float32))
    return graph.node("Resize", maps, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")


def _add_network(graph: Graph, critic: Critic, images: str) -> tuple[str, str, str]:
    """Logits (N, 1, H/4, W/4), and the layers (N, C, H/4, W/4) and (N, 2C, H/8, W/8).

    The sides of the images are multiples of COARSEST.
    """

    def through(stages: nn.Module, name: str) -> str:
        for stage in stages.children() if isinstance(stages, nn.Sequential) else [stages]:
            assert isinstance(stage, Residual)
            name = _add_residual(graph, stage, name)
        return name

    half = graph.node("Relu", add_convolution(graph, critic.stem, images))
    quarter = through(critic.quarter, half)
    eighth = through(critic.eighth, quarter)
    sixteenth = through(critic.sixteenth, eighth)
    joined = _add_upsample_block(graph, critic.to_sixteenth, through(critic.deepest, sixteenth), sixteenth)
    joined = _add_upsample_block(graph, critic.to_eighth, joined, eighth)
    joined = _add_upsample_block(graph, critic.to_quarter, joined, quarter)
    return add_convolution(graph, critic.head, joined), quarter, eighth


def _add_residual(graph: Graph, block: Residual, images: str) -> str:
    inner = graph.node("Relu", add_convolution(graph, block.first, images))
    inner = add_convolution(graph, block.second, inner)
    if block.skip is not None:
        skip = graph.constant(array_of(block.skip.weight))
        images = graph.node("Conv", images, skip, strides=block.skip.stride)
    return graph.node("Relu", graph.node("Add", inner, images))


def _add_upsample_block(graph: Graph, block: UpsampleBlock, coarse: str, fine: str) -> str:
    scales = graph.constant(np.array([1, 1, 2, 2], np.float32))
    modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    doubled = graph.node("Resize", coarse, "", scales, **modes)
    return graph.node("Relu", add_convolution(graph, block.mix, graph.node("Concat", doubled, fine, axis=1)))


def add_padding(graph: Graph, images: str, before: Sequence[int], after: Sequence[int]) -> str:
    """Images padded by replicating their edges, by this many rows and columns."""
    if not any((*before, *after)):
        return images
    return graph.node("Pad", images, graph.constant([0, 0, *before, 0, 0, *after]), mode="edge")
