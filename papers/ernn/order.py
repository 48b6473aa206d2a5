"""Which of two symbols came first, against the number K of Euler steps.

At equilibrium h_k + h_(k-1) depends on x_k alone, and h_T is the sum of such terms with alternating
signs: inputs that trade places an even number of steps apart do not change it. 50 steps of six
symbols, new sequences in each step. Chance is 50 %; the sum allows 51.9 %, since at this length the
two halves differ by one even step. From 0 the Euler steps begin with eta = 0.3 and a bound of 0.9
on U, from h_(k-1) with 0.1 and none.
"""

from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Lines, Pivot, mean, spread
from papers.ernn.common import SEEDS, point

ZERO = ("--model.cell.start", "zero", "--model.cell.step_size", "0.3", "--model.cell.bound", "0.9")
SOLVED = ("--model.cell.name", "ImplicitERNN", "--solver.name", "Picard", "--solver.rtol", "1e-3")
ADJOINT = ("--adjoint.linear.name", "Neumann", "--adjoint.linear.rtol", "1e-3")
NETWORKS = {
    "ERNN (K = 1, start previous)": (),
    **{
        f"ERNN (K = {steps}, start zero)": ("--model.cell.steps", str(steps), *ZERO)
        for steps in (1, 2, 3, 5, 10, 20, 40)
    },
    "ImplicitERNN": (*SOLVED, *ADJOINT),
    "LSTM": ("--model.cell.name", "LSTM"),
}


def points(scale: Scale) -> list[Point]:
    return [
        point("order", options, 0.5, network=network, seed=seed)
        for network, options in NETWORKS.items()
        for seed in SEEDS
    ]


STUDY = Study(
    item="Theorem 1, and what follows from it; the task is not the paper's",
    title="What a cell at equilibrium cannot learn",
    points=points,
    views=[
        Pivot(
            title="Accuracy against K",
            index={"network": "network"},
            values={
                "test accuracy, %": spread("accuracy", 100),
                "best, %": lambda rows: round(100 * rows["accuracy"].max(), 1),
                "parameters": "parameters",
                "training, s": mean("seconds"),
            },
        ),
        Lines("step", "test_accuracy", by=["network"], scale=100).chart(
            "test accuracy", "step", "%", levels=[("chance", 50)]
        ),
    ],
)
