"""What a solve returns."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from equilibria.solve.layout import Layout
from equilibria.solve.loop import Run
from equilibria.solve.solvers import Inverse
from equilibria.solve.status import Stats, Status
from equilibria.solve.tree import Leaves, Tree, flatten, unflatten


@dataclass(frozen=True)
class AdjointInfo:
    """The latest first-order backward solve of a solution.

    Attributes:
        status: `(batch,)` int8, how it ended for each sample.
        stats: vector-Jacobian products and relative residual of each sample.
        value: u, leaf by leaf.
    """

    status: Tensor
    stats: Stats
    value: Leaves = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class StartOutcomes:
    """What each start of each sample has led to. All tensors are detached.

    Attributes:
        value: the states found, a tree like z0 with leaves `(starts, batch, ...)`.
        status: `(starts, batch)` int8, a `Status` code for each.
        residual: `(starts, batch)` relative residuals of the states.
        evals: `(starts, batch)` int64, evaluations of f from each start.
        chosen: `(batch,)` int64, the start whose state is the solution.
        zero: `(batch,)` the RMS size below which the difference of two states is rounding.
    """

    value: Tree = field(repr=False)
    status: Tensor
    residual: Tensor
    evals: Tensor
    chosen: Tensor
    zero: Tensor = field(repr=False)

    @property
    def solved(self) -> Tensor:
        """`(starts, batch)` bool, which starts converged."""
        return self.status == int(Status.CONVERGED)

    def distinct(self, rtol: float = 1e-2, atol: float = 0.0) -> Tensor:
        """The first start that led to the same equilibrium as each, `(starts, batch)` int64; -1
        where a start did not converge.

        Args:
            rtol, atol: two states are the same if the RMS of their difference, over all leaves, is
                at most atol + rtol times the larger RMS of the two. The error of a solution exceeds
                its residual, by 1 / (1 - L) for a contraction with the Lipschitz constant L.
        """
        count, batch = self.status.shape
        leaves: Leaves = flatten(self.value)[0]
        rows = [x.reshape(count, batch, math.prod(x.shape[2:])).double() for x in leaves]
        states = torch.cat(rows, 2)
        size = _rms(states)
        found = torch.where(self.solved, torch.arange(count, device=size.device)[:, None], -1)
        for k in range(count):
            for j in reversed(range(k)):
                limit = atol + rtol * torch.maximum(size[j], size[k]) + self.zero
                same = (found[j] == j) & self.solved[k] & (_rms(states[j] - states[k]) <= limit)
                found[k] = torch.where(same, j, found[k])
        return found

    def count_distinct(self, rtol: float = 1e-2, atol: float = 0.0) -> Tensor:
        """How many equilibria were found for each sample, `(batch,)` int64; see `distinct`."""
        found = self.distinct(rtol, atol)
        return (found == torch.arange(len(found), device=found.device)[:, None]).sum(0)


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()


class Record:
    """What solves leave behind beside the graph: traces, and the backward solve's outcome.

    Args:
        warm_adjoint: the adjoint of an earlier solution, where the backward solve begins.
        warm_size: `start_size` of that solution.

    Attributes:
        start_size: `(batch,)`, the size of f at the start of this solve, which a warm start from it
            keeps: see `Reference.size_to_keep`. None before the solve, and under vmap.
        latest: the latest first-order backward solve.
        residual: `(batch,)`, relative residual of the solution.
        inverse: what Broyden's method has learned, and how its rows lie.
        extras: further fields of `Stats`.
        starts: what several starts have led to; None where there was one.
    """

    def __init__(self, warm_adjoint: Leaves | None = None, warm_size: Tensor | None = None) -> None:
        self.warm_adjoint, self.warm_size = warm_adjoint, warm_size
        self.start_size: Tensor | None = None
        self.latest: AdjointInfo | None = None
        self.residual: Tensor | None = None
        self.inverse: tuple[Layout, Inverse] | None = None
        self.extras: dict[str, Tensor] = {}
        self.starts: StartOutcomes | None = None

    def note(self, run: Run, layout: Layout) -> None:
        """Keeps what a forward solve tells beside the solution."""
        self.extras = run.extras
        self.residual = run.residual
        if run.size is not None:
            self.start_size = run.size if layout.unit is None else run.size * layout.unit.squeeze(1)
        self.inverse = None if run.inverse is None else (layout, run.inverse)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A fixed point, how the solve ended and what it cost.

    It can be pickled, deep-copied and sent to another process; what arrives is detached, since a
    graph cannot travel. Where torch is given one in place of a tensor, it says so.

    Attributes:
        value: z*, the same tree as z0, connected to autograd: the best iterate that was evaluated
            (under `Phantom` the iterate after its steps, under `Unrolled` the step after the last
            evaluation; see also `returns` of `fixed_point`).
        status: `(batch,)` int8, a `Status` code for each sample.
        stats: evaluations and residuals of each sample.
        states: for every number k in `states` the iterate z_k, which k evaluations have led to, for
            losses along the path: with a budget of k it is the step that would be evaluated next.
            Once a sample has finished otherwise it is the final value. It carries the gradient of
            f at that iterate, under `Unrolled` that of its path; under `Phantom` it is the iterate
            after its steps from there.
        aux: what f returned beside z at `value`, connected to autograd (of `DEQ.advance`: at the
            state given); None without `has_aux`.
        starts: what each start has led to, of a solve from several; None without `starts`, and
            under vmap. `stats.evals` is the sum over all starts, and one more, for f(z0) on which
            they are based.
    """

    value: Tree
    status: Tensor
    stats: Stats
    states: tuple[Tree, ...] = ()
    aux: Tree = None
    starts: StartOutcomes | None = None
    _record: Record = field(default_factory=Record, repr=False)
    # f at a state, leaf by leaf, with the operands and closed-over tensors of this solve; None
    # where it was solved without gradients.
    _evaluate: Callable[[Leaves], Leaves] | None = field(default=None, repr=False)

    @property
    def adjoint(self) -> AdjointInfo | None:
        """Status and stats of the latest first-order backward solve; None before one.

        None too for adjoints that solve nothing (`Phantom`, `JacobianFree`, ...) and under vmap.
        """
        return self._record.latest

    @property
    def start_size(self) -> Tensor | None:
        """`(batch,)` the size of f at the start, which a warm start keeps; None under vmap."""
        return self._record.start_size

    def detach(self) -> Solution:
        """The same solution without its graph; tensors share their memory with this one's.

        `adjoint` stays as it is now, so that the result can be kept for `warm`. The Jacobian
        penalty and the fixed-point correction need the graph.
        """
        record = Record()
        record.start_size = self._record.start_size
        record.latest = self._record.latest
        return replace(
            self,
            value=_without_graph(self.value),
            states=tuple(map(_without_graph, self.states)),
            aux=_without_graph(self.aux),
            _record=record,
            _evaluate=None,
        )

    def __copy__(self) -> Solution:
        return self  # nothing in it can be set

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.detach().__dict__)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Says what to do where a solution is given to torch as if it were a tensor."""
        del types, args, kwargs
        raise TypeError(
            f"{getattr(func, '__name__', func)} was given a Solution where a tensor belongs: take "
            "its `value`. Inside nn.Sequential wrap the layer, eq.nn.Value(layer)"
        )


def _without_graph(tree: Tree) -> Tree:
    leaves, spec = flatten(tree)
    return unflatten([x.detach() if isinstance(x, Tensor) else x for x in leaves], spec)


def _public(cls: type) -> inspect.Signature:
    """The constructor's signature less its private fields, as help() and the reference show it."""
    whole = inspect.signature(cls)
    public = [each for name, each in whole.parameters.items() if not name.startswith("_")]
    return whole.replace(parameters=public)


setattr(Solution, "__signature__", _public(Solution))  # noqa: B010
