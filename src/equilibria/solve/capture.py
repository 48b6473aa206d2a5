"""Finding the tensors that f closes over, and putting others in their place.

An implicit function must have every tensor that f depends on as an input. Operands are given; what
f closes over is found by watching its first evaluation: a torch-function mode sees the tensors that
f hands to torch, and a walk through the graph that autograd recorded confirms that nothing was
missed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
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


def substituted(
    originals: Sequence[Tensor], stand_ins: Sequence[Tensor]
) -> AbstractContextManager[None]:
    """Every use of an original inside sees its stand-in."""
    if all(a is b for a, b in zip(originals, stand_ins, strict=True)):
        return _NOTHING
    return _substituted(originals, stand_ins)


_NOTHING = nullcontext()


@contextmanager
def _substituted(originals: Sequence[Tensor], stand_ins: Sequence[Tensor]) -> Generator[None]:
    mode = Substitute(originals, stand_ins)
    _in_force.tables.append(mode.table)
    try:
        with mode, private.run_eagerly():
            yield
    finally:
        _in_force.tables.pop()


def _stood_for(tensor: Tensor) -> Tensor:
    for table in reversed(_in_force.tables):
        tensor = table.get(id(tensor), tensor)
    return tensor


class _Recorder(TorchFunctionMode):
    """Notes the tensors that torch is given and that autograd follows, and what torch makes.

    What is made is noted by identity alone, so that it can be freed: what exists before the
    evaluation outlives it, and its identity is never used again.
    """

    def __init__(self, known: Sequence[Tensor], inside: _Inside) -> None:
        super().__init__()
        self.inside = inside
        self.made = {id(tensor) for tensor in known}
        self.given: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in _leaves((*args, *kwargs.values()) if kwargs else args):
            if isinstance(leaf, Tensor) and id(leaf) not in self.made and _followed(leaf):
                self.given[id(leaf)] = leaf
        out = func(*args, **(kwargs or {}))
        for leaf in _leaves((out,)):
            # What was given stays given: an in-place operation returns its argument.
            if isinstance(leaf, Tensor) and id(leaf) not in self.given:
                self.made.add(id(leaf))
                self.inside.note(leaf)
        return out


_PLAIN = (Tensor, int, float, bool, str, type(None))


def _leaves(arguments: Sequence[Any]) -> Sequence[Any]:
    """The leaves of a tree, which is flat where torch calls its own functions."""
    if all(isinstance(each, _PLAIN) for each in arguments):
        return arguments
    return pytree.tree_leaves(arguments)


def _followed(tensor: Tensor) -> bool:
    """Does a derivative of any kind go through the tensor, or does it stand for another?"""
    return (
        (torch.is_grad_enabled() and tensor.requires_grad)
        or _stood_for(tensor) is not tensor
        or private.is_wrapped(tensor)
        or private.has_tangent(tensor)
    )


class _Inside:
    """Says of a node of autograd's graph whether it was made during an evaluation.

    In the main thread by the number that autograd gives it. Other threads, those of a device's
    backward among them, count by themselves: there a node was made inside if it leads to one of a
    tensor that was seen being made.
    """

    def __init__(self, leaves: Callable[[], AbstractSet[int]]) -> None:
        main = threading.current_thread() is threading.main_thread()
        self.begin = _sequence_mark() if main else None
        self.leaves = leaves
        self.nodes: dict[Any, bool] = {}

    def note(self, made: Tensor) -> None:
        if self.begin is None and made.grad_fn is not None:
            self.nodes[made.grad_fn] = True

    def __call__(self, node: Any) -> bool:
        if self.begin is not None:
            return private.sequence_number(node) >= self.begin
        pending = [node]
        while pending:
            top = pending[-1]
            children = [child for child, _ in top.next_functions if child is not None]
            unknown = [child for child in children if child not in self.nodes]
            if top in self.nodes or hasattr(top, "variable"):
                self.nodes.setdefault(top, hasattr(top, "variable") and self._own(top.variable))
            elif unknown:
                pending += unknown
                continue
            else:
                self.nodes[top] = any(self.nodes[child] for child in children)
            pending.pop()
        return self.nodes[node]

    def _own(self, leaf: Tensor) -> bool:
        return id(leaf) in self.leaves()


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
    made: set[int] = set()
    inside = _Inside(lambda: made)
    recorder = _Recorder(known, inside)
    made = recorder.made
    with recorder, private.run_eagerly():
        out = evaluate()
    found = [x for x in recorder.given.values() if x.grad_fn is None or not inside(x.grad_fn)]
    captured = Captured(found)
    if torch.is_grad_enabled():
        # What f was recorded to use may have been a stand-in for what it closes over.
        seen = [*known, *captured.originals, *captured.values]
        leaves, histories = _unseen(out, inside, seen, made)
        if histories:
            raise RuntimeError(
                f"f closes over a tensor with a history ({histories[0]}) that it uses where Python "
                "cannot see it, in scripted or compiled code, say. Its gradient would be lost: "
                "pass the tensor as an operand (eq.shared(tensor) if it has no batch axis)"
            )
        captured.add_fixed(leaves)
    return out, captured


def evaluate_again(
    evaluate: Callable[[], list[Tensor]], known: Callable[[], Sequence[Tensor]]
) -> list[Tensor]:
    """Evaluates f, tracked, and makes sure that it depends on nothing but `known`.

    Raises:
        RuntimeError: f uses a parameter or a tensor with a history that it did not use at its first
            evaluation; its gradient would be lost.
    """
    begin = _sequence_mark()
    out = evaluate()
    leaves, histories = _unseen(
        out, lambda node: private.sequence_number(node) >= begin, known(), frozenset()
    )
    # f may make leaves of its own, so of those only parameters are certain to be new ones.
    strangers = [f"a parameter of shape {tuple(x.shape)}" for x in leaves if _is_parameter(x)]
    strangers += [f"a tensor with a history ({name})" for name in histories]
    if strangers:
        raise RuntimeError(
            f"in backward f uses {strangers[0]} that it did not use at its first evaluation, so "
            "its gradient would be lost. Has a variable that f uses been assigned anew, or does f "
            "use the tensor for some states only? Pass it as an operand (eq.shared(tensor))"
        )
    return out


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def _sequence_mark() -> int:
    with torch.enable_grad():
        leaf = torch.empty(0, requires_grad=True)
        return private.sequence_number(leaf.view_as(leaf).grad_fn)


def _unseen(
    out: Sequence[Tensor],
    inside: Callable[[Any], bool],
    seen: Sequence[Tensor],
    leaves: AbstractSet[int],
) -> tuple[list[Tensor], list[str]]:
    """Walks from the output down to what existed before f was evaluated.

    Returns:
        The leaves found there that are neither in `seen` nor named by `leaves`, and the names of
        nodes that lead elsewhere.
    """
    known = leaves | {id(tensor) for tensor in seen if tensor.grad_fn is None}
    edges = {(tensor.grad_fn, tensor.output_nr) for tensor in seen if tensor.grad_fn is not None}
    unseen: dict[int, Tensor] = {}
    histories: list[str] = []
    stack: list[tuple[Any, int]] = [(leaf.grad_fn, leaf.output_nr) for leaf in out]
    visited: set[Any] = set()
    while stack:
        node, number = stack.pop()
        if node is None or (node, number) in edges or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):  # a leaf
            if id(node.variable) not in known:
                unseen[id(node.variable)] = node.variable
        elif inside(node):
            stack.extend(node.next_functions)
        else:
            histories.append(node.name())
    return list(unseen.values()), histories
