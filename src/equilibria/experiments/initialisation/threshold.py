"""Figure 4: where plain iteration stops converging, and where the theory has the radius reach 1."""

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

__all__ = ["EXPERIMENT", "cases", "show"]


def cases(scale: Scale) -> Sequence[Case]:
    """A sweep of each ensemble over scales, shared with Figures 2 and 3."""
    return [wide.sweep(ensemble) for ensemble in PAPER]


def show(done: Results) -> Page:
    """The last step's length and the share that converged, with the predicted scales."""
    return Page(
        [_thresholds(done), _table(done)],
        [_residuals(done), _shares(done)],
    )


def _thresholds(done: Results) -> Table:
    rows: list[list[Any]] = []
    for ensemble, words in PAPER.items():
        found = wide.measured(done, ensemble)
        paper = wide.predicted_scale(ensemble, reaction=False)
        ours = wide.predicted_scale(ensemble)
        half: float | str | None = NOT_RUN
        first: float | None = None
        if found:
            scales = [row["scale"] for row in found]
            half = wide.stopped_at(scales, [row["settled"] for row in found])
            first = next((row["scale"] for row in found if row["settled"] < 1), None)
        rows.append([words, paper, ours, half, first])
    return Table(
        title="Figure 4: the scale at which plain iteration stops converging, hard-tanh",
        columns=[
            "ensemble",
            "sqrt(V*), the paper's theory",
            "sqrt(V*), with the reaction",
            "half converge up to sqrt(V)",
            "first scale at which one fails",
        ],
        rows=rows,
        note=f"{wide.AVERAGED}. Converged: ||h_(t+1) - h_t|| < {wide.SETTLED:g} ||h_t|| at the "
        "last step; the half is interpolated between scales. Two things stop it below the "
        f"prediction: {wide.STEPS} steps get to {wide.SETTLED:g} only where the radius is under "
        f"{wide.SETTLED ** (1 / wide.STEPS):.3f}, and single draws of this width have a larger "
        "radius than the limit (Figure 3).",
    )


def _table(done: Results) -> Table:
    rows: list[list[Any]] = []
    found = {
        ensemble: {row["scale"]: row for row in wide.measured(done, ensemble)} for ensemble in PAPER
    }
    for scale in wide.SCALES:
        row: list[Any] = [scale]
        for ensemble in PAPER:
            one = found[ensemble].get(scale)
            row += [NOT_RUN, None] if one is None else [one["residual"], 100 * one["settled"]]
        rows.append(row)
    return Table(
        title="The last step's length and the share that converged",
        columns=[
            "sqrt(V)",
            *(
                f"{words}: {what}"
                for words in PAPER.values()
                for what in ("||h_(t+1) - h_t||", "converged, %")
            ),
        ],
        rows=rows,
        note=f"{wide.AVERAGED}; mean length.",
    )


def _residuals(done: Results) -> Panel:
    series = wide.curves(done, lambda _, row: row["scale"], lambda row: max(row["residual"], 1e-10))
    if series:
        series += _rules(1e-10, 1e2)
    return Panel(
        title=f"Fig. 4: the last of {wide.STEPS} steps",
        x="sqrt(V)",
        y="||h_(t+1) - h_t||, at least 1e-10",
        series=series,
        log_y=True,
        span_y=(1e-10, 1e3),
    )


def _rules(low: float, high: float) -> list[Series]:
    """An upright at each predicted scale; Gaussian and orthogonal weights share one."""
    marks = (
        ("sqrt(V*) Gaussian, orthogonal", wide.predicted_scale("gaussian"), 7),
        ("sqrt(V*) GOE, the paper's theory", wide.predicted_scale("goe", reaction=False), 5),
        ("sqrt(V*) GOE, with the reaction", wide.predicted_scale("goe"), 3),
    )
    return [
        Series(label=label, x=[at, at], y=[low, high], colour=colour, style="dashed")
        for label, at, colour in marks
    ]


def _shares(done: Results) -> Panel:
    series = wide.curves(done, lambda _, row: row["scale"], lambda row: 100 * row["settled"])
    if series:
        series += [
            Series(label="", x=each.x, y=each.y, colour=each.colour, style="dashed")
            for each in _rules(0, 100)
        ]
    return Panel(
        title=f"converged within {wide.STEPS} steps",
        x="sqrt(V)",
        y="samples, %",
        series=series,
        span_y=(-5, 105),
    )


EXPERIMENT = Experiment(
    name="initialisation/threshold",
    paper=AGARWALA_2022,
    subject="Figure 4",
    description="Where plain iteration stops converging; where the theory has the radius reach 1.",
    cases=cases,
    show=show,
)
