"""What networks on images reach with solves stopped early, and their cost in time and memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from equilibria.experiments.measures import timing
from equilibria.experiments.measures.memory import step_bytes
from equilibria.experiments.studies.jacobian._images import BEST, LIMIT, THIRD
from equilibria.experiments.study import Context
from equilibria.run import evaluation, memory
from equilibria.run.models import EquilibriumModel, Model
from equilibria.solve import Broyden, Picard, Solver

LIMITS = (1, 2, 3, 4, 5, 6, LIMIT)
"""Evaluations after which solves are stopped: Table 3's, and those of training without penalty."""

READERS: dict[str, tuple[str, int | None]] = {
    "resnet": ("resnet", None),
    "plain": ("plain", LIMIT),
    "stopped": ("plain", THIRD),
    "regularised": (BEST, THIRD),
}
"""Which network reads test images, and after how many evaluations a solve is stopped."""

SOLVERS = {"own": "the recipe's", "broyden": "Broyden, all steps kept"}
"""Solvers whose memory is measured: the network's own, and the papers'."""


def stopped(context: Context, *, limits: Iterable[int]) -> Iterable[dict[str, Any]]:
    """Accuracy on the test images by `limit` of a solve; of an explicit network, one row."""
    run, network = context.run, context.factors["network"]
    if run.diverged:
        return
    accelerator = evaluation.accelerator(run.recipe.precision)
    model, size = run.load().model.to(accelerator.device), run.recipe.eval_batch_size
    for limit in limits if isinstance(model, EquilibriumModel) else [None]:
        options = {"batch_size": size, "solver": _stopped(model, limit)}
        accuracy = evaluation.evaluate(model, run.task, accelerator, **options)["accuracy"]
        reader = next((name for name, of in READERS.items() if of == (network, limit)), None)
        yield {"limit": limit, "reader": reader, "accuracy": accuracy, "error": 1 - accuracy}


def _stopped(model: Model, limit: int | None) -> Solver | None:
    """The solver of an equilibrium network with another limit; None without one."""
    if limit is None:
        return None
    return replace(cast(Any, cast(EquilibriumModel, model).deq.solver), max_evals=limit)


def pace(context: Context) -> dict[str, float | None]:
    """`epoch_seconds`: the median over the epochs after the shallow start; None without any."""
    run, start = context.run, context.run.recipe.pretrain
    begins = [0, *(epoch["step"] for epoch in run.metrics)]
    epochs = zip(begins, run.metrics, strict=False)
    shallow = start.steps if start else 0
    seconds = [epoch["seconds"] for begin, epoch in epochs if begin >= shallow]
    return {"epoch_seconds": statistics.median(seconds) if seconds and not run.diverged else None}


def times(context: Context) -> Iterable[dict[str, Any]]:
    """Milliseconds of a training step and of reading a batch of test images, by `reader`.

    `relative` is the time of reading over that of the explicit network.
    """
    runs = context.runs.items()
    trainers = {name: run.trainer(trained=True, before_end=timing.SPENT) for name, run in runs}
    steps = timing.steps(trainers)
    readers = {name: (trainers[network], limit) for name, (network, limit) in READERS.items()}
    calls = {n: timing.reader(t, _stopped(t.model, limit)) for n, (t, limit) in readers.items()}
    read = timing.milliseconds(calls)
    for name, (network, _) in READERS.items():
        step = None if name == "stopped" else steps[network]["step"]
        relative = read[name] / read["resnet"]
        yield {"reader": name, "read_ms": read[name], "relative": relative, "step_ms": step}


def memories(context: Context) -> Iterable[dict[str, Any]]:
    """Bytes by `reader`, in float32: of a training step, with the penalty where there is one; and
    by `solver` of inference, the solver's share of them, and by how much the plain network's are
    larger, `saving`."""
    whole: dict[str, int] = {}
    for reader, (network, limit) in READERS.items():
        run = context.runs[network]
        recipe, task = run.recipe, run.task
        model = run.load().model.to(evaluation.accelerator(recipe.precision).device)
        if reader != "stopped":
            batch = task.feed(recipe.rows, recipe.seed).batch(0)
            peak = step_bytes(model, task, batch, penalised=recipe.regulariser is not None)
            yield {"reader": reader, "step_bytes": peak}
        if isinstance(model, EquilibriumModel) and limit is not None:
            inputs = task.sample("test", recipe.eval_batch_size).inputs
            for solver, (peak, bare) in inference(model, inputs, limit).items():
                whole.setdefault(solver, peak)
                row = {"reader": reader, "solver": solver, "peak_bytes": peak}
                row |= {"history_bytes": peak - bare, "share": 1 - bare / peak}
                yield row | {"saving": whole[solver] / peak}


@torch.no_grad()
def inference(model: EquilibriumModel, inputs: Any, limit: int) -> dict[str, tuple[int, int]]:
    """Return the peak of a forward without gradients, in bytes, with each of `SOLVERS`, stopped
    after `limit` evaluations, and without a history, by plain iteration.

    papers: Bai et al. 2021, sec. 3.4.
    """
    own = cast(Any, model.deq.solver)
    common = {"rtol": own.rtol, "max_evals": limit}
    device = next(model.parameters()).device
    inputs = pytree.tree_map(lambda x: x.to(device), inputs)
    peaks: list[int] = []
    for solver in (Picard(**common), replace(own, **common), Broyden(**common)):
        with evaluation.evaluating(model, solver):
            model(inputs)  # what is set up once is not counted
            peaks.append(memory.peak_bytes(lambda: model(inputs), device))
    return {name: (peak, peaks[0]) for name, peak in zip(SOLVERS, peaks[1:], strict=True)}
