"""Measures of learned and classical solvers on trained networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.experiments.measures import timing
from equilibria.experiments.studies.neural._subjects import (
    SUBJECTS,
    Distilled,
    distilled,
    solving,
)
from equilibria.experiments.study import Context
from equilibria.learned import Contestant
from equilibria.run import evaluation, neural
from equilibria.solve import Anderson, Status

__all__ = [
    "FLOOR",
    "FULL",
    "HORIZON",
    "LIMITS",
    "MIXING",
    "SAMPLES",
    "budgets",
    "contestants",
    "never_worse",
    "overhead",
    "residuals",
    "traced",
]

LIMITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18)
"""Limits on the evaluations of a solve."""

HORIZON = 10
"""K: evaluations of the unrolled solves on which a solver is trained."""

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)
SAMPLES = {"images": 512, "text": 32}
"""Number of test samples whose residuals are traced; segments for a text."""

FLOOR = 1e-12
FULL, MIXING = "full solves", "start and mixer"
_ANDERSON = Contestant(Anderson(history=5), None, torch.empty(0), torch.empty(0), 0.0)


def overhead(context: Context) -> dict[str, Any]:
    """Parameters of network and learned solver, the `seconds` that distilling and training took,
    and the result of the contest: `worth`, `mixes`, evaluations of the best solver of each kind."""
    found = distilled(context.run)
    outcome = found.outcome
    own = neural.size_of(found.model)
    learned = sum(p.numel() for p in found.learned.parameters())
    return {
        "network_parameters": own,
        "learned_parameters": learned,
        "distil_seconds": found.seconds,
        "training_seconds": context.run.seconds,
        "worth": outcome.worth,
        "mixes": outcome.mixes,
        "best_classical": type(outcome.classical.solver).__name__,
        "classical_evals": outcome.classical.mean,
        "learned_evals": outcome.learned.mean,
        "start_mixer_evals": _mean(outcome.all.get(MIXING)),
        "start_evals": _mean(outcome.all.get("start")),
    }


def _mean(one: Contestant | None) -> float | None:
    return None if one is None else one.mean


def budgets(context: Context) -> Iterator[dict[str, Any]]:
    """The network's `quality` on the test split, by `solver` and `limit` on evaluations, at the
    recipe's tolerance, and the `lost` quality relative to full solves by the recipe's solver. Then
    milliseconds per batch for each solver, limited to the fewest evaluations, `enough`, that lose
    next to nothing, all interleaved; and `step_ratio`, the time of `HORIZON` steps with a mixer,
    including f, over that of as many Anderson steps."""
    found, quality = distilled(context.run), SUBJECTS[str(context.factors["subject"])]
    size = context.run.recipe.eval_batch_size

    def figure() -> float:
        result = evaluation.evaluate(found.model, found.task, found.accelerator, batch_size=size)
        return result[quality.metric]

    end, enough = figure(), {}
    yield {"solver": FULL, "quality": end}
    for name, each in contestants(found).items():
        for limit in LIMITS:
            with solving(found.model, each.solver, each.learned, max_evals=limit):
                value = figure()
            lost = quality.scale * quality.loss(value, end)
            if lost <= quality.scale * quality.near:
                enough.setdefault(name, limit)
            yield {"solver": name, "limit": limit, "quality": value, "lost": lost}
    yield from _speeds(found, size, enough)


def _speeds(found: Distilled, size: int, enough: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    everyone = contestants(found)
    inputs = found.inputs(size)

    def reader(by: Contestant, **fields: Any) -> Callable[[], object]:
        def read() -> object:
            with torch.no_grad(), solving(found.model, by.solver, by.learned, **fields):
                return found.model(inputs)

        return read

    calls = {name: reader(everyone[name], max_evals=limit) for name, limit in enough.items()}
    for name, ms in timing.milliseconds(calls).items():
        yield {"solver": name, "enough": enough[name], "read_ms": ms}
    mixing = everyone.get(MIXING)
    if mixing is not None:
        fixed: Any = {"rtol": 0.0, "atol": 0.0, "max_evals": HORIZON, "patience": None}
        calls = {"mixer": reader(mixing, **fixed), "plain": reader(_ANDERSON, **fixed)}
        taken = timing.milliseconds(calls)
        yield {"solver": "a step", "step_ratio": taken["mixer"] / taken["plain"]}


def contestants(found: Distilled) -> dict[str, Contestant]:
    """Return the solvers of a contest by name, without the layer's own, which for every subject is
    an `Anderson(period=3)` as well, with a shorter history."""
    return {n: each for n, each in found.outcome.all.items() if n != "the layer's own"}


@torch.no_grad()
def residuals(context: Context) -> Iterator[dict[str, Any]]:
    """The smallest relative `residual` so far, a geometric mean over test samples, by `solver` and
    number of `evals`, up to 2 K."""
    found = distilled(context.run)
    for name, each in contestants(found).items():
        least = traced(found, each)
        for evals, value in enumerate(least.log().mean(1).exp().tolist(), start=1):
            yield {"solver": name, "evals": evals, "residual": value}


def traced(found: Distilled, by: Contestant, evals: int = 2 * HORIZON) -> Tensor:
    """Return the running minimum of the relative residual of the first test samples, after each
    evaluation, `(evals, samples)`."""
    kind = "text" if found.task.streams else "images"
    inputs = found.inputs(SAMPLES[kind])
    fields: Any = {"rtol": 0.0, "atol": 0.0, "max_evals": evals, "patience": None}
    with solving(found.model, by.solver, by.learned, **fields):
        sol = found.model.deq(*found.model.inject(inputs), trace=True)
    trace = cast(Tensor, sol.stats.trace).double()
    return trace.nan_to_num(math.inf).cummin(0).values.clamp_min(FLOOR)


@torch.no_grad()
def never_worse(context: Context) -> Iterator[dict[str, Any]]:
    """On all test samples, by `rtol`: evaluations and fraction converged for Anderson and for the
    learned solver, and the fraction of samples that take more than 2 additional evaluations."""
    found = distilled(context.run)
    learned = found.outcome.learned
    for rtol in TOLERANCES:
        limits: Any = {"rtol": rtol, "atol": 0.0, "max_evals": 100, "patience": None}
        usual = _solves(found, _ANDERSON, limits, context)
        ours = _solves(found, learned, limits, context)
        yield {
            "rtol": rtol,
            "samples": len(usual[0]),
            "anderson_evals": float(usual[0].double().mean()),
            "anderson_converged": float(usual[1].double().mean()),
            "neural_evals": float(ours[0].double().mean()),
            "neural_converged": float(ours[1].double().mean()),
            "slower": float((ours[0] > usual[0] + 2).double().mean()),
        }


def _solves(
    found: Distilled, by: Contestant, limits: Mapping[str, Any], context: Context
) -> tuple[Tensor, Tensor]:
    """Evaluations of each solve on the test split, and whether it converged. The state carried over
    in a text comes from the recipe's solver, so that it is the same for all."""
    evals, converged = [], []
    carry = None
    size = context.run.recipe.eval_batch_size
    for batch in found.task.batches("test", size):
        before = None if batch.begins else carry
        inputs = evaluation.to_device(batch.inputs, found.accelerator)
        with solving(found.model, by.solver, by.learned, **limits):
            prediction = found.model(inputs, carry=before)
        if found.task.streams:
            carry = found.model(inputs, carry=before).carry
        for solution in prediction.solutions:
            evals.append(solution.stats.evals)
            converged.append(solution.status == Status.CONVERGED)
    return torch.cat(evals), torch.cat(converged)
