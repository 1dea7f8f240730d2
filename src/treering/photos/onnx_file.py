"""A strict reader of ONNX files, which knows what exported files need and refuses everything else.

An ONNX file is nested messages of protocol buffers. Other readers skip fields that they do not know, and may see a
field where this one sees none. So every field has to be one of those below, written in the one usual way, and every
operator one that computes numbers from numbers: none reads files, repeats or chooses parts of the graph, or draws.
"""

from __future__ import annotations

import math
from typing import Any

from treering.checked import require
from treering.errors import TreeringError

MOST_FIELDS = 300_000
"""The most fields of all messages; an operation and what is said of it take about 65."""
MOST_NODES = 20_000
"""The most operations of the graph."""
BYTES_OF_KIND = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""The number of each kind of element in onnx.proto, and the bytes that an element takes."""
ATTRIBUTES = frozenset({1, 2, 3, 4, 6, 7, 8})
"""The kinds of attributes: numbers, texts, lists of these, and tensors."""
MOST_DIMENSIONS = 16
"""The most dimensions of a tensor."""
MOST_NAME = 40
"""How much of a name is told in a message."""

# Numbers are those of the fields in onnx.proto. A field is a "number", a "float", "bytes" or another message; a star
# says that it may come more than once. Sparse tensors, functions, graphs within operations and the places of other
# files are left out.
FIELDS: dict[str, dict[int, str]] = {
    "model": {
        **{1: "number", 2: "bytes", 3: "bytes", 4: "bytes", 5: "number", 6: "bytes"},
        **{7: "graph", 8: "operators*", 14: "entry*"},
    },
    "operators": {1: "bytes", 2: "number"},
    "entry": {1: "bytes", 2: "bytes"},
    "graph": {
        **{1: "operation*", 2: "bytes", 5: "tensor*", 10: "bytes", 11: "value*", 12: "value*", 13: "value*"},
        **{16: "entry*"},
    },
    "operation": {
        **{1: "bytes*", 2: "bytes*", 3: "bytes", 4: "bytes", 5: "attribute*", 6: "bytes", 7: "bytes", 9: "entry*"},
    },
    "attribute": {
        **{1: "bytes", 2: "float", 3: "number", 4: "bytes", 5: "tensor", 7: "float*", 8: "number*", 9: "bytes*"},
        **{13: "bytes", 20: "number"},
    },
    "tensor": {1: "number*", 2: "number", 8: "bytes", 9: "bytes", 12: "bytes", 16: "entry*"},
    "value": {1: "bytes", 2: "type", 3: "bytes", 4: "entry*"},
    "type": {1: "tensor type", 6: "bytes"},
    "tensor type": {1: "number", 2: "shape"},
    "shape": {1: "dimension*"},
    "dimension": {1: "number", 2: "bytes", 3: "bytes"},
}
REASONS = {
    ("model", 25): "its graph has functions of its own",
    ("graph", 15): "its graph has sparse tensors",
    ("attribute", 6): "its graph has loops or branches",
    ("attribute", 11): "its graph has loops or branches",
    ("attribute", 22): "its graph has sparse tensors",
    ("attribute", 23): "its graph has sparse tensors",
    ("tensor", 13): "its weights are in other files",
    ("tensor", 14): "its weights are in other files",
}
"""What is wrong with a file that has one of these fields; of others it is said that they are not known."""
NUMERIC = """
Abs Add And Cast CastLike Ceil Celu Clip Cos Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid
HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow
Reciprocal Relu Round Selu Sigmoid Sign Sin Softplus Softsign Sqrt Sub Sum Tanh ThresholdedRelu Where Xor
Conv ConvTranspose Einsum Gemm MatMul AveragePool GlobalAveragePool GlobalMaxPool MaxPool
BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LpNormalization LRN RMSNormalization
ArgMax ArgMin CumSum LogSoftmax ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
ReduceProd ReduceSum ReduceSumSquare Softmax TopK
Concat Constant DepthToSpace Expand Flatten Gather GatherElements GatherND Pad Range Reshape Resize ScatterElements
ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze
"""
OPERATORS = frozenset(NUMERIC.split())
"""The operators that a file may have; all are ONNX's own."""

Message = dict[int, list[Any]]
"""The values of each field, by its number: whole numbers, bytes or messages."""


