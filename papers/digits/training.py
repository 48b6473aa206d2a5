"""The two recipes that train within minutes, and the memory of their steps.

Test set, tolerance and solver as in the recipe; converged: share of test samples with the status
CONVERGED; training: seconds of all training steps, without evaluation. Memory: peak bytes of
forward and backward less parameters, gradients and optimiser state, one batch of the recipe.
"""

from collections.abc import Iterable
from typing import Any

from equilibria.run import memory
from equilibria.run import recipe as recipes
from equilibria.run.studies.measures.epochs import summary
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Context, Point, Scale, Study
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Derived, Pivot, first
from papers.digits.common import with_means

SEEDS = {"digits": (0, 1, 2), "mnist": (0,)}
TITLES = {"digits": "Digits: three seeds", "mnist": "MNIST"}
MINUTES = {"digits": 0.5, "mnist": 8}
MEANS = {
    "accuracy": 4,
    "first": 4,
    "converged": 4,
    "evals": 2,
    "evals_max": 2,
    "radius": 2,
    "seconds": 2,
}


def figures(context: Context) -> dict[str, Any]:
    """The summary of a run, its accuracy `first` after one evaluation, and the spectral radius."""
    found = context.run.evaluation
    return {
        **summary(context),
        "first": found["at"]["1"]["accuracy"],
        "radius": found["spectral_radius"]["mean"],
    }


def step_memory(context: Context) -> Iterable[dict[str, Any]]:
    """Bytes of a training step at several depths, and of the cell unrolled."""
    run, recipe = context.run, context.run.recipe
    batch = run.task.feed(recipe.rows, recipe.seed).batch(0)
    for point in memory.measure(run.load().model, run.task, batch):
        yield {"kind": point.kind, "depth": point.evals, "bytes": point.bytes}


def points(scale: Scale) -> list[Point]:
    return [
        Point(
            {"recipe": name, "seed": seed},
            [figures] if seed else [figures, step_memory],
            {"run": Training(recipes.load(name, ["--seed", str(seed)]), MINUTES[name])},
        )
        for name, seeds in SEEDS.items()
        for seed in seeds
    ]


def list_runs(data: Data) -> Frame:
    return with_means(data.series("accuracy"), "recipe", MEANS)


def mebibytes(rows: Frame) -> str:
    return f"{rows['bytes'].iloc[0] / 2**20:.2f}"


STUDY = Study(
    title="Digits and MNIST",
    points=points,
    views=[
        *(
            Derived(
                list_runs,
                Pivot(
                    title=title,
                    index={"seed": "seed"},
                    each="accuracy",
                    where={"recipe": name},
                    values={
                        "test accuracy, %": first("accuracy", 100),
                        "after 1 evaluation, %": first("first", 100),
                        "converged, %": first("converged", 100),
                        "evaluations, mean": "evals",
                        "max": "evals_max",
                        "spectral radius": "radius",
                        "training, s": "seconds",
                    },
                ),
            )
            for name, title in TITLES.items()
        ),
        *(
            Pivot(
                title=f"Memory of a training step, {title.partition(':')[0]}",
                index={"depth": "evaluations"},
                each="kind",
                where={"recipe": name},
                across="kind",
                values={"{level}, MiB": mebibytes},
            )
            for name, title in TITLES.items()
        ),
    ],
)
