"""Linear networks of some width against the theory of infinitely wide ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.initialisation.linear import (
    Pair,
    spaced,
    tied,
    untied,
)
from equilibria.experiments.initialisation.words import COLOURS, NAMES
from equilibria.experiments.published import AGARWALA_2022
from equilibria.nn.init import Ensemble
from equilibria.theory import critical_V, length_variance, second_moment

__all__ = ["EXPERIMENT", "cases", "show"]

Moment = Literal["second", "length"]

WIDTHS = (500, 1000, 2000)
FAR, NEAR = (0.8, 0.6, 0.4), (0.2, 0.1, 0.05, 0.02, 0.01)
"""Distances delta = 1 - V / V_c at which the theory is to hold, and nearer to the threshold."""

DRAWS = 20
"""At the largest width; tied weights have as many more draws as their width is smaller."""

UNTIED: tuple[Ensemble, ...] = ("gaussian", "orthogonal", "goe", "antisymmetric")

ALLOWED: Mapping[Moment, float] = {"second": 0.02, "length": 0.05}
"""What the median may be off by, asked of the largest width at delta of .4 and more."""

MOMENTS: Mapping[Moment, str] = {"second": "second moment", "length": "length variance"}

MINUTES = {True: 0.9, False: 1.7}
"""Of one core, for 20 networks of 2,000 units with tied weights, or untied."""


def cases(scale: Scale) -> Sequence[Case]:
    """Each width with tied weights and each ensemble, then with untied weights."""
    return [
        *(_case(True, ensemble, width) for width in WIDTHS for ensemble in NAMES),
        *(_case(False, ensemble, width) for width in WIDTHS for ensemble in UNTIED),
    ]


def _key(one: bool, ensemble: Ensemble, width: int) -> str:
    return f"{'tied' if one else 'untied'}-{ensemble}-{width}"


def _words(one: bool, ensemble: Ensemble) -> str:
    return f"{NAMES[ensemble]}, {'tied' if one else 'untied'}"


def _case(one: bool, ensemble: Ensemble, width: int) -> Case:
    draws = DRAWS * (max(WIDTHS) // width) if one else DRAWS
    # An untied network of 2,000 units is a matrix product of its size for each of 120 steps.
    deltas = (*FAR, *NEAR) if one else FAR if width < max(WIDTHS) else FAR[-1:]
    return Case(
        key=_key(one, ensemble, width),
        description=f"{draws} networks of {width} units, {_words(one, ensemble)}, at "
        f"{len(deltas)} distances",
        minutes=max(0.1, round(MINUTES[one] * (width / 2000) ** 2, 1)),
        run=partial(_run, one, ensemble, width, deltas, draws),
        settings={
            "tied": one,
            "ensemble": ensemble,
            "width": width,
            "deltas": deltas,
            "draws": draws,
            **({} if one else {"spacing": [spaced(delta) for delta in deltas]}),
        },
    )


def _run(
    one: bool,
    ensemble: Ensemble,
    width: int,
    deltas: Sequence[float],
    draws: int,
    place: Place,
) -> Mapping[str, Any]:
    if one:
        drawn = [tied(ensemble, width, deltas, seed) for seed in range(draws)]
        columns: list[Sequence[Pair]] = list(zip(*drawn, strict=True))
    else:
        columns = [list(untied(ensemble, width, delta, draws, seed=0)) for delta in deltas]
    return {
        "delta": deltas,
        "second": [[pair[0] for pair in column] for column in columns],
        "length": [[pair[1] for pair in column] for column in columns],
    }


# --- what is shown -------------------------------------------------------------------------------


def show(done: Results) -> Page:
    """What was asked for; deviations against width, and near the threshold."""
    return Page(
        [_criteria(done), _scaling(done)],
        [
            _against_width(done, "second"),
            _against_width(done, "length"),
            _near(done),
        ],
    )


def _groups() -> Iterator[tuple[bool, Ensemble]]:
    for ensemble in NAMES:
        yield True, ensemble
    for ensemble in UNTIED:
        yield False, ensemble


def _relative(
    done: Results, one: bool, ensemble: Ensemble, width: int, moment: Moment
) -> dict[float, list[float]]:
    """Measured over theory less one, for each draw, by the distance."""
    found = done.get(_key(one, ensemble, width))
    if found is None:
        return {}
    formula = second_moment if moment == "second" else length_variance
    critical = critical_V(ensemble, tied=one)
    return {
        delta: [value / formula(ensemble, critical * (1 - delta), tied=one) - 1 for value in values]
        for delta, values in zip(found.value["delta"], found.value[moment], strict=True)
    }


def _criteria(done: Results) -> Table:
    width = max(WIDTHS)
    rows: list[list[Any]] = []
    for one, ensemble in _groups():
        row: list[Any] = [NAMES[ensemble], "tied" if one else "untied"]
        held: list[bool] = []
        for moment in MOMENTS:
            found = _relative(done, one, ensemble, width, moment)
            if not found:
                row += [NOT_RUN, *[None] * (len(FAR) - 1)]
                continue
            middles = [statistics.median(found[delta]) if delta in found else None for delta in FAR]
            held += [abs(middle) <= ALLOWED[moment] for middle in middles if middle is not None]
            row += [None if middle is None else f"{100 * middle:+.2f}" for middle in middles]
        rows.append([*row, ("yes" if all(held) else "no") if held else None])
    return Table(
        title=f"Median deviation from the theory, %, {DRAWS} networks of {width} units",
        columns=[
            *("ensemble", "weights"),
            *(f"{words}, delta = {delta}" for words in MOMENTS.values() for delta in FAR),
            "within 2 % and 5 %",
        ],
        rows=rows,
        note="Measured over theory, less one; second moment E z.z / x.x = tr M^T M and length "
        "variance N sigma^2 = 2 tr (M^T M)^2, traces in full, float64. delta = 1 - V / V_c. Untied "
        f"networks of {width} units at the hardest delta alone. Normal: the eigenvalues of each W "
        "are drawn independently from the disk, which no wider matrix makes more even than "
        "N^(-1/2): these deviations are the spectrum's own.",
    )


def _typical(found: Mapping[float, Sequence[float]]) -> float | None:
    """Geometric mean, over the distances of `FAR`, of the median |deviation| of a draw."""
    middles = [
        statistics.median(abs(value) for value in found[delta]) for delta in FAR if delta in found
    ]
    if len(middles) < len(FAR):  # the largest untied networks have one distance
        return None
    return math.exp(statistics.fmean(math.log(middle) for middle in middles))


def _at_hardest(found: Mapping[float, Sequence[float]]) -> float | None:
    """Median |deviation| of a draw at the smallest distance of `FAR`."""
    values = found.get(FAR[-1])
    return None if values is None else statistics.median(abs(value) for value in values)


def _power(widths: Sequence[int], values: Sequence[float]) -> float:
    x, y = [math.log(width) for width in widths], [math.log(value) for value in values]
    return statistics.linear_regression(x, y).slope


def _scaling(done: Results) -> Table:
    rows: list[list[Any]] = []
    for moment, words in MOMENTS.items():
        for one, ensemble in _groups():
            found = [_at_hardest(_relative(done, one, ensemble, n, moment)) for n in WIDTHS]
            whole = [_typical(_relative(done, one, ensemble, n, moment)) for n in WIDTHS]
            row: list[Any] = [words, NAMES[ensemble], "tied" if one else "untied"]
            row += [NOT_RUN if value is None else f"{100 * value:.3f}" for value in found]
            for values in (found, whole):
                known = [(n, v) for n, v in zip(WIDTHS, values, strict=True) if v is not None]
                row.append(f"{_power(*zip(*known, strict=True)):.2f}" if len(known) > 1 else None)
            rows.append(row)
    return Table(
        title=f"Median |deviation| of a draw at delta = {FAR[-1]}, %, against width",
        columns=[
            *("moment", "ensemble", "weights"),
            *(f"N = {width}" for width in WIDTHS),
            *("power of N", "power of N, all delta"),
        ],
        rows=rows,
        note="Power of N: slope of log |deviation| against log N; -1 is asked for. The last column "
        f"is of the geometric mean over delta = {', '.join(map(str, FAR))}, of those widths that "
        "have all three. A median over 20 draws is uncertain by a fifth or so, a power by .2. "
        "Independent eigenvalues (normal) have -1/2.",
    )


def _against_width(done: Results, moment: Moment) -> Panel:
    """Median |deviation| of a draw at the hardest distance, and the line 1 / N."""
    series: list[Series] = []
    heights: list[float] = []
    for one, ensemble in _groups():
        found = {n: _at_hardest(_relative(done, one, ensemble, n, moment)) for n in WIDTHS}
        known = {n: 100 * value for n, value in found.items() if value}
        if not known:
            continue
        heights += known.values()
        series.append(
            Series(
                label=_words(one, ensemble) if one == (moment == "second") else "",
                x=list(known),
                y=list(known.values()),
                colour=COLOURS[ensemble],
                style="marked" if one else "dashed",
            )
        )
    if series:
        level = 2 * max(heights)
        series.append(
            Series(
                label="1 / N",
                x=WIDTHS,
                y=[level * WIDTHS[0] / width for width in WIDTHS],
                colour=7,
            )
        )
    return Panel(
        title=f"{MOMENTS[moment]} at δ = {FAR[-1]}: median |deviation| of a draw",
        x="units, N",
        y="deviation from theory, %",
        series=series,
        log_x=True,
        log_y=True,
        span_y=(min(heights) / 30, 3 * max(heights)) if heights else None,  # room for the legend
    )


def _near(done: Results) -> Panel:
    """Where networks of the largest width leave the theory: their median over the theory."""
    series: list[Series] = []
    for ensemble in NAMES:
        found = _relative(done, True, ensemble, max(WIDTHS), "length")
        if found:
            series.append(
                Series(
                    label=_words(True, ensemble),
                    x=list(found),
                    y=[1 + statistics.median(values) for values in found.values()],
                    colour=COLOURS[ensemble],
                    style="marked",
                )
            )
    return Panel(
        title=f"length variance of {max(WIDTHS)} units near the threshold",
        x="distance, δ = 1 - V / V_c",
        y="median over theory",
        series=series,
        log_x=True,
        log_y=True,
    )


EXPERIMENT = Experiment(
    name="initialisation/moments",
    paper=AGARWALA_2022,
    subject="sections 2.1 and 2.2",
    description="Second moments and length variances of linear networks against the theory.",
    cases=cases,
    show=show,
)
