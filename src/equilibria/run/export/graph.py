"""ONNX graphs: made from programs of torch.export, small, and with a loop over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx  # pyright: ignore[reportMissingImports]
import torch
from onnx import (  # pyright: ignore[reportMissingImports]
    ModelProto,
    TensorProto,
    helper,
    numpy_helper,
)
from onnxscript import optimizer  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.export import ExportedProgram

from equilibria import __version__
from equilibria.run.export.program import ExportError, quiet

OPSET = 18
"""The version of ONNX's operators; runtimes from 2023 on know it."""

IR = 8
"""The version of the file format that belongs to it."""

USUAL = {"Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}, "Cast": {"saturate": 1}}
"""Values that attributes have where they are left out."""


def convert(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> ModelProto:
    """Return a program as an ONNX model, without what only its makers read.

    Args:
        program: of `trace`.
        inputs: what its inputs are to be called.
        outputs: likewise.

    Raises:
        ExportError: ONNX lacks one of its operations.
    """
    try:
        with quiet():
            exported = torch.onnx.export(
                program,
                (),
                dynamo=True,
                opset_version=OPSET,
                input_names=inputs,
                output_names=outputs,
                optimize=False,
                verbose=False,
            )
            assert exported is not None
            # Products of small matrices are not folded into large ones.
            optimizer.optimize_ir(
                exported.model, num_iterations=1, input_size_limit=256, output_size_limit=256
            )
        proto = exported.model_proto
    except Exception as error:  # whatever torch stumbles over
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"the model cannot be written as ONNX: {reason}") from error
    _strip(proto)
    return proto


def _strip(proto: ModelProto) -> None:
    """Remove comments, shapes of inner tensors and long names: half of a small file."""
    graph = proto.graph
    kept = {value.name for value in (*graph.input, *graph.output)}
    names: dict[str, str] = {}
    for tensor in graph.initializer:
        tensor.doc_string = ""
        del tensor.metadata_props[:]
        names[tensor.name] = f"w{len(names)}"
    for value in (*graph.input, *graph.output):
        del value.metadata_props[:]
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:  # the batch is the only one that can have any size
                size.dim_param = "batch"
    for node in graph.node:
        for name in node.output:
            if name and name not in kept:
                names[name] = f"t{len(names)}"
    del graph.value_info[:], graph.metadata_props[:], proto.metadata_props[:]
    graph.name, graph.doc_string = "equilibria", ""
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    for node in graph.node:
        del node.metadata_props[:]
        node.name, node.doc_string = "", ""
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        usual = USUAL.get(node.op_type, {})
        for attribute in list(node.attribute):
            if usual.get(attribute.name) == helper.get_attribute_value(attribute):
                node.attribute.remove(attribute)


def loop(
    step: ModelProto,
    state: Sequence[Tensor],
    axes: Sequence[int | None],
    *,
    lengths: bool,
) -> ModelProto:
    """Return a model of whole sequences (batch, time, ...) that runs `step` in a loop over time.

    What a step computes of the weights alone is computed once, before the loop.

    Args:
        step: (x, *state) -> (logits, *state).
        state: of one sample before the first step.
        axes: of the batch in each; None for one without.
        lengths: whether the model takes the lengths (batch,) of the sequences too, and keeps logits
            and state of each after its last step.
    """
    inner = step.graph
    element, *before = inner.input
    logits, *after = inner.output
    outer = onnx.GraphProto(name="equilibria")
    outer.initializer.extend(inner.initializer)
    known = {tensor.name for tensor in inner.initializer}
    body = onnx.GraphProto(name="step")
    for each in inner.node:
        alone = all(name in known for name in each.input if name)
        (outer if alone else body).node.append(each)
        known.update(each.output if alone else ())

    kind, shape = _type(element)
    batch = shape[0]
    outer.input.append(helper.make_tensor_value_info("x", kind, [batch, "time", *shape[1:]]))
    kind, (_, *classes) = _type(logits)
    outer.output.append(helper.make_tensor_value_info("logits", kind, [batch, *classes]))

    def constant(name: str, values: Any) -> str:
        outer.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(op: str, inputs: Sequence[str], output: str, **options: Any) -> str:
        outer.node.append(helper.make_node(op, inputs, [output], **options))
        return output

    node("Shape", ["x"], "count", start=0, end=1)
    zero = constant("no_logits", np.zeros([1, *classes], np.float32))
    starts = [_expand(node, constant, zero, [1, *classes], 0)]
    for i, (one, axis) in enumerate(zip(state, axes, strict=True)):
        value = constant(f"start_{i}", one.numpy())
        starts.append(
            _expand(node, constant, value, list(one.shape), axis)
            if axis is not None
            else node("Identity", [value], f"begin_{i}")
        )
    carried = [("logits_before", logits), *zip((v.name for v in before), after, strict=True)]
    results = [value.name for _, value in carried]
    if lengths:
        outer.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT64, [batch]))
        starts.insert(0, constant("first", np.int64(0)))
        results = _freeze_ended(body, constant, carried, axes)
        carried.insert(0, ("step", helper.make_tensor_value_info("", TensorProto.INT64, [])))
    body.input.extend(_rename(name, value) for name, value in carried)
    body.input.append(_rename(element.name, element))
    body.output.extend(
        _rename(name, value) for name, (_, value) in zip(results, carried, strict=True)
    )
    outer.node.append(
        helper.make_node(
            "Scan",
            [*starts, "x"],
            [*["steps"] * lengths, "logits", *(f"end_{i}" for i in range(len(after)))],
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[1],
        )
    )
    return helper.make_model(outer, opset_imports=list(step.opset_import))


