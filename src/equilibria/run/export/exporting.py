"""From a trained model to the content of a file, and back to a function."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.export import ExportedProgram

from equilibria import __version__
from equilibria.run.export import inference
from equilibria.run.export import program as programs
from equilibria.run.export.iterated import Method
from equilibria.run.export.program import ExportError
from equilibria.run.models import Model
from equilibria.run.tasks import Task

if TYPE_CHECKING:
    from equilibria.run.export.graph import OnnxSession


Format = Literal["onnx", "pt2"]
Form = Literal["whole", "stream"]
Weights = Literal["float32", "int8"]
File: TypeAlias = "OnnxSession | programs.Program"

ONNX = ("onnx", "onnxscript", "onnxruntime")
"""Packages that ONNX needs: the extra `export`."""

UNROLLED = 64
"""Steps of sequences that ONNX takes without a loop: conversion grows with the graph's square."""

TRACED = 3
"""Samples of the example that a graph is traced with: 1 would be taken for a constant."""


@dataclass(frozen=True)
class Exported:
    """A model in a file."""

    content: bytes
    """Of the file."""
    file: File
    """The function that was read from `content`, with names and shapes of its inputs and
    outputs."""
    model: Model
    """The copy of the model that was exported, in PyTorch."""
    form: Form
    """Whole inputs, or one step of a stream."""
    opset: int | None
    """Version of ONNX's operators; None in a .pt2."""
    stream: inference.Stream | None
    """The state of a recurrent model; None of one that cannot be streamed."""

    @property
    def parameters(self) -> int:
        """Numbers in the model's weights, without the parametrisations of training."""
        return sum(p.numel() for p in self.model.parameters())

    @torch.no_grad()
    def logits(self, raw: Sequence[Tensor]) -> Tensor:
        """Return what the file makes of a batch of raw inputs; a stream is run to its end."""
        if self.form == "whole":
            return self.file(*raw)[0]
        assert self.stream is not None
        x, *lengths = raw
        if not lengths:
            *_, logits = self.stream.run(self.file, x)
            return logits
        path = torch.stack(list(self.stream.run(self.file, x)))
        return path[lengths[0] - 1, torch.arange(len(x))]


def list_absent() -> list[str]:
    """Return the packages that ONNX needs and that are not installed."""
    return [name for name in ONNX if importlib.util.find_spec(name) is None]


def refuse_task(task: Task) -> None:
    """Raise ExportError where models of a task cannot be exported."""
    if why := task.refuses_export():
        raise ExportError(why)


def export(
    model: Model,
    task: Task,
    *,
    format: Format = "onnx",
    form: Form = "whole",
    weights: Weights = "float32",
    evals: int = 1,
    method: Method = "anderson",
    about: Mapping[str, str] | None = None,
) -> Exported:
    """Return a trained model as the content of a file that has been read again.

    Args:
        model: the model.
        task: whose inputs it takes, and what prepares them.
        format: ONNX, or a program of torch.export.
        form: whole inputs, or one step of a recurrent model: (x, *state) -> (logits, *state).
        weights: int8 keeps matrices in eight bits, in ONNX alone.
        evals: evaluations of each equilibrium layer.
        method: how these follow from each other.
        about: what else the file is to say of itself.

    Raises:
        ExportError: the model cannot be exported in this way.
    """
    if weights == "int8" and format != "onnx":
        raise ExportError("int8 weights are for ONNX: torch.export keeps float32")
    if format == "onnx" and (absent := list_absent()):
        raise ExportError(f"ONNX needs packages that are not installed: {', '.join(absent)}")
    refuse_task(task)
    plain = inference.exportable(model, evals, method)
    raw = next(inference.pairs(task, task.eval_split, TRACED, TRACED)).raw
    prepare = inference.preparation(task)
    step, stream, why = inference.RecurrentStep(plain, prepare), None, ""
    try:
        stream = inference.Stream(step, raw[0])
    except ExportError as error:
        if form == "stream":
            raise
        why = str(error)
    facts = {
        "equilibria": __version__,
        "model": type(model).__name__,
        "form": form,
        "weights": weights,
        **({"evaluations": str(evals), "method": method} if inference.layers(model) else {}),
        **(about or {}),
    }
    if stream is not None:
        facts["state"] = json.dumps([_start(each) for each in stream.one])
    if format == "pt2":
        program = _trace(plain, prepare, stream if form == "stream" else None, raw)
        content = programs.save(program, facts)
        return Exported(content, programs.Program(content), plain, form, None, stream)
    from equilibria.run.export import graph

    proto: Any
    if stream is None:
        if raw[0].dim() == 3 and raw[0].shape[1] > UNROLLED:
            raise ExportError(
                f"{why}; so its {raw[0].shape[1]} steps would be written out one by one, and ONNX "
                f"takes {UNROLLED} in that way: take --format pt2"
            )
        names = ["x", "lengths"][: len(raw)]
        proto = graph.convert(_trace(plain, prepare, None, raw), names, ["logits"])
    else:
        count = range(len(stream.one))
        inner = "_k" if form == "whole" else ""  # no name of a loop is one outside of it
        proto = graph.convert(
            _trace(plain, prepare, stream, raw),
            [f"x{inner}", *(f"state_{i}" for i in count)],
            [f"logits{inner}", *(f"next_{i}" for i in count)],
        )
        if form == "whole":
            proto = graph.loop(proto, stream.one, stream.axes, lengths=len(raw) > 1)
    if weights == "int8":
        graph.quantize(proto)
    content = graph.finish(proto, {**facts, "opset": str(graph.OPSET)})
    return Exported(content, graph.OnnxSession(content), plain, form, graph.OPSET, stream)


def _trace(
    model: Model,
    prepare: inference.Prepare,
    stream: inference.Stream | None,
    raw: tuple[Tensor, ...],
) -> ExportedProgram:
    """The model's step if there is a stream, else the whole model."""
    if stream is None:
        return programs.trace(inference.WholeInput(model, prepare), raw, [0] * len(raw))
    first = raw[0][:, 0]
    arguments = (first, *stream.begin(len(first)))
    return programs.trace(inference.RecurrentStep(model, prepare), arguments, [0, stream.axes])


def _start(state: Tensor) -> float | list[float]:
    """What a tensor of the state is before the first step: a number where all entries are it."""
    values = state.flatten().tolist()
    return values[0] if len(set(values)) == 1 else values
