"""Write ONNX files field by field; a few dozen node types need no converter and no dependency."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

IR_VERSION = 8
OPSET = 17
LIMIT = 2**31 - 1
"""Bytes of the largest Protocol Buffers message that readers accept."""
ELEMENTS = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10}
"""TensorProto.DataType."""

Pieces: TypeAlias = "list[bytes | memoryview]"
"""A message as a list of buffers, so that large arrays are not copied."""
Attribute: TypeAlias = "int | float | str | Sequence[int] | Graph"
Shape: TypeAlias = "Sequence[int | str]"
"""Sizes, or names of variable sizes."""


@dataclass
class Graph:
    """A graph under construction; nodes and constants get unique names."""

    name: str
    prefix: str = ""
    """Prefix of every name, so that a nested graph does not hide names of the outer one."""
    _parts: Pieces = field(default_factory=list)
    _count: int = 0

    def constant(self, value: NDArray[Any] | np.generic | Sequence[int] | float, name: str | None = None) -> str:
        """Add a constant and return its name; integers become int64, floats float32."""
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        name = name or self._new("constant")
        sizes = b"".join(encode(1, size) for size in array.shape)
        about = sizes + encode(2, ELEMENTS[array.dtype.name]) + encode(8, name)
        raw: Pieces = [array.reshape(-1).view(np.uint8).data] if array.size else []  # GraphProto.initializer
        self._parts += message(5, [about, *message(9, raw)])
        return name

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Attribute) -> str:
        """Add a node with one output and return the output's name."""
        return self.nodes(operator, *inputs, outputs=[output or self._new(operator)], **attributes)[0]

    def nodes(self, operator: str, *inputs: str, outputs: int | Sequence[str], **attributes: Attribute) -> list[str]:
        """Add a node and return the names of its outputs."""
        names = [self._new(operator) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        about = b"".join(encode(1, name) for name in inputs) + b"".join(encode(2, name) for name in names)
        # Nodes need no names, but optimisers derive names from them, which must be unique.
        content: Pieces = [about + encode(3, f"{operator} of {names[0]}") + encode(4, operator)]
        for key, value in attributes.items():
            content += _attribute(key, value)
        self._parts += message(1, content)
        return names

    def input(self, name: str, dtype: str, shape: Shape) -> str:
        """Declare an input; a constant of the same name is its default."""
        self._parts += message(11, [_value(name, dtype, shape)])
        return name

    def output(self, name: str, dtype: str, shape: Shape) -> None:
        """Declare an output."""
        self._parts += message(12, [_value(name, dtype, shape)])

    def pieces(self) -> Pieces:
        """Return the content of a GraphProto."""
        return [*self._parts, encode(2, self.name)]

    def _new(self, what: str) -> str:
        self._count += 1
        return f"{self.prefix}{what.lower()}{self._count}"


def model_pieces(graph: Graph, metadata: Mapping[str, str] | None = None, producer: str = "") -> Pieces:
    """Return the file of a graph with its metadata."""
    head = encode(1, IR_VERSION) + (encode(2, producer) if producer else b"")
    opset = encode(8, encode(1, "") + encode(2, OPSET))
    texts = [metadata_entry(key, value) for key, value in (metadata or {}).items()]
    return [head, *message(7, graph.pieces()), opset, *texts]


def metadata_entry(key: str, value: str) -> bytes:
    """Return one entry of ModelProto.metadata_props."""
    return encode(14, encode(1, key) + encode(2, value))


def message(number: int, content: Pieces) -> Pieces:
    """Return a field that holds a message."""
    length = sum(len(part) for part in content)
    return [_varint(number << 3 | 2) + _varint(length), *content]


def encode(number: int, value: int | float | str | bytes) -> bytes:
    """Return one Protocol Buffers field: int as varint, float as 32 bits, str and bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _attribute(name: str, value: Attribute) -> Pieces:
    """Return a NodeProto.attribute of the value's type."""
    if isinstance(value, Graph):
        return message(5, [encode(1, name), *message(6, value.pieces()), encode(20, 5)])
    if isinstance(value, int):
        content = encode(3, value) + encode(20, 2)
    elif isinstance(value, float):
        content = encode(2, value) + encode(20, 1)
    elif isinstance(value, str):
        content = encode(4, value) + encode(20, 3)
    else:
        content = b"".join(encode(8, one) for one in value) + encode(20, 7)
    return message(5, [encode(1, name) + content])


def _value(name: str, dtype: str, shape: Shape) -> bytes:
    """Return the content of a ValueInfoProto."""
    sizes = b"".join(encode(1, encode(2 if isinstance(size, str) else 1, size)) for size in shape)
    return encode(1, name) + encode(2, encode(1, encode(1, ELEMENTS[dtype]) + encode(2, sizes)))


def _varint(value: int) -> bytes:
    """Encode an integer in seven bits per byte, lowest first; the eighth bit marks continuation. Negative: 64-bit two's
    complement."""
    value &= 2**64 - 1
    groups = [value >> shift & 127 for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])
