"""What the experiments measure of a trained sequence network: courses, spreads, likeness."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.experiments import counterpart
from equilibria.models import EquilibriumModel, ModelConfig
from equilibria.solve import Solution, Solver, SolveWarning
from equilibria.stability import jacobian_penalty
from equilibria.tasks import Task
from equilibria.tasks.feed import Batch
from equilibria.tasks.language import LanguageTask
from equilibria.train import memory
from equilibria.train.run import Run

__all__ = [
    "as_equilibrium",
    "course",
    "described",
    "equilibrium_of",
    "penalised_bytes",
    "quantiles",
    "segments",
    "solved",
    "spread",
]


def segments(task: LanguageTask, length: int, count: int, split: str = "test") -> Batch:
    """Return `count` segments of `length` tokens from all over a split, each at a beginning.

    Args:
        task: whose corpus it is.
        length: tokens a segment, whatever the task trains on.
        count: of segments; fewer where the text is short.
        split: of the corpus.
    """
    return LanguageTask(replace(task.config, length=length), task.corpus).sample(split, count)


def as_equilibrium(run: Run) -> EquilibriumModel:
    """Return the equilibrium network with the weights of a trained weight-tied stack.

    Its plain iteration from zero is the stack, at any depth.

    Args:
        run: of a `transformer-xl` or a `trellisnet` whose layers are tied.
    """
    return equilibrium_of(run.recipe.model, run.data, run.model.state_dict())


def equilibrium_of(stack: ModelConfig, task: Task, state: Mapping[str, Tensor]) -> EquilibriumModel:
    """Return the equilibrium network of a weight-tied stack's cell, in evaluation mode.

    Args:
        stack: config of the stack.
        task: whose data it was made for.
        state: the stack's weights.
    """
    model = cast(EquilibriumModel, task.model(counterpart.implicit(stack)))
    model.load_state_dict(
        {f"deq.{key}" if key.startswith("cell.") else key: value for key, value in state.items()}
    )
    return cast(EquilibriumModel, model.eval())


def described(solver: Solver) -> dict[str, Any]:
    """Return a solver as the settings of a case name it: class and all fields."""
    return {"name": type(solver).__name__, **asdict(cast(Any, solver))}


@torch.no_grad()
def solved(
    model: EquilibriumModel,
    inputs: Tensor,
    solver: Solver,
    *,
    dropout: bool = False,
    trace: bool = False,
) -> Solution:
    """Solve for the equilibrium of `inputs` with another solver than the model's.

    Args:
        model: not changed.
        inputs: tokens (batch, time).
        solver: in place of its own.
        dropout: in training mode, with one dropout mask over the solve.
        trace: keep the residual after each evaluation.
    """
    with _solving_with(model, solver, dropout):
        return model.deq(*model.inject(inputs), trace=trace)


@contextmanager
def _solving_with(model: EquilibriumModel, solver: Solver, training: bool) -> Iterator[None]:
    before = model.deq.solver, model.deq.eval_solver, model.training
    model.deq.solver, model.deq.eval_solver = solver, None
    model.train(training)
    try:
        yield
    finally:
        model.deq.solver, model.deq.eval_solver = before[:2]
        model.train(before[2])


def course(
    model: EquilibriumModel, inputs: Tensor, solver: Solver, evals: int
) -> dict[str, list[float]]:
    """Return the relative residual of each of `evals` evaluations, quantiles over the batch.

    The solver is made to take them all: its tolerance is 0 and its patience endless.

    Args:
        model: solved with `solver` in place of its own, in evaluation mode.
        inputs: tokens (batch, time).
        solver: of the fixed point; `Picard()` is the stack of layers.
        evals: evaluations of the cell.

    Returns:
        `median`, `low` (10 %) and `high` (90 %), a figure an evaluation.
    """
    endless = cast(
        Solver, replace(cast(Any, solver), rtol=0.0, atol=0.0, max_evals=evals, patience=None)
    )
    trace = solved(model, inputs, endless, trace=True).stats.trace
    assert isinstance(trace, Tensor)
    return quantiles(trace)


def quantiles(values: Tensor) -> dict[str, list[float]]:
    """Return median, 10 % and 90 % over the last axis of (steps, batch), by name."""
    shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, device=values.device)
    low, median, high = torch.quantile(values.double(), shares, dim=-1).tolist()
    return {"median": median, "low": low, "high": high}


def penalised_bytes(model: EquilibriumModel, batch: Batch) -> int:
    """Return the memory of a training step with the Jacobian penalty, in bytes.

    As `train.memory` measures the step without it: forward and backward, without embedding and
    softmax, less parameters and gradients. The solves are the model's own.

    Args:
        model: of sequences, on the CPU.
        batch: of training; it is taken as a beginning and again as what follows it.
    """
    twin = cast(EquilibriumModel, memory.body(cast(Any, model), batch.inputs).train())

    def step(carry: Any = None) -> Any:
        prediction = twin(batch.inputs, carry=carry)
        loss = prediction.output.square().mean()
        (loss + sum(jacobian_penalty(each) for each in prediction.solutions)).backward()
        return prediction.carry

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)
        carry = step()  # which allocates the gradients
        return memory.peak_bytes(lambda: step(carry))


def spread(evals: Tensor) -> dict[str, float]:
    """Return how unequal the evaluations (batch,) of the samples of a batch are.

    A batch without compaction waits for its slowest sample: `waiting` is the share of all
    evaluations that are then spent on samples that have converged before, 1 - mean / max.
    """
    counts = evals.double()
    most = float(counts.max())
    return {
        "mean": float(counts.mean()),
        "least": float(counts.min()),
        "most": most,
        "deviation": float(counts.std(correction=0)),
        "waiting": 1 - float(counts.mean()) / most,
    }
