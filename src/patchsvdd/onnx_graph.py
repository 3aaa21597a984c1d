"""The features as an ONNX graph, written byte by byte: a plain stack of convolutions needs no converter."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from torch import Tensor, nn

from patchsvdd.encoder import SLOPE, FlatEncoder, HierarchicalEncoder, PatchEncoder
from patchsvdd.errors import ConfigError


def features_graph(encoder: PatchEncoder, step: int) -> bytes:
    """An ONNX file: "images" (N, 3, h, w) float32 → "features" (N, C, h', w') in −1 … 1; ConfigError for raw pixels."""
    if isinstance(encoder, HierarchicalEncoder):
        modules = [*encoder.small.body, encoder.small.head]
    elif isinstance(encoder, FlatEncoder):
        modules = [*encoder.layers, encoder.head]
    else:
        raise ConfigError("raw pixels have no features to compute; use the engine torch, or another encoder")
    convolutions = [module for module in modules if isinstance(module, nn.Conv2d)]
    parts, name = [], "images"
    for index, layer in enumerate(convolutions):
        last = layer is convolutions[-1]
        weights = [f"weight{index}", f"bias{index}"]
        parts += [_constant(label, value) for label, value in zip(weights, (layer.weight, layer.bias), strict=True)]
        stride = (step, step) if last else layer.stride
        parts.append(_node("Conv", [name, *weights], f"sum{index}", _integers("strides", stride)))
        name = "features" if last else f"hidden{index}"
        leaky = _node("LeakyRelu", [f"sum{index}"], name, _number("alpha", SLOPE))
        parts.append(_node("Tanh", [f"sum{index}"], name) if last else leaky)
    channels = convolutions[-1].out_channels
    # GraphProto: name, input, output
    parts += [_field(2, "features"), _field(11, _maps("images", 3)), _field(12, _maps("features", channels))]
    opset = _field(1, "") + _field(2, 17)
    return _field(1, 8) + _field(7, b"".join(parts)) + _field(8, opset)  # ModelProto: ir_version, graph, opset_import


def _node(operator: str, inputs: Sequence[str], output: str, attribute: bytes = b"") -> bytes:
    """GraphProto.node."""
    names = b"".join(_field(1, name) for name in inputs)
    return _field(1, names + _field(2, output) + _field(4, operator) + attribute)


def _integers(name: str, values: Sequence[int]) -> bytes:
    """NodeProto.attribute of type INTS."""
    return _field(5, _field(1, name) + b"".join(_field(8, value) for value in values) + _field(20, 7))


def _number(name: str, value: float) -> bytes:
    """NodeProto.attribute of type FLOAT."""
    return _field(5, _field(1, name) + _field(2, value) + _field(20, 1))


def _constant(name: str, value: Tensor | None) -> bytes:
    """GraphProto.initializer of float32."""
    assert value is not None, "every convolution has a bias"
    array = value.detach().float().cpu().contiguous().numpy().astype("<f4")
    shape = b"".join(_field(1, size) for size in array.shape)
    return _field(5, shape + _field(2, 1) + _field(8, name) + _field(9, array.tobytes()))


def _maps(name: str, channels: int) -> bytes:
    """ValueInfoProto of float32 (N, channels, any height, any width)."""
    sizes: list[str | int] = ["count", channels, f"{name} height", f"{name} width"]
    shape = b"".join(_field(1, _field(2 if isinstance(size, str) else 1, size)) for size in sizes)
    return _field(1, name) + _field(2, _field(1, _field(1, 1) + _field(2, shape)))


def _field(number: int, value: int | float | str | bytes) -> bytes:
    """One field of a Protocol Buffers message: int as varint, float as 32 bits, text and bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; the eighth says that more follow."""
    groups = [value >> shift & 127 for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])
