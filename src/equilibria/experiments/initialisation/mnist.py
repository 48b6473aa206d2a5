"""Figure 5: test error of a fully connected network on MNIST against the scale it starts from."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from equilibria import theory
from equilibria.bench.record import Table
from equilibria.experiments import methods, trainings
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.initialisation.learning import learn
from equilibria.experiments.initialisation.words import PAPER
from equilibria.experiments.published import AGARWALA_2022
from equilibria.models import EquilibriumModel
from equilibria.nn.init import Ensemble
from equilibria.solve import (
    Adjoint,
    AlternatingAnderson,
    Broyden,
    Implicit,
    Neumann,
    Picard,
    Solver,
)
from equilibria.train import recipe as recipes
from equilibria.train.evaluation import accelerator
from equilibria.train.initialisation import Initialisation
from equilibria.train.recipe import Recipe
from equilibria.train.trainer import Trainer

__all__ = ["EXPERIMENT", "cases", "show"]

RECIPE, THRESHOLD = "mnist-dense", "threshold"
SCALES = (0.5, 1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 4.0, 6.0, 9.0)
SEEDS = 10
RTOL, EVALS = 1e-3, 40

METHODS: Mapping[str, tuple[Solver, Adjoint]] = {
    "plain": (
        Picard(rtol=RTOL, max_evals=EVALS),
        Implicit(linear=Neumann(rtol=RTOL, max_evals=EVALS)),
    ),
    "anderson": (
        AlternatingAnderson(rtol=RTOL, max_evals=EVALS),
        Implicit(linear=AlternatingAnderson(rtol=RTOL, max_evals=EVALS)),
    ),
    "broyden": (
        Broyden(rtol=RTOL, max_evals=EVALS),
        Implicit(linear=Broyden(rtol=RTOL, max_evals=EVALS)),
    ),
}
"""Solver of the fixed point and of the adjoint."""
WORDS = {name: words for name, words in methods.WORDS.items() if name in METHODS}

WORKABLE = (1.25, 1.5, 2.0)
"""A training works if its test error is at most so many times the best median of all: strict to
lenient."""
SHARE = 0.9
"""A scale is workable if so many of its trainings work."""


def cases(scale: Scale) -> Sequence[Case]:
    """What the theory predicts, and trainings from all seeds of each solver, ensemble and scale."""
    return [
        Case(
            key=THRESHOLD,
            description="measures the injection at the start and predicts V*",
            minutes=0.2,
            run=partial(_threshold, scale),
            settings={"recipe": recipes.dump(trainings.named(RECIPE, scale)), "seeds": SEEDS},
        ),
        *(
            Case(
                key=_key(method, ensemble, size),
                description=f"trains {SEEDS} times from {words} weights of scale {size:g}, "
                f"{WORDS[method]}",
                minutes=1,
                run=partial(_train, method, ensemble, size, scale),
                settings={
                    "recipe": recipes.dump(_recipe(method, ensemble, size, scale)),
                    "seeds": SEEDS,
                },
            )
            for method in METHODS
            for ensemble, words in PAPER.items()
            for size in SCALES
        ),
    ]


def _key(method: str, ensemble: str, size: float) -> str:
    return f"{method}-{ensemble}-{size:g}"


def _recipe(method: str, ensemble: Ensemble, size: float, scale: Scale, seed: int = 0) -> Recipe:
    solver, adjoint = METHODS[method]
    return replace(
        trainings.named(RECIPE, scale),
        solver=solver,
        adjoint=adjoint,
        initialisation=Initialisation(ensemble=ensemble, scale=size),
        seed=seed,
    )


def _threshold(scale: Scale, place: Place) -> Mapping[str, Any]:
    """Mean and variance of the injection's entries, and what follows from them."""
    recipe = trainings.named(RECIPE, scale)
    task = recipe.task.load(place.data_dir)
    means, variances = [], []
    for seed in range(SEEDS):
        trainer = Trainer(replace(recipe, seed=seed), task, accelerator(recipe.precision))
        model = trainer.model
        assert isinstance(model, EquilibriumModel)
        with torch.no_grad():
            (u,) = model.inject(trainer.batch().inputs)
        means.append(float(u.mean()))
        variances.append(float(u.var(1).mean()))
    mean, variance = statistics.fmean(means), statistics.fmean(variances)
    return {
        "input_mean": mean,
        "input_variance": variance,
        "critical": {
            ensemble: theory.critical_scale(
                "tanh", ensemble, input_variance=variance, input_mean=mean, injection="outside"
            )
            for ensemble in PAPER
        },
    }


