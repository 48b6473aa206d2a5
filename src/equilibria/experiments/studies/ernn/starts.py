"""Where the Euler steps begin: h^(0) = 0 (eq. 6) or h_(k-1) (eq. 5), judged on validation data."""

from __future__ import annotations

from equilibria.experiments.measures.epochs import epochs, summary
from equilibria.experiments.published import KAG_2019
from equilibria.experiments.studies.ernn._trainings import training
from equilibria.experiments.study import Point, Scale, Study
from equilibria.experiments.views import Pivot, last

KINDS = {
    ("previous", 1): "0.01",
    ("zero", 1): "0.5",
    ("previous", 5): "0.01",
    ("zero", 5): "0.5",
}
"""Start and K, with eta at the start of training: from 0, small steps would forget everything."""


def points(scale: Scale) -> list[Point]:
    return [
        Point(
            factors={"start": start, "K": steps},
            measures=[summary, epochs],
            runs={
                "run": training(
                    "har2",
                    (
                        *("--task.valid", "0.2", "--model.cell.start", start),
                        *("--model.cell.steps", str(steps), "--model.cell.step_size", size),
                    ),
                    0,
                    1.0,
                )
            },
        )
        for (start, steps), size in KINDS.items()
    ]


STUDY = Study(
    paper=KAG_2019,
    item="eq. 5 and 6",
    title="Start of the Euler steps",
    description="Validation accuracy on HAR-2 with either start; the better one is the default.",
    note="A fifth of the training volunteers is set aside for validation; one seed. From "
    "h_(k-1) eta begins at 0.01, from 0 at 0.5, where the state would otherwise be forgotten at "
    "once.",
    points=points,
    views=[
        Pivot(
            title="Start of the Euler steps",
            index={"start": "h^(0)", "K": "K"},
            whole=True,
            words={"start": {"previous": "h_(k-1), eq. 5", "zero": "0, eq. 6"}},
            values={
                "validation accuracy, %": last("valid_accuracy", 100),
                "test accuracy, %": lambda rows: round(100 * rows["accuracy"].dropna().iloc[0], 2),
                "training, s": "seconds",
            },
        )
    ],
)