def _freeze_ended(
    body: Any, constant: Any, carried: list[Any], axes: Sequence[int | None]
) -> list[str]:
    """Let the state of a sequence that has ended stay as it is; return the names of the results."""
    constant("one", np.int64(1))
    body.node.append(helper.make_node("Add", ["step", "one"], ["step_after"]))
    body.node.append(helper.make_node("Less", ["step", "lengths"], ["running"]))
    results = ["step_after"]
    for (before, after), axis in zip(carried, (0, *axes), strict=True):
        if axis is None:  # the same for all samples, ended or not
            results.append(after.name)
            continue
        rank = len(after.type.tensor_type.shape.dim)
        others = [i for i in range(rank) if i != axis]
        where = constant(f"axes_{before}", np.array(others, np.int64))
        running, held = f"running_{before}", f"held_{before}"
        body.node.append(helper.make_node("Unsqueeze", ["running", where], [running]))
        body.node.append(helper.make_node("Where", [running, after.name, before], [held]))
        results.append(held)
    return results


def _expand(node: Any, constant: Any, value: str, shape: list[int], axis: int) -> str:
    """One sample's tensor for each sample of the batch."""
    parts = [
        constant(f"{value}_{i}", np.array(part)) if part else ""
        for i, part in enumerate((shape[:axis], shape[axis + 1 :]))
    ]
    sizes = [name for name in (parts[0], "count", parts[1]) if name]
    target = node("Concat", sizes, f"{value}_shape", axis=0) if sizes[1:] else "count"
    return node("Expand", [value, target], f"{value}_all")


def _type(value: onnx.ValueInfoProto) -> tuple[int, list[Any]]:
    tensor = value.type.tensor_type
    return tensor.elem_type, [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]


def _rename(name: str, value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """A tensor of a loop's body: its type alone, its shape is that of the loop's inputs."""
    return helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, None)


def finish(proto: ModelProto, about: Mapping[str, str]) -> bytes:
    """Return the content of an .onnx file, after ONNX's own check.

    Raises:
        ExportError: the model is not valid.
    """
    proto.ir_version, proto.producer_name = IR, "equilibria"
    for i, node in enumerate(_nodes(proto.graph)):
        node.name = f"n{i}"  # older runtimes build names of their own on it
    proto.producer_version = __version__
    helper.set_model_props(proto, dict(about))
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"the ONNX model is not valid: {reason}") from error
    return proto.SerializeToString()


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of its loops."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


class OnnxSession:
    """An .onnx file that ONNX Runtime runs on the CPU.

    Args:
        content: of the file.

    Attributes:
        inputs: shape of each input, by its name.
        outputs: likewise.
    """

    def __init__(self, content: bytes) -> None:
        import onnxruntime  # pyright: ignore[reportMissingImports]

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"]
        )
        self.inputs, self.outputs = (
            {each.name: tuple(map(str, each.shape)) for each in found}
            for found in (self._session.get_inputs(), self._session.get_outputs())
        )

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Return the outputs, in the order of the file."""
        given = {n: x.contiguous().numpy() for n, x in zip(self.inputs, inputs, strict=True)}
        outputs = self._session.run(None, given)
        return [torch.from_numpy(np.asarray(each)) for each in outputs]


# --- int8 -----------------------------------------------------------------------------------------

# Weights of an ONNX model in eight bits.


SMALLEST = 64
"""Weights of fewer entries stay float32: the scales of their rows would cost what they save."""

LARGEST = 127


def quantize(proto: ModelProto) -> int:
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
        quantized, scale, _ = _parts(weight, axis)
        name = tensor.name
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(quantized, f"{name}_q"))
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
    quantized = np.clip(np.rint(weight / scale), -LARGEST, LARGEST).astype(np.int8)
    left, whole = np.square(weight - quantized * scale), np.square(weight)
    error = 0.0
    for kept in range(min(weight.ndim, 2)):
        others = tuple(i for i in range(weight.ndim) if i != kept)
        sizes = whole.sum(axis=others)
        error += float((left.sum(axis=others)[sizes > 0] / sizes[sizes > 0]).sum())
    return quantized, scale.reshape(-1), error
