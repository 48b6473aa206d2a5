"""Finding the tensors that f closes over, and putting others in their place.

An implicit function must have every tensor that f depends on as an input. Operands are given; what
f closes over is found by watching its first evaluation: a torch-function mode sees the tensors that
f hands to torch, and a walk through the graph that autograd recorded confirms that none was missed.

Whether a tensor was there before the evaluation or was made in it is mostly known, since the mode
saw it being made. Where Python saw neither (scripted code, custom functions) f is evaluated once
more: what both evaluations meet as one object was there before. Neither the thread nor the age of a
node decides, for autograd counts its nodes thread by thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import is_
from typing import Any, TypeVar
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from equilibria.solve import private
from equilibria.solve.derivative import FrozenParameter
from equilibria.solve.tree import REQUIRES_GRAD

T = TypeVar("T")


class _InForce(threading.local):
    """Substitutions and recorders in force in this thread, as torch's modes are, outermost first.

    A fixed point inside a fixed point looks here for what its own closed-over tensors stand for,
    and tells of those that it may use.
    """

    def __init__(self) -> None:
        self.tables: list[dict[int, Tensor]] = []
        self.recorders: list[Recorder] = []


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

        def look_up(tensor: Tensor) -> Tensor:
            return table.get(id(tensor), tensor)

        args, kwargs = pytree.tree_map_only(Tensor, look_up, (args, kwargs or {}))
        return func(*args, **kwargs)


@contextmanager
def _substitute(originals: Sequence[Tensor], stand_ins: Sequence[Tensor]) -> Generator[None]:
    mode = Substitute(originals, stand_ins)
    _in_force.tables.append(mode.table)
    try:
        with mode, private.run_eagerly():
            yield
    finally:
        _in_force.tables.pop()


def _look_up(tensor: Tensor) -> Tensor:
    for table in reversed(_in_force.tables):
        tensor = table.get(id(tensor), tensor)
    return tensor


class Recorder(TorchFunctionMode):
    """Notes the tensors that torch is given and that autograd follows, and what torch makes.

    What is made is noted without being kept alive.
    """

    def __init__(self, known: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.made: dict[int, ReferenceType[Tensor]] = {id(x): ref(x) for x in known}
        self.given: dict[int, Tensor] = {}
        self.constants: dict[int, Tensor] = {}  # given, and followed by nobody
        self.reduced = False  # has anything been made in less than float32?

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in _leaves((*args, *kwargs.values()) if kwargs else args):
            if isinstance(leaf, Tensor):
                self.note(leaf)
        out = func(*args, **(kwargs or {}))
        for leaf in _leaves((out,)):
            # What was given stays given: an in-place operation returns its argument.
            if isinstance(leaf, Tensor) and id(leaf) not in self.given:
                self.made[id(leaf)] = ref(leaf)
                self.reduced |= leaf.dtype in (torch.bfloat16, torch.float16)
        return out

    def note(self, tensor: Tensor) -> None:
        """The tensor is given to torch."""
        if self.has_made(tensor):
            return
        if _followed(tensor):
            self.given[id(tensor)] = tensor
        elif not tensor.requires_grad:
            self.constants[id(tensor)] = tensor

    def has_made(self, tensor: Tensor) -> bool:
        made = self.made.get(id(tensor))
        return made is not None and made() is tensor  # and not one that took a freed one's place


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
        or _look_up(tensor) is not tensor
        or private.is_wrapped(tensor)
        or private.has_tangent(tensor)
    )


class Captured:
    """The tensors that f closes over.

    Attributes:
        originals: as f sees them.
        values: what they stand for now; the same objects, unless a fixed point around this one has
            put others in their place.
        fixed: leaves used by code that Python cannot see into (scripted, compiled), by position: no
            stand-in can take their place.
        constants: tensors that f used and that nobody differentiated then.
        used: those of the originals that the first value of f depends on.
        reduced: f computed something in less than float32.
    """

    def __init__(
        self,
        originals: Sequence[Tensor] = (),
        fixed: Sequence[Tensor] = (),
        constants: Sequence[Tensor] = (),
        reduced: bool = False,
        used: Sequence[Tensor] = (),
    ) -> None:
        self.originals = [*originals, *fixed]
        self.used = used
        self.values = [*(_look_up(tensor) for tensor in originals), *fixed]
        self.fixed = set(range(len(originals), len(self.originals)))
        self.constants = constants
        self.reduced = reduced

    def is_bare(self, stand_ins: Sequence[Tensor]) -> bool:
        """Is nothing to be put in the place of anything?"""
        return not (self.originals or self.constants) or (
            not any(map(REQUIRES_GRAD, self.constants)) and all(map(is_, self.originals, stand_ins))
        )

    def substitute(self, stand_ins: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Every use of an original inside sees its stand-in, and a constant is one."""
        if self.is_bare(stand_ins):
            return nullcontext()
        originals = self.originals
        if any(map(REQUIRES_GRAD, self.constants)):
            thawed = [x for x in self.constants if x.requires_grad]
            originals = [*originals, *thawed]
            stand_ins = [*stand_ins, *(x.detach() for x in thawed)]
        return _substitute(originals, stand_ins)


