"""ONNX files that torch exported from a transformers model: their weights under their own names.

Only weights are taken, never the graph: the forward pass is ours, and the architecture's file
refuses what it does not know. Exporting keeps the names of most tensors; a matrix that was stored
transposed for a `MatMul` has lost its own, and gets it back from the node that uses it.

The few messages of the format that are needed (model.graph.node and .initializer) are read here:
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unweave.errors import UnweaveError

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_NAME, _NODE_KIND = 1, 3, 4
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9

_FLOAT = 1
_LONGEST_VARINT = 10  # bytes: 64 bits, 7 in each
_MOST_DIMS = 8


class _Node(NamedTuple):
    kind: str
    name: str
    inputs: tuple[str, ...]


def onnx_tensors(path: Path) -> dict[str, Tensor]:
    """The float32 weights of an exported model, by transformers' names.

    Raises:
        UnweaveError: When the file is not whole, or is not such an export.
    """
    try:
        data = memoryview(path.read_bytes())
        graph = next(value for number, value in _fields(data) if number == _MODEL_GRAPH)
        nodes, stored = _read_graph(graph)
    except OSError as error:
        raise UnweaveError(f"{path} cannot be read: {error.strerror}") from error
    except (StopIteration, IndexError, ValueError, TypeError, RuntimeError) as error:
        raise UnweaveError(
            f"{path} is not a whole ONNX file (truncated or damaged): fetch it again"
        ) from error
    # Constants of the graph are named by paths, "/bert/Constant_1", weights as in a state dict.
    weights = {n: t for n, t in stored.items() if not n.startswith(("/", "onnx::"))}
    for node in nodes:
        for name in node.inputs:
            if node.kind == "MatMul" and name.startswith("onnx::") and name in stored:
                module = node.name.removesuffix("/MatMul").strip("/").replace("/", ".")
                weights[f"{module}.weight"] = stored[name].T
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise UnweaveError(f"{path}: {name} holds values that are not finite: fetch it again")
    if not weights:
        raise UnweaveError(
            f"{path} holds no named float32 weights: expected torch's export of a transformers "
            "model, not quantised"
        )
    return weights


def _read_graph(graph: memoryview) -> tuple[list[_Node], dict[str, Tensor]]:
    nodes, tensors = [], {}
    for number, value in _fields(graph):
        if number == _GRAPH_NODE:
            nodes.append(_read_node(value))
        elif number == _GRAPH_INITIALIZER and (found := _read_tensor(value)):
            tensors[found[0]] = found[1]
    return nodes, tensors


def _read_node(message: memoryview) -> _Node:
    kind, name, inputs = "", "", []
    for number, value in _fields(message):
        if number == _NODE_INPUT:
            inputs.append(str(value, "utf-8"))
        elif number == _NODE_NAME:
            name = str(value, "utf-8")
        elif number == _NODE_KIND:
            kind = str(value, "utf-8")
    return _Node(kind, name, tuple(inputs))


def _read_tensor(message: memoryview) -> tuple[str, Tensor] | None:
    """A float32 tensor; None for one of another type (indices, shapes)."""
    shape, kind, name, raw = [], 0, "", memoryview(b"")
    for number, value in _fields(message):
        if number == _TENSOR_DIMS:
            # Written one by one, or packed in one field.
            shape += [value] if isinstance(value, int) else _packed(value)
        elif number == _TENSOR_TYPE:
            kind = value
        elif number == _TENSOR_NAME:
            name = str(value, "utf-8")
        elif number == _TENSOR_RAW:
            raw = value
    if len(shape) > _MOST_DIMS:
        raise ValueError("a tensor has too many dimensions")
    if kind != _FLOAT or len(raw) != 4 * math.prod(shape) or not len(raw):
        return None
    # A copy: within the file the numbers lie at any byte, and read-only.
    return name, torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(shape)


def _packed(message: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(message):
        value, at = _varint(message, at)
        values.append(value)
    return values


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Field numbers of a protobuf message, with their values: a number, or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
        if size < 0 or at + size > len(message):
            raise ValueError("the message ends within a field")
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number in 7 bits a byte, the lowest first, and where it ends."""
    value = 0
    for i in range(_LONGEST_VARINT):
        byte = message[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise ValueError("a number does not end")
