"""Figure 1: how the length variance of a linear network grows towards the critical V."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.initialisation.linear import spaced, tied, untied
from equilibria.experiments.initialisation.words import COLOURS, NAMES, PAPER
from equilibria.experiments.published import AGARWALA_2022
from equilibria.nn.init import Ensemble
from equilibria.theory import critical_V, length_variance, length_variance_exponent

__all__ = ["EXPERIMENT", "cases", "show"]

LARGE, SMALL, DRAWS = 5000, 1000, 10
"""Units of the figure's network, of those that are drawn several times, and how often."""

COARSE = tuple(round(10 ** (-step / 4), 6) for step in range(1, 13))
FINE = tuple(round(10 ** (-step / 12), 6) for step in range(1, 37))
"""Distances delta = 1 - V / V_c: a Gaussian W is inverted at each, the others' cost nothing."""

WIDTH, STATES, APART = 300, 20, (0.3, 0.2, 0.1, 0.05)
"""Of the networks with untied weights: units, states that are measured, distances."""

PUBLISHED = {"gaussian": -4.0, "orthogonal": -3.0, "goe": -2.5}
UNTIED = -2.0
"""Exponents as the paper has them, section 2.2.3."""

RANGES = {"gaussian": (0.1, 0.6), "orthogonal": (0.01, 0.3), "goe": (0.03, 0.3)}
"""Distances that the exponents are fitted over: below, N units are too few for the limit. That is
where delta comes near N^(-1/2) for a Gaussian W, N^(-2/3) for the GOE and 1/N for orthogonal W."""


def cases(scale: Scale) -> Sequence[Case]:
    """One W of 5,000 units an ensemble, several of 1,000, and networks with untied weights."""
    return [
        *(_tied(ensemble, LARGE, 1) for ensemble in PAPER),
        *(_tied(ensemble, SMALL, DRAWS) for ensemble in PAPER),
        *(
            Case(
                key=f"untied-{ensemble}",
                description=f"{STATES} states of untied weights, {NAMES[ensemble]}, "
                f"at {len(APART)} distances",
                minutes=0.2,
                run=partial(_run_untied, ensemble),
                settings={
                    "ensemble": ensemble,
                    "width": WIDTH,
                    "deltas": APART,
                    "states": STATES,
                    "spacing": [spaced(delta) for delta in APART],
                },
            )
            for ensemble in PAPER
        ),
    ]


def _tied(ensemble: Ensemble, width: int, draws: int) -> Case:
    deltas = COARSE if ensemble == "gaussian" else FINE
    return Case(
        key=f"{ensemble}-{width}",
        description=f"{draws} W of {width} units, {NAMES[ensemble]}, at {len(deltas)} distances",
        minutes=1.0 if width == LARGE else 0.1,
        run=partial(_run_tied, ensemble, width, deltas, draws),
        settings={"ensemble": ensemble, "width": width, "deltas": deltas, "draws": draws},
    )


def _run_tied(
    ensemble: Ensemble, width: int, deltas: Sequence[float], draws: int, place: Place
) -> Mapping[str, Any]:
    found = [tied(ensemble, width, deltas, seed) for seed in range(draws)]
    return {
        "delta": deltas,
        "length": [[pair[1] for pair in draw] for draw in found],
        "second": [[pair[0] for pair in draw] for draw in found],
    }


def _run_untied(ensemble: Ensemble, place: Place) -> Mapping[str, Any]:
    found = [list(untied(ensemble, WIDTH, delta, STATES, seed=0)) for delta in APART]
    return {
        "delta": APART,
        "length": [[pair[1] for pair in states] for states in found],
        "second": [[pair[0] for pair in states] for states in found],
    }


# --- what is shown -------------------------------------------------------------------------------


def show(done: Results) -> Page:
    """Figure 1, its draws, the untied networks; exponents, and the figure's numbers."""
    return Page([_exponents(done), _numbers(done)], [_figure(done), _draws(done), _untied(done)])


def _theory(ensemble: Ensemble, deltas: Sequence[float], *, one: bool = True) -> list[float]:
    critical = critical_V(ensemble, tied=one)
    return [length_variance(ensemble, critical * (1 - delta), tied=one) for delta in deltas]


def _printed(delta: float) -> float:
    """Eq. 14, N sigma^2 of Gaussian and GOE networks with untied weights as the paper has it."""
    V = 1 - delta
    return 2 * (2 / (1 - V) ** 2 + 1 / (1 - V**2) ** 2 - 2 / (1 - V**2))


def _figure(done: Results) -> Panel:
    """One W an ensemble over the theory's lines: the paper's figure."""
    series: list[Series] = []
    for ensemble in PAPER:
        found = done.get(f"{ensemble}-{LARGE}")
        if found is not None:
            series.append(_line(ensemble, FINE))
            series.append(_points(ensemble, found.value["delta"], found.value["length"][0]))
    return _panel(f"Fig. 1: tied weights, one W of {LARGE} units (lines: theory)", series)


def _draws(done: Results) -> Panel:
    """The middle of several draws and their whole range."""
    series: list[Series] = []
    for ensemble in PAPER:
        found = done.get(f"{ensemble}-{SMALL}")
        if found is not None:
            series.append(_line(ensemble, FINE, dashed=True))
            series.append(_range(ensemble, found.value["delta"], _by_delta(found.value["length"])))
    title = f"{DRAWS} W of {SMALL} units: median and range (dashed: theory)"
    return _panel(title, series)


