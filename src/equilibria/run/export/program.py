"""Programs of torch.export."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

# --- errors ---------------------------------------------------------------------------------------

# What goes wrong with an export.


class ExportError(RuntimeError):
    """A model that cannot be exported, or a file that does not do what the model does."""


# --- program --------------------------------------------------------------------------------------


ABOUT = "equilibria.json"
"""The file in a .pt2 archive that says what it holds."""


def trace(module: nn.Module, arguments: Sequence[Tensor], axes: Sequence[Any]) -> ExportedProgram:
    """Return a module as a graph of tensor operations, for any number of samples.

    Args:
        module: of positional tensors.
        arguments: an example of them, of at least two samples.
        axes: of the batch in each, None for one without; a sequence of them for `*arguments`.

    Raises:
        ExportError: torch cannot trace it.
    """
    batch = Dim("batch")

    def shape(axis: Any) -> Any:
        if isinstance(axis, Sequence):
            return tuple(map(shape, axis))
        return None if axis is None else {axis: batch}

    try:
        with quiet(), torch.no_grad():
            # The file holds the example: of a slice it would hold all that the slice is of.
            example = tuple(each.clone(memory_format=torch.contiguous_format) for each in arguments)
            return torch.export.export(module, example, dynamic_shapes=shape(axes), strict=False)
    except Exception as error:  # whatever torch stumbles over
        reason = " ".join(str(error).split())[:300]
        name = type(getattr(module, "model", module)).__name__
        raise ExportError(f"{name} cannot be traced by torch.export: {reason}") from error


def save(program: ExportedProgram, about: Mapping[str, str]) -> bytes:
    """Return the content of a .pt2 file, with what it is about in `equilibria.json`."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files={ABOUT: json.dumps(dict(about))})
    return file.getvalue()


class Program:
    """A .pt2 file, read again.

    Args:
        content: of the file.

    Attributes:
        inputs: shape of each input, by its name.
        outputs: likewise.
    """

    def __init__(self, content: bytes) -> None:
        with quiet():
            program = torch.export.load(io.BytesIO(content))
            self._module = program.module()
        values = {node.name: node.meta.get("val") for node in program.graph.nodes}
        inputs, outputs = program.graph_signature.user_inputs, program.graph_signature.user_outputs
        self.inputs = {str(name): _shape(values[str(name)]) for name in inputs}
        names = ["logits", *(f"next_{i}" for i in range(len(outputs) - 1))]
        shapes = (_shape(values[str(name)]) for name in outputs)
        self.outputs = dict(zip(names, shapes, strict=True))

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Return the outputs."""
        outputs = self._module(*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else outputs


def _shape(value: Any) -> tuple[str, ...]:
    """The axes of a tensor; the batch is the only one that can have any size."""
    return tuple(str(size) if isinstance(size, int) else "batch" for size in value.shape)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch says to its own developers from the user, for a block."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