def capture(
    evaluate: Callable[[], list[Tensor]], known: Sequence[Tensor], expected: Sequence[Tensor] = ()
) -> tuple[list[Tensor], Captured]:
    """Evaluates f and finds what it closes over.

    Args:
        evaluate: f at its start, with leaves that autograd follows in place of its operands.
        known: those leaves and the state's: no closed-over tensor.
        expected: what f may use in later evaluations, though not in its first: the parameters of
            the cell of a layer.

    Raises:
        RuntimeError: f closes over a tensor with a history that Python cannot see.
    """
    begin = _sequence_mark()
    out, recorder = _record(evaluate, known)
    found = list(recorder.given.values())
    again: tuple[list[Tensor], Recorder] | None = None
    if any(_of_unknown_age(x, begin) for x in found):
        again = _hide_from_checkpoints(lambda: _record(evaluate, known))
        found = [x for x in found if id(x) in again[1].given]
    fixed: list[Tensor] = []
    used: list[Tensor] = []
    if torch.is_grad_enabled():
        # What f was recorded to use may have been a stand-in for what it closes over.
        seen = [*known, *found, *(_look_up(x) for x in found)]
        walk = _Walk(out, seen, recorder.has_made)
        used = [x for x in found if id(x) in walk.met]
        fixed = walk.leaves_among(expected)
        if len(fixed) < len(walk.leaves):
            other = again or _hide_from_checkpoints(lambda: _record(evaluate, known))
            hidden = _Walk(other[0], seen, other[1].has_made)
            if histories := walk.histories_in(hidden):
                raise RuntimeError(
                    f"f closes over a tensor with a history ({histories[0]}) that it uses where "
                    "Python cannot see it, in scripted or compiled code, say. Its gradient would "
                    "be lost: pass the tensor as an operand (eq.shared(tensor) if it has no batch "
                    "axis)"
                )
            fixed = walk.leaves_in(hidden)
    met = {id(x) for x in (*found, *fixed)}
    unused = [x for x in expected if id(x) not in met and _followed(x)]
    for outer in _in_force.recorders:
        for x in unused:
            outer.note(x)
    constants = list(recorder.constants.values())
    return out, Captured([*found, *unused], fixed, constants, recorder.reduced, used)


