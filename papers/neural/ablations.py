"""A learned solver without one of its parts, or trained with a different loss."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.learned import Contestant
from equilibria.run import evaluation
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Pivot, count, mean, spread
from equilibria.solve import Anderson, flatten, length
from papers.neural import common
from papers.neural.common import HORIZON, MDEQ, SEEDS, training_of

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
"""Fields of `Distillation`; the number of samples is constant, in batches of 32 by default."""

WORDS = {
    "no start": "ours, no initial guess",
    "no mixer": "ours, no mixer",
    "ours on the papers' loss": "ours, the papers' loss",
    "the papers', no start": "the papers', no initial guess",
    "the papers', no loss of the start": "the papers', no loss on the initial guess",
    "the papers', no loss of alpha": "the papers', no loss on alpha",
    "the papers', w uniform": "the papers', uniform w_k",
    "the papers', w last": "the papers', w_k nonzero for k = K only",
    "the papers', the rest of alpha to the last iterate": (
        "the papers', remainder of alpha on the last iterate"
    ),
    "the papers', alpha alone": "the papers', only alpha predicted",
    "the papers', beta alone": "the papers', only beta predicted",
}
"""Names of variants in the table."""

STEPS = 200
"""Steps through unrolled solves, more than by default, since mixers are compared."""

STOPPED = 3
ALONE: Mapping[str, Any] = {"trust": None, "fallback": 1000}
"""The papers' solver has neither a trust region nor a fallback."""


@identified_as("_ablated.ablated")
def ablate(context: Context) -> dict[str, Any]:
    """Relative `residual` and `error` after `HORIZON` evaluations, as geometric means over test
    samples; `accuracy` on the whole test split after `STOPPED` evaluations; `seconds` of training,
    None where nothing is learned."""
    name = str(context.factors["variant"])
    if name == "Anderson":
        found = common.distill_solver(context.run)
        by, fields, seconds = common.contestants(found)["Anderson"], {}, None
    else:
        found = common.distill_solver(context.run, steps=STEPS, **VARIANTS[name])
        by = next(
            each for n in (common.MIXING, "mixer", "start") if (each := found.outcome.all.get(n))
        )
        fields, seconds = ALONE if name.startswith("the papers'") else {}, found.seconds
    by = replace(by, solver=replace(cast(Any, by.solver), **fields))
    return {
        "residual": _mean(common.trace(found, by, common.HORIZON)[-1]),
        "error": _mean(_errors(found, by)),
        "accuracy": _accuracy(context, found, by),
        "seconds": seconds,
    }


def _mean(values: Tensor) -> float:
    return float(values.clamp_min(common.FLOOR).log().mean().exp())


@torch.no_grad()
def _errors(found: common.Distilled, by: Contestant) -> Tensor:
    """||z - z*|| / ||z*|| of each of the first test samples."""
    model, inputs = found.model, found.inputs(common.SAMPLES["images"])
    states = []
    exact = Anderson(rtol=1e-6, max_evals=300)
    for solver, learned, fields in (
        (exact, None, {}),
        (by.solver, by.learned, {"rtol": 0.0, "max_evals": common.HORIZON, "patience": None}),
    ):
        with common.use_solver(model, solver, learned, **fields):
            sol = model.deq(*model.inject(inputs))
        states.append([leaf.flatten(1).double() for leaf in flatten(sol.value)[0]])
    goal, value = states
    apart = [one - two for one, two in zip(value, goal, strict=True)]
    return length(apart) / length(goal)


def _accuracy(context: Context, found: common.Distilled, by: Contestant) -> float:
    size = context.run.recipe.eval_batch_size
    with common.use_solver(found.model, by.solver, by.learned, max_evals=STOPPED):
        result = evaluation.evaluate(found.model, found.task, found.accelerator, batch_size=size)
    return result["accuracy"]


# --- The study ------------------------------------------------------------------------------------


STUDY = Study(
    item="Figures 6.7 and 6.8",
    title="Ablations of a learned solver",
    note="The MDEQ of jacobian/tables without the penalty. Ours: an initial guess, and "
    "corrections to Anderson's weights from the Gram matrix, trained on log residuals. The "
    "papers': mixing weights and damping from pooled residuals, trained on distances from z*, "
    f"with neither trust region nor fallback. All are trained for {STEPS} steps through unrolled "
    f"solves of {HORIZON} evaluations, on batches of 32 samples.",
    points=lambda scale: [
        Point(
            {"variant": name, "seed": seed},
            [ablate],
            {"run": training_of(MDEQ, scale, seed)},
            settings={"fields": dict(VARIANTS.get(name, {}))},
            minutes=1,
        )
        for seed in SEEDS[MDEQ]
        for name in ("Anderson", *VARIANTS)
    ],
    views=[
        Pivot(
            title="Figures 6.7 and 6.8",
            index={"variant": "solver"},
            words={"variant": WORDS},
            values={
                "seeds": count("residual"),
                f"residual after {HORIZON}": mean("residual"),
                f"error after {HORIZON}": mean("error"),
                f"accuracy after {STOPPED}, %": spread("accuracy", 100, ".2f"),
                "training the solver, s": mean("seconds"),
            },
            note="Residual and error are relative: geometric means over test samples, arithmetic "
            "means over seeds.",
        )
    ],
)
