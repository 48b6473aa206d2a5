"""Figure 2, left: evaluations grow with the epochs, those of the adjoint stay fewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments import trainings
from equilibria.experiments.case import Case, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Experiment, Page, Scale
from equilibria.experiments.published import BAI_2019

__all__ = ["EXPERIMENT", "cases", "show"]

CELLS = ("transformer", "trellisnet")


def cases(scale: Scale) -> Sequence[Case]:
    """The trainings on Penn Treebank, whose metrics have all that is shown."""
    return [trainings.language(cell, scale) for cell in CELLS]


def show(done: Results) -> Page:
    """Mean evaluations in training, forward and adjoint, epoch by epoch."""
    rows: list[Sequence[Any]] = []
    panels: list[Panel] = []
    for cell in CELLS:
        key = trainings.deq_key(cell, 0)
        metrics = done[key].value["metrics"] if key in done else []
        epochs = [epoch["epoch"] for epoch in metrics]
        lines = {
            name: [mean_evals(epoch["train"][name]) for epoch in metrics]
            for name in ("forward", "adjoint")
        }
        converged = [_converged(epoch["train"]["forward"]) for epoch in metrics]
        rows += zip(
            [cell] * len(epochs), epochs, lines["forward"], lines["adjoint"], converged, strict=True
        )
        panels.append(
            Panel(
                title=f"DEQ-{'Transformer' if cell == 'transformer' else 'TrellisNet'}, training",
                x="epoch",
                y="evaluations, mean",
                series=[
                    Series(label=name, x=epochs, y=line, style="marked")
                    for name, line in lines.items()
                ],
                whole_x=True,
                zero=True,
            )
        )
    table = Table(
        title="Evaluations in training",
        columns=["cell", "epoch", "forward, mean", "adjoint, mean", "forward converged, %"],
        rows=rows,
        note="Penn Treebank, to the recipe's tolerances and limits; an adjoint's evaluation is one "
        "vector-Jacobian product. Epochs of a warm-up by unrolling have no solves. The paper's "
        "figure shows both growing over the epochs, the backward below the forward; its values "
        "are not printed.",
    )
    return Page([table], panels)


def mean_evals(solves: Any) -> float | None:
    """The mean evaluations of a tally of solves; None where there were none."""
    evals = solves["evals"]
    return None if evals is None else evals["mean"]


def _converged(solves: Any) -> float | None:
    status = solves["status"]
    return None if status is None else 100 * status["CONVERGED"]


EXPERIMENT = Experiment(
    name="deq/growth",
    paper=BAI_2019,
    subject="Figure 2, left",
    description="Evaluations of training solves, forward and adjoint, grow with the epochs.",
    cases=cases,
    show=show,
)