def facts(content: bytes) -> dict[str, bytes]:
    """Return what a file says of itself, once all of it is known to be harmless; raise ValueError if it is damaged."""
    require(content[4:8] != b"ORTM", "it is of onnxruntime's own format")
    model = _Reader().message(memoryview(content), "model")
    require(7 in model, "it has no graph")
    graph = model[7][0]
    operations = graph.get(1, [])
    require(len(operations) <= MOST_NODES, f"its graph has more than {MOST_NODES:,} operations")
    for operation in operations:
        _check_operation(operation)
    for tensor in graph.get(5, []):
        _check_tensor(tensor)
    found: dict[str, bytes] = {}
    for entry in model.get(14, []):
        key = _bytes(entry, 1).decode()
        require(key not in found, f"it says {key[:MOST_NAME]!r} of itself twice")
        found[key] = _bytes(entry, 2)
    return found


def _check_operation(operation: Message) -> None:
    """Raise unless it is one of ONNX's own operators that exported files may have."""
    name, domain = (_bytes(operation, number)[:MOST_NAME].decode("utf-8", "replace") for number in (4, 7))
    require(domain in ("", "ai.onnx"), f"its graph has operators that are not ONNX's own, of {domain!r}")
    require(name in OPERATORS, f"its graph has the operator {name!r}, which exported files may not have")
    for attribute in operation.get(5, []):
        require(attribute.get(20) is None or attribute[20][0] in ATTRIBUTES, "it has attributes of an unknown kind")
        for tensor in attribute.get(5, []):
            _check_tensor(tensor)


def _check_tensor(tensor: Message) -> None:
    """Raise unless the file has every element of this tensor, and not one more."""
    kind, shape = tensor.get(2, [0])[0], tensor.get(1, [])
    require(kind in BYTES_OF_KIND, f"it has a tensor of the unknown kind {kind}")
    require(len(shape) <= MOST_DIMENSIONS, f"it has a tensor of more than {MOST_DIMENSIONS} dimensions")
    expected = math.prod(shape) * BYTES_OF_KIND[kind]  # a negative number is a huge one here
    require(len(_content(tensor, 9)) == expected, "a tensor in it has another size than it says")


def _content(message: Message, number: int) -> memoryview:
    return message[number][0] if number in message else memoryview(b"")


def _bytes(message: Message, number: int) -> bytes:
    return bytes(_content(message, number))


class _Reader:
    """Reads messages of protocol buffers as long as they have no more fields than are allowed."""

    def __init__(self) -> None:
        self.left = MOST_FIELDS

    def message(self, content: memoryview, name: str) -> Message:
        """Return the values of a message's fields; raise unless each is known and written in the usual way."""
        known, at = FIELDS[name], 0
        found: Message = {}
        while at < len(content):
            self._count()
            tag, at = _number(content, at)
            number, wire = tag >> 3, tag & 7
            if number not in known:
                unknown = f"it has a field {number:,} of a {name}, which exported files may not have"
                raise TreeringError(REASONS.get((name, number), unknown))
            kind = known[number].rstrip("*")
            values, at = self._values(content, at, wire, kind, known[number].endswith("*"))
            before = found.setdefault(number, [])
            require(not before or known[number].endswith("*"), f"it has a field {number} of a {name} twice")
            before += values
        return found

    def _values(self, content: memoryview, at: int, wire: int, kind: str, many: bool) -> tuple[list[Any], int]:
        """Return what a field holds, and the place behind it."""
        if kind == "number" and wire == 0:
            value, at = _number(content, at)
            return [value], at
        if kind == "float" and wire == 5:
            return [_part(content, at, 4)], at + 4
        if wire != 2 or (kind in ("number", "float") and not many):
            raise ValueError("a field of another kind than it should be")
        size, at = _number(content, at)
        part = _part(content, at, size)
        if kind == "number":
            return self._packed(part), at + size
        return [part if kind in ("bytes", "float") else self.message(part, kind)], at + size

    def _packed(self, content: memoryview) -> list[int]:
        """Return numbers that are written one behind the other."""
        found, at = [], 0
        while at < len(content):
            self._count()
            value, at = _number(content, at)
            found.append(value)
        return found

    def _count(self) -> None:
        self.left -= 1
        require(self.left >= 0, f"it has more than {MOST_FIELDS:,} fields")


def _part(content: memoryview, at: int, size: int) -> memoryview:
    if at + size > len(content):
        raise ValueError("it is cut short")
    return content[at : at + size]


def _number(content: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at this place, seven bits a byte, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at + shift // 7]
        value |= (byte & 127) << shift
        if byte < 128:
            if value >= 2**64 or (shift and not byte):
                raise ValueError("a number that is written in an unusual way")
            return value, at + shift // 7 + 1
    raise ValueError("a number of more than ten bytes")
