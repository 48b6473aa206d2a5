"""Validation accuracy on HAR-2 with either start of the Euler steps, and with two activations.

A fifth of the training volunteers is set aside for validation. From h_(k-1) eta begins at 0.01,
from 0 at 0.5, where the state would otherwise be forgotten at once.
"""

from collections.abc import Sequence

from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Cell, Pivot
from equilibria.run.studies.views.tables import Column, mean_and_deviation
from papers.ernn.common import SEEDS, point

KINDS = {
    ("previous", 1, "tanh"): "0.01",
    ("zero", 1, "tanh"): "0.5",
    ("previous", 5, "tanh"): "0.01",
    ("zero", 5, "tanh"): "0.5",
    ("previous", 1, "relu"): "0.01",
}
"""Start, K and activation, with eta at the start of training: from 0, small steps would forget
everything."""


def options(start: str, steps: int, activation: str, size: str) -> Sequence[str]:
    """Return the options of a network that is trained on four fifths of the volunteers."""
    return (
        *("--task.valid", "0.2", "--model.cell.start", start, "--model.cell.step_size", size),
        *("--model.cell.steps", str(steps), "--model.cell.activation", activation),
    )


def points(scale: Scale) -> list[Point]:
    return [
        point(
            "har2",
            options(start, steps, activation, size),
            1.0,
            start=start,
            K=steps,
            activation=activation,
            seed=seed,
        )
        for (start, steps, activation), size in KINDS.items()
        for seed in (SEEDS if (start, steps) == ("previous", 1) else SEEDS[:1])
    ]


def final(column: str) -> Column:
    """Mean and deviation over the seeds of what the last epoch has."""

    def cell(rows: Frame) -> Cell:
        ends = [run[column].dropna().iloc[-1] for _, run in rows.groupby("seed") if column in run]
        return mean_and_deviation([100 * each for each in ends], ".2f")

    return cell


STUDY = Study(
    item="eq. 5 and 6",
    title="Choices by validation",
    points=points,
    views=[
        Pivot(
            title="Start of the Euler steps",
            index={"start": "h^(0)", "K": "K", "activation": "activation"},
            whole=True,
            words={"start": {"previous": "h_(k-1), eq. 5", "zero": "0, eq. 6"}},
            values={
                "seeds": lambda rows: rows["seed"].nunique(),
                "validation accuracy, %": final("valid_accuracy"),
                "test accuracy, %": final("accuracy"),
            },
        )
    ],
)
