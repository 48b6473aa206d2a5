"""Weights of an ONNX model in eight bits."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, helper, numpy_helper  # pyright: ignore[reportMissingImports]

__all__ = ["SMALLEST", "quantise"]

SMALLEST = 64
"""Weights of fewer entries stay float32: the scales of their rows would cost what they save."""

LARGEST = 127


def quantise(proto: ModelProto) -> int:
    """Store the matrices and kernels of a model as int8 with a scale for each row, in place.

    w = scale * q with q from -127 to 127, computed as the file is loaded or run (DequantizeLinear);
    sums are in float32 as before. Rows are those of the axis that leaves the smaller relative
    error. Vectors stay float32.

    Args:
        proto: the model; its weights are initialisers of the outermost graph.

    Returns:
        How many entries are in eight bits now.
    """
    graph, front, count = proto.graph, [], 0
    for tensor in list(graph.initializer):
        weight = numpy_helper.to_array(tensor)
        if weight.dtype != np.float32 or sum(n > 1 for n in weight.shape) < 2:
            continue
        if weight.size < SMALLEST or not np.isfinite(weight).all():
            continue
        axis = min(range(min(weight.ndim, 2)), key=lambda axis: _parts(weight, axis)[2])
        quantised, scale, _ = _parts(weight, axis)
        name = tensor.name
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(quantised, f"{name}_q"))
        graph.initializer.append(numpy_helper.from_array(scale, f"{name}_s"))
        inputs = [f"{name}_q", f"{name}_s"]
        front.append(helper.make_node("DequantizeLinear", inputs, [name], axis=axis))
        count += weight.size
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*front, *rest])
    return count


def _parts(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, float]:
    """int8 entries, one scale for each index of an axis, and the error that they leave.

    That is the sum of its squares in each row and in each column, relative to the row's or column's
    own, so that small ones count as much as large ones.
    """
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scale = np.abs(weight).max(axis=others, keepdims=True) / LARGEST
    scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
    quantised = np.clip(np.rint(weight / scale), -LARGEST, LARGEST).astype(np.int8)
    left, whole = np.square(weight - quantised * scale), np.square(weight)
    error = 0.0
    for kept in range(min(weight.ndim, 2)):
        others = tuple(i for i in range(weight.ndim) if i != kept)
        sizes = whole.sum(axis=others)
        error += float((left.sum(axis=others)[sizes > 0] / sizes[sizes > 0]).sum())
    return quantised, scale.reshape(-1), error
