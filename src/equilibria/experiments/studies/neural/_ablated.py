"""Learned solvers without one of their parts, or trained on another loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.experiments.studies.neural._measures import (
    FLOOR,
    HORIZON,
    MIXING,
    SAMPLES,
    contestants,
    traced,
)
from equilibria.experiments.studies.neural._subjects import (
    Distilled,
    distilled,
    solving,
)
from equilibria.experiments.study import Context
from equilibria.nn.distilling import Contestant
from equilibria.solve import Anderson
from equilibria.solve.rows import length
from equilibria.solve.tree import flatten
from equilibria.train import evaluation

PAPER: Mapping[str, Any] = {"mixer": "pooled", "loss": "error"}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "ours": {},
    "no start": {"initialiser": False},
    "no mixer": {"mixer": None},
    "ours on the papers' loss": {"loss": "error"},
    "the papers'": PAPER,
    "the papers', loss on residuals": {**PAPER, "loss": "residual"},
    "the papers', no start": {**PAPER, "initialiser": False},
    "the papers', no loss of the start": {**PAPER, "start": 0.0, "start_steps": 0},
    "the papers', no loss of alpha": {**PAPER, "mixed": 0.0},
    "the papers', w uniform": {**PAPER, "weights": "uniform"},
    "the papers', w last": {**PAPER, "weights": "last"},
    "the papers', the rest of alpha to the last iterate": {**PAPER, "normalised": "none"},
    "the papers', alpha by softmax": {**PAPER, "normalised": "softmax"},
    "the papers', alpha alone": {**PAPER, "predicts": "alpha"},
    "the papers', beta alone": {**PAPER, "predicts": "beta"},
    "ours, batches of 2": {"batch_size": 2, "batches": 384},
    "ours, batches of 8": {"batch_size": 8, "batches": 96},
}
"""Fields of `Distillation`; batches of 32 unless it says otherwise, as many samples in all."""

STEPS = 200
"""Through unrolled solves, more than by default: mixers are what is compared."""

STOPPED = 3
ALONE: Mapping[str, Any] = {"trust": None, "fallback": 1000}
"""The papers' solver has neither a trust region nor a fallback."""


def ablated(context: Context) -> dict[str, Any]:
    """After `HORIZON` evaluations the relative `residual` and `error`, geometric means over test
    samples; `accuracy` after `STOPPED`, of all of the test split; `seconds` of learning, None
    where nothing is learned."""
    name = str(context.factors["variant"])
    if name == "Anderson":
        found = distilled(context.run)
        by, fields, seconds = contestants(found)["Anderson"], {}, None
    else:
        found = distilled(context.run, steps=STEPS, **VARIANTS[name])
        by = next(each for n in (MIXING, "mixer", "start") if (each := found.outcome.all.get(n)))
        fields, seconds = ALONE if name.startswith("the papers'") else {}, found.seconds
    by = replace(by, solver=replace(cast(Any, by.solver), **fields))
    return {
        "residual": _mean(traced(found, by, HORIZON)[-1]),
        "error": _mean(_errors(found, by)),
        "accuracy": _accuracy(context, found, by),
        "seconds": seconds,
    }


def _mean(values: Tensor) -> float:
    return float(values.clamp_min(FLOOR).log().mean().exp())


@torch.no_grad()
def _errors(found: Distilled, by: Contestant) -> Tensor:
    """||z - z*|| / ||z*|| of each of the first test samples."""
    model, inputs = found.model, found.task.sample("test", SAMPLES["images"]).inputs
    states = []
    exact = Anderson(rtol=1e-6, max_evals=300)
    for solver, learned, fields in (
        (exact, None, {}),
        (by.solver, by.learned, {"rtol": 0.0, "max_evals": HORIZON, "patience": None}),
    ):
        with solving(model, solver, learned, **fields):
            sol = model.deq(*model.inject(inputs))
        states.append([leaf.flatten(1).double() for leaf in flatten(sol.value)[0]])
    goal, value = states
    apart = [one - two for one, two in zip(value, goal, strict=True)]
    return length(apart) / length(goal)


def _accuracy(context: Context, found: Distilled, by: Contestant) -> float:
    accelerator = evaluation.accelerator(context.run.recipe.precision)
    size = context.run.recipe.eval_batch_size
    with solving(found.model, by.solver, by.learned, max_evals=STOPPED):
        result = evaluation.evaluate(found.model, found.task, accelerator, batch_size=size)
    return result["accuracy"]
