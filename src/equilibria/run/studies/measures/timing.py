"""The solvers that studies compare; steps and readings of trainings, timed interleaved in one
process."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from equilibria.nn import using
from equilibria.nn.using import in_eval_mode
from equilibria.run.bench.count import interleave
from equilibria.run.trainer import Trainer
from equilibria.run.trees import to_device
from equilibria.solve import Anderson, Broyden, NewtonKrylov, Picard, Solver, SolveWarning

WORDS: Mapping[str, str] = {
    "plain": "plain iteration",
    "anderson": "alternating Anderson (period 3)",
    "broyden": "Broyden",
    "newton": "Newton-Krylov",
}


def methods(rtol: float, max_evals: int) -> Mapping[str, Solver]:
    """Return the solvers of `WORDS` at one tolerance and one limit of evaluations."""
    kinds = (Picard(), Anderson(period=3), Broyden(), NewtonKrylov())
    return {
        name: replace(kind, rtol=rtol, max_evals=max_evals)
        for name, kind in zip(WORDS, kinds, strict=True)
    }


ROUNDS, WARM_UP = 15, 2
"""Times that each call is timed, and called before."""

SPENT = 2 * (ROUNDS + WARM_UP) + 1
"""Steps that a trainer must have left: `Trained.trainer(before_end=SPENT)`."""


def milliseconds(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median milliseconds of each call, all of them interleaved, after a warm-up."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # as in training, where shares are logged
        for call in calls.values():
            for _ in range(WARM_UP):
                call()
        found = interleave(calls, device, rounds=ROUNDS)
    return {name: 1e3 * seconds for name, seconds in found.items()}


def steps(trainers: Mapping[str, Trainer]) -> dict[str, dict[str, float | None]]:
    """Return the median milliseconds of a step of each trainer, all kinds of all interleaved.

    `plain` and `penalised`, with the Jacobian penalty, are timed apart, since the median of steps
    as they are drawn would leave out the rarer kind; `step` is (1 - p) plain + p penalised, with
    the probability p of the penalty at this place of the training.
    """
    shares: dict[str, float] = {}
    calls: dict[str, Callable[[], object]] = {}
    for name, trainer in trainers.items():
        penalty = trainer.recipe.regularizer
        shares[name] = penalty.at(trainer.step, trainer.steps)[1] if penalty else 0.0
        calls[f"{name} plain"] = partial(trainer.train_step, penalized=False)
        if shares[name]:
            calls[f"{name} penalised"] = partial(trainer.train_step, penalized=True)
    taken = milliseconds(calls)
    found: dict[str, dict[str, float | None]] = {}
    for name, p in shares.items():
        plain, penalized = taken[f"{name} plain"], taken.get(f"{name} penalised")
        step = (1 - p) * plain + p * (penalized or 0.0)
        found[name] = {"plain": plain, "penalised": penalized, "step": step}
    return found


def reader(trainer: Trainer, solver: Solver | None = None) -> Callable[[], None]:
    """Return a call that reads the next batch of the test split, without gradients, endlessly; with
    `solver` in place of the network's own."""
    task, model, accelerator = trainer.task, trainer.model, trainer.accelerator
    size = trainer.recipe.eval_batch_size
    batches = itertools.chain.from_iterable(task.batches("test", size) for _ in itertools.count())
    carry: Any = None

    def read() -> None:
        nonlocal carry
        batch = to_device(next(batches), accelerator.device)
        chosen = using(model, eval_solver=solver)
        with in_eval_mode(model), chosen, torch.no_grad(), accelerator.autocast():
            carry = model(batch.inputs, carry=None if batch.begins else carry).carry

    return read