def require_known(
    evaluate: Callable[[], list[Tensor]], known: Sequence[Tensor], used: Sequence[Tensor] = ()
) -> list[Tensor]:
    """Evaluates f, tracked, and makes sure that it depends on nothing but `known`.

    Raises:
        RuntimeError: f uses a tensor that it did not use at its first evaluation; its gradient
            would be lost.
        FrozenParameter: f does not depend on one of the leaves `used`.
    """
    out = evaluate()
    walk = _Walk(out, known)
    if not all(id(x) in walk.met for x in used):
        raise FrozenParameter
    if walk.leaves:
        strangers = [x for x in walk.leaves.values() if isinstance(x, nn.Parameter)]
        if not strangers:  # f may make leaves of its own, which are others each time
            strangers = walk.leaves_in(_Walk(_hide_from_checkpoints(evaluate), known))
        if strangers:
            kind = "parameter" if isinstance(strangers[0], nn.Parameter) else "tensor"
            raise RuntimeError(
                f"in backward f uses a {kind} of shape {tuple(strangers[0].shape)} that it did not "
                "use at its first evaluation, so its gradient would be lost. Has a variable that f "
                "uses been assigned anew, or does f use the tensor for some states only? Pass it "
                "as an operand (eq.shared(tensor)), or make f a module inside eq.DEQ, which knows "
                "its parameters"
            )
    return out


def _record(
    evaluate: Callable[[], list[Tensor]], known: Sequence[Tensor]
) -> tuple[list[Tensor], Recorder]:
    recorder = Recorder(known)
    _in_force.recorders.append(recorder)
    try:
        with recorder, private.run_eagerly():
            return evaluate(), recorder
    finally:
        _in_force.recorders.pop()


def _hide_from_checkpoints(call: Callable[[], T]) -> T:
    """The call, whose tensors saved for backward a checkpoint around does not count: when it
    computes anew, in another thread perhaps, it may do with fewer evaluations or take one more."""
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            return call()
    except RuntimeError:
        pass  # in a transform of torch.func, or f uses one: it allows no hooks, nor a checkpoint
    return call()  # and an error of f's own is raised again


def _sequence_mark() -> int:
    """The number that autograd will give the next node that this thread makes."""
    with torch.enable_grad():
        leaf = torch.empty(0, requires_grad=True)
        return private.sequence_number(leaf.view_as(leaf).grad_fn)


def _of_unknown_age(given: Tensor, begin: int) -> bool:
    """May the tensor, whose making the mode has not seen, have been made since `begin`?

    A node with a smaller number was not made in this thread since; of others nothing is known.
    """
    return given.grad_fn is not None and private.sequence_number(given.grad_fn) >= begin


class _Walk:
    """What is met on the way from outputs down the graph, to the tensors `seen`.

    Args:
        seen: where the walk ends, beside the leaves.
        made: says which leaves are passed over.

    Attributes:
        leaves: those that the walk ends at and that are not in `seen`, by identity.
        met: the leaves in `seen` that it ends at.
    """

    def __init__(
        self,
        out: Sequence[Tensor],
        seen: Sequence[Tensor],
        made: Callable[[Tensor], bool] = lambda _: False,
    ) -> None:
        known = {id(tensor) for tensor in seen if tensor.grad_fn is None}
        edges = {(x.grad_fn, x.output_nr) for x in seen if x.grad_fn is not None}
        self.leaves: dict[int, Tensor] = {}
        self.met: set[int] = set()
        self._nodes: dict[Any, None] = {}  # that are no leaves, from the outputs down
        stack: list[tuple[Any, int]] = [(x.grad_fn, x.output_nr) for x in out]
        while stack:
            edge = stack.pop()
            node = edge[0]
            if node is None or edge in edges or node in self._nodes:
                continue
            if hasattr(node, "variable"):
                if id(node.variable) in known:
                    self.met.add(id(node.variable))
                elif not made(node.variable):
                    self.leaves[id(node.variable)] = node.variable
            else:
                self._nodes[node] = None
                stack.extend(node.next_functions)

    def leaves_among(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [x for x in tensors if id(x) in self.leaves]

    def leaves_in(self, other: _Walk) -> list[Tensor]:
        """The leaves that another evaluation's walk has met as well."""
        return [x for name, x in self.leaves.items() if name in other.leaves]

    def histories_in(self, other: _Walk) -> list[str]:
        """The names of nodes that another evaluation's walk has met as well."""
        return [node.name() for node in self._nodes if node in other._nodes]