def _untied(done: Results) -> Panel:
    """Untied weights: our formulas, eq. 14 as printed, and what is measured."""
    series: list[Series] = []
    deltas = [delta for delta in FINE if delta >= 0.01]
    for ensemble in PAPER:
        found = done.get(f"untied-{ensemble}")
        if found is not None:
            middles = [statistics.median(states) for states in found.value["length"]]
            series.append(_line(ensemble, deltas, one=False))
            series.append(_points(ensemble, found.value["delta"], middles))
    if series:
        series.append(
            Series(
                label="eq. 14 as printed, Gaussian and GOE",
                x=deltas,
                y=[_printed(delta) for delta in deltas],
                colour=7,
                style="dashed",
            )
        )
    return _panel(f"untied weights, {WIDTH} units (lines: theory)", series)


def _panel(title: str, series: Sequence[Series]) -> Panel:
    return Panel(
        title=title,
        x="distance, δ = 1 - V / V_c",
        y="length variance, N σ²",
        series=series,
        log_x=True,
        log_y=True,
    )


def _line(
    ensemble: Ensemble, deltas: Sequence[float], *, dashed: bool = False, one: bool = True
) -> Series:
    return Series(
        label="",
        x=deltas,
        y=_theory(ensemble, deltas, one=one),
        colour=COLOURS[ensemble],
        style="dashed" if dashed else "line",
    )


def _points(ensemble: Ensemble, deltas: Sequence[float], values: Sequence[float]) -> Series:
    return Series(
        label=NAMES[ensemble],
        x=deltas,
        y=values,
        colour=COLOURS[ensemble],
        style="points",
    )


def _range(
    ensemble: Ensemble, deltas: Sequence[float], values: Sequence[Sequence[float]]
) -> Series:
    deltas, values = deltas[::-1], values[::-1]  # a band runs to the right
    return Series(
        label=NAMES[ensemble],
        x=deltas,
        y=[statistics.median(each) for each in values],
        low=[min(each) for each in values],
        high=[max(each) for each in values],
        colour=COLOURS[ensemble],
        style="line",
    )


def _by_delta(draws: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*draws, strict=True)]


def _slope(deltas: Sequence[float], values: Sequence[float]) -> float:
    """Of log(values) against log(delta), by least squares."""
    x, y = [math.log(delta) for delta in deltas], [math.log(value) for value in values]
    return statistics.linear_regression(x, y).slope


def _exponents(done: Results) -> Table:
    rows: list[list[Any]] = []
    for one in (True, False):
        for ensemble in PAPER:
            found = done.get(f"{ensemble}-{LARGE}" if one else f"untied-{ensemble}")
            published = PUBLISHED[ensemble] if one else UNTIED
            row: list[Any] = [
                NAMES[ensemble],
                "tied" if one else "untied",
                published,
                length_variance_exponent(ensemble, tied=one),
            ]
            if found is None:
                rows.append([*row, NOT_RUN, None, None, None])
                continue
            lengths = found.value["length"]
            points = [
                (delta, lengths[0][place] if one else statistics.median(lengths[place]))
                for place, delta in enumerate(found.value["delta"])
                if not one or RANGES[ensemble][0] <= delta <= RANGES[ensemble][1]
            ]
            deltas, values = zip(*points, strict=True)
            rows.append(
                [
                    *row,
                    round(_slope(deltas, values), 2),
                    round(_slope(deltas, _theory(ensemble, deltas, one=one)), 2),
                    f"{min(deltas):.2g} to {max(deltas):.2g}",
                    LARGE if one else WIDTH,
                ]
            )
    return Table(
        title="Exponents of the length variance's divergence",
        columns=[
            *("ensemble", "weights", "published", "ours, delta to 0", "fitted, measured"),
            *("fitted, formula", "over delta", "N"),
        ],
        rows=rows,
        note="Slopes of log N sigma^2 against log delta; measured and formula over the same delta. "
        "Published: section 2.2.3, whose -2 for untied Gaussian and GOE weights stands on eq. 14; "
        "see the errata. Tied: one W; untied: medians over "
        f"{STATES} states.",
    )


def _numbers(done: Results) -> Table:
    rows: list[list[Any]] = []
    for ensemble in PAPER:
        large, small = done.get(f"{ensemble}-{LARGE}"), done.get(f"{ensemble}-{SMALL}")
        deltas = [delta for delta in FINE if delta in COARSE]
        for delta in deltas:
            row: list[Any] = [NAMES[ensemble], f"{delta:.3g}"]
            row.append(f"{_theory(ensemble, [delta])[0]:.4g}")
            if large is None:
                row.append(NOT_RUN)
            else:
                place = large.value["delta"].index(delta)
                row.append(f"{large.value['length'][0][place]:.4g}")
            if small is None:
                rows.append([*row, NOT_RUN, None])
                continue
            values = _by_delta(small.value["length"])[small.value["delta"].index(delta)]
            edges = f"{min(values):.3g} to {max(values):.3g}"
            rows.append([*row, f"{statistics.median(values):.4g}", edges])
    return Table(
        title="Length variance N sigma^2 near the critical V, tied weights",
        columns=[
            *("ensemble", "delta", "theory", f"one W, N = {LARGE}"),
            *(f"median of {DRAWS}, N = {SMALL}", "range"),
        ],
        rows=rows,
        note="delta = 1 - V / V_c, V_c = 1/4 for the GOE and 1 for the others. 2 tr (M^T M)^2, M = "
        "(I - W)^-1, by eigenvalues or by Cholesky's factors, in float64.",
    )


EXPERIMENT = Experiment(
    name="initialisation/length",
    paper=AGARWALA_2022,
    subject="Figure 1",
    description="Length variance of linear networks against the distance from the critical V.",
    cases=cases,
    show=show,
)