def _train(
    method: str, ensemble: Ensemble, size: float, scale: Scale, place: Place
) -> Mapping[str, Any]:
    task = trainings.named(RECIPE, scale).task.load(place.data_dir)
    runs: list[dict[str, Any]] = []
    for seed in range(SEEDS):
        runs.append(learn(_recipe(method, ensemble, size, scale, seed), task, _error))
    errors = ["diverged" if e is None else f"{100 * e:.1f}" for e in map(_of, runs)]
    place.console.print(f"  test error, %: {', '.join(errors)}", markup=False, highlight=False)
    return {"runs": runs}


def _error(trainer: Trainer) -> dict[str, Any]:
    return trainer.judge.evaluate("test", trainer.step)


def _of(run: Mapping[str, Any]) -> float | None:
    """The test error of a training; None of one that diverged."""
    return None if run["result"] is None else 1.0 - run["result"]["accuracy"]


# --- what is shown -------------------------------------------------------------------------------


def show(done: Results) -> Page:
    """Test error against scale, a panel for each solver, and the range that can be worked with."""
    return Page(
        [_errors(done), _ranges(done)],
        [
            *(_panel(done, method) for method in METHODS),
            *(_converged(done, method) for method in METHODS),
        ],
    )


def _found(done: Results, method: str, ensemble: str, size: float) -> list[float] | None:
    """Test errors of all seeds, 1 where a training diverged; None where they were not run."""
    case = done.get(_key(method, ensemble, size))
    if case is None:
        return None
    return [1.0 if e is None else e for e in map(_of, case.value["runs"])]


def _share(done: Results, method: str, ensemble: str, size: float) -> float | None:
    """Share of the solves of the last epoch that converged; of no training that diverged."""
    case = done.get(_key(method, ensemble, size))
    if case is None:
        return None
    shares = [run["forward"]["status"]["CONVERGED"] for run in case.value["runs"] if run["forward"]]
    return statistics.fmean(shares) if shares else None


def _best(done: Results) -> float:
    """The least median of all."""
    all_errors = [
        _found(done, method, ensemble, size)
        for method in METHODS
        for ensemble in PAPER
        for size in SCALES
    ]
    return min((statistics.median(errors) for errors in all_errors if errors), default=math.nan)


def _critical(done: Results, ensemble: str) -> float | None:
    case = done.get(THRESHOLD)
    return None if case is None else case.value["critical"][ensemble]


def _errors(done: Results) -> Table:
    rows: list[list[Any]] = []
    for method, words in WORDS.items():
        for ensemble, name in PAPER.items():
            for size in SCALES:
                errors = _found(done, method, ensemble, size)
                row: list[Any] = [words, name, size]
                if errors is None:
                    rows.append([*row, NOT_RUN, *[None] * (3 + len(WORKABLE))])
                    continue
                share = _share(done, method, ensemble, size)
                rows.append(
                    [
                        *row,
                        100 * statistics.fmean(errors),
                        100 * statistics.median(errors),
                        100 * max(errors),
                        *(sum(e > factor * _best(done) for e in errors) for factor in WORKABLE),
                        None if share is None else 100 * share,
                    ]
                )
    return Table(
        title="Figure 5: test error on MNIST against the scale at the start",
        columns=[
            *("solver", "ensemble", "sqrt V", "mean error, %", "median, %", "worst, %"),
            *(f"of {SEEDS} above {factor:g} x best" for factor in WORKABLE),
            "solves converged, %",
        ],
        rows=rows,
        note=f"z* = tanh(W z*) + U x + b, the recipe {RECIPE} with {SEEDS} seeds; at most {EVALS} "
        f"evaluations to {RTOL:g}, and as many products of the adjoint by the same method. A "
        "training that diverged counts as an error of 100 %. Solves: of the last epoch of "
        "training. The paper's figure prints no values, nor width, images or solver; it tunes the "
        "learning rate, 1e-2 being the best for all.",
    )


