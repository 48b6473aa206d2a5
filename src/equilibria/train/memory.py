"""Memory of one training step against depth, measured with torch's profiler on the CPU."""

from __future__ import annotations

import copy
import dataclasses
import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from equilibria.models import EquilibriumModel, Model
from equilibria.models.sequence.base import SequenceModel
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
from equilibria.tasks import Batch, Task

Loss = Callable[[Model, Tensor], Tensor]
"""(model, output) -> scalar."""

DEPTHS = (5, 10, 20, 40, 80)
"""Evaluations at which a step is measured."""

LONG = (6, 12, 24)
"""The same where one evaluation reads whole segments of a text."""

Kind = Literal["deq", "unrolled", "checkpointed", "explicit"]


@dataclass(frozen=True)
class MemoryPoint:
    """What one training step needs at one depth."""

    kind: Kind
    """The DEQ as it trains; its cell unrolled, plain or with checkpointing; an explicit network."""
    evals: int
    """Evaluations of the cell in the forward; of an explicit network its layers, 0 if unknown."""
    bytes: int
    """Peak of what forward and backward allocate, less the gradients of the parameters."""
    history_bytes: int
    """Share of `bytes` that the solvers' histories take: the larger of forward and backward."""


def measure(
    model: Model, task: Task, batch: Batch, depths: Sequence[int] | None = None
) -> list[MemoryPoint]:
    """Measure the memory of a training step: of a DEQ and of its cell unrolled, or of a network.

    Every solve is made to take the full number of evaluations (its tolerance is 0). Parameters,
    gradients and optimiser state are there before the measurement and are not part of it.

    Of a model of sequences the body is measured, without embedding and softmax: tokens are embedded
    before, and the loss is the mean square of the features. A batch that follows another is
    measured: there is a carry.

    Args:
        model: the model, on the CPU; it is copied.
        task: gives the loss.
        batch: one batch.
        depths: numbers of evaluations; None for `DEPTHS`, or `LONG` of sequences.
    """
    loss: Loss = lambda model, output: task.loss(model, output, batch.targets)  # noqa: E731
    usual: Sequence[int] = DEPTHS
    if isinstance(model, SequenceModel):
        model, loss, usual = body(model, batch.inputs), _mean_square, LONG
    carry = _carry(model, batch.inputs) if task.streams else None
    step = partial(_step, inputs=batch.inputs, carry=carry, loss=loss)
    if not isinstance(model, EquilibriumModel):
        layers = getattr(getattr(model, "config", None), "layers", 0)
        return [MemoryPoint("explicit", layers, step(copy.deepcopy(model).train())[0], 0)]
    points: list[MemoryPoint] = []
    solver, adjoint = model.deq.solver, model.deq.adjoint
    kinds: list[tuple[Kind, Solver, Adjoint]] = [
        ("deq", solver, adjoint),
        ("unrolled", Picard(), Unrolled()),
        ("checkpointed", Picard(), Unrolled(checkpoint=True)),
    ]
    for kind, method, derivative in kinds:
        for depth in usual if depths is None else depths:
            twin = copy.deepcopy(model).train()
            twin.deq.adjoint = derivative
            twin.deq.solver = dataclasses.replace(
                method, rtol=0.0, atol=0.0, max_evals=depth, patience=None
            )
            peak, size, products = step(twin)
            vectors = _history(twin.deq.solver, depth)
            if isinstance(derivative, Implicit):
                vectors = max(vectors, _history(derivative.linear, products))
            points.append(MemoryPoint(kind, depth, peak, size * vectors))
    return points


_Sequences = TypeVar("_Sequences", bound=SequenceModel)


def body(model: _Sequences, tokens: Tensor) -> _Sequences:
    """Return a copy of a model of sequences that knows no words: `tokens` are embedded once.

    Whatever it is called with, it reads the embeddings of `tokens`, which are constants.
    """
    twin = copy.deepcopy(model)
    with torch.no_grad():
        embedded = twin.lexicon.embed(tokens)
    twin.lexicon = cast(Any, _Embedded(embedded))
    return twin


class _Embedded(nn.Module):
    """Stands for a lexicon that has embedded already."""

    def __init__(self, embedded: Tensor) -> None:
        super().__init__()
        self.embedded = nn.Buffer(embedded)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return what was embedded."""
        return self.embedded


def _mean_square(_: Model, output: Tensor) -> Tensor:
    return output.square().mean()


@torch.no_grad()
def _carry(model: Model, inputs: Tensor) -> Any:
    """Return what a model carries over to a batch that follows `inputs`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(inputs).carry


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


def _step(model: Model, inputs: Tensor, carry: Any, loss: Loss) -> tuple[int, int, int]:
    """Return the peak of forward and backward, the largest state's bytes, the adjoint's products.

    Of several solves one after the other the histories do not add up: the state is the largest.
    """
    size = products = 0

    def step() -> None:
        nonlocal size, products
        prediction = model(inputs, carry=carry)
        states = [pytree.tree_leaves(solution.value) for solution in prediction.solutions]
        sizes = [sum(leaf.numel() * leaf.element_size() for leaf in leaves) for leaves in states]
        size = max(sizes, default=0)
        loss(model, prediction.output).backward()
        for solution in prediction.solutions:
            if solution.adjoint is not None:
                products = max(products, int(solution.adjoint.stats.evals.max()))

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
