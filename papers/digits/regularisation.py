"""The recipe digits-jr at a learning rate of 5e-3, with its Jacobian penalty and without.

Evaluations: mean over samples, to a tolerance of 1e-3, of at most 40 in training and 400 in
testing; spectral radius: mean over 64 test samples.
"""

# The recipe is `digits-jr`, which has no bound on its weights, with the learning rate of `digits`:
# its own is lower, and there the difference is smaller. Test solves may take 400 evaluations, so
# that those needed for the tolerance are counted and not those allowed; training keeps the limit
# of 40.

from collections.abc import Iterable
from typing import Any

from equilibria.run import recipe as recipes
from equilibria.run.studies.measures.epochs import solves
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Chart, Derived, Lines, Pivot, first
from papers.digits.common import with_means

OPTIONS = (
    *("--optimizer.lr", "5e-3", "--eval_solver.name", "Anderson", "--eval_solver.period", "3"),
    *("--eval_solver.rtol", "1e-3", "--eval_solver.max_evals", "400"),
)
VARIANTS = {"without": ("--regularizer.name", "null"), "with": ()}
MEANS = {"forward": 2, "evals": 2, "converged": 4, "radius": 2, "accuracy": 4}
VALUES = {
    "evaluations in training": "forward",
    "evaluations in testing": "evals",
    "test samples converged, %": first("converged", 100),
    "spectral radius": "radius",
    "test accuracy, %": first("accuracy", 100),
}


def curve(context: Context) -> Iterable[dict[str, Any]]:
    """A row for each epoch: evaluations `forward` in training, `evals` and others in testing."""
    for record in context.run.metrics:
        test = solves(record["test"]["forward"])
        yield {
            "epoch": record["epoch"],
            "forward": record["train"]["forward"]["evals"]["mean"],
            "evals": test["evals"],
            "converged": test["converged"],
            "radius": record["spectral_radius"]["mean"],
            "accuracy": record["test"]["accuracy"],
        }


def training(penalty: str, seed: int) -> Training:
    options = [*OPTIONS, *VARIANTS[penalty], "--seed", str(seed)]
    return Training(recipes.load("digits-jr", options), 1)


def ends(data: Data) -> Frame:
    epochs = data.series("epoch")
    return with_means(epochs[epochs["epoch"] == epochs["epoch"].max()], "penalty", MEANS)


def chart(title: str, y: str, scale: float = 1, **options: Any) -> Chart:
    label = "" if scale != 1 else "{} penalty".format
    line = Lines("epoch", y, by=["penalty"], band=True, label=label, scale=scale)
    return Chart(title=title, x="epoch", y="", marks=line, whole_x=True, **options)


STUDY = Study(
    title="Digits with and without Jacobian regularisation",
    points=lambda scale: [
        Point(each, [curve], {"run": training(**each)})
        for each in grid(penalty=VARIANTS, seed=(0, 1, 2))
    ],
    views=[
        Derived(
            ends,
            Pivot(
                title="After the last epoch",
                index={"penalty": "penalty", "seed": "seed"},
                each="accuracy",
                values=VALUES,
            ),
        ),
        Pivot(
            title="After every epoch",
            index={"penalty": "penalty", "seed": "seed", "epoch": "epoch"},
            each="epoch",
            values=VALUES,
        ),
        chart("evaluations of f for a test sample", "evals", zero=True),
        chart("spectral radius at the solution", "radius", zero=True, levels=[("", 1)]),
        chart("test accuracy, %", "accuracy", 100, span_y=(80, 100)),
    ],
)