def _ranges(done: Results) -> Table:
    rows: list[list[Any]] = []
    for method, words in WORDS.items():
        for ensemble, name in PAPER.items():
            known = {size: _found(done, method, ensemble, size) for size in SCALES}
            row: list[Any] = [words, name, _critical(done, ensemble)]
            if any(errors is None for errors in known.values()):
                rows.append([*row, NOT_RUN, *[None] * (len(WORKABLE) - 1)])
                continue
            for factor in WORKABLE:
                works = [
                    _share_within(errors or (), factor * _best(done)) >= SHARE
                    for errors in known.values()
                ]
                # Up to the first that does not: what works again beyond it is no range.
                pairs = zip(SCALES, works, strict=True)
                run = list(itertools.takewhile(lambda pair: pair[1], pairs))
                row.append(f"up to {run[-1][0]:g}" if run else "none")
            rows.append(row)
    return Table(
        title="Scales that can be worked with",
        columns=[
            *("solver", "ensemble", "predicted sqrt V*"),
            *(f"sqrt V, within {factor:g} x best" for factor in WORKABLE),
        ],
        rows=rows,
        note=f"Of the scales {', '.join(f'{size:g}' for size in SCALES)}: those up to which, "
        f"without a gap, at least {100 * SHARE:.0f} % of {SEEDS} trainings end within so many "
        "times the best median error of all. Predicted: where plain iteration stops converging at "
        "the start, by `theory.critical_scale` from the variance of the injection.",
    )


def _share_within(errors: Sequence[float], limit: float) -> float:
    return sum(error <= limit for error in errors) / len(errors)


def _panel(done: Results, method: str) -> Panel:
    series: list[Series] = []
    for colour, (ensemble, name) in enumerate(PAPER.items()):
        known = {size: _found(done, method, ensemble, size) for size in SCALES}
        sizes = [size for size, errors in known.items() if errors]
        errors = [[100 * e for e in known[size] or ()] for size in sizes]
        series.append(
            Series(
                label=f"{name}: median",
                x=sizes,
                y=[statistics.median(each) for each in errors],
                low=[min(each) for each in errors],
                high=[max(each) for each in errors],
                colour=colour,
                style="marked",
            )
        )
        series.append(
            Series(
                label="mean" if colour == 0 else "",
                x=sizes,
                y=[statistics.fmean(each) for each in errors],
                colour=colour,
                style="dashed",
            )
        )
        critical = _critical(done, ensemble)
        if critical is not None and sizes:
            label = "predicted V*" if colour == 0 else ""
            series.append(
                Series(label=label, x=[critical] * 2, y=[5, 8], colour=colour, style="marked")
            )
    return Panel(
        title=f"Fig. 5: {WORDS[method]}",
        x="sqrt V",
        y="test error, %",
        series=series,
        log_y=True,
        span_y=(5, 110),
    )


def _converged(done: Results, method: str) -> Panel:
    series: list[Series] = []
    for colour, (ensemble, name) in enumerate(PAPER.items()):
        shares = {size: _share(done, method, ensemble, size) for size in SCALES}
        known = {size: share for size, share in shares.items() if share is not None}
        series.append(
            Series(
                label=name,
                x=list(known),
                y=[100 * share for share in known.values()],
                colour=colour,
                style="marked",
            )
        )
    return Panel(
        title=f"{WORDS[method]}: solves that converge, last epoch",
        x="sqrt V",
        y="% of the samples",
        series=series,
        span_y=(0, 105),
    )


EXPERIMENT = Experiment(
    name="initialisation/mnist",
    paper=AGARWALA_2022,
    subject="Figure 5",
    description="From which scales a fully connected network trains: Gaussian, orthogonal, GOE.",
    cases=cases,
    show=show,
)
