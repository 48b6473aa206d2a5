"""Trained networks, solvers learned for them, and measures of these and classical ones."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor

from equilibria.learned import Contestant, Distillation, Learned, Outcome, distill
from equilibria.nn import using
from equilibria.run import evaluation, neural
from equilibria.run.models import EquilibriumModel
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures import timing
from equilibria.run.studies.study import Context, Scale
from equilibria.run.studies.training import Trained, Training
from equilibria.run.tasks import Task
from equilibria.run.trees import to_device
from equilibria.solve import Anderson, Solver, Status
from papers.deq.common import language, load_recipe
from papers.jacobian import images

# --- The trained networks, and the training of solvers for them -----------------------------------

MDEQ, MNIST, PTB = "MDEQ", "MNIST", "Penn Treebank"
SEEDS: Mapping[str, Sequence[int]] = {MDEQ: (0, 1, 2), MNIST: (0,), PTB: (0,)}
"""Seeds of each subject: a seed denotes the same network in all studies."""

BATCHES = 24
"""Batches of inputs, a quarter of them for the contest: the default of `equilibria distill`."""


@dataclass(frozen=True)
class Quality:
    """How quality is measured.

    Attributes:
        metric: of the task.
        sign: 1 if higher is better, -1 if lower is.
        near: largest loss of quality that is considered negligible.
        unit: of that loss.
        scale: factor from the metric to that unit.
    """

    metric: str
    sign: int
    near: float
    unit: str
    scale: float

    def loss(self, value: float, end: float) -> float:
        """Loss of quality relative to full solves, whose figure is `end`."""
        return self.sign * (end - value)


_IMAGES = Quality("accuracy", 1, 0.001, "points", 100)
SUBJECTS: Mapping[str, Quality] = {
    MDEQ: _IMAGES,
    MNIST: _IMAGES,
    PTB: Quality("perplexity", -1, 0.5, "perplexity", 1),
}
"""The subjects: MDEQ of `jacobian/tables` without penalty, and the recipes mnist and lm-ptb."""


def training_of(subject: str, scale: Scale, seed: int) -> Training:
    """Return the training of a subject, which is shared with other studies."""
    if subject == MDEQ:
        return images.training_of("plain", scale, seed)
    if subject == PTB:
        return language("transformer", scale, seed)
    return Training(load_recipe("mnist", scale, "--seed", str(seed)), 12)


@dataclass(frozen=True)
class Distilled:
    """A trained network with a solver learned for it.

    Attributes:
        model: in eval mode, with its own solvers.
        task: of its recipe.
        how: options with which the solver was trained.
        outcome: of the contest.
        seconds: total time of training and contest.
        accelerator: whose device the model is on.
    """

    model: EquilibriumModel
    task: Task
    how: Distillation
    outcome: Outcome
    seconds: float
    accelerator: Accelerator

    @property
    def weights(self) -> Learned:
        """The weights of the best learned solver."""
        assert self.outcome.learned.learned is not None
        return self.outcome.learned.learned

    def inputs(self, count: int) -> Any:
        """The first test samples' inputs, on the model's device."""
        return to_device(self.task.sample("test", count).inputs, self.accelerator.device)


def distill_solver(run: Trained, **changes: Any) -> Distilled:
    """Return a run's network and the solver that `equilibria distill` would learn for it.

    Args:
        run: finished.
        changes: fields of `Distillation` that differ from the defaults; `batch_size` and `batches`
            of the inputs.
    """
    return _distill(run.folder.path, run.data_dir, tuple(sorted(changes.items())))


@functools.lru_cache(maxsize=2)  # the measures of a point share it
def _distill(path: Any, data_dir: Any, changes: tuple[tuple[str, Any], ...]) -> Distilled:
    from equilibria.run import run as runs

    loaded = runs.load(path, data_dir=data_dir)
    accelerator = evaluation.accelerator(loaded.recipe.precision)
    model = cast(EquilibriumModel, loaded.model).to(accelerator.device)
    given = dict(changes)
    size = given.pop("batch_size", loaded.recipe.rows)
    count = given.pop("batches", BATCHES)
    how = neural.set_budget(Distillation(**given), model)
    began = time.perf_counter()
    inputs = neural.inputs_of(
        model, loaded.data, batches=count, batch_size=size, seed=how.seed, other=False
    )
    outcome = distill(model.deq, inputs, how)
    seconds = time.perf_counter() - began
    model.deq.neural, model.deq.eval_solver = None, loaded.recipe.eval_solver
    return Distilled(model, loaded.data, how, outcome, seconds, accelerator)


@contextmanager
def use_solver(
    model: EquilibriumModel, solver: Solver, learned: Learned | None, **fields: Any
) -> Iterator[None]:
    """Make a model in eval mode use one of a contest's solvers within a block.

    Args:
        model: the model.
        solver: replaces its own.
        learned: the solver's weights; None for a classical one.
        fields: fields of the solver to change.
    """
    with using(model, eval_solver=replace(cast(Any, solver), **fields), neural=learned):
        yield


# --- Measures of learned and classical solvers on trained networks --------------------------------

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


@identified_as("_measures.overhead")
def overhead(context: Context) -> dict[str, Any]:
    """Parameters of network and learned solver, the `seconds` that distilling and training took,
    and the result of the contest: `worth`, `mixes`, evaluations of the best solver of each kind."""
    found = distill_solver(context.run)
    outcome = found.outcome
    own = neural.size_of(found.model)
    learned = sum(p.numel() for p in found.weights.parameters())
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


@identified_as("_measures.budgets")
def budgets(context: Context) -> Iterator[dict[str, Any]]:
    """The network's `quality` on the test split, by `solver` and `limit` on evaluations, at the
    recipe's tolerance, and the `lost` quality relative to full solves by the recipe's solver. Then
    milliseconds per batch for each solver, limited to the fewest evaluations, `enough`, that lose
    next to nothing, all interleaved; and `step_ratio`, the time of `HORIZON` steps with a mixer,
    including f, over that of as many Anderson steps."""
    found, quality = distill_solver(context.run), SUBJECTS[str(context.factors["subject"])]
    size = context.run.recipe.eval_batch_size

    def figure() -> float:
        result = evaluation.evaluate(found.model, found.task, found.accelerator, batch_size=size)
        return result[quality.metric]

    end, enough = figure(), {}
    yield {"solver": FULL, "quality": end}
    for name, each in contestants(found).items():
        for limit in LIMITS:
            with use_solver(found.model, each.solver, each.learned, max_evals=limit):
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
            with torch.no_grad(), use_solver(found.model, by.solver, by.learned, **fields):
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


@identified_as("_measures.residuals")
@torch.no_grad()
def residuals(context: Context) -> Iterator[dict[str, Any]]:
    """The smallest relative `residual` so far, a geometric mean over test samples, by `solver` and
    number of `evals`, up to 2 K."""
    found = distill_solver(context.run)
    for name, each in contestants(found).items():
        least = trace(found, each)
        for evals, value in enumerate(least.log().mean(1).exp().tolist(), start=1):
            yield {"solver": name, "evals": evals, "residual": value}


def trace(found: Distilled, by: Contestant, evals: int = 2 * HORIZON) -> Tensor:
    """Return the running minimum of the relative residual of the first test samples, after each
    evaluation, `(evals, samples)`."""
    kind = "text" if found.task.streams else "images"
    inputs = found.inputs(SAMPLES[kind])
    fields: Any = {"rtol": 0.0, "atol": 0.0, "max_evals": evals, "patience": None}
    with use_solver(found.model, by.solver, by.learned, **fields):
        sol = found.model.deq(*found.model.inject(inputs), trace=True)
    trace = cast(Tensor, sol.stats.trace).double()
    return trace.nan_to_num(math.inf).cummin(0).values.clamp_min(FLOOR)


@identified_as("_measures.never_worse")
@torch.no_grad()
def never_worse(context: Context) -> Iterator[dict[str, Any]]:
    """On all test samples, by `rtol`: evaluations and fraction converged for Anderson and for the
    learned solver, and the fraction of samples that take more than 2 additional evaluations."""
    found = distill_solver(context.run)
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
        inputs = to_device(batch.inputs, found.accelerator.device)
        with use_solver(found.model, by.solver, by.learned, **limits):
            prediction = found.model(inputs, carry=before)
        if found.task.streams:
            carry = found.model(inputs, carry=before).carry
        for solution in prediction.solutions:
            evals.append(solution.stats.evals)
            converged.append(solution.status == Status.CONVERGED)
    return torch.cat(evals), torch.cat(converged)
