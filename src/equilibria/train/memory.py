"""Memory of one training step against depth, measured with torch's profiler on the CPU."""

from __future__ import annotations

import copy
import dataclasses
import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, cast

from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from equilibria.models import EquilibriumModel
from equilibria.solve import (
    GMRES,
    Adjoint,
    Anderson,
    Auto,
    BiCGSTAB,
    Broyden,
    Implicit,
    NewtonKrylov,
    Picard,
    Relay,
    Solver,
    Unrolled,
)

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class MemoryPoint:
    """What one training step needs at one depth."""

    kind: Literal["deq", "unrolled", "checkpointed"]
    """The DEQ as it trains, or its cell unrolled, plain or with checkpointing."""
    evals: int
    """Evaluations of the cell in the forward."""
    bytes: int
    """Peak of what forward and backward allocate, less the gradients of the parameters."""
    history_bytes: int
    """Share of `bytes` that the solvers' histories take: the larger of forward and backward."""


def measure(
    model: EquilibriumModel,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    depths: Sequence[int] = (5, 10, 20, 40, 80),
) -> list[MemoryPoint]:
    """Measure the memory of a training step of a DEQ and of its cell unrolled.

    Every solve is made to take the full number of evaluations (its tolerance is 0). Parameters,
    gradients and optimiser state are there before the measurement and are not part of it.

    Args:
        model: the model, on the CPU; it is copied.
        inputs: one batch.
        targets: its targets.
        loss: loss(output, targets), a scalar.
        depths: numbers of evaluations.
    """
    points: list[MemoryPoint] = []
    solver, adjoint = model.deq.solver, model.deq.adjoint
    kinds: list[tuple[Literal["deq", "unrolled", "checkpointed"], Solver, Adjoint]] = [
        ("deq", solver, adjoint),
        ("unrolled", Picard(), Unrolled()),
        ("checkpointed", Picard(), Unrolled(checkpoint=True)),
    ]
    for kind, method, derivative in kinds:
        for depth in depths:
            twin = copy.deepcopy(model).train()
            twin.deq.adjoint = derivative
            twin.deq.solver = dataclasses.replace(
                method, rtol=0.0, atol=0.0, max_evals=depth, patience=None
            )
            peak, size, products = _step(twin, inputs, targets, loss)
            vectors = _history(twin.deq.solver, depth)
            if isinstance(derivative, Implicit):
                vectors = max(vectors, _history(derivative.linear, products))
            history = size * vectors
            points.append(MemoryPoint(kind, depth, peak, history))
    return points


def peak_bytes(step: Callable[[], object]) -> int:
    """Return the largest number of bytes that `step` has allocated at one time, on the CPU."""
    gc.collect()  # what is freed meanwhile but allocated before cannot be counted
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    # kineto_results has no underscore but no documentation either. The documented way to the same
    # numbers, export_chrome_trace, takes five times as long.
    results = cast(Any, profiler.profiler).kineto_results
    changes = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    changes.sort(key=lambda change: change[0])
    return max(accumulate((size for _, size in changes), initial=0))


def _step(
    model: EquilibriumModel, inputs: Tensor, targets: Tensor, loss: Loss
) -> tuple[int, int, int]:
    """Return the peak of forward and backward, the state's bytes, the adjoint's products."""
    size = products = 0

    def step() -> None:
        nonlocal size, products
        prediction = model(inputs)
        leaves = pytree.tree_leaves(prediction.solution.value)
        size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        loss(prediction.output, targets).backward()
        if prediction.solution.adjoint is not None:
            products = int(prediction.solution.adjoint.stats.evals.max())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solve that was stopped early is what is asked for here
        step()  # allocates the gradients
        return peak_bytes(step), size, products


def _history(solver: object, evals: int) -> int:
    """Return the size of a solver's history, as its docstring states it, after `evals`."""
    match solver:
        case Anderson(history=history, period=period):
            kept = min(history or evals, evals)
            return 2 * kept + 2 + (0 if period == 1 else kept + 1)
        case Broyden(memory=memory):
            return min(memory or evals, evals) + 1
        case Auto(history=history, linear=linear):
            kept = min(history, evals)
            return 3 * kept + 6 + _history(linear, evals)
        case NewtonKrylov(linear=linear):
            return 3 + _history(linear, evals)
        case GMRES(restart=restart):
            return min(restart, evals) + 1
        case BiCGSTAB():
            return 5
        case Relay(first=first, last=last):
            return max(_history(first, evals), _history(last, evals))
        case _:
            return 0
