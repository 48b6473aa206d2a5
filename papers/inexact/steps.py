"""Bytes and milliseconds of training steps whose solves take a fixed number of evaluations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.run.models import EquilibriumModel
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures import timing
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Context
from equilibria.run.studies.views import NOT_RUN
from equilibria.run.tasks import Batch, Task
from equilibria.run.trainer import seed_all
from equilibria.solve import Adjoint, Implicit, NeumannPhantom, Phantom, Solver
from papers.measures.memory import step_bytes

MIB = 2**20
STEPS = (1, 2, 3, 5, 8, 10)
"""The k of phantom gradients; NPG's first, undamped, is the Jacobian-free gradient."""
USUAL = 18
"""Evaluations of the forward, and products of the exact adjoint."""
EVALS = (6, 12, USUAL, 36, 72)
"""The same, of the exact adjoint, to see whether its memory grows."""
ORDERS = {"exact": ("O(K)", "O(1)"), "UPG": ("O(k)", "O(k)"), "NPG": ("O(k)", "O(1)")}
"""Time and memory of a backward in Table 5.1, K the solver's steps."""


@dataclass(frozen=True)
class _Subject:
    """A new network and a batch of its recipe."""

    model: EquilibriumModel
    task: Task
    batch: Batch

    @classmethod
    def of(cls, context: Context) -> _Subject:
        (recipe,) = context.reads
        task = context.tasks(recipe)
        seed_all(0)
        model = task.model(recipe.model, **recipe.layer()).to(context.device)
        batch = task.feed(recipe.rows, recipe.seed).batch(0)
        return cls(cast(EquilibriumModel, model), task, batch)

    def solver(self, evals: int) -> Solver:
        """The network's own, that takes so many evaluations."""
        return _exactly(self.model.deq.solver, evals)

    def exact(self, products: int) -> Adjoint:
        """The network's own adjoint, that takes so many products."""
        own = cast(Implicit, self.model.deq.adjoint)
        return replace(own, linear=_exactly(own.linear, products), follow=None)

    def gradients(self, evals: Iterable[int]) -> Iterable[tuple[dict[str, Any], Adjoint]]:
        """What is measured: `gradient`, its `steps`, the forward's `evals`, and the adjoint."""
        for each in evals:
            yield {"gradient": "exact", "steps": None, "evals": each}, self.exact(each)
        for steps in STEPS:
            for name, kind in (("UPG", Phantom), ("NPG", NeumannPhantom)):
                what = {"gradient": name, "steps": steps, "evals": USUAL}
                yield what, kind(steps=steps, damping=1.0)


def _exactly(solver: Any, evals: int) -> Any:
    """A forward or linear solver that ends after so many evaluations, wherever it stands."""
    patience = {"patience": None} if hasattr(solver, "patience") else {}
    return replace(solver, rtol=0.0, atol=0.0, max_evals=evals, **patience)


@identified_as("_cost.bytes_of_steps")
def bytes_of_steps(context: Context) -> Iterable[dict[str, Any]]:
    """`bytes` of a training step by `gradient`, `steps` and `evals`: the peak of forward and
    backward less parameters and gradients, in float32."""
    subject = _Subject.of(context)
    parts = (subject.model, subject.task, subject.batch)
    for what, adjoint in subject.gradients(EVALS):
        solver = subject.solver(what["evals"])
        yield {**what, "bytes": step_bytes(*parts, solver=solver, adjoint=adjoint)}


@identified_as("_cost.times_of_steps")
def times_of_steps(context: Context) -> Iterable[dict[str, Any]]:
    """`ms` of forward and backward by `gradient` and `steps`, all interleaved, and what of them is
    not the solve, `beyond_ms`: less a forward without gradients. `faster`, `cheaper`: those of the
    exact gradient over these."""
    subject = _Subject.of(context)
    device = next(subject.model.parameters()).device
    inputs, targets = pytree.tree_map_only(
        torch.Tensor, lambda x: x.to(device), (subject.batch.inputs, subject.batch.targets)
    )
    model, solver = subject.model.train(), subject.solver(USUAL)

    def step(adjoint: Adjoint) -> None:
        with using(model, solver=solver, adjoint=adjoint):
            prediction = model(inputs)
            subject.task.loss(model, prediction.output, targets).backward()
        model.zero_grad(set_to_none=True)

    def solve() -> None:
        with torch.no_grad(), using(model, solver=solver):
            model(inputs)

    rows: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], None]] = {"solve": solve}
    for what, adjoint in subject.gradients([USUAL]):
        name = f"{what['gradient']} {what['steps']}"
        rows[name] = what
        calls[name] = lambda adjoint=adjoint: step(adjoint)
    taken = timing.milliseconds(calls)
    whole, alone = taken["exact None"], taken["solve"]
    for name, what in rows.items():
        ms = taken[name]
        beyond = ms - alone
        ratios = {"faster": whole / ms, "cheaper": (whole - alone) / beyond}
        yield {**what, "ms": ms, "beyond_ms": beyond, **ratios}


def complexity(data: Data) -> Iterable[Sequence[Any]]:
    """Table 5.1: the published orders, and how bytes and time grow with k, or with K."""
    taken, timed = data.series("bytes"), data.series("ms")
    for name, orders in ORDERS.items():
        if taken.empty:
            yield name, *orders, NOT_RUN
            continue
        rows = taken[taken["gradient"] == name]
        along = "evals" if name == "exact" else "steps"
        sizes = rows["bytes"] / MIB
        slope, fit = _line(rows[along], sizes)
        ends = sizes.max() / sizes.min()
        per: Sequence[Any] = ()
        if len(timed) and along == "steps":
            own = timed[timed["gradient"] == name]
            per = _line(own["steps"], own["ms"])
        yield name, *orders, {"evals": "K", "steps": "k"}[along], slope, fit, ends, *per


def _line(x: Frame, y: Frame) -> tuple[float, float]:
    """Slope and R² of the line of least squares."""
    x, y = list(map(float, x)), list(map(float, y))
    slope = statistics.linear_regression(x, y).slope
    fit = statistics.correlation(x, y) ** 2 if len(set(y)) > 1 else 1.0
    return slope, fit
