"""Figure 6 and Table 1: DEQ-Transformers whose dense layers begin Gaussian, orthogonal or GOE."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch

from equilibria.bench.record import Table
from equilibria.experiments import measure, trainings
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.initialisation.learning import learn
from equilibria.experiments.initialisation.words import NAMES
from equilibria.experiments.published import AGARWALA_2022, ENSEMBLES
from equilibria.models.sequence.transformer import TransformerConfig
from equilibria.nn.init import Ensemble
from equilibria.tasks.language import LanguageTask
from equilibria.train import recipe as recipes
from equilibria.train.initialisation import Initialisation
from equilibria.train.recipe import Recipe
from equilibria.train.trainer import Trainer

__all__ = ["ARMS", "EXPERIMENT", "Arm", "cases", "show"]

RECIPE = "lm-ptb-characters"
SCALES = (0.1, 1.0, 6.0)
SEEDS = 5
POINT = 20
"""Steps of a point of a learning curve."""

SEGMENTS = 256
"""Segments of the test text that a trained network is judged by, each at a beginning."""

FAILED = 1.5
"""A training has failed if it diverges, or ends at so many times the perplexity of the best."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A family of starts.

    Args:
        words: what it is.
        ensemble: of the dense layers.
        square: whether they are as wide inside as the state, which GOE needs; else four times.
    """

    words: str
    ensemble: Ensemble
    square: bool


ARMS: Mapping[str, Arm] = {
    "goe": Arm(words="GOE", ensemble="goe", square=True),
    "orthogonal": Arm(words="orthogonal", ensemble="orthogonal", square=False),
    "random": Arm(words="Gaussian", ensemble="gaussian", square=False),
    "orthogonal-square": Arm(words="orthogonal, GOE's size", ensemble="orthogonal", square=True),
    "random-square": Arm(words="Gaussian, GOE's size", ensemble="gaussian", square=True),
}
"""The paper's three, whose GOE network is smaller than the others, and two of its size."""


def cases(scale: Scale) -> Sequence[Case]:
    """A training for each arm, scale and seed, all arms of a seed before the next seed."""
    return [
        Case(
            key=_key(name, size, seed),
            description=f"trains from {arm.words} dense layers of scale {size:g}, seed {seed}",
            minutes=0.6,
            run=partial(_train, name, size, seed, scale),
            settings={
                "recipe": recipes.dump(_recipe(name, size, seed, scale)),
                "segments": SEGMENTS,
            },
        )
        for seed in range(SEEDS)
        for size in SCALES
        for name, arm in ARMS.items()
    ]


def _key(name: str, size: float, seed: int) -> str:
    return f"{name}-{size:g}-{seed}"


def _recipe(name: str, size: float, seed: int, scale: Scale) -> Recipe:
    recipe, arm = trainings.named(RECIPE, scale), ARMS[name]
    model = cast(TransformerConfig, recipe.model)
    begin = cast(Initialisation, recipe.initialisation)
    steps = recipe.epochs * (recipe.epoch_steps or POINT)
    return replace(
        recipe,
        epochs=steps // POINT,
        epoch_steps=POINT,
        model=replace(model, inner=model.width if arm.square else 4 * model.width),
        initialisation=replace(begin, ensemble=arm.ensemble, scale=size),
        seed=seed,
    )


def _train(name: str, size: float, seed: int, scale: Scale, place: Place) -> Mapping[str, Any]:
    recipe = _recipe(name, size, seed, scale)
    task = cast(LanguageTask, recipe.task.load(place.data_dir))
    found = learn(recipe, task, _perplexity)
    ended = "diverged" if found["result"] is None else f"{found['result']['perplexity']:.2f}"
    place.console.print(f"  test perplexity: {ended}", markup=False, highlight=False)
    return found


