"""What Tables 1 to 4 need beside the trainings: convergence, gradients, and times side by side."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.experiments.measures import timing
from equilibria.experiments.study import Context
from equilibria.run import evaluation
from equilibria.run.examination import examine
from equilibria.solve import SolveWarning, Status
from equilibria.zoo.language.model.base import SequenceModel

__all__ = ["core", "quality", "times"]


def core(context: Context) -> dict[str, int]:
    """`core`: parameters of the network without embedding and softmax."""
    recipe = context.run.recipe
    with torch.device("meta"):
        model = cast(SequenceModel, recipe.model.build(**recipe.layer()))
    words = sum(each.numel() for each in model.lexicon.parameters())
    return {"core": context.run.info["parameters"] - words}


def quality(context: Context, *, rtol: float) -> dict[str, Any]:
    """How a trained network's solves of the test text end, and how right its gradient is.

    `pieces` of a segment, each of which is a solve; the shares of them, and of the rows of
    segments, all of whose pieces must, that converge to `rtol`: `pieces_converged` and
    `rows_converged`; the doctor's `cosine` of the gradient by the recipe's adjoint and the exact.
    """
    if context.run.diverged:
        return {}
    run = context.run.load()
    accelerator = evaluation.accelerator(run.recipe.precision)
    model: Any = run.model.to(accelerator.device)
    solver = replace(model.deq.eval_solver or model.deq.solver, rtol=rtol)
    size = run.recipe.eval_batch_size
    statuses: list[Tensor] = []

    def listen(_model: Any, _inputs: Any, prediction: Any) -> None:
        statuses.append(torch.stack([each.status for each in prediction.solutions]).cpu())

    with model.register_forward_hook(listen):
        result = evaluation.evaluate(model, run.data, accelerator, batch_size=size, solver=solver)
    rows = [
        (status == Status.CONVERGED).all(0)[(batch.targets >= 0).flatten(1).any(1)]
        for status, batch in zip(statuses, run.data.batches("test", size), strict=True)
    ]  # that hold text: all pieces converged?
    model.cpu()  # where the doctor's batch is
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # the examination counts them
        cosine = examine(run).gradient.cosine
    return {
        "pieces": len(statuses[0]),
        "pieces_converged": result["forward"]["status"]["CONVERGED"],
        "rows_converged": float(torch.cat(rows).double().mean()),
        "cosine": cosine,
    }


def times(context: Context) -> dict[str, Any]:
    """Milliseconds of training steps and of reading a segment of test text, interleaved.

    For each run NAME, `NAME_read`, and of trained networks what `timing.steps` gives: `NAME_plain`,
    `NAME_penalised`, `NAME_step`; of new ones, behind any warm-up, `NAME_untrained`.
    """
    runs, found = context.runs, {"threads": torch.get_num_threads()}
    new = {name: run.trainer(trained=False) for name, run in runs.items()}
    old = {name: run.trainer(trained=True, before_end=timing.SPENT) for name, run in runs.items()}
    found |= {f"{name}_untrained": each["step"] for name, each in timing.steps(new).items()}
    for name, taken in timing.steps(old).items():
        found |= {f"{name}_{kind}": taken[kind] for kind in ("plain", "penalised", "step")}
    readers = {name: timing.reader(trainer) for name, trainer in old.items()}
    return found | {f"{name}_read": ms for name, ms in timing.milliseconds(readers).items()}
