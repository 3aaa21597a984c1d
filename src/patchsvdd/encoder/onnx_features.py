"""The encoder's features for engines: a plain stack of convolutions, also as an ONNX graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.onnx_writer import Graph, model_pieces
from patchsvdd.encoder.networks import SLOPE, PatchEncoder


@dataclass(frozen=True)
class EncoderFeatures:
    """``encoder.features(images, step)``, which engines compute."""

    encoder: PatchEncoder
    step: int

    @property
    def has_graph(self) -> bool:
        """False for raw pixels."""
        return self.encoder.stack() is not None

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images (N, 3, h, w) → features (N, C, h', w')."""
        return self.encoder.features(images, self.step)

    def graph(self) -> bytes:
        """ONNX file of ``features_graph``."""
        return features_graph(self.encoder, self.step)


def features_graph(encoder: PatchEncoder, step: int) -> bytes:
    """ONNX file "images" (N, 3, h, w) float32 → "features" (N, C, h', w') in −1 … 1; ConfigError for raw pixels."""
    graph = Graph("features")
    images = graph.input("images", "float32", ["count", 3, "images height", "images width"])
    channels = convolutions_of(encoder)[-1].out_channels
    add_features(graph, encoder, step, images, output="features")
    graph.output("features", "float32", ["count", channels, "features height", "features width"])
    return b"".join(model_pieces(graph))


def add_features(graph: Graph, encoder: PatchEncoder, step: int, images: str, output: str | None = None) -> str:
    """Add ``encoder.features(images, step)`` for normalised images (N, 3, h, w); return the output's name."""
    *body, head = convolutions_of(encoder)
    hidden = images
    if encoder.shrink > 1:
        square = [encoder.shrink, encoder.shrink]
        hidden = graph.node("AveragePool", images, kernel_shape=square, strides=square)
    for layer in body:
        hidden = graph.node("LeakyRelu", add_convolution(graph, layer, hidden), alpha=SLOPE)
    return graph.node("Tanh", add_convolution(graph, head, hidden, step), output=output)


def add_convolution(graph: Graph, layer: nn.Conv2d, inputs: str, stride: int | None = None) -> str:
    """Add a convolution with the layer's weights; ``stride`` replaces the layer's own. Return the output's name."""
    assert layer.bias is not None, "every convolution has a bias"
    assert isinstance(layer.padding, tuple)
    strides = layer.stride if stride is None else (stride, stride)
    weights = [graph.constant(array_of(value)) for value in (layer.weight, layer.bias)]
    return graph.node("Conv", inputs, *weights, strides=strides, pads=[*layer.padding, *layer.padding])


def convolutions_of(encoder: PatchEncoder) -> list[nn.Conv2d]:
    """The convolutions of ``features`` in order; raise ConfigError for raw pixels."""
    stack = encoder.stack()
    if stack is None:
        raise ConfigError("raw pixels have no features to compute; use the engine torch, or another encoder")
    return [module for module in (*stack[0], stack[1]) if isinstance(module, nn.Conv2d)]


def array_of(value: Tensor) -> NDArray[np.float32]:
    """Copy a tensor to a float32 array in host memory."""
    array: NDArray[np.float32] = value.detach().float().cpu().contiguous().numpy()
    return array
