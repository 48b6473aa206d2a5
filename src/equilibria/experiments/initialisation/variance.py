"""Figure 2: the length of h* against theory, which for symmetric weights needs their reaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.initialisation import wide
from equilibria.experiments.initialisation.words import PAPER
from equilibria.experiments.published import AGARWALA_2022
from equilibria.nn.init import Ensemble
from equilibria.theory import NoMeanFieldError, mean_field

__all__ = ["EXPERIMENT", "cases", "show"]


def cases(scale: Scale) -> Sequence[Case]:
    """A sweep of each ensemble over scales, shared with Figures 3 and 4."""
    return [wide.sweep(ensemble) for ensemble in PAPER]


def show(done: Results) -> Page:
    """Measured against predicted, as the paper draws it, and against the scale."""
    return Page([_table(done)], [_against_theory(done), _against_scale(done)])


def _plain(ensemble: Ensemble, scale: float) -> float:
    """Theorem 3.1, whatever the ensemble."""
    return mean_field(wide.ACTIVATION, ensemble, scale**2, reaction=False).square


@lru_cache
def _cavity(scale: float) -> float | None:
    """With the reaction, beyond the transition too: where iteration wanders, it still fits."""
    try:
        return mean_field(wide.ACTIVATION, "goe", scale**2).square
    except NoMeanFieldError:
        return None


def _table(done: Results) -> Table:
    rows: list[list[Any]] = []
    for ensemble, words in PAPER.items():
        found = {row["scale"]: row for row in wide.measured(done, ensemble)}
        for scale in wide.SCALES:
            row, plain = found.get(scale), _plain(ensemble, scale)
            ours = _cavity(scale) if ensemble == "goe" else plain
            length = None if row is None else row["length"]
            rows.append(
                [
                    words,
                    scale,
                    NOT_RUN if length is None else length,
                    plain,
                    ours,
                    None if length is None else 100 * (length / plain - 1),
                    None if length is None or ours is None else 100 * (length / ours - 1),
                    None if row is None else 100 * row["settled"],
                ]
            )
    return Table(
        title="Figure 2: h*.h* / N against theory, hard-tanh",
        columns=[
            "ensemble",
            "sqrt(V)",
            "measured",
            "Theorem 3.1",
            "with the reaction",
            "off Theorem 3.1, %",
            "off the reaction's, %",
            "converged, %",
        ],
        rows=rows,
        note=f"{wide.AVERAGED}. Where the iteration does not converge, h is its last state. The "
        "reaction of symmetric weights (cavity method) is not in the paper; its equations have no "
        "solution at large scales, and it is zero for the other ensembles.",
    )


def _against_theory(done: Results) -> Panel:
    series = wide.curves(
        done, lambda ensemble, row: _plain(ensemble, row["scale"]), lambda row: row["length"]
    )
    top = max(_plain("goe", scale) for scale in wide.SCALES)
    if series:
        series.append(Series(label="Theorem 3.1", x=[0, top], y=[0, top], colour=7, style="dashed"))
        series.append(
            Series(
                label="GOE, with the reaction",
                x=[_plain("goe", scale) for scale in wide.LINES],
                y=[_cavity(scale) for scale in wide.LINES],
                colour=3,
                style="dashed",
            )
        )
    return Panel(
        title="Fig. 2: measured against predicted",
        x="Var h* by Theorem 3.1",
        y="h*.h* / N",
        series=series,
    )


def _against_scale(done: Results) -> Panel:
    series = wide.curves(
        done, lambda _, row: row["scale"], lambda row: row["length"], style="points"
    )
    if series:
        x = list(wide.LINES)
        series += [
            Series(
                label="Theorem 3.1",
                x=x,
                y=[_plain("gaussian", scale) for scale in x],
                colour=7,
                style="dashed",
            ),
            Series(
                label="GOE, with the reaction",
                x=x,
                y=[_cavity(scale) for scale in x],
                colour=3,
                style="dashed",
            ),
        ]
    return Panel(title="the same against the scale", x="sqrt(V)", y="h*.h* / N", series=series,
                 log_y=True)  # fmt: skip


EXPERIMENT = Experiment(
    name="initialisation/variance",
    paper=AGARWALA_2022,
    subject="Figure 2",
    description="How long h* is: Theorem 3.1 fits Gaussian and orthogonal weights; GOE needs more.",
    cases=cases,
    show=show,
)