def _perplexity(trainer: Trainer) -> dict[str, Any]:
    """Perplexity of a character of the test text, and the parameters of the network."""
    task, model = cast(LanguageTask, trainer.task), trainer.model
    batch = measure.segments(task, task.config.length, SEGMENTS)
    model.eval()
    with torch.no_grad():
        inputs, targets = batch.inputs, batch.targets
        device = next(model.parameters()).device
        prediction = model(inputs.to(device))
        loss = float(task.loss(model, prediction.output, targets.to(device)))
    model.train()
    return {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 50 else math.inf,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


# --- what is shown -------------------------------------------------------------------------------


def show(done: Results) -> Page:
    """Least and mean perplexity and the share that fails; learning curves of all seeds."""
    return Page(
        [_table(done), _published()],
        [_curves(done, size) for size in SCALES],
    )


def _runs(done: Results, name: str, size: float) -> list[Mapping[str, Any]]:
    found = [done.get(_key(name, size, seed)) for seed in range(SEEDS)]
    return [case.value for case in found if case is not None]


def _reached(run: Mapping[str, Any]) -> float:
    """Test perplexity; infinite of a training that diverged."""
    value = None if run["result"] is None else run["result"]["perplexity"]
    return math.inf if value is None else value


def _table(done: Results) -> Table:
    best = min((_reached(case.value) for case in done.values()), default=math.inf)
    rows: list[list[Any]] = []
    for size in SCALES:
        for name, arm in ARMS.items():
            runs = _runs(done, name, size)
            row: list[Any] = [arm.words, size]
            if not runs:
                rows.append([*row, NOT_RUN, *[None] * 7])
                continue
            reached = [_reached(run) for run in runs]
            finite = [value for value in reached if value < math.inf]
            sizes = [run["result"]["parameters"] for run in runs if run["result"]]
            rows.append(
                [
                    *row,
                    len(runs),
                    sizes[0] if sizes else None,
                    min(reached),
                    statistics.fmean(finite) if finite else None,
                    max(reached),
                    100 * sum(value > FAILED * best for value in reached) / len(runs),
                    _solves(runs, "forward"),
                    _solves(runs, "adjoint"),
                ]
            )
    return Table(
        title="Table 1: test perplexity by the ensemble of the dense layers",
        columns=[
            *("dense layers", "sqrt V", "seeds", "parameters", "least", "mean", "worst"),
            *("failed, %", "solves converged, %", "adjoints converged, %"),
        ],
        rows=rows,
        note=f"Perplexity of a character of Penn Treebank's test text, {SEGMENTS} segments, after "
        f"the recipe {RECIPE}: a pre-LN DEQ-Transformer, Broyden with at most 20 evaluations. "
        f"Failed: above {FAILED:g} times the best of all, or diverged; means are of those that did "
        "not diverge. Solves: of the last 20 steps. The paper's GOE network has dense layers of a "
        "quarter of the others' size, for they must be square: the last two arms have its size. Of "
        "the larger ones the orthogonal layer with four times as many outputs as inputs gives "
        "entries half as large as the Gaussian one of the same scale; square layers have one gain.",
    )


def _solves(runs: Sequence[Mapping[str, Any]], which: str) -> float | None:
    known = [run[which] for run in runs if run[which] and run[which]["status"]]
    shares = [each["status"]["CONVERGED"] for each in known]
    return 100 * statistics.fmean(shares) if shares else None


def _published() -> Table:
    return Table(
        title="Table 1 as published",
        columns=["dense layers", "sqrt V", "least", "mean"],
        rows=[[NAMES[row.ensemble], row.scale, row.least, row.mean] for row in ENSEMBLES],
        note="WikiText-103, test perplexity of sentence pieces, 10 seeds, a state of 700 with "
        "dense layers of 2,800 (GOE: 700).",
    )


def _curves(done: Results, size: float) -> Panel:
    """The training loss of every seed, a colour for each family of starts."""
    series: list[Series] = []
    for colour, (name, arm) in enumerate(ARMS.items()):
        for number, run in enumerate(_runs(done, name, size)):
            series.append(
                Series(
                    label="" if number else arm.words,
                    x=[POINT * (place + 1) for place in range(len(run["losses"]))],
                    y=run["losses"],
                    colour=colour,
                )
            )
    return Panel(
        title=f"Fig. 6: sqrt V = {size:g}, {SEEDS} seeds",
        x="steps",
        y="training loss, nats a character",
        series=series,
        log_y=True,
    )


EXPERIMENT = Experiment(
    name="initialisation/transformer",
    paper=AGARWALA_2022,
    subject="Figure 6 and Table 1",
    description="Whether DEQ-Transformers train more steadily from orthogonal and GOE layers.",
    cases=cases,
    show=show,
)
