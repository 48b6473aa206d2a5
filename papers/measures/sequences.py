"""Measures of a trained sequence model: on segments, and with other solvers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.nn import using
from equilibria.run import evaluation
from equilibria.run.models import EquilibriumModel
from equilibria.run.run import Run
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures.epochs import solves
from equilibria.run.studies.study import Context
from equilibria.run.tasks import Batch, Task
from equilibria.solve import Solver
from equilibria.zoo.language.task.language import LanguageTask
from papers.measures import counterpart


def segments(task: Task, length: int | None, count: int, split: str = "test") -> Batch:
    """Return `count` segments, fewer of a short text, from all over a split, each at a beginning;
    of `length` tokens, None for as many as in the training."""
    task = cast(LanguageTask, task)
    config = replace(task.config, length=length or task.config.length)
    return LanguageTask(config, task.corpus).sample(split, count)


def as_equilibrium(run: Run) -> EquilibriumModel:
    """Return a trained equilibrium network, or that of a weight-tied stack's cell and weights.

    Plain iteration of the latter from zero is the stack, at any depth.
    """
    if isinstance(run.model, EquilibriumModel):
        return run.model
    model = cast(EquilibriumModel, run.data.model(counterpart.implicit(run.recipe.model)))
    weights = run.model.state_dict().items()
    model.load_state_dict({f"deq.{k}" if k.startswith("cell.") else k: v for k, v in weights})
    return model.eval()


def residuals(
    context: Context, *, solvers: Mapping[str, Solver], count: int, length: int | None = None
) -> Iterator[dict[str, Any]]:
    """Relative residuals on `segments` of the test text, by `solver` and number of `evals`.

    `median`, `low` (10 %) and `high` (90 %) are over the segments. Plain iteration is the stack of
    layers.
    """
    run = context.run.load()
    model, inputs = as_equilibrium(run), segments(run.data, length, count).inputs
    for name, solver in solvers.items():
        with torch.no_grad(), using(model, solver=solver):
            trace = model.deq(*model.inject(inputs), trace=True).stats.trace
        shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        quantiles = torch.quantile(cast(Tensor, trace).double(), shares, dim=-1).T.tolist()
        for evals, (low, median, high) in enumerate(quantiles, start=1):
            yield {"solver": name, "evals": evals, "median": median, "low": low, "high": high}


@identified_as("sequences.reading")
def read_text(context: Context, **fields: Any) -> dict[str, Any]:
    """`perplexity`, `evals` and `converged` of the test text, and `token_seconds`, for each token;
    {} of a training that diverged. `fields` of the solver are in place of its own."""
    if context.run.diverged:
        return {}
    run = context.run.load()
    accelerator = evaluation.accelerator(run.recipe.precision)
    model: Any = run.model.to(accelerator.device)
    solver = replace(model.deq.eval_solver or model.deq.solver, **fields)
    options = {"batch_size": run.recipe.eval_batch_size, "solver": solver}
    found, seconds = evaluation.time_evaluation(model, run.data, accelerator, **options)
    figures = {"perplexity": found["perplexity"], "token_seconds": seconds}
    return figures | solves(found["forward"])
