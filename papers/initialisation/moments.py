"""Second moments and length variances of linear networks against the theory."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from equilibria.nn.init import Ensemble
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import NOT_RUN, Chart, Pivot, Table, curve, of
from papers.initialisation.common import NAMES, lines
from papers.initialisation.linear import point, slope

WIDTHS = (500, 1000, 2000)
FAR, NEAR = (0.8, 0.6, 0.4), (0.2, 0.1, 0.05, 0.02, 0.01)
"""Distances delta = 1 - V / V_c, away from the threshold and near it."""

DRAWS = 20
"""At the largest width, and of untied weights; others have as many draws x units."""

GROUPS: list[tuple[str, Ensemble]] = [
    *(("tied", each) for each in NAMES),
    *(("untied", each) for each in NAMES if each != "normal"),
]
MOMENTS = {"second": "second moment", "length": "length variance"}


def points(scale: Scale) -> list[Point]:
    """Each width and ensemble with tied weights, then with untied ones."""
    found: list[Point] = []
    for width in WIDTHS:
        size = width / WIDTHS[-1]
        # An untied network of 2,000 units multiplies matrices in each of 120 steps: one distance.
        kinds = {
            "tied": ((*FAR, *NEAR), round(DRAWS / size), 0.9 * size**2),
            "untied": (FAR if size < 1 else FAR[-1:], DRAWS, 1.7 * size**2),
        }
        found += [point(each, weights, width, *kinds[weights]) for weights, each in GROUPS]
    return found


def fit_powers(data: Data) -> Iterator[list[Any]]:
    """Deviations of single draws at each width, and their powers of the width."""
    for moment, words in MOMENTS.items():
        for weights, ensemble in GROUPS:
            head = [words, NAMES[ensemble], weights]
            rows = data.series("delta", weights=weights, ensemble=ensemble)
            if rows.empty:
                yield [*head, NOT_RUN]
                continue
            table = rows.pivot(index="width", columns="delta", values=f"{moment}_error")
            table = table.reindex(index=WIDTHS, columns=FAR)
            hardest = table[FAR[-1]]
            mean = np.exp(np.log(table).mean(axis=1, skipna=False))  # of widths with all distances
            cells = [NOT_RUN if value != value else f"{100 * value:.3f}" for value in hardest]
            powers = [each.dropna() for each in (hardest, mean)]
            yield [*head, *cells, *(f"{slope(p):.2f}" if len(p) > 1 else None for p in powers)]


def _chart(moment: str, level: float, span: tuple[float, float]) -> Chart:
    measured = partial(lines, x="width", y=f"{moment}_error", scale=100)
    return Chart(
        title=f"{MOMENTS[moment]}, δ = {FAR[-1]} (dashed: untied weights)",
        x="units, N",
        y="median |deviation| of a draw, %",
        marks=[
            measured(where={"weights": "tied", "delta": FAR[-1]}, style="marked"),
            measured(where={"weights": "untied", "delta": FAR[-1]}, style="dashed", label=""),
            curve("1 / N", WIDTHS, lambda width: level * WIDTHS[0] / width, style="line"),
        ],
        log_x=True,
        log_y=True,
        span_y=span,
    )


STUDY = Study(
    item="sections 2.1 and 2.2",
    title="Moments of linear networks",
    points=points,
    views=[
        Pivot(
            title=f"Median deviation from the theory, %, {DRAWS} networks of {WIDTHS[-1]} units",
            index={"ensemble": "ensemble", "weights": "weights"},
            each="delta",
            where={"width": WIDTHS[-1]},
            words={"ensemble": NAMES},
            values={
                f"{words}, delta = {delta}": of(f"{moment}_deviation", 100, "{:+.2f}", delta=delta)
                for moment, words in MOMENTS.items()
                for delta in FAR
            },
            note="Measured over theory, less one; second moment E z.z / x.x = tr M^T M and length "
            "variance N sigma^2 = 2 tr (M^T M)^2, traces in full, float64. delta = 1 - V / V_c. "
            f"Untied networks of {WIDTHS[-1]} units at delta = {FAR[-1]} alone. Normal: the "
            "eigenvalues of each W are independent draws from the disk, which fluctuate as "
            "N^(-1/2) at any width: these deviations are the spectrum's own.",
        ),
        Table(
            title=f"Median |deviation| of a draw at delta = {FAR[-1]}, %, against width",
            columns=[
                *("moment", "ensemble", "weights"),
                *(f"N = {width}" for width in WIDTHS),
                *("power of N", "power of N, all delta"),
            ],
            rows=fit_powers,
            note="Power of N: slope of log |deviation| against log N. The last column is of the "
            f"geometric mean over delta = {', '.join(map(str, FAR))}, of the widths that have all "
            f"three. A median over {DRAWS} draws is uncertain by about a fifth, a power by 0.2. "
            "Independent eigenvalues (normal) have -1/2.",
        ),
        _chart("second", 10.7, (0.0003, 16)),
        _chart("length", 32.6, (0.0006, 50)),
        lines(
            x="delta",
            y="length_ratio",
            where={"weights": "tied", "width": WIDTHS[-1]},
            style="marked",
        ).chart(
            f"length variance, {WIDTHS[-1]} units, tied weights",
            "distance, δ = 1 - V / V_c",
            "median over theory",
            log_x=True,
            log_y=True,
        ),
    ],
)
