"""Finding the tensors that f closes over, and putting others in their place.

An implicit function must have every tensor that f depends on as an input. Operands are given; what
f closes over is found by watching its first evaluation: a torch-function mode sees the tensors that
f hands to torch, and a walk through the graph that autograd recorded confirms that nothing was
missed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from equilibria.solve import private


class _InForce(threading.local):
    """Substitutions in force in this thread, as torch's modes are, outermost first.

    A fixed point inside a fixed point looks here for what its own closed-over tensors stand for.
    """

    def __init__(self) -> None:
        self.tables: list[dict[int, Tensor]] = []


_in_force = _InForce()


class Substitute(TorchFunctionMode):
    """Hands torch the stand-ins in place of the tensors they stand for."""

    def __init__(self, originals: Sequence[Tensor], stand_ins: Sequence[Tensor]) -> None:
        super().__init__()
        self.originals = originals  # kept alive: the table goes by identity
        self.table = {
            id(original): stand_in
            for original, stand_in in zip(originals, stand_ins, strict=True)
            if original is not stand_in
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        table = self.table

        def replaced(tensor: Tensor) -> Tensor:
            return table.get(id(tensor), tensor)

        args, kwargs = pytree.tree_map_only(Tensor, replaced, (args, kwargs or {}))
        return func(*args, **kwargs)


@contextmanager
def substituted(originals: Sequence[Tensor], stand_ins: Sequence[Tensor]) -> Generator[None]:
    """Every use of an original inside sees its stand-in; nothing to do where they are the same."""
    mode = Substitute(originals, stand_ins)
    if not mode.table:
        yield
        return
    _in_force.tables.append(mode.table)
    try:
        with mode:
            yield
    finally:
        _in_force.tables.pop()


def _stood_for(tensor: Tensor) -> Tensor:
    for table in reversed(_in_force.tables):
        tensor = table.get(id(tensor), tensor)
    return tensor


class _Recorder(TorchFunctionMode):
    """Notes the tensors that torch is given and those that it makes."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.made = {id(tensor): tensor for tensor in known}
        self.given: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and id(leaf) not in self.made:
                self.given[id(leaf)] = leaf
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            # What was given stays given: an in-place operation returns its argument.
            if isinstance(leaf, Tensor) and id(leaf) not in self.given:
                self.made[id(leaf)] = leaf
        return out


class Captured:
    """The tensors that f closes over.

    Attributes:
        originals: as f sees them.
        values: what they stand for now; the same objects, unless a fixed point around this one has
            put others in their place.
        fixed: leaves used by code that Python cannot see into (scripted, compiled), by position: no
            stand-in can take their place.
    """

    def __init__(self, originals: Sequence[Tensor] = ()) -> None:
        self.originals = list(originals)
        self.values = [_stood_for(tensor) for tensor in originals]
        self.fixed: set[int] = set()

    def add_fixed(self, leaves: Sequence[Tensor]) -> None:
        self.fixed.update(range(len(self.originals), len(self.originals) + len(leaves)))
        self.originals += leaves
        self.values += leaves


def capture(
    evaluate: Callable[[], list[Tensor]], known: Sequence[Tensor]
) -> tuple[list[Tensor], Captured]:
    """Evaluates f and finds what it closes over.

    Args:
        evaluate: f at its start, with leaves that autograd follows in place of its operands.
        known: those leaves and the state's: no closed-over tensor.

    Raises:
        RuntimeError: f closes over a tensor with a history that Python cannot see.
    """
    tracking = torch.is_grad_enabled()
    begin = _sequence_mark() if tracking else 0
    with _Recorder(known) as recorder:
        out = evaluate()

    found: dict[int, Tensor] = {}
    for tensor in recorder.given.values():
        node = tensor.grad_fn
        if tracking and node is not None and private.sequence_number(node) >= begin:
            continue  # made inside, by a call that the recorder does not see
        followed = tracking and tensor.requires_grad
        if followed or private.is_wrapped(tensor) or private.has_tangent(tensor):
            found[id(tensor)] = tensor
    captured = Captured(list(found.values()))
    if tracking:
        # What f was recorded to use may have been a stand-in for what it closes over.
        seen = [*known, *captured.originals, *captured.values]
        captured.add_fixed(_unseen_leaves(out, begin, seen))
    return out, captured


def _sequence_mark() -> int:
    leaf = torch.empty(0, requires_grad=True)
    return private.sequence_number(leaf.view_as(leaf).grad_fn)


def _unseen_leaves(out: Sequence[Tensor], begin: int, seen: Sequence[Tensor]) -> list[Tensor]:
    """Walks from the output down to what existed before f was evaluated."""
    leaves = {id(tensor) for tensor in seen if tensor.grad_fn is None}
    edges = {(tensor.grad_fn, tensor.output_nr) for tensor in seen if tensor.grad_fn is not None}
    unseen: list[Tensor] = []
    stack: list[tuple[Any, int]] = [(leaf.grad_fn, leaf.output_nr) for leaf in out]
    visited: set[Any] = set()
    while stack:
        node, number = stack.pop()
        if node is None or (node, number) in edges:
            continue
        if node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):  # a leaf
            if id(node.variable) not in leaves:
                leaves.add(id(node.variable))
                unseen.append(node.variable)
        elif private.sequence_number(node) < begin:
            raise RuntimeError(
                f"f closes over a tensor with a history ({node.name()}) that it uses where Python "
                "cannot see it, in scripted or compiled code, say. Its gradient would be lost: "
                "pass the tensor as an operand (eq.shared(tensor) if it has no batch axis)"
            )
        else:
            stack.extend(node.next_functions)
    return unseen
