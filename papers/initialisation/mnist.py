"""Test error on MNIST from Gaussian, orthogonal and GOE weights of many scales."""

from dataclasses import replace
from functools import partial
from typing import Any

from equilibria.run.initialization import Initialization
from equilibria.run.studies.measures.timing import WORDS
from equilibria.run.studies.study import Point, Scale, Study, grid
from equilibria.run.studies.views import Chart, Derived, Pivot, first, largest, mean, median
from equilibria.solve import Anderson, Broyden, Implicit, Neumann, Picard
from papers.deq.common import load_recipe
from papers.initialisation import learning
from papers.initialisation.common import PAPER, lines

RECIPE = "mnist-dense"
SCALES = (0.5, 1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 4.0, 6.0, 9.0)
SEEDS = 10
LIMITS: dict[str, Any] = {"rtol": 1e-3, "max_evals": 40}
SOLVERS: dict[str, dict[str, Any]] = {
    name: {"solver": solver(**LIMITS), "adjoint": Implicit(linear=linear(**LIMITS))}
    for name, solver, linear in (
        ("plain", Picard, Neumann),
        ("anderson", partial(Anderson, period=3), partial(Anderson, period=3)),
        ("broyden", Broyden, Broyden),
    )
}
WITHIN = (1.25, 1.5, 2.0)
"""Test errors that count as good, in units of the best median of all."""


def points(scale: Scale) -> list[Point]:
    """What the theory predicts; trainings with all seeds of each solver, ensemble and scale."""
    base = load_recipe(RECIPE, scale)
    start = partial(learning.threshold, ensembles=list(PAPER), seeds=SEEDS)
    found = [Point({"what": "start"}, [start], reads=[base], minutes=0.2)]
    for each in grid(solver=SOLVERS, ensemble=PAPER, scale=SCALES):
        begin = Initialization(ensemble=each["ensemble"], scale=each["scale"])
        recipe = replace(base, initialization=begin, **SOLVERS[each["solver"]])
        measures = [partial(learning.errors_of_seeds, seeds=SEEDS)]
        found.append(Point(each, measures, reads=[recipe], minutes=1))
    return found


pivot = partial(
    Pivot,
    each="seed",
    where={"solver": list(SOLVERS)},
    words={"solver": WORDS, "ensemble": PAPER},
)
errors = partial(lines, x="scale", y="error", scale=100)

VIEWS = [
    pivot(
        title="Figure 5: test error on MNIST against the scale at the start",
        index={"solver": "solver", "ensemble": "ensemble", "scale": "sqrt V"},
        values={
            "mean error, %": mean("error", 100),
            "median, %": median("error", 100),
            "worst, %": largest("error", 100),
            **{f"of {SEEDS} above {each:g} x best": learning.above(each) for each in WITHIN},
            "solves converged, %": mean("forward_converged", 100),
        },
        note=f"z* = tanh(W z*) + U x + b, the recipe {RECIPE} with {SEEDS} seeds; at most "
        f"{LIMITS['max_evals']} evaluations to {LIMITS['rtol']:g}, and as many products of "
        "the adjoint by the same method. A training that diverged counts as an error of "
        "100 %. Best: the lowest median. Solves: of the last epoch of training. The "
        "paper's figure prints no values, nor width, images or solver; it tunes the "
        "learning rate, 1e-2 being the best for all.",
    ),
    pivot(
        title="Scales from which training works",
        index={"solver": "solver", "ensemble": "ensemble"},
        values={
            "predicted sqrt V*": first("critical"),
            **{f"sqrt V, within {each:g} x best": learning.workable(each) for each in WITHIN},
        },
        note=f"Of the scales {', '.join(f'{size:g}' for size in SCALES)}: those up to "
        f"which, without a gap, at least {100 * learning.SHARE:.0f} % of {SEEDS} trainings end "
        "within so many times the lowest median error of all. Predicted: where plain "
        "iteration stops converging at the start, by `theory.critical_scale` from the "
        "variance of the injection.",
    ),
    *(
        Chart(
            title=f"Fig. 5: {WORDS[name]}",
            x="sqrt V",
            y="test error, %",
            marks=[
                errors(
                    where={"solver": name},
                    merge="median",
                    band=True,
                    style="marked",
                    label={each: f"{name}: median" for each, name in PAPER.items()},
                ),
                errors(
                    where={"solver": name},
                    style="dashed",
                    label={**dict.fromkeys(PAPER, ""), "gaussian": "mean"},
                ),
                partial(learning.mark_predictions, name),
            ],
            log_y=True,
            span_y=(5, 110),
        )
        for name in SOLVERS
    ),
    *(
        errors(y="forward_converged", where={"solver": name}, style="marked").chart(
            f"Convergence: {WORDS[name]}",
            "sqrt V",
            "converged in the last epoch, % of the solves",
            span_y=(0, 105),
        )
        for name in SOLVERS
    ),
]

STUDY = Study(
    item="Figure 5",
    title="From which scales a fully connected network trains",
    points=points,
    views=[Derived(learning.compare, view) for view in VIEWS],
)
