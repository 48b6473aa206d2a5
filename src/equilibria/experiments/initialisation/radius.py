"""Figure 3: the largest eigenvalue of the Jacobian at h*, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.initialisation import wide
from equilibria.experiments.initialisation.words import PAPER
from equilibria.experiments.published import AGARWALA_2022
from equilibria.nn.init import Ensemble
from equilibria.theory import radius_at

__all__ = ["EXPERIMENT", "cases", "show"]


def cases(scale: Scale) -> Sequence[Case]:
    """A sweep of each ensemble over scales, shared with Figures 2 and 4."""
    return [wide.sweep(ensemble) for ensemble in PAPER]


def show(done: Results) -> Page:
    """Measured against predicted as in the paper, and both against the scale."""
    return Page(
        [_table(done)],
        [_against_theory(done), *(_against_scale(done, each) for each in PAPER)],
    )


def _predicted(ensemble: Ensemble, scale: float, *, reaction: bool = True) -> float | None:
    found = wide.solved(ensemble, scale, reaction=reaction)
    return None if found is None else radius_at(found)


def _table(done: Results) -> Table:
    rows: list[list[Any]] = []
    for ensemble, words in PAPER.items():
        found = {row["scale"]: row for row in wide.measured(done, ensemble)}
        for scale in wide.SCALES:
            row = found.get(scale)
            paper = _predicted(ensemble, scale, reaction=False)
            ours = _predicted(ensemble, scale)
            value = None if row is None else wide.mean_radius(row)
            rows.append(
                [
                    words,
                    scale,
                    NOT_RUN if value is None else value,
                    paper,
                    ours,
                    None if value is None or not paper else 100 * (value / paper - 1),
                    None if value is None or not ours else 100 * (value / ours - 1),
                ]
            )
    return Table(
        title="Figure 3: largest |eigenvalue| of W diag(phi'(h*)), hard-tanh",
        columns=[
            "ensemble",
            "sqrt(V)",
            "measured",
            "the paper's theory",
            "with the reaction",
            "off the paper's, %",
            "off the reaction's, %",
        ],
        rows=rows,
        note=f"{wide.AVERAGED}; one input of a draw (GOE: of each). The paper's theory takes the "
        "law of h from Theorem 3.1; with the reaction (cavity method), h of symmetric weights has "
        "another law. Theorem 3.2 for Gaussian and orthogonal weights, C.1 for GOE. Beyond 1, h is "
        "no fixed point but where the iteration stopped.",
    )


def _against_theory(done: Results) -> Panel:
    series = wide.curves(
        done,
        lambda ensemble, row: _predicted(ensemble, row["scale"], reaction=False),
        wide.mean_radius,
    )
    if series:
        series.append(
            Series(label="as predicted", x=[0, 2.5], y=[0, 2.5], colour=7, style="dashed")
        )
    return Panel(
        title="Fig. 3: measured against the paper's theory",
        x="predicted largest |eigenvalue|",
        y="measured",
        series=series,
        span_x=(0, 2.5),
        span_y=(0, 2.5),
    )


def _against_scale(done: Results, ensemble: Ensemble) -> Panel:
    rows, words = wide.measured(done, ensemble), PAPER[ensemble]
    title = f"{words}: against the scale"
    if not rows:
        return Panel(title=title, x="sqrt(V)", y="largest |eigenvalue|", series=[])
    x = list(wide.LINES)
    series = [
        Series(
            label="each draw",
            x=[row["scale"] for row in rows for _ in row["radius"]],
            y=[value for row in rows for value in row["radius"]],
            colour=list(PAPER).index(ensemble),
            style="points",
        ),
        Series(
            label="the paper's theory",
            x=x,
            y=[_predicted(ensemble, scale, reaction=False) for scale in x],
            colour=7,
            style="dashed",
        ),
    ]
    if ensemble == "goe":
        series.append(
            Series(
                label="with the reaction",
                x=x,
                y=[_predicted(ensemble, scale) for scale in x],
                colour=3,
                style="dashed",
            )
        )
    return Panel(
        title=title,
        x="sqrt(V)",
        y="largest |eigenvalue|",
        series=series,
        levels=[("stable below", 1.0)],
        span_y=(0, 2.5),
    )


EXPERIMENT = Experiment(
    name="initialisation/radius",
    paper=AGARWALA_2022,
    subject="Figure 3",
    description="Largest eigenvalue of the Jacobian at the fixed point, predicted and measured.",
    cases=cases,
    show=show,
)
